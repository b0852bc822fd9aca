"""penstock: a transactional backend for Python that lives in your own database.

The public names. Nothing is defined here, and nothing is imported before it is used: importing the client loads
neither the server nor a driver.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.api.crons.crons import CronStatus
    from penstock.api.outbox.views import OutboxMessage, OutboxPage, OutboxStatus
    from penstock.api.pools.workpool import Workpool
    from penstock.api.ratelimits import RateLimiter
    from penstock.api.tasks.views import TaskExplanation, TaskPage, TaskRecord, TaskStatus
    from penstock.app import App, Backend
    from penstock.calls.handlers.taskbatch import SyncTaskBatchCtx, SyncTaskBatchRun, TaskBatchCtx, TaskBatchRun
    from penstock.calls.handlers.taskctx import MutationTaskCtx, SyncMutationTaskCtx, SyncTaskCtx, TaskCtx
    from penstock.calls.locks.blocks import Lock
    from penstock.calls.run.context import ActionCtx, MutationCtx, QueryCtx
    from penstock.calls.run.ratelimits import RateStatus
    from penstock.calls.run.work import ActionWork
    from penstock.config import Config
    from penstock.crons.every import daily, hourly, interval, monthly, weekly
    from penstock.crons.expression import CronExpression
    from penstock.crons.schedule import Interval
    from penstock.errors import (
        ApplicationError,
        ArgumentsInvalid,
        CallTimeout,
        ConfigError,
        Conflict,
        ConstraintViolation,
        ContextError,
        CursorInvalid,
        DatabaseBusy,
        DatabaseFull,
        DatabaseUnavailable,
        DataError,
        DeclarationError,
        DuplicateJob,
        FunctionNotFound,
        IdInvalid,
        InputError,
        JobError,
        LeaseLost,
        LimitExceeded,
        LockLost,
        LockTaken,
        NonRetryableError,
        NotUnique,
        OutboxNotFound,
        Overloaded,
        PenstockError,
        ResultInvalid,
        RowInvalid,
        RowNotFound,
        SchemaMismatch,
        Snooze,
        TaskConditionFailed,
        TaskNotFound,
        TokenExpired,
        TokenInvalid,
        TopicNotFound,
        TryAgain,
        UnawaitedCall,
        UniqueViolation,
        UsageError,
        ValueInvalid,
        WorkerLost,
    )
    from penstock.jobs.filter import JobFilter
    from penstock.jobs.job import Attempt, JobId, JobStatus
    from penstock.jobs.progress import Progress
    from penstock.jobs.retry import Retry
    from penstock.jobs.states import JobState
    from penstock.jobs.work import Work
    from penstock.outbox.message import Message
    from penstock.pools.rates import FixedWindow, TokenBucket
    from penstock.pools.results import (
        Canceled,
        Completion,
        Failed,
        Finished,
        Pending,
        Running,
        Success,
        WorkId,
        WorkResult,
        WorkStatus,
    )
    from penstock.reactive.breaker import CircuitBreaker
    from penstock.reactive.filter import TaskFilter
    from penstock.reactive.words import contains, has, in_, is_none, known, length, matches
    from penstock.schema.ids import Id
    from penstock.schema.index import Index
    from penstock.schema.table import Table
    from penstock.server.asgi import asgi_app
    from penstock.transaction.pages import Page
    from penstock.transaction.ranges import Range, between, gt, gte, lt, lte

_HOMES = {
    "penstock.app": ("App", "Backend"),
    "penstock.calls.run.context": ("ActionCtx", "MutationCtx", "QueryCtx"),
    "penstock.calls.handlers.taskbatch": ("SyncTaskBatchCtx", "SyncTaskBatchRun", "TaskBatchCtx", "TaskBatchRun"),
    "penstock.calls.handlers.taskctx": ("MutationTaskCtx", "SyncMutationTaskCtx", "SyncTaskCtx", "TaskCtx"),
    "penstock.api.outbox.views": ("OutboxMessage", "OutboxPage", "OutboxStatus"),
    "penstock.api.tasks.views": ("TaskExplanation", "TaskPage", "TaskRecord", "TaskStatus"),
    "penstock.api.crons.crons": ("CronStatus",),
    "penstock.calls.locks.blocks": ("Lock",),
    "penstock.calls.run.work": ("ActionWork",),
    "penstock.api.ratelimits": ("RateLimiter",),
    "penstock.calls.run.ratelimits": ("RateStatus",),
    "penstock.api.pools.workpool": ("Workpool",),
    "penstock.config": ("Config",),
    "penstock.crons.every": ("daily", "hourly", "interval", "monthly", "weekly"),
    "penstock.crons.expression": ("CronExpression",),
    "penstock.crons.schedule": ("Interval",),
    "penstock.errors": (
        "ApplicationError",
        "ArgumentsInvalid",
        "CallTimeout",
        "ConfigError",
        "Conflict",
        "ConstraintViolation",
        "ContextError",
        "CursorInvalid",
        "DataError",
        "DatabaseBusy",
        "DatabaseFull",
        "DatabaseUnavailable",
        "DeclarationError",
        "DuplicateJob",
        "FunctionNotFound",
        "IdInvalid",
        "InputError",
        "JobError",
        "LeaseLost",
        "LimitExceeded",
        "LockLost",
        "LockTaken",
        "NonRetryableError",
        "NotUnique",
        "OutboxNotFound",
        "Overloaded",
        "PenstockError",
        "ResultInvalid",
        "RowInvalid",
        "RowNotFound",
        "SchemaMismatch",
        "Snooze",
        "TaskConditionFailed",
        "TaskNotFound",
        "TokenExpired",
        "TokenInvalid",
        "TopicNotFound",
        "TryAgain",
        "UnawaitedCall",
        "UniqueViolation",
        "UsageError",
        "ValueInvalid",
        "WorkerLost",
    ),
    "penstock.jobs.filter": ("JobFilter",),
    "penstock.jobs.job": ("Attempt", "JobId", "JobStatus"),
    "penstock.jobs.progress": ("Progress",),
    "penstock.jobs.retry": ("Retry",),
    "penstock.jobs.states": ("JobState",),
    "penstock.jobs.work": ("Work",),
    "penstock.outbox.message": ("Message",),
    "penstock.pools.rates": ("FixedWindow", "TokenBucket"),
    "penstock.pools.results": (
        "Canceled",
        "Completion",
        "Failed",
        "Finished",
        "Pending",
        "Running",
        "Success",
        "WorkId",
        "WorkResult",
        "WorkStatus",
    ),
    "penstock.reactive.filter": ("TaskFilter",),
    "penstock.reactive.breaker": ("CircuitBreaker",),
    "penstock.reactive.words": ("contains", "has", "in_", "is_none", "known", "length", "matches"),
    "penstock.schema.ids": ("Id",),
    "penstock.schema.index": ("Index",),
    "penstock.schema.table": ("Table",),
    "penstock.server.asgi": ("asgi_app",),
    "penstock.transaction.pages": ("Page",),
    "penstock.transaction.ranges": ("Range", "between", "gt", "gte", "lt", "lte"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ActionCtx",
    "ActionWork",
    "App",
    "ApplicationError",
    "ArgumentsInvalid",
    "Attempt",
    "Backend",
    "CallTimeout",
    "Canceled",
    "CircuitBreaker",
    "Completion",
    "Config",
    "ConfigError",
    "Conflict",
    "ConstraintViolation",
    "ContextError",
    "CronExpression",
    "CronStatus",
    "CursorInvalid",
    "DataError",
    "DatabaseBusy",
    "DatabaseFull",
    "DatabaseUnavailable",
    "DeclarationError",
    "DuplicateJob",
    "Failed",
    "Finished",
    "FixedWindow",
    "FunctionNotFound",
    "Id",
    "IdInvalid",
    "Index",
    "InputError",
    "Interval",
    "JobError",
    "JobFilter",
    "JobId",
    "JobState",
    "JobStatus",
    "LeaseLost",
    "LimitExceeded",
    "Lock",
    "LockLost",
    "LockTaken",
    "Message",
    "MutationCtx",
    "MutationTaskCtx",
    "NonRetryableError",
    "NotUnique",
    "OutboxMessage",
    "OutboxNotFound",
    "OutboxPage",
    "OutboxStatus",
    "Overloaded",
    "Page",
    "Pending",
    "PenstockError",
    "Progress",
    "QueryCtx",
    "Range",
    "RateLimiter",
    "RateStatus",
    "ResultInvalid",
    "Retry",
    "RowInvalid",
    "RowNotFound",
    "Running",
    "SchemaMismatch",
    "Snooze",
    "Success",
    "SyncMutationTaskCtx",
    "SyncTaskBatchCtx",
    "SyncTaskBatchRun",
    "SyncTaskCtx",
    "Table",
    "TaskBatchCtx",
    "TaskBatchRun",
    "TaskConditionFailed",
    "TaskCtx",
    "TaskExplanation",
    "TaskFilter",
    "TaskNotFound",
    "TaskPage",
    "TaskRecord",
    "TaskStatus",
    "TokenBucket",
    "TokenExpired",
    "TokenInvalid",
    "TopicNotFound",
    "TryAgain",
    "UnawaitedCall",
    "UniqueViolation",
    "UsageError",
    "ValueInvalid",
    "Work",
    "WorkId",
    "WorkResult",
    "WorkStatus",
    "WorkerLost",
    "Workpool",
    "asgi_app",
    "between",
    "contains",
    "daily",
    "gt",
    "gte",
    "has",
    "hourly",
    "in_",
    "interval",
    "is_none",
    "known",
    "length",
    "lt",
    "lte",
    "matches",
    "monthly",
    "weekly",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
