"""Files over HTTP: uploads and downloads as browsers and Convex's clients make them, and hostile ones."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from stage.servers import bytes_in, keys_of
from stage.stories import tell_in
from stage.waits import events, until

from penstock import App, MutationCtx, public
from penstock.server import files as door
from penstock.testing import TestApp

app = App()
write, read, act = tell_in(app)
TEXT = b"0123456789"


@app.mutation(access=public)
async def generate_upload_url(ctx: MutationCtx) -> str:
    return await ctx.storage.generate_upload_url()


async def ask(test: TestApp, **how: Any) -> str:
    found: str = await test.run_mutation(write, lambda ctx: ctx.storage.generate_upload_url(**how))
    return found


async def upload(test: TestApp, content: Any = TEXT, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await test.http.post(await ask(test), content=content, headers=named)


async def stored(test: TestApp, content: Any = TEXT, **headers: str) -> str:
    """The URL of a file that was uploaded."""
    file = (await upload(test, content, **headers)).json()["storageId"]
    url: str = await test.run_query(read, lambda ctx: ctx.storage.get_url(file))
    return url


async def get(test: TestApp, url: str, **headers: str) -> httpx.Response:
    return await test.http.get(url, headers={name.replace("_", "-"): value for name, value in headers.items()})


# ----- as Convex has it


@pytest.mark.both_stores
async def test_an_upload_comes_back_as_convex_sends_it(database_url: str, tmp_path: Path) -> None:
    async with TestApp(app, database_url, files=str(tmp_path / "files")) as test:
        url = await ask(test)
        assert urlsplit(url).path == "/api/storage/upload"
        assert urlsplit(url).query.startswith("token=")
        for content in (TEXT, b"", b"x" * 3_000_000):
            answer = await test.http.post(url, content=content, headers={"content-type": "text/plain"})
            assert (answer.status_code, [*answer.json()]) == (200, ["storageId"])  # the URL is good for an hour
            file = answer.json()["storageId"]
            found = await get(test, await test.run_query(read, lambda ctx, file=file: ctx.storage.get_url(file)))
            assert (found.status_code, found.content) == (200, content)
            digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
            assert {name: found.headers[name] for name in ("content-type", "digest", "accept-ranges")} == {
                "content-type": "text/plain",
                "digest": f"sha-256={digest}",
                "accept-ranges": "bytes",
            }
            assert found.headers["content-length"] == str(len(content))
            assert found.headers["cache-control"] == "private, max-age=2592000"
            assert "content-disposition" not in found.headers
        assert sorted(bytes_in(str(tmp_path / "files"))) == await keys_of(test)


async def test_a_digest_is_compared(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        right = base64.b64encode(hashlib.sha256(TEXT).digest()).decode()
        wrong = base64.b64encode(hashlib.sha256(b"").digest()).decode()
        assert (await upload(test, digest=f"sha-256={right}")).status_code == 200
        answer = await upload(test, digest=f"sha-256={wrong}")
        assert (answer.status_code, answer.json()["code"]) == (400, "Sha256Mismatch")
        answer = await upload(test, digest="sha-256=nonsense")
        assert (answer.status_code, answer.json()["code"]) == (400, "BadRequest")
        assert len(await keys_of(test)) == 1


async def test_tokens_are_refused_by_their_codes(database_url: str) -> None:
    async with TestApp(app, database_url) as test, TestApp(App()) as other:
        url = await ask(test)
        forged = [url[:-1] + ("A" if url[-1] != "A" else "B"), url.partition("?")[0], url.partition("=")[0] + "=x"]
        forged += [await other.run_mutation(generate_upload_url_of(other)), (await stored(test)) + "?token=x"]
        for wrong in forged[:4]:
            answer = await test.http.post(wrong, content=TEXT)
            assert (answer.status_code, answer.json()["code"]) == (401, "StorageTokenInvalid"), wrong
        test.clock.advance(timedelta(hours=1))
        answer = await test.http.post(url, content=TEXT)
        assert (answer.status_code, answer.json()["code"]) == (401, "StorageTokenExpired")
        file = (await upload(test)).json()["storageId"]
        reading = await test.run_query(read, lambda ctx: ctx.storage.get_url(file, expires_in=timedelta(hours=1)))
        answer = await test.http.post(f"/api/storage/upload?{urlsplit(reading).query}", content=TEXT)
        assert (answer.status_code, answer.json()["code"]) == (401, "StorageTokenInvalid")  # it may read, not upload
        answer = await get(test, f"/api/storage/{file}?{urlsplit(await ask(test)).query}")
        assert (answer.status_code, answer.json()["code"]) == (401, "StorageTokenInvalid")
        second = (await upload(test)).json()["storageId"]
        answer = await get(test, f"/api/storage/{second}?{urlsplit(reading).query}")
        assert (answer.status_code, answer.json()["code"]) == (404, "FileNotFound")  # the token is of another file


def generate_upload_url_of(test: TestApp) -> Any:
    @test.app.internal_mutation(name="made:ask")
    async def make(ctx: MutationCtx) -> str:
        return await ctx.storage.generate_upload_url()

    return make


async def test_urls_that_name_no_file(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        url = await stored(test)
        gone = "/api/storage/00000000-0000-4000-8000-000000000000"
        for wrong, status, code in (
            ("/api/storage/nonsense", 400, "InvalidStoragePath"),
            ("/api/storage/..%2F..%2Fetc%2Fpasswd", 404, "NotFound"),
            (f"{url}x", 400, "InvalidStoragePath"),
            (gone, 404, "FileNotFound"),
            (f"{url}/more", 404, "NotFound"),
        ):
            answer = await get(test, wrong)
            assert (answer.status_code, answer.json()["code"]) == (status, code), wrong
        for method, path in (("PUT", await ask(test)), ("GET", await ask(test)), ("DELETE", url), ("POST", url)):
            answer = await test.http.request(method, path)
            assert answer.status_code in {400, 405}, (method, path)
        assert (await get(test, url)).status_code == 200


async def test_ranges(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        url = await stored(test)
        for asked, part, said in (
            ("bytes=0-", TEXT, "bytes 0-9/10"),
            ("bytes=2-4", b"234", "bytes 2-4/10"),
            ("bytes=9-9", b"9", "bytes 9-9/10"),
            ("bytes=7-100", b"789", "bytes 7-9/10"),
            ("bytes=-3", b"789", "bytes 7-9/10"),
            ("bytes=-100", TEXT, "bytes 0-9/10"),
        ):
            answer = await get(test, url, range=asked)
            assert (answer.status_code, answer.content, answer.headers["content-range"]) == (206, part, said), asked
            assert "digest" not in answer.headers
        for asked in (
            "bytes=10-",
            "bytes=5-4",
            "bytes=0-1,3-4",
            "bytes=-0",
            "bytes=x-1",
            "bytes=-",
            "bytes=" + "9" * 30,
        ):
            answer = await get(test, url, range=asked)
            assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */10"), asked
        assert (await get(test, url, range="lines=1-2")).status_code == 200
        etag = (await get(test, url)).headers["etag"]
        assert (await get(test, url, range="bytes=1-2", if_range=etag)).content == b"12"
        assert (await get(test, url, range="bytes=1-2", if_range='"other"')).content == TEXT
        empty = await stored(test, b"")
        assert (await get(test, empty, range="bytes=0-4")).status_code == 200


async def test_known_files_are_not_sent_again(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        url = await stored(test, content_type="text/plain")
        etag = (await get(test, url)).headers["etag"]
        for said in (etag, f"W/{etag}", f'"a", {etag}', "*"):
            answer = await get(test, url, if_none_match=said)
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
        assert (await get(test, url, if_none_match='"a"')).status_code == 200
        head = await test.http.head(url)
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "10")
        file = (await upload(test)).json()["storageId"]
        short = await test.run_query(read, lambda ctx: ctx.storage.get_url(file, expires_in=timedelta(hours=2)))
        assert 0 < int((await get(test, short)).headers["cache-control"].rpartition("=")[2]) <= 7200


async def test_no_type_runs_scripts(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        for kind in ("text/html", "image/svg+xml", "TEXT/HTML; charset=utf-8", "application/xml", ""):
            answer = await get(test, await stored(test, b"<script>alert(1)</script>", content_type=kind))
            assert "sandbox" in answer.headers["content-security-policy"], kind
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["content-type"] == kind or "application/octet-stream"
        for kind in ("image/png", "application/pdf"):
            answer = await get(test, await stored(test, content_type=kind))
            assert "content-security-policy" not in answer.headers
        for kind in ("nonsense", "a/b, c/d", "text/html\tx"):
            answer = await upload(test, content_type=kind)
            assert (answer.status_code, answer.json()["code"]) == (400, "BadRequest")


async def test_limits_of_bytes(database_url: str, tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * 1_000_000

    place = str(tmp_path / "files")
    async with TestApp(app, database_url, files=place, max_file_bytes=20_000_000) as test:
        url = await ask(test, max_bytes=10)
        assert (await test.http.post(url, content=TEXT)).status_code == 200
        for content in (TEXT + b"0", endless(), b"x" * 25_000_000):
            answer = await test.http.post(url, content=content)
            assert (answer.status_code, answer.json()["code"]) == (413, "RequestTooLarge")
        answer = await test.http.post(await ask(test, max_bytes=10**12), content=endless())
        assert answer.status_code == 413
        assert sorted(bytes_in(place)) == await keys_of(test)
        assert len(await keys_of(test)) == 1


async def test_uploads_at_once_are_limited(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def waiting() -> AsyncIterator[bytes]:
        began.set()
        await go_on.wait()
        yield TEXT

    monkeypatch.setattr(door, "_MOST_UPLOADS", 1)
    async with TestApp(app, database_url) as test:
        first = asyncio.ensure_future(upload(test, waiting()))
        await began.wait()
        answer = await upload(test)
        assert (answer.status_code, answer.json()["code"]) == (503, "Overloaded")
        assert answer.headers["retry-after"] == "1"
        go_on.set()
        assert (await first).status_code == 200
        assert (await upload(test)).status_code == 200


async def test_one_of_two_uploads_by_a_single_use_url_wins(database_url: str, tmp_path: Path) -> None:
    both, place = asyncio.Barrier(2), str(tmp_path / "files")

    async def waiting() -> AsyncIterator[bytes]:
        yield TEXT
        await both.wait()

    async with TestApp(app, database_url, files=place) as test:
        url = await ask(test, single_use=True)
        answers = await asyncio.gather(*(test.http.post(url, content=waiting()) for _ in range(2)))
        lost, won = sorted(answers, key=lambda answer: "storageId" in answer.json())
        assert (won.status_code, lost.status_code, lost.json()["code"]) == (200, 401, "StorageTokenUsed")
        assert sorted(bytes_in(place)) == await keys_of(test)
        assert len(await keys_of(test)) == 1


async def test_refused_uploads_give_their_places_back(
    database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield TEXT
        yield TEXT

    async def broken() -> AsyncIterator[bytes]:
        yield TEXT
        raise OSError("gone")

    monkeypatch.setattr(door, "_MOST_UPLOADS", 1)
    place = str(tmp_path / "files")
    async with TestApp(app, database_url, files=place) as test:
        url = await ask(test, max_bytes=len(TEXT))
        for content, headers, code in (
            (parts(), {}, "RequestTooLarge"),  # in parts, without a length
            (parts(), {"content-length": "1"}, "RequestTooLarge"),  # with a wrong one
            (TEXT, {"digest": "sha-256=" + "A" * 43 + "="}, "Sha256Mismatch"),
        ):
            answer = await test.http.post(url, content=content, headers=headers)
            assert answer.json()["code"] == code
        assert (await test.http.post(url, content=broken())).status_code == 500
        assert bytes_in(place) == {}
        assert (await test.http.post(url, content=TEXT)).status_code == 200


async def test_a_silent_client_is_cut_off(database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def silent() -> AsyncIterator[bytes]:
        yield b"x" * 6_000_000
        await asyncio.Event().wait()
        yield b""

    monkeypatch.setattr(door, "_SILENCE", 0.05)
    place = str(tmp_path / "files")
    async with TestApp(app, database_url, files=place) as test:
        answer = await upload(test, silent())
        assert (answer.status_code, answer.json()["code"]) == (408, "RequestTimeout")
        await until(lambda: bytes_in(place) == {})
        assert await keys_of(test) == []


async def test_the_url_of_the_program_is_put_before_paths(database_url: str) -> None:
    async with TestApp(app, database_url, public_url="https://api.example.com/backend") as test:
        assert (await ask(test)).startswith("https://api.example.com/backend/api/storage/upload?token=")
        file = (await test.http.post(urlsplit(await ask(test))._replace(scheme="", netloc="").geturl()[8:])).json()
        url = await test.run_query(read, lambda ctx: ctx.storage.get_url(file["storageId"]))
        assert url.startswith("https://api.example.com/backend/api/storage/")


async def test_secrets_of_urls_are_not_logged(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock")
    async with TestApp(app, database_url) as test:
        url = await stored(test)
        await get(test, url)
        secret = url.rpartition("/")[2]
        paths = [one["path"] for one in events(caplog, "http.request")]
        assert f"/api/storage/{secret[:8]}…" in paths
        assert "/api/storage/upload" in paths
        assert secret not in caplog.text
