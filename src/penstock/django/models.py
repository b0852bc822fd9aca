"""No models. Django tells only apps with this module of its migrations."""
