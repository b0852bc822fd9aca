"""Files with the official clients of Convex: its upload example by the calls of its page, and large files."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import FilePayload, expect
from stage.clients import CHAT, SOCKETS, Kind, Server, browser, client, node_modules, quiet_page, serving
from stage.needs import LONG
from stage.processes import Command, Process
from stage.servers import bytes_in, keys_of, make_old, place_of, sweep
from stage.sockets import listening
from stage.waits import until
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from penstock import App
from penstock.testing import TestApp

MIB = 1024 * 1024
LARGE = (1024 if LONG else 96) * MIB
MOST_MEMORY = 40 * MIB
PIECE = bytes(range(256)) * 256
DOT: FilePayload = {
    "name": "dot.gif",
    "mimeType": "image/gif",
    "buffer": base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"),
}


class AlbumServer(Server):
    def spawn(self) -> Process:
        given = ("serve", "--services", "--port", str(self.port))
        return Command("programs.album", self.database, *given, PENSTOCK_PUBLIC_URL=self.url, **self.settings)

    @property
    def memory(self) -> dict[str, int]:
        """Its memory now, and the most that it had since `forget_peak`, in bytes."""
        assert self.process is not None
        lines = Path(f"/proc/{self.process.number}/status").read_text().splitlines()
        found = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("VmRSS", "VmHWM"))}
        return {name: int(kilobytes) * 1024 for name, kilobytes in found.items()}

    def forget_peak(self) -> None:
        assert self.process is not None
        Path(f"/proc/{self.process.number}/clear_refs").write_text("5")


@pytest.mark.parametrize("kind", SOCKETS)
async def test_the_upload_example_of_convex(database_url: str, kind: Kind, tmp_path: Path) -> None:
    files = str(tmp_path / "files")
    async with (
        serving(database_url, AlbumServer, files=files, cors_origins="http://page.example") as server,
        client(kind, server.url) as page,
        httpx.AsyncClient(headers={"origin": "http://page.example"}) as browser,
    ):
        await page.subscribe("messages", "messages:list")
        await page.shows(messages=[])
        post_url = await page.mutation("messages:generateUploadUrl")
        asking = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
        preflight = await browser.options(post_url, headers=asking)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "http://page.example"
        result = await browser.post(post_url, content=b"\x89PNG", headers={"content-type": "image/png"})
        assert result.headers["access-control-allow-origin"] == "http://page.example"
        storage_id = result.json()["storageId"]
        await page.mutation("messages:sendImage", storageId=storage_id, author="Ada")
        await page.unsubscribe("messages")
        known = await page.query("messages:metadata", storageId=storage_id)
        url = f"{server.url}/api/storage/{known['storageId']}"
        assert (known["contentType"], known["size"]) == ("image/png", 4)
        assert known["sha256"] == hashlib.sha256(b"\x89PNG").hexdigest()
        await page.subscribe("messages", "messages:list")
        await page.shows(messages=[{"author": "Ada", "url": url}])
        picture = await browser.get(url)
        assert (picture.content, picture.headers["content-type"]) == (b"\x89PNG", "image/png")
        await page.mutation("messages:deleteImage", storageId=storage_id)
        await page.shows(messages=[{"author": "Ada", "url": None}])
        gone = await browser.get(url)
        assert (gone.status_code, gone.json()["code"]) == (404, "FileNotFound")
        await until(lambda: bytes_in(files) == {})


class DevelopedAlbum(Server):
    """The album under ``penstock dev``, which needs no setting for the URLs of files."""

    def spawn(self) -> Process:
        given = ("dev", "--no-reload", "--port", str(self.port))
        return Command("programs.album", self.database, *given, **self.settings)


def build_album(folder: Path) -> None:
    """Build the page, with the packages of the chat."""
    packages = node_modules(CHAT) / "node_modules"
    (folder / "album.jsx").write_text((Path(__file__).parent / "album.jsx").read_text("utf-8"), "utf-8")
    (folder / "index.html").write_text(
        '<!doctype html><html lang="en"><title>Album</title><link rel="icon" href="data:,">'
        '<body><script type="module" src="album.js"></script></body></html>'
    )
    command = [str(packages / ".bin" / "esbuild"), "album.jsx", "--bundle", "--jsx=automatic", "--outfile=album.js"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=os.environ | {"NODE_PATH": str(packages)})


@pytest.mark.long
async def test_the_page_of_the_upload_example_on_another_origin(database_url: str, tmp_path: Path) -> None:
    page_folder = tmp_path / "page"
    page_folder.mkdir()
    build_album(page_folder)
    static = Starlette(routes=[Mount("/", StaticFiles(directory=page_folder, html=True))])
    files = str(tmp_path / "files")
    async with (
        listening(static) as origin,
        serving(database_url, DevelopedAlbum, files=files, cors_origins=origin) as server,
        browser() as opened,
        quiet_page(opened) as page,
    ):
        await page.goto(f"{origin}/?server={server.url}")
        for count in (1, 2):
            await page.get_by_label("Picture").set_input_files(DOT)
            await page.get_by_role("button", name="Send").click()
            await expect(page.get_by_role("img", name="Sent")).to_have_count(count)
        shown = page.get_by_role("img", name="Sent").first
        assert (await shown.get_attribute("src") or "").startswith(f"{server.url}/api/storage/")
        await expect(shown).to_have_js_property("naturalWidth", 1)
        await page.get_by_role("button", name="Delete").first.click()
        await expect(page.get_by_text("deleted")).to_be_visible()
        await expect(page.get_by_role("img", name="Sent")).to_have_count(1)
        await until(lambda: len(bytes_in(files)) == 1)


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with place_of(request.param, tmp_path) as found:
        yield found


async def test_large_files_take_little_memory(database_url: str, place: str) -> None:
    size = LARGE if LONG or "://" not in place else LARGE // 2  # the server of the bucket keeps its bytes in memory

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(size // len(PIECE)):
            yield PIECE

    async with (
        serving(database_url, AlbumServer, files=place, **dict(os.environ)) as server,
        client("http", server.url) as page,
        httpx.AsyncClient(timeout=300) as http,
    ):
        assert isinstance(server, AlbumServer)
        post_url = await page.mutation("messages:generateUploadUrl")
        small = await http.post(post_url, content=b"x" * MIB)  # what it loads for the first file
        before = server.memory["VmRSS"]
        server.forget_peak()
        storage_id = (await http.post(post_url, content=parts())).json()["storageId"]
        await page.mutation("messages:sendImage", storageId=storage_id, author="Ada")
        ((message,),) = [await page.query("messages:list")]
        digest, seen = hashlib.sha256(), 0
        async with http.stream("GET", message["url"]) as answer:
            async for part in answer.aiter_raw():
                digest.update(part)
                seen += len(part)
        assert seen == size
        known = await page.query("messages:metadata", storageId=storage_id)
        assert (known["size"], known["sha256"]) == (size, digest.hexdigest())
        used = server.memory["VmHWM"] - before
        print(f"{size // MIB} MiB up and down took {used / MIB:.1f} MiB of memory")  # noqa: T201 - a figure
        assert used < MOST_MEMORY
        assert small.status_code == 200


async def test_uploads_that_are_cut_off_leave_nothing(database_url: str, tmp_path: Path) -> None:
    files = str(tmp_path / "files")
    async with serving(database_url, AlbumServer, files=files) as server, client("http", server.url) as page:
        url = await page.mutation("messages:generateUploadUrl")
        path = url.removeprefix(server.url)
        host, port = "127.0.0.1", server.port
        for head in ("content-length: 9000000", "transfer-encoding: chunked"):
            _, writer = await asyncio.open_connection(host, port)
            writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n".encode())
            begun = b"x" * 6_000_000 if "length" in head else b"%x\r\n" % 6_000_000 + b"x" * 6_000_000
            writer.write(begun)
            await writer.drain()
            await until(lambda: bytes_in(files) != {})
            writer.transport.abort()
            await until(lambda: bytes_in(files) == {})
        killed = await asyncio.open_connection(host, port)
        killed[1].write(
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n\r\n".encode() + b"x" * 6_000_000
        )
        await until(lambda: bytes_in(files) != {})
        await server.kill()
        killed[1].transport.abort()
        assert any("#" in name for name in bytes_in(files))
    async with TestApp(App(), database_url, files=files) as test:
        make_old(files)
        await sweep(test)
        assert bytes_in(files) == {}
        assert await keys_of(test) == []
