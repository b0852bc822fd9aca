"""The conformance suite: what `store.contract` promises, as tests that both stores pass."""
