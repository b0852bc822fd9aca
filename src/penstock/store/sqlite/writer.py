"""The one writer of a process: transactions take turns, and those that queue share one commit.

Owns the write connection. Each transaction runs behind a savepoint, so that it can be undone alone. When its turn
ends and others wait, the next one continues in the same database transaction; one commit then makes all of them
durable, and only then do they learn of it. If the shared commit fails, each is told to run again by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import deque
from concurrent.futures import Executor
from pathlib import Path

from penstock.clock import SystemClock, profile_timer
from penstock.errors import Conflict, DatabaseBusy
from penstock.store.sqlite.errors import is_busy, translate

_MOST_TOGETHER = 128
_LONGEST_TOGETHER = 0.02
_QUICK_COMMIT = 0.002
_CHECKPOINT_BYTES = 4 * 1024 * 1024
_CHECKPOINT_NOW_BYTES = 64 * 1024 * 1024
_LOOK_EVERY = 64
_NOTHING_WRITTEN = sqlite3.OperationalError("nothing was written")


class Writer:
    """Hands out turns on the write connection, and commits.

    Args:
        wait: Seconds to wait for another process's write lock.
    """

    def __init__(self, connection: sqlite3.Connection, executor: Executor, path: Path, wait: float) -> None:
        self.connection = connection
        self._executor = executor
        self._wal = Path(f"{path}-wal")
        self._wait = wait
        self._clock = SystemClock()
        self._busy = False
        self._open = False
        self._opened_at = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._finished: list[asyncio.Future[None]] = []
        self._commit_seconds = 0.0
        self._commits = 0
        self._contended_until = 0.0
        self._checkpoint: asyncio.Future[None] | None = None

    # ----- turns

    async def take_turn(self) -> None:
        """Wait for the turn, and begin behind a savepoint.

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
            self.connection.execute("savepoint member")
        except BaseException as error:
            self._pass_on()
            raise translate(error) from error

    async def finish(self) -> None:
        """End the turn: keep what was done, and wait until it is durable.

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
        """End the turn: undo what was done.

        Args:
            wait: Whether to wait for the shared commit of those before: what this transaction read of them is true
                only if they are durable.

        Raises:
            Conflict: The shared commit failed; run the transaction again.
        """
        if self.connection.in_transaction:
            try:
                self.connection.execute("rollback to member")
                self.connection.execute("release member")
            except sqlite3.Error as error:  # what cannot be undone alone is undone with all others
                self._broken(error)
        if wait and self._finished:
            await self._end_turn()
        else:
            self._pass_on()

    async def _end_turn(self) -> None:
        """Give the turn away, and wait for the commit."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._finished.append(done)
        self._pass_on()
        if not done.done():
            await asyncio.shield(done)
        done.result()

    def _pass_on(self) -> None:
        """Give the turn to the next in line, committing first if there is enough, or nobody in line."""
        if self._open and not self.connection.in_transaction:
            self._broken(sqlite3.OperationalError("the transaction was rolled back by the database"))
        if self._finished and self._enough():
            self._commit()
        else:
            self._next()

    def _enough(self) -> bool:
        age = self._clock.monotonic() - self._opened_at
        return len(self._finished) >= _MOST_TOGETHER or age > _LONGEST_TOGETHER

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False
        if self._open:
            # Whoever is about to begin may still join: the commit comes after all that is ready to run now.
            asyncio.get_running_loop().call_soon(self._commit_if_idle)

    def _commit_if_idle(self) -> None:
        if self._busy or not self._open:
            return  # someone joined, and ends it
        self._busy = True
        if self._finished:
            self._commit()
        else:
            self._broken(_NOTHING_WRITTEN)
            self._next()

    # ----- the database's transaction

    async def _begin(self) -> None:
        """Take the database's write lock, which other processes may hold."""
        pause, deadline = 0.0005, self._clock.monotonic() + self._wait
        if self._clock.monotonic() < self._contended_until:
            await self._clock.sleep(pause * self._clock.random())  # let the others have it
        while True:
            try:
                self.connection.execute("begin immediate")
                break
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise
                if self._clock.monotonic() > deadline:
                    raise DatabaseBusy(
                        f"Another process has held the write lock of the database for {self._wait:g} seconds.",
                        fix="Try again; or find out which process writes for so long.",
                    ) from error
            self._contended_until = self._clock.monotonic() + 1
            await self._clock.sleep(pause * (0.5 + self._clock.random()))
            pause = min(pause * 1.5, 0.02)
        self._open = True
        self._opened_at = self._clock.monotonic()

    def _commit(self) -> None:
        """Commit on the event loop if the disk has been quick lately, in a thread if not."""
        if self._commit_seconds < _QUICK_COMMIT:
            try:
                seconds = self._timed_commit()
            except sqlite3.Error as error:
                self._committed(error, None)
            else:
                self._committed(None, seconds)
            return
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, self._timed_commit)
        future.add_done_callback(
            lambda done: self._committed(done.exception(), None if done.exception() else done.result())
        )

    def _timed_commit(self) -> float:
        before = profile_timer()
        self.connection.execute("commit")
        return profile_timer() - before

    def _committed(self, error: BaseException | None, seconds: float | None) -> None:
        if error is not None:
            self._broken(error)
        else:
            self._open = False
            self._commit_seconds = 0.8 * self._commit_seconds + 0.2 * (seconds or 0.0)
            finished, self._finished = self._finished, []
            for done in finished:
                if not done.done():
                    done.set_result(None)
            self._look_at_log()
        self._next()

    def _broken(self, error: BaseException) -> None:
        """The database's transaction is gone: all that had finished in it must run again, alone if there were more."""
        if self.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("rollback")
        self._open = False
        finished, self._finished = self._finished, []
        for done in finished:
            if not done.done():
                done.set_exception(
                    translate(error) if len(finished) == 1 else Conflict(f"A shared commit failed: {error}.")
                )

    # ----- the write-ahead log

    def _look_at_log(self) -> None:
        """Now and then move the log into the database: beside the writers, or before them if it has grown huge."""
        self._commits += 1
        if self._commits % _LOOK_EVERY or self._checkpoint is not None:
            return
        try:
            size = self._wal.stat().st_size
        except OSError:
            return
        if size > _CHECKPOINT_NOW_BYTES:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("pragma wal_checkpoint(passive)").fetchall()
        elif size > _CHECKPOINT_BYTES:
            self._checkpoint = asyncio.get_running_loop().run_in_executor(self._executor, self._checkpoint_aside)
            self._checkpoint.add_done_callback(self._checkpointed)

    def _checkpoint_aside(self) -> None:
        aside = sqlite3.connect(str(self._wal).removesuffix("-wal"), timeout=0, isolation_level=None)
        try:
            aside.execute("pragma wal_checkpoint(passive)").fetchall()
        finally:
            aside.close()

    def _checkpointed(self, done: asyncio.Future[None]) -> None:
        self._checkpoint = None
        done.exception()  # the next look tries again

    async def settle(self) -> None:
        """Wait for the commit that comes after all that is ready to run, and for a checkpoint that is under way."""
        await self._clock.sleep(0)
        if self._checkpoint is not None:
            await asyncio.wait([self._checkpoint])
