"""What the engine does follows from work, and not from the time that it took."""

from __future__ import annotations

import ast

# Where the engine may look at a monotonic clock, and what for. No size of a group, a batch or a page, and no rate, may
# follow from the time that something took: on a busy machine, or far from the database, it would follow that.
_PURPOSES = {
    "a lease or lock ends": {
        "calls/lease": {
            "Lease._ask", "Lease.due", "Lease.keep", "Lease.limit_tick", "Lease.limit_tick.look", "Lease.renew",
            "Lease.renew_in",
        },
        "calls/locks/locks": {
            "Holding.is_lost", "Locks._keep", "Locks._leave_to_others", "Locks._look_until", "Locks._renew",
            "Locks._try",
        },
        "services/relay/delivery": {"OutboxDelivery._is_late"},
        "services/rescue": {"Rescue.is_due", "Rescue.look"},
        "services/worker/worker": {"Worker._claim_into", "Worker._holds"},
        "calls/run/jobrun": {"Permit._ask", "Permit.check"},
    },
    "a timeout ends": {
        "api/identity/keys": {"_read"},
        "api/pools/workpool": {"Workpool._result"},
        "api/tasks/selection": {"Selection.change"},
        "calls/locks/locks": {"Locks._wait_for"},
        "calls/run/attempts": {"Tries.__aexit__", "Tries.__init__"},
        "calls/run/engine": {"Engine._stop_left", "Engine.abandon", "Engine.begin_stop"},
        "store/postgres/catalog": {"PostgresCatalog._take_lock"},
        "store/postgres/connections": {"Connections.__init__", "Connections._connect", "Connections._watch"},
        "store/sqlite/contention": {"begin_write"},
        "store/sqlite/store": {"SqliteStore._wait_for_lock"},
    },
    "a wait ends, of a length that is written in the code": {
        "api/guests": {"_Home.set_clock"},
        "api/identity/keys": {"KeySet._age", "KeySet._begin", "KeySet._fetch"},
        "api/identity/tokens": {"Tokens._verify_key"},
        "calls/run/signing": {"Signing._is_fresh", "Signing.read"},
        "calls/run/snapshots": {"Snapshots._keep"},
        "services/live/live": {"LiveQueries._drop_kept", "LiveQueries._idle", "LiveQueries.enter", "LiveQueries.leave"},
        "services/live/reads": {"Reads.due", "Reads.note", "Reads.pause"},
        "services/indexer": {"Indexer._safe_tick", "Indexer._step", "Indexer._try_step", "Indexer.tick"},
        "services/planner/planner": {"Planner._forget", "Planner._list", "Planner._plan", "Planner._tick"},
        "services/pruner": {"Pruner.__init__", "Pruner._pause", "Pruner.tick"},
        "services/reconciler": {"Reconciler._leave_alone", "Reconciler.due", "Reconciler.step"},
        "services/relay/cursor": {"Cursor.apply", "Cursor.take"},
        "services/relay/delivery": {
            "OutboxDelivery._is_changed", "OutboxDelivery._linger", "OutboxDelivery._take", "OutboxDelivery.next_at",
        },
        "services/relay/source": {"Source._is_late"},
        "services/relay/workers": {"Workers.__init__", "Workers._go_on", "Workers._read_on", "Workers._write"},
        "services/scheduler": {"CronScheduler._safe_tick", "CronScheduler._synchronize", "CronScheduler.tick"},
        "calls/jobs/job": {"_leave"},
        "services/worker/housekeeping": {"Housekeeping.let_retry"},
        "services/worker/worker": {"Worker._claim"},
        "services/worker/reports": {"ProgressBuffer.due", "ProgressBuffer.write", "Reports.__init__", "Reports.tell"},
        "services/worker/slots": {"Slots.balance"},
        "store/postgres/connections": {"Connections.acquire_lingering", "Connections.release"},
        "store/postgres/heads": {"Heads.after", "Heads.learn", "Heads.now", "Heads.until_whole"},
        "store/postgres/signals": {"PostgresSignals._look", "PostgresSignals.until_fed", "PostgresSignals.wrote"},
    },
    "people are told, or the clock is set": {
        "calls/handlers/mark_completed": {"_is_marked"},
        "calls/jobs/group": {"Groups._attempt"},
        "calls/journal": {"Journal._call", "Journal.replay"},
        "calls/run/renewals": {"Renewals._look_at_loop"},
        "migrations/running": {"Migrator._batch.work"},
        "services/live/live": {"LiveQueries._tick", "LiveQueries.report"},
        "services/worker/executor": {"Executor._run_job"},
        "store/postgres/store": {"PostgresStore._set_clock"},
        "transaction/transaction": {"Transaction.remembering"},
    },
    "it decides where or when work runs, and never how much of it": {
        "migrations/running": {"Migrator._batch"},  # it pauses between batches, so that others have the database
        "services/live/batch": {"Batch._work", "Batch.give_back"},  # a query that takes long keeps no other waiting
        "store/sqlite/writer": {"Writer._time_commit"},  # a slow disk is waited for in a thread
    },
}  # fmt: skip
_ENGINE = ("api", "calls", "live", "migrations", "reactive", "services", "store", "transaction")
_TIMERS = {"monotonic", "profile_timer", "steady"}


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of an expression, or nothing if it is not of that form."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def timers(tree: ast.Module) -> set[str]:
    """The functions that look at a monotonic clock."""
    found: set[str] = set()

    def look(node: ast.AST, names: tuple[str, ...]) -> None:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names = (*names, node.name)
        if isinstance(node, ast.Name | ast.Attribute) and dotted(node).rpartition(".")[2] in _TIMERS:
            found.add(".".join(names))
        for child in ast.iter_child_nodes(node):
            look(child, names)

    look(tree, ())
    return found


def test_what_the_engine_does_follows_from_work_and_not_from_the_time_it_took(trees: dict[str, ast.Module]) -> None:
    known: dict[str, set[str]] = {}
    for places in _PURPOSES.values():
        for module, functions in places.items():
            known[f"penstock/{module}.py"] = known.get(f"penstock/{module}.py", set()) | functions
    engine = {path: tree for path, tree in trees.items() if path.split("/")[1] in _ENGINE}
    assert {path: found for path, tree in engine.items() if (found := timers(tree))} == known
