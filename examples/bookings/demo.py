"""The demo: a day of a booking desk whose SMS provider fails and whose server crashes, and the proof of its end.

Starts a provider, and ``penstock serve`` with bookings.py; sends the rows of bookings.csv over HTTP; has the provider
go out of order; kills penstock with SIGKILL and starts it again. Then it compares the database with the CSV and with
what the provider has accepted. The database is a new SQLite file, or the one that DATABASE_URL names. In a terminal it
serves the dashboard then, until Ctrl-C.

``DEMO_PICTURE=docs/demo.svg make demo`` saves what it shows as the picture of the README.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import bookings
import httpx
from day import PATIENCE, Day, read_rows
from picture import save_picture
from processes import DemoFailed, Process, free_ports, stop
from proof import gather_evidence, prove, show_proof
from rich.console import Console
from screen import Screen

from penstock.client.client import AsyncClient

HERE = Path(__file__).parent
PENSTOCK = Path(sys.executable).parent / "penstock"
OUT = Path(os.environ.get("DEMO_OUT", HERE / "out"))  # where the data and the logs go
BOOKINGS = os.environ.get("DEMO_BOOKINGS")  # how many rows of the CSV are sent; all by default
SECONDS = float(os.environ.get("DEMO_SECONDS", "14"))  # in how many seconds
PICTURE = os.environ.get("DEMO_PICTURE")  # where a picture of the output is saved; none by default

COUNT_BOOKINGS = "select status, count(*) from booking group by status"


async def demo(console: Console, processes: list[Process]) -> bool:
    """Run the demo; whether all claims are true."""
    run = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    folder = OUT / run
    folder.mkdir(parents=True)
    database = os.environ.get("DATABASE_URL") or f"sqlite:///{folder / 'bookings.db'}"
    server_port, provider_port = free_ports(2)
    server_url, provider_url = f"http://127.0.0.1:{server_port}", f"http://127.0.0.1:{provider_port}"
    provider = Process(
        [sys.executable, str(HERE / "provider.py"), "--port", str(provider_port)], {}, folder / "provider.log"
    )
    server = Process(
        [str(PENSTOCK), "serve", "--services", "--app", str(HERE / "bookings.py"), "--port", str(server_port)],
        {"DATABASE_URL": database, "PENSTOCK_LEASE": "3", "SMS_PROVIDER": provider_url, "SMS_LOST_AFTER": "5"},
        folder / "penstock.log",
    )
    processes += [provider, server]
    screen, rows = Screen(console), read_rows(HERE / "bookings.csv", int(BOOKINGS) if BOOKINGS else None)
    where = "the database of DATABASE_URL" if "DATABASE_URL" in os.environ else "a new SQLite file"
    screen.tell(f"starting an SMS provider, and penstock on {where}; {len(rows)} bookings to send")
    for process, url in ((provider, f"{provider_url}/stats"), (server, f"{server_url}/readyz")):
        process.start()
        await process.answer(url)
    async with (
        AsyncClient(server_url, retries=0) as client,
        httpx.AsyncClient(base_url=provider_url) as http,
        bookings.app.open(database, push_schema=False) as jobs,
    ):
        day = Day(f"demo {run}", rows, SECONDS, server, server_url, client, http, jobs, screen.tell)
        async with asyncio.timeout(SECONDS + 2 * PATIENCE), screen.showing(day):
            await day.run()
        evidence = await gather_evidence(day)
        claims = prove(day, evidence)
        screen.tell("all work is done" if not day.has_work else "[red]there is work left[/]")
    show_proof(console, day, evidence, claims)
    if PICTURE:
        save_picture(console, Path(PICTURE))
    show_ways_on(console, folder)
    if sys.stdin.isatty() and sys.stdout.isatty() and not PICTURE:
        stop(processes)
        await serve_dashboard(console, processes, database, folder)
    else:
        console.print(
            f"\nOr the dashboard, at http://127.0.0.1:8000/dashboard:\n\n  {_near(PENSTOCK)} dev", soft_wrap=True
        )
    return all(claim.is_true for claim in claims)


def show_ways_on(console: Console, folder: Path) -> None:
    """Say how to look at what is left."""
    penstock, file = _near(PENSTOCK), _near(folder / "bookings.db")
    lines = [f"export PENSTOCK_APP={_near(HERE / 'bookings.py')}"]
    shell, query = "psql", 'psql "$DATABASE_URL" -c'
    if "DATABASE_URL" not in os.environ:
        lines.append(f"export DATABASE_URL=sqlite:///{file}")
        shell, query = "sqlite3", f"sqlite3 {file}"
    lines += [
        f"{penstock} data message --where state=refused",
        f"{penstock} jobs --state failed",
        f"{penstock} run upcoming customer='Jiří Šťastný'",
    ]
    if shutil.which(shell):
        lines.append(f"{query} {shlex.quote(COUNT_BOOKINGS)}")
    console.print(f"\n[bold]Look at it yourself[/] (logs are in {_near(folder)}):\n")
    for line in lines:
        console.print(f"  {line}", markup=False, soft_wrap=True)
    console.print("\nAnd see live queries in your browser, if you have Node.js:\n\n  make chat")


async def serve_dashboard(console: Console, processes: list[Process], database: str, folder: Path) -> None:
    """Serve the dashboard of what is left, until Ctrl-C."""
    (port,) = free_ports(1)
    command = [str(PENSTOCK), "dev", "--no-reload", "--app", str(HERE / "bookings.py"), "--port", str(port)]
    server = Process(command, {"DATABASE_URL": database}, folder / "dashboard.log")
    processes.append(server)
    server.start()
    url = f"http://127.0.0.1:{port}"
    with suppress(asyncio.CancelledError):
        await server.answer(f"{url}/readyz")
        console.print(f"\nThe dashboard is up: [bold]{url}/dashboard[/]. Ctrl-C ends the demo.", soft_wrap=True)
        await asyncio.Event().wait()


def _near(path: Path) -> str:
    """A path as one would type it here."""
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def main() -> int:
    """Run the demo; its exit status: 0 if all claims are true."""
    width = None if sys.stdout.isatty() and not PICTURE else 120
    console = Console(highlight=False, emoji=False, width=width, record=bool(PICTURE))
    processes: list[Process] = []
    try:
        return 0 if asyncio.run(_run(console, processes)) else 1
    except DemoFailed as failure:
        console.print(str(failure), style="red", markup=False)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped")
        return 130
    finally:
        stop(processes)


async def _run(console: Console, processes: list[Process]) -> bool:
    task = asyncio.ensure_future(demo(console, processes))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    except BaseExceptionGroup as group:
        raise _first(group) from group
    except TimeoutError as error:
        raise DemoFailed(f"The demo took too long; its logs are in {OUT}.") from error


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


if __name__ == "__main__":
    sys.exit(main())
