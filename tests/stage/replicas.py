"""A PostgreSQL server and a streaming replica of it, of a test's own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
from stage.server import Server, handle_of, server
from stage.waits import until

_STREAMS = "wal_level = replica\nmax_wal_senders = 4\nfsync = off\n"


class Replica(Server):
    """A standby that replays what its primary streams."""

    async def pause(self) -> None:
        """Replay nothing from now on."""
        await self._do("select pg_wal_replay_pause()")
        while await self._do("select pg_get_wal_replay_pause_state()") != "paused":
            pass

    async def resume(self) -> None:
        """Replay again."""
        await self._do("select pg_wal_replay_resume()")

    async def kill(self) -> None:
        """Kill its first process, at which the others end by themselves."""
        os.kill(self._handle.get_pid(), signal.SIGKILL)

    async def revive(self) -> None:
        """Start it after `kill`, once its other processes have ended."""

        async def has_started() -> bool:
            with suppress(subprocess.CalledProcessError):
                await self.start()
                return True
            return False

        await until(has_started)

    async def follow(self, primary: Server) -> None:
        """Wait until it has replayed all that is durable on its primary."""
        connection = await asyncpg.connect(primary.url)
        place = await connection.fetchval("select pg_current_wal_flush_lsn()::text")
        await connection.close()
        while not await self._do(f"select pg_last_wal_replay_lsn() >= '{place}'"):
            pass

    def promote(self) -> None:
        """Make it a primary."""
        self.pg_ctl("promote")

    async def _do(self, sql: str) -> object:
        connection = await asyncpg.connect(self.url)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()


@contextmanager
def replicated(settings: str = "") -> Iterator[tuple[Server, Replica]]:
    """A primary and its replica for the time of a block; `settings` are lines of their `postgresql.conf`."""
    with server(_STREAMS + settings) as primary:
        folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
        shutil.chown(folder, primary.system_user)
        socket = parse_qs(urlsplit(primary.url).query)["host"][0]
        place = ("-h", socket, "-U", "postgres", "-D", str(folder))
        primary.run("pg_basebackup", *place, "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        (folder / ".s.PGSQL.5432.lock").unlink(missing_ok=True)  # of the primary, whose socket is in its folder
        handle = handle_of(folder, cleanup_mode=None)
        replica = Replica(handle)
        try:
            yield primary, replica
        finally:
            replica.pg_ctl("stop", "-m", "immediate")
            handle.cleanup()
            shutil.rmtree(folder, ignore_errors=True)
