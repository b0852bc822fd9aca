"""Generated clients: real compilers accept them and refuse mistakes, and they run against a server."""

from __future__ import annotations

import asyncio
import importlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import chat
import httpx
import pytest
from programs import album, everykind
from stage.clients import COMPILERS, client, node_modules
from stage.needs import program
from stage.sockets import listening

from penstock import App, Finished, Success, asgi_app
from penstock.client import AsyncClient, Client
from penstock.codegen.description import Description, FunctionDescription, describe
from penstock.codegen.functionspec import function_spec
from penstock.codegen.python import python_module
from penstock.codegen.typescript import typescript_files
from penstock.store.open import sqlite_path
from penstock.testing import TestApp

HERE = Path(__file__).parent
DUE = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
KINDS = {
    "at": DUE,
    "took": timedelta(hours=1),
    "date": date(2030, 1, 2),
    "later": None,
    "number": UUID(int=1),
    "orders": {"1": "order_01jd3k4v5w6x7y8z9a0b1c2d3e"},
    "pair": (1, "one"),
    "pet": {"kind": "dog", "Any": "Rex"},
    "more": {"a": [1, None]},
    "tags": ["a"],
}
NOTHING = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
AWKWARD = tuple(  # functions that are named like modules, and modules that are named like words of the clients
    FunctionDescription(module, name, kind, True, "", NOTHING, {"type": "null"})
    for module, name, kind in (
        ("a", "b", "query"), ("a.b", "c", "mutation"), ("live", "dict", "query"), ("class", "x", "action"),
    )
)  # fmt: skip
SETTINGS = {
    "compilerOptions": {
        "strict": True,
        "noEmit": True,
        "skipLibCheck": False,
        "module": "nodenext",
        "target": "es2022",
        "jsx": "react-jsx",
        "lib": ["es2022", "dom"],
        "types": [],
    }
}


def public(app: App) -> Description:
    return describe((one for one in app.registry if one.public), app.definitions())


def write(description: Description, folder: Path) -> None:
    """The clients of an app in a folder."""
    folder.mkdir()
    for name, text in {**typescript_files(description), "api.py": python_module(description)}.items():
        (folder / name).write_text(text, "utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the clients of the chat and of a program of every kind, and with the packages of npm."""
    (tmp_path / "node_modules").symlink_to(node_modules(COMPILERS) / "node_modules")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "tsconfig.json").write_text(json.dumps(SETTINGS))
    write(public(chat.app), tmp_path / "chat")
    write(public(everykind.app), tmp_path / "everykind")
    write(public(album.app), tmp_path / "album")
    write(Description((), {}), tmp_path / "empty")
    write(Description(AWKWARD, {}), tmp_path / "awkward")
    return tmp_path


def run(folder: Path, *command: str | Path, told: str = "") -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, input=told)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_typescript_and_convexs_tools_accept_them(project: Path) -> None:
    assert 'storageId: Id<"_storage">' in (project / "album" / "api.d.ts").read_text("utf-8")
    for name, app in ("chat", chat.app), ("everykind", everykind.app), ("album", album.app):
        spec = project / f"{name}.json"
        spec.write_text(json.dumps(function_spec(describe(app.registry), "http://127.0.0.1:8000")))
        tool = project / "node_modules" / ".bin" / "convex-helpers"
        run(project, tool, "ts-api-spec", "--input-file", spec, "--output-file", f"{name}_spec.ts")
    (project / "page.tsx").write_text((HERE / "page.tsx").read_text("utf-8"))
    run(project, project / "node_modules" / ".bin" / "tsc")


def test_pyright_accepts_them_and_refuses_mistakes(project: Path) -> None:
    (project / "chat" / "mistakes.py").write_text((HERE / "mistakes.py").read_text("utf-8"))
    (project / "everykind" / "narrowing.py").write_text((HERE / "narrowing.py").read_text("utf-8"))
    pyright = project / "node_modules" / ".bin" / "pyright"
    done = subprocess.run(
        [pyright, "--pythonpath", sys.executable, "--outputjson", "chat", "everykind", "album", "empty", "awkward"],
        cwd=project, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = [(Path(one["file"]).name, one["rule"]) for one in json.loads(done.stdout)["generalDiagnostics"]]
    assert found == [
        ("mistakes.py", "reportCallIssue"),
        ("mistakes.py", "reportArgumentType"),
        ("mistakes.py", "reportGeneralTypeIssues"),
    ]


@asynccontextmanager
async def served(database: str) -> AsyncIterator[tuple[TestApp, str]]:
    """The program of every kind on a socket."""
    with closing(sqlite3.connect(sqlite_path(database))) as file:
        file.execute("create table seat (row text not null, number integer not null, primary key (row, number))")
    async with TestApp(everykind.app, database) as backend, listening(asgi_app(everykind.app, backend=backend)) as url:
        yield backend, url


async def test_the_clients_for_python_run(sqlite_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(public(everykind.app), tmp_path / "generated_clients")
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = importlib.import_module("generated_clients.api")
    async with served(sqlite_url) as (_, url), AsyncClient(url) as client:
        api = module.AsyncApi(client).programs_everykind
        async with module.AsyncApi(client).live.programs_everykind.prices(customer="Ada") as prices:
            assert await anext(prices) == []
            order = await api.put(customer="Ada", price=Decimal("9.99"), due=DUE, data=b"\xff")
            assert await anext(prices) == [Decimal("9.99")]
        page = await api.list(customer="Ada", pagination_opts={"numItems": 1})
        (row,) = page["page"]
        assert row == {**row, "_id": order, "due": DUE, "price": Decimal("9.99"), "size": "small", "data": b"\xff"}
        assert await api.same(kinds=KINDS) == KINDS
        assert await asyncio.to_thread(use_sync, module, url) == [Decimal("9.99"), Decimal(1)]


def use_sync(module: Any, url: str) -> list[Any]:
    """What the client that waits sees after a write of its own."""
    with Client(url) as client:
        api = module.Api(client)
        with api.live.programs_everykind.prices() as prices:
            assert next(prices) == [Decimal("9.99")]
            api.programs_everykind.put(customer="Bob", price=Decimal(1))
            return list(next(prices))


async def test_the_client_for_javascript_runs(sqlite_url: str, project: Path) -> None:
    (project / "run.mjs").write_text((HERE / "run.mjs").read_text("utf-8"))
    async with served(sqlite_url) as (_, url):
        shown = await asyncio.to_thread(run, project, program("node", "nodejs"), "run.mjs", url)
    assert json.loads(shown) == [{"customer": "Ada", "price": "9.99", "bytes": 1}]


async def test_the_status_of_work_is_one_union_on_every_road(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(public(everykind.app), tmp_path / "status_clients")
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = importlib.import_module("status_clients.api")
    async with (
        served(sqlite_url) as (backend, url),
        AsyncClient(url) as python,
        httpx.AsyncClient(base_url=url) as http,
        client("node", url) as node,
    ):
        api = module.AsyncApi(python).programs_everykind
        work = await api.start()
        async with module.AsyncApi(python).live.programs_everykind.state(work=work) as live:
            await node.subscribe("state", "programs/everykind:state", work=work)
            seen: list[dict[str, Any]] = [
                {"kind": "pending", "previousAttempts": 0},
                {"kind": "running", "previousAttempts": 0, "progress": {"done": 1, "total": 2, "note": "printing"}},
                {"kind": "finished", "result": {"kind": "success", "value": 7}},
            ]
            for number, status in enumerate(seen):
                if number == 1:
                    await backend.run_until_idle()
                elif number == 2:
                    await everykind.press.complete(backend, everykind.tokens[work], 7)
                await node.shows(state=status)
                while await anext(live) != status:
                    """It may tell of states in between."""
                assert (await http.post("/rest/programs/everykind/state", json={"work": work})).json() == status
                assert await api.state(work=work) == await node.query("programs/everykind:state", work=work) == status
        known = {str(status["kind"]): status for status in seen}
        assert await node.query("programs/everykind:states", known=known) == await api.states(known=known) == known
        assert await everykind.press.status(backend, work) == Finished(Success(7))
