"""The ctx types of functions written with def: annotate their first parameter with these."""

from penstock.calls.syncctx import SyncActionCtx as ActionCtx
from penstock.calls.syncctx import SyncMutationCtx as MutationCtx
from penstock.calls.syncctx import SyncQueryCtx as QueryCtx

__all__ = ["ActionCtx", "MutationCtx", "QueryCtx"]
