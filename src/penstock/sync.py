"""For programs and functions that do not await: the ctx types of functions written with def, and those of backends."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock.api.syncbackend import SyncBackend as Backend
from penstock.api.syncwords import SyncCallerBackend as CallerBackend
from penstock.calls.run.syncctx import SyncActionCtx as ActionCtx
from penstock.calls.run.syncctx import SyncMutationCtx as MutationCtx
from penstock.calls.run.syncctx import SyncQueryCtx as QueryCtx
from penstock.calls.run.syncctx import SyncWorkflowCtx as WorkflowCtx

if TYPE_CHECKING:
    from penstock.calls.run.syncrequest import SyncRequest as Request

__all__ = ["ActionCtx", "Backend", "CallerBackend", "MutationCtx", "QueryCtx", "Request", "WorkflowCtx"]


def __getattr__(name: str) -> Any:
    """Load Starlette only for programs with HTTP actions."""
    if name != "Request":
        raise AttributeError(f"module 'penstock.sync' has no attribute {name!r}")
    return importlib.import_module("penstock.calls.run.syncrequest").SyncRequest
