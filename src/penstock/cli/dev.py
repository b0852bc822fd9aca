"""``penstock dev``: server and services in one process, which starts itself again when the source changes.

Owns the order: import, serve, wait for a change, stop gracefully, and replace the process by a new one, so that no
memory of the old code is left. What does not import is shown, and waits for the next change.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from penstock.app import SERVICES, App
from penstock.cli.banner import banner
from penstock.cli.ending import end_process
from penstock.cli.failure import ProgramFailed, show_failure, style
from penstock.cli.logs import set_up_logs
from penstock.cli.opening import complete_serving
from penstock.cli.options import Options, pass_options
from penstock.cli.output import say
from penstock.cli.program import find_program, load_app
from penstock.cli.watch import Watch
from penstock.clock import secret
from penstock.config import Config
from penstock.errors import ConfigError, UsageError
from penstock.server.run import serve

_AGAIN = "_PENSTOCK_STARTED_AGAIN"  # in the environment of a process that has replaced itself
_GREETED = "greeted"
_TOKEN = "_PENSTOCK_ADMIN_TOKEN"  # noqa: S105 - likewise, so that it stays the same
_LONGEST_GRACE = 2.0


@click.command("dev")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="The port; 0 for any.")
@click.option("--reload/--no-reload", default=True, help="Restart when the source changes.")
@pass_options
def command(options: Options, host: str, port: int, reload: bool) -> None:
    """Run server and services in one process, and restart when the source changes.

    For development only: callers see unexpected errors, and running jobs get little time to end. Prints a token for the
    admin interface, unless admin_token is set.
    """
    set_up_logs(options.log_level or "info", options.log_format)
    watch = Watch(_folders(options)) if reload else None
    life = Life(options, host, port, reload=reload)
    life.load()
    changed = complete_serving(_develop(life, watch))
    if changed is not None:
        _start_again(changed, life)
    end_process()


class Life:
    """One life of the process, from an import of the program to a change of its source.

    Attributes:
        greeted: Whether the banner has been shown, in this life or an earlier one.
        token: The admin token of all lives, unless a setting says another.
    """

    def __init__(self, options: Options, host: str, port: int, *, reload: bool) -> None:
        self.greeted = os.environ.get(_AGAIN) == _GREETED
        self.token = os.environ.pop(_TOKEN, "") or secret()
        self._options = options
        self._host = host
        self._port = port
        self._reload = reload
        self._app: App | None = None
        self._failure: Exception | None = None
        self._ready = asyncio.Event()

    def load(self) -> None:
        """Import the program. An error is kept for `serve` to raise."""
        try:
            self._app = load_app(find_program(self._options.app, Path.cwd()))
        except (ProgramFailed, UsageError) as error:
            self._failure = error

    async def serve(self) -> None:
        """Serve the program until a signal."""
        if self._app is None:
            raise self._failure or AssertionError("load comes first")
        config = self._app.config(database=self._options.database, dev=True)
        made = None if config.admin_token else self.token
        config = replace(config, grace=min(config.grace, _LONGEST_GRACE), admin_token=made or config.admin_token)
        tell = partial(self._tell, self._app, config, made)
        await serve(self._app, config, host=self._host, port=self._port, services=SERVICES, ready=tell)

    async def stop(self, serving: asyncio.Task[None]) -> None:
        """End gracefully, as by a signal; a server that is still starting is waited for."""
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait([ready, serving], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if not serving.done():
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait([serving])

    def explain(self, error: Exception) -> None:
        """Show an error of the program, which the next change may correct; raises one that no change corrects."""
        if isinstance(error, ConfigError) and not _is_again():
            raise error
        show_failure(error, as_json=False, debug=self._options.debug)
        say(style("Waiting for a change of the source.", fg="cyan"))

    def _tell(self, app: App, config: Config, made: str | None, url: str) -> None:
        """Calls are taken now: all there is to know for the first time, a line later on."""
        say(
            style(f"ready at {url}", fg="cyan")
            if self.greeted
            else banner(app, config, url, SERVICES, reload=self._reload, token=made)
        )
        self.greeted = True
        self._ready.set()


async def _develop(life: Life, watch: Watch | None) -> Path | None:
    """Serve until a signal, or until a file changes; which."""
    serving = asyncio.ensure_future(life.serve())
    if watch is None:
        await serving
        return None
    changed = asyncio.ensure_future(watch.changed())
    try:
        await asyncio.wait([serving, changed], return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            await life.stop(serving)
        try:
            serving.result()
        except (ProgramFailed, UsageError) as error:
            if not changed.done():
                life.explain(error)
                await changed
        return changed.result() if changed.done() else None
    finally:
        changed.cancel()


def _folders(options: Options) -> list[Path]:
    """Where the source is: here, and where the program lies."""
    folders = [Path.cwd()]
    with suppress(UsageError):  # serving will say what is wrong
        folders.append(find_program(options.app, Path.cwd()).sources)
    return folders


def _is_again() -> bool:
    return _AGAIN in os.environ


def _start_again(changed: Path, life: Life) -> None:
    """Replace this process by a new one of the same command line."""
    folder = Path.cwd()
    name = changed.relative_to(folder) if changed.is_relative_to(folder) else changed
    say(style(f"{name} changed", fg="cyan"))
    sys.stdout.flush()
    environment = {**os.environ, _AGAIN: _GREETED if life.greeted else "1", _TOKEN: life.token}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - it is this program
