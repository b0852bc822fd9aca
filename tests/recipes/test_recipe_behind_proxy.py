"""A live program in several processes, alone and behind nginx and Caddy."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from recipes.running import Program, Recipe
from stage.needs import program
from stage.servers import free_port
from stage.sockets import socket_client

yaml = pytest.importorskip("yaml", reason="myst-parser brings it, with the extra `docs`")

RECIPE = "behind_proxy"
TOKEN = "t" * 43
UVICORN = ("uvicorn", "--port", "{port}", "--workers", "2", "board:web")
NGINX_FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
GUNICORN = ("gunicorn", "--bind", "127.0.0.1:{port}", "--workers", "2", "--worker-class", "{kind}", "board:web")


async def board_is_live(url: str) -> None:
    """Watch through events and through web sockets, on several processes, and write once."""
    call = {"path": "board:write", "args": {"text": url}}
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        asked = {"path": "board:read", "args": "{}"}
        streams = [await stack.enter_async_context(http.stream("GET", "/api/subscribe", params=asked)) for _ in "123"]
        answers = [events(stream) for stream in streams]
        for one in answers:
            assert url not in (await anext(one))["value"]
        clients = [await stack.enter_async_context(socket_client(url, "board", origin=url)) for _ in "123"]
        for client in clients:
            await client.connect()
            await client.watch(0, "read")
            await client.transition()
        assert (await http.post("/api/mutation", json=call)).json()["status"] == "success"
        for one in answers:
            assert (await anext(one))["value"][0] == url
        for client in clients:
            while url not in client.answers.get(0, ()):
                await client.transition()


async def events(stream: httpx.Response) -> Any:
    async for line in stream.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


@pytest.mark.long
@pytest.mark.both_stores
@pytest.mark.parametrize("server", ["uvicorn", "asgi", "uvicorn.workers.UvicornWorker"])
def test_several_processes_see_each_others_writes(recipe: Recipe, database_url: str, server: str) -> None:
    recipe.environment["DATABASE_URL"] = database_url
    words = UVICORN if server == "uvicorn" else [word.replace("{kind}", server) for word in GUNICORN]
    web = recipe.start(*words)
    pids = set()

    def both_answer() -> bool:
        pids.add(httpx.post(f"{web.url}/who").json()["pid"])
        return len(pids) == 2

    web.wait_for(both_answer)
    asyncio.run(board_is_live(web.url))
    assert web.stop() == 0
    assert "Traceback" not in web.log


def start_proxy(recipe: Recipe, name: str, backend: str) -> Program:
    """A proxy with the recipe's own file, but for the ports."""
    file = recipe.folder / {"nginx": "nginx.conf", "caddy": "Caddyfile"}[name]
    text = file.read_text().replace("127.0.0.1:8000", backend.removeprefix("http://"))
    port = free_port()
    text = text.replace(" 8080", f" 127.0.0.1:{port}").replace(":8080 ", f"http://127.0.0.1:{port} ")
    if name == "caddy":
        recipe.environment |= {"HOME": str(recipe.folder)}
        file.write_text("{\n\tadmin off\n}\n" + text)
        words = ["run", "--config", "Caddyfile", "--adapter", "caddyfile"]
    else:
        file.write_text(text)
        paths = "".join(f"{part}_temp_path {recipe.folder}/{part};" for part in NGINX_FOLDERS)
        within = f"events {{}} http {{ access_log off; {paths} include {file}; }}"
        (recipe.folder / "main.conf").write_text(f"daemon off; pid {recipe.folder}/pid; error_log stderr; {within}")
        words = ["-p", str(recipe.folder), "-c", str(recipe.folder / "main.conf")]
        words += ["-g", "user root;"] if os.getuid() == 0 else []
    return recipe.start(name, *words, port=port)


@pytest.mark.long
@pytest.mark.parametrize("name", ["nginx", "caddy"])
def test_a_proxy_in_front_keeps_sockets_streams_addresses_and_limits(
    recipe: Recipe, name: str, sqlite_url: str
) -> None:
    program(name)
    recipe.environment |= {"DATABASE_URL": sqlite_url, "PENSTOCK_ADMIN_TOKEN": TOKEN}
    web = recipe.start(*UVICORN)
    proxy = start_proxy(recipe, name, web.url)
    asyncio.run(board_is_live(proxy.url))
    elsewhere = httpx.HTTPTransport(local_address="127.0.0.2")
    with httpx.Client(base_url=proxy.url, transport=elsewhere) as http:
        seen = http.post("/who", headers={"x-forwarded-for": "192.0.2.9", "x-forwarded-proto": "ftp"}).json()
        assert (seen["from"], seen["scheme"]) == ("127.0.0.2", "http"), "a caller cannot name an address"
        call, admin = {"path": "board:read", "args": {}}, {"authorization": f"Bearer {TOKEN}"}
        for url, status in ((web.url, 200), (proxy.url, 404)):
            assert http.get(f"{url}/admin/pools", headers=admin).status_code == status
            assert http.post(f"{url}/api/function", json=call, headers=admin).status_code == status
        for size in (1_500_000, 3_000_000):
            large = http.post("/api/mutation", json={"path": "board:write", "args": {"text": "x" * size}})
            assert large.status_code == 413, "the second limit is nginx's own"
        taken = [http.post("/api/mutation", json={"path": "board:write", "args": {"text": "x"}}) for _ in range(61)]
        assert taken[60].status_code == 429
    with httpx.Client(base_url=proxy.url) as http:
        again = http.post("/api/mutation", json={"path": "board:write", "args": {"text": "x"}})
        assert again.status_code == 200, "callers have tokens of their own"


def test_the_parts_of_the_file_for_traefik_fit_together() -> None:
    found = yaml.safe_load((Path(__file__).parents[2] / "examples/recipes" / RECIPE / "traefik.yaml").read_text())
    http = found["http"]
    assert {router["service"] for router in http["routers"].values()} == {*http["services"]}
