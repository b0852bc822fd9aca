"""The public names: which they are, where they live, and that asking for one loads nothing else."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import penstock
from penstock import client

PUBLIC = """
Access AccessDenied ActionCtx ActionWork App ApplicationError ArgumentsInvalid Attempt Backend BigInt CallTimeout
CallerBackend Canceled CircuitBreaker Codec Completion Config ConfigError Conflict ConstraintViolation ContextError
CronExpression CronStatus CursorInvalid CustomJWT DataError DatabaseBusy DatabaseFull DatabaseUnavailable
DeclarationError DuplicateJob Encrypted Event EventTimeout Failed FernetCodec File Finished FixedWindow
FunctionNotFound Id IdInvalid Identity Index InputError Int64 Interval JobError JobFilter JobId JobState JobStatus
LeaseLost LimitExceeded LocalTime Lock LockLost LockTaken Message MutationCtx MutationTaskCtx NonRetryableError
NotSignedIn NotUnique OIDC OpenFile OutboxMessage OutboxNotFound OutboxPage OutboxStatus Overloaded OwnJWT Page
PaginationOptions Pending PenstockError PracticeBroken Progress ProviderUnavailable QueryCtx Range RateLimited
RateLimiter RateStatus RequestInfo ResultInvalid Retry RowInvalid RowNotFound Rules Running SchemaMismatch SearchIndex
SearchNotReady Snooze StepFailed StepLost Success SyncMutationTaskCtx SyncTaskBatchCtx SyncTaskBatchRun SyncTaskCtx
Table TaskBatchCtx TaskBatchRun TaskConditionFailed TaskCtx TaskExplanation TaskFilter TaskNotFound TaskPage
TaskRecord TaskStatus TokenBucket TokenExpired TokenInvalid TopicNotFound TryAgain Unauthenticated UnawaitedCall
Undecryptable UniqueViolation UsageError UserTable ValueInvalid VectorHit VectorIndex Work WorkId WorkResult WorkStatus
WorkerLost WorkflowCtx WorkflowError Workpool __version__ asgi_app between contains daily gt gte has hourly in_
interval is_none known length lt lte matches monthly owner_of public signed_in weekly
"""

PUBLIC_NAMES: list[str] = vars(penstock)["__all__"]

_LOADED = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps(sorted(sys.modules)))
"""
_HEAVY = {"pydantic", "pydantic_core", "asyncpg", "sqlite3", "starlette", "uvicorn", "click", "rich", "cronsim", "apsw"}
_ROOMS = {
    f"penstock.{room}"
    for room in (
        "app", "calls", "changes", "cli", "crons", "functions", "jobs", "outbox", "pools", "reactive", "schema",
        "server", "services", "store", "testing", "transaction",
    )
}  # fmt: skip


def loaded_by(module: str) -> set[str]:
    """Modules that a fresh interpreter has loaded after one import."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, module], capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(done.stdout))


def test_the_public_names_are_frozen() -> None:
    assert sorted(PUBLIC.split()) == PUBLIC_NAMES, "a name has come or gone: say so in CHANGELOG.md, and here"


def test_the_names_of_the_client_are_frozen() -> None:
    assert client.__all__ == ["AsyncClient", "Client", "FunctionError", "ServerError", "ServerUnreachable"]
    assert all(hasattr(client, name) for name in client.__all__)


def test_an_app_without_a_provider_of_tokens_does_not_load_their_library() -> None:
    assert not {"jwt", "cryptography"} & loaded_by("penstock.testing")


def test_every_public_name_comes_from_where_the_stub_says() -> None:
    stub = ast.parse(Path(penstock.__file__).with_suffix(".pyi").read_text("utf-8"))
    listed = [
        (node.module, alias.name) for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert sorted(name for _, name in listed) == PUBLIC_NAMES
    for home, name in listed:
        assert getattr(penstock, name) is getattr(importlib.import_module(str(home)), name)
    assert set(PUBLIC_NAMES) <= set(dir(penstock))


def test_importing_the_package_loads_nothing_else() -> None:
    loaded = loaded_by("penstock")
    assert not loaded & (_HEAVY | _ROOMS)
    assert "asyncio" not in loaded


def test_the_client_loads_neither_the_server_nor_a_driver() -> None:
    loaded = loaded_by("penstock.client")
    rooms = {name for name in loaded if ".".join(name.split(".")[:2]) in _ROOMS}
    assert not loaded & _HEAVY
    assert not rooms
