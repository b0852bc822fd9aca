"""The official clients of Convex, each a process that is told what to do over its pipes; servers for them; Chromium."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import httpx
from playwright.async_api import Browser, Page, async_playwright, expect

from stage.needs import THEN, lack, program
from stage.processes import EXAMPLES, TESTS, Command, Process
from stage.servers import free_port
from stage.waits import SOON, until

Kind = Literal["node", "react", "python", "http"]
SOCKETS: tuple[Kind, ...] = ("node", "react", "python")
CHAT = EXAMPLES / "chat"
DEMOS = EXAMPLES / "demos"
COMPILERS = TESTS / "clients"
_QUIET = {"log", "info"}  # what clients say there is no error


def node_modules(folder: Path = CHAT) -> Path:
    """A folder where packages for JavaScript are installed, as by ``npm ci``: the chat's, or `COMPILERS`."""
    program("node")
    if folder == CHAT:
        folder = Path(os.environ.get("PENSTOCK_TEST_NODE_MODULES", CHAT))
    if not (folder / "node_modules" / "convex").is_dir():
        lack(f"npm{THEN}npm ci --prefix {os.path.relpath(folder, TESTS.parent)} --ignore-scripts")
    return folder


class ClientError(Exception):
    def __init__(self, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.data = data


class Client:
    """One client.

    Values are in the JSON form of Convex, which each client writes and reads by itself.

    Attributes:
        seen: States of all subscriptions together, each as the client showed them: `{"value": …}` or `{"error": …}`.
        said: Lines that it wrote to its console beyond mere notes.
    """

    def __init__(self, kind: Kind, process: asyncio.subprocess.Process) -> None:
        self.seen: list[dict[str, Any]] = []
        self.said: list[str] = []
        self._kind = kind
        self._process = process
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._moved = asyncio.Condition()
        self._listening = asyncio.ensure_future(self._listen())
        self._complaining = asyncio.ensure_future(self._complain())

    async def subscribe(self, name: str, path: str, **args: Any) -> None:
        await self._order("subscribe", name=name, path=path, args=args)

    async def unsubscribe(self, name: str) -> None:
        await self._order("unsubscribe", name=name)

    async def sign(self, *tokens: str) -> None:
        """Sign in with these tokens, of which it fetches one after another; with none, sign out."""
        await self._order("sign", args={"tokens": tokens})

    async def signed_in(self) -> dict[str, Any]:
        """How many tokens it has fetched, and whether it shows its user as signed in; of the JavaScript clients."""
        found: dict[str, Any] = (await self._order("sign", args={}))["value"]
        return found

    async def query(self, path: str, **args: Any) -> Any:
        return _value(await self._order("query", path=path, args=args))

    async def action(self, path: str, **args: Any) -> Any:
        return _value(await self._order("action", path=path, args=args))

    async def mutation(self, path: str, shown: str | None = None, **args: Any) -> Any:
        """Call a mutation; with `shown`, a query of texts shows its text before the server does, in React's client."""
        return _value(await self._order("mutation", path=path, args=args, shown=shown))

    async def mutation_and_look(self, path: str, **args: Any) -> tuple[Any, dict[str, Any]]:
        """The result of a mutation, and what the subscriptions showed at that moment; of the JavaScript clients."""
        found = await self._order("mutation", path=path, args=args)
        return _value(found), found["seen"]

    async def consistent_query(self, path: str, **args: Any) -> Any:
        return _value(await self._order("consistentQuery", path=path, args=args))

    async def shows(self, **values: Any) -> dict[str, Any]:
        wanted = {name: {"value": value} for name, value in values.items()}
        return await self.comes(lambda seen: seen | wanted == seen)

    async def comes(self, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until something is true of the newest state."""

        def reached() -> bool:
            assert not self._listening.done(), self.said
            return bool(self.seen) and true(self.seen[-1])

        try:
            async with asyncio.timeout(SOON / 3), self._moved:
                await self._moved.wait_for(reached)
        except TimeoutError:
            raise AssertionError(f"the {self._kind} client shows {self.seen[-1:]}, and said {self.said}") from None
        return self.seen[-1]

    async def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await asyncio.gather(self._listening, self._complaining)

    async def _order(self, verb: str, **what: Any) -> dict[str, Any]:
        number = len(self._answers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "do": verb, **what}).encode() + b"\n")
        await asyncio.wait((answer, self._listening), timeout=SOON / 3, return_when=asyncio.FIRST_COMPLETED)
        assert answer.done(), f"{verb} is not answered; it said {self.said}"
        return answer.result()

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            told = json.loads(line)
            if "id" in told:
                self._answers[told["id"]].set_result(told)
            elif "seen" in told:
                self.seen.append(told["seen"])
            elif told.get("console", "log") not in _QUIET:
                self.said.append(f"{told['console']}: {told['text']}")
            async with self._moved:
                self._moved.notify_all()

    async def _complain(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.said.append(line.decode(errors="replace").rstrip())


def _value(found: dict[str, Any]) -> Any:
    if "error" in found:
        raise ClientError(found["error"]["message"], found["error"].get("data"))
    return found["value"]


@asynccontextmanager
async def client(kind: Kind, url: str) -> AsyncIterator[Client]:
    if kind == "python":
        command = [sys.executable, str(TESTS / "clients" / "driver.py"), url]
        environment = dict(os.environ)
    else:
        command = [program("node", "nodejs"), str(TESTS / "clients" / "driver.cjs"), kind, url]
        environment = {**os.environ, "PENSTOCK_TEST_NODE_MODULES": str(node_modules())}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, limit=1 << 26
    )
    made = Client(kind, process)
    try:
        yield made
    finally:
        await made.close()


class Server:
    """``penstock serve`` with `programs.tally`, which may be stopped, killed and started again on its port."""

    def __init__(self, database: str, **settings: str) -> None:
        self.settings = {f"PENSTOCK_{name.upper()}": value for name, value in settings.items()}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: Process | None = None
        self.database = database

    async def start(self) -> None:
        self.process = self.spawn()
        async with httpx.AsyncClient() as http:
            await until(lambda: self._answers(http))

    def spawn(self) -> Process:
        return Command("programs.tally", self.database, "serve", "--port", str(self.port), **self.settings)

    async def _answers(self, http: httpx.AsyncClient) -> bool:
        assert self.process is not None
        assert self.process.exit_status is None
        try:
            return (await http.get(f"{self.url}/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    async def stop(self) -> None:
        assert self.process is not None
        assert await asyncio.to_thread(self.process.stop) == 0
        self.process.close()

    async def kill(self) -> None:
        assert self.process is not None
        await asyncio.to_thread(self.process.kill)
        self.process.close()


@cache
def build_pages(folder: Path) -> None:
    """Build the pages of an example, once for all tests of a run; the test is skipped where packages are missing."""
    npm = program("npm")
    node_modules()
    this_run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    with (Path(tempfile.gettempdir()) / f"penstock-{folder.name}-{os.getuid()}.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if lock.read() == this_run != "":
            return
        subprocess.run([npm, "run", "--silent", "build"], cwd=folder, check=True, capture_output=True)
        lock.truncate(0)
        lock.write(this_run)


class ChatServer(Server):
    def spawn(self) -> Process:
        build_pages(CHAT)
        return Asgi(CHAT, "web:web", self.port, DATABASE_URL=self.database)


class DemoServer(Server):
    """A demo, whose page may also be opened at `elsewhere`: there it is of another origin than its functions."""

    def __init__(self, database: str, *, demo: str, model: str = "", **settings: str) -> None:
        super().__init__(database, **settings)
        origin = f"http://localhost:{self.port}"
        self.elsewhere = f"{origin}/?server={self.url}"
        own = {"PENSTOCK_CORS_ORIGINS": origin, "PENSTOCK_PUBLIC_URL": self.url}
        self.settings |= {"DEMO": demo, "MODEL": model, **own}

    def spawn(self) -> Process:
        build_pages(DEMOS)
        return Asgi(DEMOS, "web:web", self.port, DATABASE_URL=self.database, **self.settings)


class Asgi(Process):
    def __init__(self, folder: Path, name: str, port: int, **environment: str) -> None:
        self._start("uvicorn", ["--app-dir", str(folder), "--port", str(port), name], environment)


@asynccontextmanager
async def serving(database: str, kind: type[Server] = Server, **settings: str) -> AsyncIterator[Server]:
    made = kind(database, **settings)
    try:
        await made.start()
        yield made
    finally:
        if made.process is not None:
            made.process.close()


# ----- pages in Chromium: their consoles stay empty, all can use them, and no text of a user becomes a part of them


expect.set_options(timeout=SOON * 1000)


_AWAY = ("WebSocket connection to", "Failed to load resource: net::ERR_")  # the server, for a moment


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    path = program("chromium")
    node_modules()
    async with async_playwright() as play:
        opened = await play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield opened
        finally:
            await opened.close()


@asynccontextmanager
async def quiet_page(opened: Browser, **how: Any) -> AsyncIterator[Page]:
    """A page of somebody who has no other; it must log no errors, beside those of the browser itself."""
    context = await opened.new_context(**how)
    context.set_default_timeout(SOON * 1000)
    page = await context.new_page()
    errors: list[str] = []
    page.on("console", lambda line: errors.append(line.text) if line.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    own = [line for line in errors if not line.startswith(_AWAY)]
    assert not own, own  # pytest tells nothing of an assertion here
    await context.close()


HOSTILE = (
    """"><img src=x onerror="document.title='taken'"><script>document.title='taken'</script>' onfocus=alert() {{7}}"""
)


def axe() -> Path:
    """The script that finds what readers of some kinds cannot use; add it to a page before `check`."""
    return node_modules(COMPILERS) / "node_modules" / "axe-core" / "axe.min.js"


async def check(page: Page) -> None:
    """Everybody can use the page as it is now, by day and by night, and no text of a user has become part of it."""
    await page.wait_for_load_state()  # a click waits for the first byte of a page only
    asked = {"resultTypes": ["violations"]}  # it takes long to describe all that is right
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        found: list[Any] = (await page.evaluate("asked => axe.run(asked)", asked))["violations"]
        told = [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found]
        assert not told, told  # pytest tells nothing of an assertion here
    for width in (390, 768, 1280):
        await page.set_viewport_size({"width": width, "height": 900})
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
    assert "penstock" in await page.title()
