"""Projects that ``penstock init`` writes: each choice is tested, type-checked, checked, and serves its page."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import pytest
from doors.cli_fixtures import Console
from stage.clients import node_modules
from stage.servers import free_port
from stage.waits import SOON, until

from penstock.distribution import requirement

CHOICES = list(itertools.product(("sqlite", "postgres"), ("none", "fastapi", "django"), ("react", "no-react")))
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")


def init(console: Console, database: str, web: str, react: str, name: str = "My Seats") -> Path:
    console.ok("init", name, f"--{database}", "--web", web, f"--{react}")
    return console.folder / name


@pytest.mark.parametrize(("database", "web", "react"), CHOICES)
def test_all_that_is_written_can_be_read(console: Console, database: str, web: str, react: str) -> None:
    folder = init(console, database, web, react)
    files = {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()}
    assert not [name for name, text in files.items() if "@postgres" in text or "@django" in text or "$name" in text]
    extras = ["dashboard", "migrations", *(["postgres"] if database == "postgres" else [])]
    project = tomllib.loads(files["pyproject.toml"])
    assert project["project"]["name"] == "my-seats"
    assert project["project"]["dependencies"][0] == requirement(*extras)
    assert {f"{name}.py" for name in project["tool"]["setuptools"]["py-modules"]} <= files.keys()
    json.loads(files[".vscode/tasks.json"])
    for name, text in files.items():
        if name.endswith(".py"):
            compile(text, name, "exec")
        if name.endswith((".yml", ".yaml")):
            assert importlib.import_module("yaml").safe_load(text)
    assert ("page/main.tsx" in files) == (react == "react")
    assert ("compose.yaml" in files) == (database == "postgres")


@pytest.mark.parametrize("web", ["none", "fastapi", "django"])
def test_the_compose_file_the_settings_and_the_image_agree(
    console: Console, monkeypatch: pytest.MonkeyPatch, web: str
) -> None:
    folder = init(console, "postgres", web, "no-react")
    compose = importlib.import_module("yaml").safe_load((folder / "compose.yaml").read_text("utf-8"))
    app, database = compose["services"]["app"], compose["services"]["database"]
    told = {name: database["environment"][f"POSTGRES_{name}"] for name in ("USER", "PASSWORD", "DB")}
    (published,) = database["ports"]
    host, port, inside = published.split(":")
    assert inside == "5432"
    place = "{USER}:{PASSWORD}@{}/{DB}".format
    if web == "django":
        for name in ("USER", "PASSWORD", "DATABASE", "HOST", "PORT"):
            monkeypatch.delenv(f"PG{name}", raising=False)
        wanted = {"USER": told["USER"], "PASSWORD": told["PASSWORD"], "NAME": told["DB"], "HOST": host, "PORT": port}
        assert runpy.run_path(str(folder / "settings.py"))["DATABASES"]["default"].items() >= wanted.items()
        for name, text in app["environment"].items():
            monkeypatch.setenv(name, text)
        wanted |= {"HOST": "database", "PORT": inside}
        assert runpy.run_path(str(folder / "settings.py"))["DATABASES"]["default"].items() >= wanted.items()
    else:
        assert app["environment"]["DATABASE_URL"] == f"postgresql://{place('database', **told)}"
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
        assert project["tool"]["penstock"]["database"] == f"postgresql://{place(f'{host}:{port}', **told)}"
    assert app["depends_on"]["database"]["condition"] == "service_healthy"
    assert told["USER"] in database["healthcheck"]["test"]
    volumes = [volume.partition(":")[0] for volume in database["volumes"]]
    assert volumes == [*compose["volumes"]]
    image = (folder / "Dockerfile").read_text("utf-8")
    exposed = re.search(r"^EXPOSE (\d+)$", image, re.MULTILINE)
    assert exposed is not None
    assert app["ports"] == [f"{exposed[1]}:{exposed[1]}"]
    assert f"127.0.0.1:{exposed[1]}/" in image, "the health check"


def test_nothing_that_is_there_is_changed(console: Console) -> None:
    written = console.ok("init", "My Seats")
    assert "cd 'My Seats' && penstock dev" in written.err
    assert "Docker and CI cannot read that" in written.err, "these tests run on a working tree"
    (console.folder / "My Seats/app.py").write_text("mine = True\n", "utf-8")
    again = console("init", "My Seats", "--web", "fastapi", "--react")
    assert (again.code, "nothing was written" in again.err) == (1, True)
    assert (console.folder / "My Seats/app.py").read_text("utf-8") == "mine = True\n"
    assert not (console.folder / "My Seats/page").exists()


def test_a_terminal_is_asked_for_what_no_option_says(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.init._can_ask", lambda: True)
    assert console("init", "shop", "--web", "fastapi", stdin=b"mysql\npostgres\nyes\n").code == 0
    places = {str(path.relative_to(console.folder / "shop")) for path in (console.folder / "shop").rglob("*")}
    assert places >= {"compose.yaml", "web.py", "page/main.tsx"}


@pytest.mark.long
@pytest.mark.parametrize(("database", "web", "react"), CHOICES)
def test_a_new_project_passes_its_own_tests_and_checks(
    console: Console, empty_database_url: str, monkeypatch: pytest.MonkeyPatch, database: str, web: str, react: str
) -> None:
    if (database == "sqlite") != empty_database_url.startswith("sqlite"):
        pytest.skip("The project is of the other database.")
    folder = init(console, database, web, react)
    shutil.copy(folder / "tests/test_app.py", folder / "tests/test_again.py")
    server = {"TEST_DATABASE_URL": empty_database_url} if database == "postgres" else {}
    tests = 2 if web != "fastapi" else 3
    assert f"{tests} passed" in python(folder, *PYTEST, **server), "each on a database of its own"
    assert "Success" in python(folder, "-m", "mypy", ".")
    if web == "django" and database == "sqlite":
        python(folder, "manage.py", "test")
    monkeypatch.chdir(folder)
    console.folder = folder
    assert "nothing to say" in console.ok("check").err
    if web != "django":
        monkeypatch.setenv("DATABASE_URL", empty_database_url)
        console.ok("migrate")
        console.ok("run", "add", "text=three more words")
        assert "three more words" in {note["text"] for note in console.ok("run", "notes").json}


@pytest.mark.long
@pytest.mark.parametrize("web", ["none", "fastapi", "django"])
async def test_one_server_has_the_page_the_functions_and_the_jobs(console: Console, web: str) -> None:
    folder = init(console, "sqlite", web, "react", "shop")
    (folder / "page/node_modules").symlink_to(node_modules() / "node_modules")
    python(folder, "-m", "penstock", "codegen", "--check")
    built = await asyncio.create_subprocess_exec("npm", "run", "build", cwd=folder / "page", stdout=subprocess.DEVNULL)
    assert await built.wait() == 0
    if web == "django":
        python(folder, "manage.py", "migrate")
    port = free_port()
    module = ["uvicorn", "web:web"] if web != "none" else ["penstock", "dev", "--no-reload"]
    command = [sys.executable, "-m", *module, "--port", str(port)]
    backend, page = ("/backend" if web == "fastapi" else ""), ("/page/" if web == "django" else "/")
    server = await asyncio.create_subprocess_exec(*command, cwd=folder)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=SOON) as http:
            await until(lambda: answers(http, f"{backend}/readyz"))
            assert "main.js" in (await http.get(page)).text
            assert (await http.get(f"{page}main.js")).headers["content-type"].startswith("text/javascript")
            assert (await http.get(f"{page}nothing")).status_code == 404
            added = {"path": "app:add", "args": {"text": "two words"}}
            assert (await http.post(f"{backend}/api/mutation", json=added)).status_code == 200
            await until(lambda: counted(http, f"{backend}/api/query"))
    finally:
        server.terminate()
        await server.wait()


async def answers(http: httpx.AsyncClient, path: str) -> bool:
    try:
        return (await http.get(path)).status_code == 200
    except httpx.ConnectError:
        return False


async def counted(http: httpx.AsyncClient, path: str) -> bool:
    (note,) = (await http.post(path, json={"path": "app:notes", "args": {}})).json()["value"]
    return bool(note["words"] == 2)


def python(folder: Path, *arguments: str, **environment: str) -> str:
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
