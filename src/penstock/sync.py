"""For programs and functions that do not await: the ctx types of functions written with def, and the backend's type."""

from penstock.calls.syncbackend import SyncBackend as Backend
from penstock.calls.syncctx import SyncActionCtx as ActionCtx
from penstock.calls.syncctx import SyncMutationCtx as MutationCtx
from penstock.calls.syncctx import SyncQueryCtx as QueryCtx

__all__ = ["ActionCtx", "Backend", "MutationCtx", "QueryCtx"]
