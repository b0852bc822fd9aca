"""For programs and functions that do not await: the ctx types of functions written with def, and the backend's type."""

from penstock.api.syncbackend import SyncBackend as Backend
from penstock.calls.run.syncctx import SyncActionCtx as ActionCtx
from penstock.calls.run.syncctx import SyncMutationCtx as MutationCtx
from penstock.calls.run.syncctx import SyncQueryCtx as QueryCtx

__all__ = ["ActionCtx", "Backend", "MutationCtx", "QueryCtx"]
