"""The one writer of a process: transactions take turns, and queued ones share one commit.

Owns the write connection, the thread for it, and another for the log. Each transaction runs behind a savepoint, so that
it can be undone alone. When its turn ends and others wait, the next one continues in the same database transaction. One
commit then makes all of them durable, and only then do they learn of it. If the shared commit fails, each is told to
run again by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock.clock import SystemClock, profile_timer
from penstock.errors import Conflict, DatabaseBusy, DatabaseUnavailable
from penstock.store.sqlite.contention import begin_write
from penstock.store.sqlite.errors import is_busy, translate

_MOST_TOGETHER = 128
_MOST_CHANGES = 1000  # rows that transactions may have changed together; then they commit
_QUICK_COMMIT = 0.002
LOG_BYTES = 4 * 1024 * 1024
_MOST_LOG_BYTES = 64 * 1024 * 1024
_LOOK_EVERY = 64
_AFTER_OTHERS = 0.0005
_ALONE = 64  # commits that nobody shares after a shared one failed
_CONTENDED = 64  # beginnings that let others go first after another process has held the write lock


class Writer:
    """Hands out turns on the write connection, and commits; `wait` is for another process's write lock, in seconds."""

    def __init__(self, connection: sqlite3.Connection, path: Path, wait: float) -> None:
        self.connection = connection
        # In this thread the write connection works when it may take long. Nothing else runs there, since the holder of
        # the turn keeps all other writers waiting, those of other processes too.
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="penstock-sqlite-writer")
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="penstock-sqlite-log")
        self._path = path
        self._file = _identity(path)
        self._wal = Path(f"{path}-wal")
        self._wait = wait
        self._clock = SystemClock()
        self._busy = False
        self._open = False
        self._changes = 0  # of the connection, when its transaction began
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._finished: list[asyncio.Future[None]] = []
        self._commit_seconds = 0.0
        self._commits = 0
        self._contended = self._alone = 0  # how many more beginnings, and commits
        self._committing: asyncio.Future[float] | None = None
        self._emptying: asyncio.Future[None] | None = None
        self._checkpoint: asyncio.Future[None] | None = None
        self._log_is_long = False

    # ----- turns

    async def run(self, sql: str, args: Sequence[Any]) -> None:
        """Run one statement that changes something, as a turn of its own; wait until it is durable.

        It needs no savepoint: if it fails, it has changed nothing.

        Raises:
            Conflict: The shared commit failed; run it again.
            DatabaseBusy: Another process holds the write lock for too long.
        """
        await self.take_turn(savepoint="")
        try:
            self.connection.execute(sql, args)
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            await self._leave_turn(wait=True)
            raise translate(error) from error
        await self._end_turn()

    async def take_turn(self, savepoint: str = "savepoint member") -> None:
        """Wait for the turn, and begin, behind a savepoint unless it is empty.

        Raises:
            DatabaseBusy: Another process holds the write lock for too long.
        """
        if self._busy:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._pass_on()
                raise
        self._busy = True
        try:
            if not self._open:
                await self._begin()
            if savepoint:
                self.connection.execute(savepoint)
        except BaseException as error:
            self._pass_on()
            raise translate(error) from error

    async def finish(self) -> None:
        """End the turn: keep its changes, and wait until they are durable.

        Raises:
            Conflict: The shared commit failed; run the transaction again.
            DatabaseFull: There is no room for it.
        """
        try:
            self.connection.execute("release member")
        except sqlite3.Error as error:
            await self.undo(wait=False)
            raise translate(error) from error
        await self._end_turn()

    async def undo(self, *, wait: bool) -> None:
        """End the turn: undo its changes.

        Args:
            wait: Whether to wait for the shared commit of those before: its reads of their changes are true
                only if they are durable.

        Raises:
            Conflict: The shared commit failed; run the transaction again.
        """
        if self.connection.in_transaction:
            try:
                self.connection.execute("rollback to member")
                self.connection.execute("release member")
            except sqlite3.Error as error:  # a transaction that cannot be undone alone is undone with all others
                self._undo_all(error)
        await self._leave_turn(wait=wait)

    async def _leave_turn(self, *, wait: bool) -> None:
        if wait and self._finished:
            await self._end_turn()
        else:
            self._pass_on()

    async def _end_turn(self) -> None:
        """Give the turn away, and wait for the commit: the first to come back commits for all who have joined."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._finished.append(done)
        self._pass_on(comes_back=True)
        if not self._busy:
            try:
                await self._clock.sleep(0)  # a transaction that is about to begin may still join
            except BaseException:
                done.cancel()  # nobody waits for it; its changes are kept all the same
                self._commit_if_idle()
                raise
            if not done.done():
                self._commit_if_idle()
        await done

    def _pass_on(self, *, comes_back: bool = False) -> None:
        """Give the turn to the next in line, committing first if there is enough.

        Args:
            comes_back: Whether the caller commits, if nobody is in line.
        """
        if self._open and not self.connection.in_transaction:
            self._undo_all("the database has rolled it back")  # none of the others has caused it
        if self._finished and self._enough():
            self._commit()
        else:
            self._next(comes_back=comes_back)

    def _enough(self) -> bool:
        many = self.connection.total_changes - self._changes >= _MOST_CHANGES
        return many or self._alone > 0 or len(self._finished) >= _MOST_TOGETHER

    def _next(self, *, comes_back: bool = False) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False
        if self._open and not comes_back:
            self._commit_if_idle()  # at once: the caller, which has failed, may write by a connection of its own

    def _commit_if_idle(self) -> None:
        if self._busy or not self._open:
            return  # someone joined, and ends it
        self._busy = True
        if self._finished:
            self._commit()
        else:
            self._undo_all("nothing was written")
            self._next()

    # ----- the database's transaction

    async def _begin(self) -> None:
        """Take the database's write lock, which other processes may hold."""
        if _identity(self._path) != self._file:
            raise DatabaseUnavailable(
                f"The database file {self._path} was deleted, or another one took its place, while it was in use.",
                fix="Stop this program, put the right file there, and start again.",
            )
        if self._contended:
            self._contended -= 1
            await self._clock.sleep(_AFTER_OTHERS * self._clock.random())  # let the others have it
        contended = True
        try:
            contended = await begin_write(self.connection, self._clock, self._wait)
        except sqlite3.Error as error:
            if not is_busy(error):
                raise
            raise DatabaseBusy(
                f"Another process has held the write lock of the database for {self._wait:g} seconds.",
                fix="Try again; or find the process that writes for so long.",
            ) from error
        finally:
            if contended:
                self._contended = _CONTENDED
        self._open, self._changes = True, self.connection.total_changes

    def _commit(self) -> None:
        """Commit on the event loop if the disk has been quick lately, in a thread if not."""
        if self._commit_seconds < _QUICK_COMMIT:
            try:
                seconds = self._time_commit()
            except sqlite3.Error as error:
                self._on_commit(error, None)
            else:
                self._on_commit(None, seconds)
            return
        loop = asyncio.get_running_loop()
        self._committing = loop.run_in_executor(self.executor, self._time_commit)
        self._committing.add_done_callback(
            lambda done: self._on_commit(done.exception(), None if done.exception() else done.result())
        )

    def _time_commit(self) -> float:
        before = profile_timer()
        self.connection.execute("commit")
        return profile_timer() - before

    def _on_commit(self, error: BaseException | None, seconds: float | None) -> None:
        self._committing = None
        if error is not None and len(self._finished) == 1:
            self._on_broken(translate(error))
        elif error is not None:
            self._undo_all(error)
        else:
            self._open, self._alone = False, max(0, self._alone - 1)
            self._commit_seconds = 0.8 * self._commit_seconds + 0.2 * (seconds or 0.0)
            finished, self._finished = self._finished, []
            for done in finished:
                if not done.done():
                    done.set_result(None)
            self._look_at_log()
        if self._log_is_long and not self._open:
            self._empty_log()
        else:
            self._next()

    def _undo_all(self, reason: object) -> None:
        """Have all that had finished run again, each with a commit of its own: one of them may fail each time."""
        if self._finished:
            self._alone = _ALONE
        self._on_broken(_again(reason))

    def _on_broken(self, error: BaseException) -> None:
        """The database's transaction is gone: the error for all that had finished in it."""
        if self.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("rollback")
        self._open = False
        finished, self._finished = self._finished, []
        for done in finished:
            if not done.done():
                done.set_exception(error)

    # ----- the write-ahead log

    def _look_at_log(self) -> None:
        """Now and then move the log into the database, so that it begins again and does not grow.

        Most of it moves while writers go on. The little that they have added meanwhile moves after the next commit,
        whose callers have their answer by then, and before the next turn. Only a log that has moved as a whole begins
        again, and writing over it is quicker than adding to it.
        """
        self._commits += 1
        if self._commits % _LOOK_EVERY or self._checkpoint is not None:
            return
        try:
            size = self._wal.stat().st_size
        except OSError:
            return
        if size > _MOST_LOG_BYTES:
            self._log_is_long = True
        elif size > LOG_BYTES:
            self._checkpoint = asyncio.get_running_loop().run_in_executor(self._beside, self._checkpoint_beside)
            self._checkpoint.add_done_callback(self._on_checkpoint)

    def _checkpoint_beside(self) -> None:
        aside = sqlite3.connect(str(self._wal).removesuffix("-wal"), timeout=0, isolation_level=None)
        try:
            aside.execute("pragma wal_checkpoint(passive)").fetchall()
        finally:
            aside.close()

    def _on_checkpoint(self, done: asyncio.Future[None]) -> None:
        self._checkpoint = None
        self._log_is_long = done.exception() is None  # if not, the next look tries again

    def _empty_log(self) -> None:
        """Move the rest of the log, while nobody has the turn."""
        self._log_is_long = False
        self._emptying = asyncio.get_running_loop().run_in_executor(self.executor, self._checkpoint_rest)
        self._emptying.add_done_callback(self._on_emptied)

    def _checkpoint_rest(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # the next look tries again
            self.connection.execute("pragma wal_checkpoint(passive)").fetchall()

    def _on_emptied(self, _done: asyncio.Future[None]) -> None:
        self._emptying = None
        self._next()

    # ----- the end

    async def settle(self) -> None:
        """Wait for work that is still under way."""
        self._commit_if_idle()
        while under_way := [work for work in (self._committing, self._emptying, self._checkpoint) if work is not None]:
            await asyncio.wait(under_way)

    def close(self) -> None:
        """Close the connection; nothing may be under way."""
        self.executor.shutdown()
        self._beside.shutdown()
        self._checkpoint_rest()
        self.connection.close()


def _identity(path: Path) -> tuple[int, int] | None:
    """The identity of this file, under any name; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - before each transaction, and much quicker
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _again(reason: object) -> Conflict:
    return Conflict(f"The shared transaction failed: {reason}.", fix="Run it again.")
