"""``penstock dev``: server and services in one process, which starts itself again when the source changes.

Owns the order: import, serve, wait for a change, stop gracefully, and replace the process, so that no memory of the old
code is left. An import error is shown, and the process waits for the next change. A renamed field is asked for.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import json
import os
import signal
import sys
import typing
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Any, Literal, get_args, get_origin
from uuid import UUID

import click

from penstock.api.outbox.views import look_at
from penstock.app import App
from penstock.cli.codegen import Places, project_places, sources_in, stale_files, write_files
from penstock.cli.devlog import set_up_dev_logs
from penstock.cli.devserver import DevServer, note_server
from penstock.cli.failure import INTERRUPTED, ProgramFailed, show_failure, style
from penstock.cli.migrate import migrate
from penstock.cli.opening import complete_serving, end_process, end_within, open_store, safe_url
from penstock.cli.options import Options, pass_options
from penstock.cli.output import say
from penstock.cli.program import find_program, load_app
from penstock.cli.watch import AGAIN, Watch, check_saved, start_again
from penstock.clock import SystemClock, secret
from penstock.config import Config
from penstock.distribution import __version__, install
from penstock.errors import ArgumentsInvalid, ConfigError, UsageError
from penstock.functions.access import public
from penstock.functions.function import AnyFunction, FunctionKind
from penstock.observe.readable import amount
from penstock.schema.diff import Difference
from penstock.schema.ids import id_prefix_of, target_of
from penstock.server.asgi import dashboard_is_installed
from penstock.server.run import bind, serve, url_of
from penstock.services.service import SERVICES
from penstock.store.nouns.catalog import Change
from penstock.store.open import scheme_of, sqlite_path
from penstock.store.push.migrate import differences
from penstock.store.store import Store

_GREETED = "greeted"
_TOKEN = "_PENSTOCK_ADMIN_TOKEN"  # noqa: S105 - in the environment likewise, so that it stays the same
_LONGEST_GRACE = 2.0


@click.command("dev")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="The port; 0 for any.")
@click.option("--reload/--no-reload", default=True, help="Restart when the source changes.")
@click.option("--reset", is_flag=True, help="Delete the database first: a SQLite file.")
@click.option("--verbose", "-v", is_flag=True, help="Show all log events, and whole tracebacks.")
@pass_options
def command(options: Options, host: str, port: int, reload: bool, reset: bool, verbose: bool) -> None:
    """Run server and services in one process, and restart when the source changes.

    Prints a line for each finished call, job and task run: how it ended, its duration, the rows that it read and wrote,
    and the caller if one is signed in. Tracebacks show the frames of your program.

    For development only: callers see unexpected errors, and running jobs get little time to end. Prints a token for the
    dashboard and for programs that use /admin, unless admin_token is set.
    """
    set_up_dev_logs(options, verbose=verbose)
    signal.signal(signal.SIGINT, _abort)
    places = project_places()
    watch = Watch(options, sources_in(places)) if reload else None
    life = Life(options, host, port, reload=reload, reset=reset)
    life.load(places)
    changed = complete_serving(_develop(life, watch))
    if changed is not None:
        start_again(changed, {AGAIN: _GREETED if life.greeted else "1", _TOKEN: life.token})
    end_process()


class Life:
    """One life of the process, from an import of the program to a change of its source."""

    def __init__(self, options: Options, host: str, port: int, *, reload: bool, reset: bool) -> None:
        self.greeted = os.environ.get(AGAIN) == _GREETED
        self.token = os.environ.pop(_TOKEN, "") or secret()
        self._options = options
        self._host = host
        self._port = port
        self._reload = reload
        self._resets = reset and not self.greeted
        self._app: App | None = None
        self._failure: Exception | None = None
        self._ready = asyncio.Event()
        self._starts_again = False

    def load(self, places: Places) -> None:
        """Import the program, and write its clients. `serve` raises the error, if there was one."""
        try:
            app = load_app(find_program(self._options.app, Path.cwd()))
            write_files(stale_files(app, places))
            self._app = app
        except (ProgramFailed, UsageError) as error:
            self._failure = error

    async def serve(self) -> None:
        if self._app is None:
            raise self._failure or AssertionError("load comes first")
        config = self._app.config(**self._options.place, dev=True)
        made = None if config.admin_token else self.token
        config = replace(config, grace=min(config.grace, _LONGEST_GRACE), admin_token=made or config.admin_token)
        if self._resets:
            _delete_database(config.database)
        if (folder := Path("migrations")).exists():
            await migrate(self._app, config, folder)
        elif sys.stdin.isatty():
            await rename_columns(self._app, config)
        tell = partial(self._tell, self._app, config, made)
        stop = partial(self._tell_of_stop, config.grace)
        listener = bind(self._host, self._port)
        if not (config.public_url or ip_address(listener.getsockname()[0]).is_unspecified):
            config = replace(config, public_url=url_of(listener))  # the page may be of another server
        where = partial(serve, listener=listener, dashboard=dashboard_is_installed())
        await where(self._app, config, services=SERVICES, ready=tell, stopping=stop)

    async def stop(self, serving: asyncio.Task[None]) -> None:
        """End gracefully, as by a signal; a server that is still starting is waited for."""
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait([ready, serving], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if not serving.done():
            self._starts_again = True
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait([serving])

    def explain(self, error: Exception) -> None:
        """Show an error of the program, which the next change may correct; raises one that no change corrects."""
        if isinstance(error, ConfigError) and AGAIN not in os.environ:
            raise error
        show_failure(error, as_json=False, debug=self._options.debug)
        say(style("Waiting for a change of the source.", fg="cyan"))

    def _tell(self, app: App, config: Config, made: str | None, url: str) -> None:
        """Show the banner in the first life, and one line in later ones."""
        say(
            style(f"ready at {url}", fg="cyan")
            if self.greeted
            else banner(app, config, url, SERVICES, reload=self._reload, token=made)
        )
        note_server(DevServer(url, made or ""))
        self.greeted = True
        self._ready.set()
        check_saved()

    def _tell_of_stop(self, grace: float, calls: int, jobs: int) -> None:
        """Say what is waited for; from now on a signal ends the process. Writes past the streams that it interrupts."""
        signal.signal(signal.SIGINT, _abort)
        end_within(grace)
        waits, press = ("", "Press Ctrl-C") if self._starts_again else ("Stopping.", "Press Ctrl-C again")
        if under_way := [amount(count, noun) for count, noun in ((calls, "call"), (jobs, "job")) if count]:
            waits = f"Waiting up to {grace:g} s for {' and '.join(under_way)}. {press} to abort."
        os.write(2, f"\n{waits}\n".encode() if waits else b"")


def _delete_database(url: str) -> None:
    """Delete a SQLite database, with what belongs to it."""
    if scheme_of(url) != "sqlite":
        raise ConfigError("--reset deletes SQLite files only.", fix="Use dropdb and createdb, or leave it out.")
    path = sqlite_path(url)
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    say(f"deleted {path}")


async def _develop(life: Life, watch: Watch | None) -> Path | None:
    """Serve until a signal, or until a file changes; the reason."""
    serving = asyncio.ensure_future(life.serve())
    if watch is None:
        await serving
        return None
    changed = asyncio.ensure_future(watch.next_change())
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


def _abort(_number: int, _frame: FrameType | None) -> None:
    """End as in a crash, which loses nothing but time."""
    os._exit(INTERRUPTED)


_PLAUSIBLE: dict[Any, Any] = {
    str: "Ada",
    int: 1,
    float: 1.5,
    bool: True,
    bytes: "",
    datetime: "2030-01-01T09:00:00Z",
    date: "2030-01-01",
    timedelta: "PT1H",
    Decimal: "9.99",
    UUID: "00000000-0000-4000-8000-000000000000",
}
_PLURALS = {"query": "queries"}
_NO_ID = "00000000000000000000000000"


def banner(app: App, config: Config, url: str, services: Sequence[str], *, reload: bool, token: str | None) -> str:
    """The first lines of output. `token` is an admin token made for this command, None if it is a setting."""
    facts = {
        **links(url),
        "token": "the setting admin_token" if token is None else token,
        "database": safe_url(config.database),
        "functions": _functions(app),
        "services": ", ".join(services),
    }
    lines = [f"{style('penstock', fg='cyan', bold=True)} {__version__}", ""]
    lines += [f"  {style(f'{name:9}', dim=True)}  {value}" for name, value in facts.items()]
    if calls := sample_calls(app, url):
        lines += ["", f"  {style('try', dim=True)}", *(f"  {call}" for call in calls)]
    ends = "Starts again when the source changes. Ctrl-C stops it." if reload else "Ctrl-C stops it."
    return "\n".join([*lines, "", style(f"  {ends}", dim=True), ""])


def links(url: str) -> dict[str, str]:
    """The pages of a server at this URL, by name."""
    dashboard = f"{url}/dashboard" if dashboard_is_installed() else install("dashboard")
    return {"server": style(url, bold=True), "docs": f"{url}/docs", "dashboard": dashboard}


def sample_calls(app: App, url: str) -> list[str]:
    """Make lines of curl that call a mutation and a query, or an action, with made-up arguments."""
    found = {kind: _sample_call(app, url, kind) for kind in FunctionKind}
    first = [found[FunctionKind.MUTATION], found[FunctionKind.QUERY]]
    return [call for call in (first if any(first) else [found[FunctionKind.ACTION]]) if call]


def _sample_call(app: App, url: str, kind: FunctionKind) -> str | None:
    for function in app.registry:
        if function.kind is kind and function.public and function.access in {None, public}:
            arguments = _plausible_arguments(function)
            if arguments is not None:
                body = json.dumps({"path": function.name, "args": arguments}).replace("'", r"'\''")
                head = "-H 'content-type: application/json'"
                return f"curl {url}/api/{kind.value} {head} \\\n    -d '{body}'"
    return None


def _functions(app: App) -> str:
    kinds = Counter(function.kind.value for function in app.registry)
    kinds.update("HTTP action" for _ in app.registry.http)
    listed = ", ".join(amount(count, kind, _PLURALS.get(kind, "")) for kind, count in kinds.items())
    internal = sum(not function.public for function in app.registry)
    return (listed or "none yet") + (f" ({internal} of them internal)" if internal else "")


def _plausible_arguments(function: AnyFunction) -> dict[str, Any] | None:
    hints = typing.get_type_hints(function.handler, include_extras=False)
    parameters = list(inspect.signature(function.handler).parameters.values())[1:]
    required = [parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty]
    arguments = {name: _plausible(hints.get(name)) for name in required}
    try:
        function.signature.check_json(json.dumps(arguments))
    except ArgumentsInvalid:
        return None
    return arguments


def _plausible(annotation: Any) -> Any:
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in _PLAUSIBLE:
        return _PLAUSIBLE[annotation]
    if (target := target_of(annotation)) is not None:
        return f"{id_prefix_of(target) or 'row'}_{_NO_ID}"
    if origin is Literal:
        return inner[0]
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return next(iter(annotation)).value
    if type(None) in inner:
        return None
    return {list: [], dict: {}}.get(origin or annotation)


async def rename_columns(app: App, config: Config) -> None:
    """Ask for each stored column that is not declared any more whether a new field of its type is the same one."""
    async with open_store(app, config) as store:
        if not await store.catalog.list_migrations():
            return  # the database is new
        await store.open(look=True)
        for change in await differences(store, app.definitions()):
            taken = set[str]()  # nobody is asked twice for one field
            for old in change.gone:
                await _rename_column(store, change, old, taken)


async def _rename_column(store: Store, change: Difference, old: str, taken: set[str]) -> None:
    for new in change.like(change.gone[old]):
        if new in taken:
            continue
        where = f"{change.table}.{old}"
        for outbox in await _find_behind(store, change.table):
            say(f"Outbox {outbox} still has changes with {old}. Once it is renamed, they fail: skip them then.")
        if click.confirm(f"{where} is not declared any more, and {new} is new. Rename the column to {new}?", err=True):
            table, column, name = map(store.dialect.quote, (change.table, old, new))
            async with store.catalog.lock() as lock:
                await lock.apply(Change(change.table, (f"alter table {table} rename column {column} to {name}",)))
            say(f"renamed: {where} is {new} now, with its values.")
            taken.add(new)
            return


async def _find_behind(store: Store, table: str) -> list[str]:
    """The outboxes that have changes of a table to deliver, which were captured with the old names of columns."""
    rows = [row for row in await store.outboxes.list() if row.plan.source == table]
    found = await look_at(store, rows, SystemClock().now(), lambda _name: None, most=1)
    return [one.name for one in found if one.messages]
