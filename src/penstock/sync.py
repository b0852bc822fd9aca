"""For programs and functions that do not await: the ctx types of functions written with def, and those of backends."""

from penstock.api.syncbackend import SyncBackend as Backend
from penstock.api.syncwords import SyncCallerBackend as CallerBackend
from penstock.calls.run.syncctx import SyncActionCtx as ActionCtx
from penstock.calls.run.syncctx import SyncMutationCtx as MutationCtx
from penstock.calls.run.syncctx import SyncQueryCtx as QueryCtx

__all__ = ["ActionCtx", "Backend", "CallerBackend", "MutationCtx", "QueryCtx"]
