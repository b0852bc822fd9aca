"""The words of penstock and of Python that the checker knows: what is awaited, and what can await nothing.

The checker imports nothing of penstock. A test compares these words with the real classes.
"""

from __future__ import annotations

import ast
from typing import Any

from penstock.check.program import Function, Table
from penstock.check.project import Outside
from penstock.check.values import Entries, Method

ENDS = {"take", "first", "unique", "collect", "paginate", "count", "sum", "min", "max"}
RUNS = {"run_query", "run_mutation", "run_action"}
STEPS = {*RUNS, "run_workflow"}
POOL = {
    "enqueue", "enqueue_batch", "status", "status_batch", "result", "cancel", "cancel_all", "retry", "retry_all",
    "retry_on_complete", "retry_all_on_complete", "complete", "fail", "set_max_parallelism", "pause", "resume",
}  # fmt: skip
CTX_CALLS = {
    *STEPS, "sleep", "sleep_until", "wait_for",
    "sql", "rate_limit", "check_access", "check_fence", "wait_cancelled", "get_document", "get_documents",
    "mark_completed", "vector_search",
}  # fmt: skip
OPENS = {"penstock.testing.TestApp", "penstock.App().open"}
OF_BACKENDS = {
    *RUNS, "job", "jobs", "job_counts", "pools", "start", "stop", "kill", "check", "declare", "health", "plan",
    "run_until", "run_until_idle", "assert_scheduled",
}  # fmt: skip
AWAITED = {
    "db": {"get", "insert", "insert_many", "patch", "replace", "delete"},
    "scheduler": {"run_after", "run_at", "cancel", "retry", "get", "complete", "fail"},
    "jobs": {"get", "list", "paginate"},
    "outbox": {"send"},
    "auth": {"get_user_identity", "require"},
    "work": {"progress", "complete_later"},
}
OF_VALUES = {
    "len", "str", "int", "float", "bool", "list", "dict", "set", "tuple", "sorted", "sum", "min", "max", "repr",
    "print", "any", "all", "enumerate", "zip",
}  # fmt: skip
DECIDES = {"sum", "any", "all", "min", "max", "sorted", "filter"}
COPIES = {"list", "tuple", "set", "reversed", "iter"}
TAKES_CALLS = {f"asyncio.{one}" for one in ("gather", "wait_for", "shield", "create_task", "ensure_future")}
OF_LOGGERS = {"debug", "info", "warning", "error", "exception"}
CLIENT_MAKERS = {"boto3.client", "boto3.resource", "redis.from_url", "grpc.insecure_channel"}


def takes_values(node: ast.Call, of: Any) -> bool:
    """Whether a call can do nothing with a call that was not awaited, unlike ``asyncio.gather``."""
    if isinstance(of, Outside):
        return of.name.startswith("penstock.") and of.name.count(".") == 1
    if isinstance(of, (Table, Method)):
        return not isinstance(of, Method) or not isinstance(of.of, Function | Entries)
    if isinstance(node.func, ast.Name):
        return of is None and (node.func.id in OF_VALUES or node.func.id.endswith(("Error", "Exception")))
    return isinstance(node.func, ast.Attribute) and node.func.attr in OF_LOGGERS
