"""The conformance suite: what `store` promises, as tests that both stores pass."""
