"""Files: their rows in transactions, their bytes before and after these, and who claims them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib
import io
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from stage.servers import bytes_in, empty, keys_of, make_old, place_of, prune, sweep, write_bytes
from stage.stories import tell_in
from stage.waits import events, until

from penstock import (
    App,
    ArgumentsInvalid,
    ConfigError,
    ContextError,
    Encrypted,
    FernetCodec,
    File,
    Id,
    IdInvalid,
    Index,
    LimitExceeded,
    MutationCtx,
    QueryCtx,
    RowNotFound,
    Table,
    TryAgain,
    ValueInvalid,
    public,
    sync,
)
from penstock.observe import points
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

DAY = timedelta(days=1)


class Picture(Table):
    file: Id[File]
    title: str = ""

    by_file = Index("file")


class Album(Table):
    cover: Id[File] | None = None
    pages: list[Id[File]]


app = App(tables=[Picture, Album])
bare = App()
write, read, act = tell_in(app)
write_bare, _, act_bare = tell_in(bare)


@app.query(access=public)
async def url_of(ctx: QueryCtx, file: Id[File], hours: int = 0) -> str | None:
    return await ctx.storage.get_url(file, expires_in=timedelta(hours=hours) if hours else None)


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where the bytes are."""
    with place_of(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "files")


async def keep(test: TestApp, content: Any = b"hello", content_type: str | None = "text/plain", **how: Any) -> Id[File]:
    found: Id[File] = await test.run_action(
        act, lambda ctx: ctx.storage.store(content, content_type=content_type, **how)
    )
    return found


async def download(test: TestApp, file: str) -> bytes | None:
    async def story(ctx: Any) -> bytes | None:
        opened = await ctx.storage.open(file)
        return None if opened is None else await opened.read()

    found: bytes | None = await test.run_action(act, story)
    return found


# ----- storing and reading


async def test_bytes_come_back(database_url: str, place: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for number in range(70):
            yield bytes([number]) * 100_000

    async with TestApp(app, database_url, files=place) as test:
        large = b"".join([part async for part in parts()])
        given: list[Any] = [
            b"",
            b"hello",
            bytearray(b"x"),
            memoryview(b"yz"),
            [b"a", b"", b"b"],
            io.BytesIO(b"in a file"),
        ]
        wanted = [b"", b"hello", b"x", b"yz", b"ab", b"in a file"]
        for content, expected in zip([*given, parts()], [*wanted, large], strict=True):
            file = await keep(test, content)
            assert await download(test, file) == expected
            known = await test.run_query(read, lambda ctx, file=file: ctx.storage.get_metadata(file))
            digest = hashlib.sha256(expected).hexdigest()
            assert (known.id, known.size, known.sha256, known.content_type) == (
                file,
                len(expected),
                digest,
                "text/plain",
            )
            assert known.creator is None
        assert sorted(bytes_in(place)) == await keys_of(test)
        assert len(await keys_of(test)) == 7


async def test_a_digest_is_checked_in_both_spellings(database_url: str, place: str) -> None:
    async with TestApp(app, database_url, files=place) as test:
        digest = hashlib.sha256(b"hello")
        for said in (digest.hexdigest(), base64.b64encode(digest.digest()).decode()):
            await keep(test, sha256=said)
        with pytest.raises(ValueInvalid, match="another SHA-256"):
            await keep(test, b"hullo", sha256=digest.hexdigest())
        with pytest.raises(ValueInvalid, match="no SHA-256"):
            await keep(test, sha256="abc")
        assert len(bytes_in(place)) == len(await keys_of(test)) == 2


async def test_what_fails_leaves_nothing(database_url: str, place: str) -> None:
    async def parts(error: BaseException) -> AsyncIterator[bytes]:
        yield b"x" * 6_000_000  # more than one part of a bucket
        raise error

    async with TestApp(app, database_url, files=place, max_file_bytes=7_000_000) as test:
        for error in (KeyError("gone"), OSError("reset"), TryAgain("later")):
            with pytest.raises(type(error)) as caught:
                await keep(test, parts(error))
            assert caught.value is error
        with pytest.raises(LimitExceeded, match="7000000 bytes"):
            await keep(test, [b"x" * 4_000_000] * 2)
        for wrong in ("text", ["text"], 5, [5]):
            with pytest.raises(ValueInvalid, match="takes bytes"):
                await keep(test, wrong)
        for kind in ("text", "a/b\r\nx: y", "text/plain; charset=\x00", "x" * 300, "a/b;c", "ä/b", "a b/c"):
            with pytest.raises(ValueInvalid, match="content type"):
                await keep(test, content_type=kind)
        assert bytes_in(place) == {}
        assert await keys_of(test) == []


async def test_a_cancelled_action_leaves_nothing(database_url: str, folder: str) -> None:
    began = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b"x" * 6_000_000
        began.set()
        await asyncio.Event().wait()

    async with TestApp(app, database_url, files=folder) as test:
        storing = asyncio.ensure_future(keep(test, parts()))
        await began.wait()
        storing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await storing
        await until(lambda: bytes_in(folder) == {})  # a thread of obstore's deletes the part
        assert await keys_of(test) == []


async def test_a_place_that_is_not_there_is_told(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with TestApp(app, database_url, files=str(tmp_path / "file" / "in")) as test:
        with pytest.raises(ConfigError, match="files="):
            await keep(test)
    for wrong in ("what://x", "s3://"):
        async with TestApp(app, database_url, files=wrong) as test:
            with pytest.raises(ConfigError, match=f"files='{wrong}' cannot be opened"):
                await test.run_mutation(write, lambda ctx: ctx.storage.generate_upload_url())


async def test_without_the_extra_it_says_what_to_install(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.import_module

    def lacking(name: str, package: str | None = None) -> Any:
        if name.partition(".")[0] == "obstore":
            raise ModuleNotFoundError(name=name)
        return found(name, package)

    async with TestApp(app, database_url) as test:
        file = await keep(test)
    monkeypatch.setattr(importlib, "import_module", lacking)
    async with TestApp(app, database_url) as test:
        for verb in (lambda ctx: ctx.storage.store(b""), lambda ctx: ctx.storage.open(file)):
            with pytest.raises(ConfigError, match=r"ctx\.storage needs obstore.*penstock-backend\[files\]"):
                await test.run_action(act, verb)
        with pytest.raises(ConfigError, match="needs obstore"):
            await test.run_mutation(write, lambda ctx: ctx.storage.generate_upload_url())
        assert await test.run_query(url_of, file) is not None  # what needs no bytes goes on


async def test_ids_are_checked(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        file = await keep(test)
        assert file.startswith("file_")
        for wrong in (
            "",
            "nonsense",
            "job" + file[4:],
            file + "x",
            file.upper(),
            "../../etc/passwd",
            5,
            None,
            "x" * 36,
        ):
            for verb in ("get_url", "get_metadata", "delete", "open"):
                with pytest.raises(IdInvalid, match="not an id of a file"):
                    await test.run_action(act, lambda ctx, verb=verb, wrong=wrong: getattr(ctx.storage, verb)(wrong))
        other: Any = "picture_01jd3k4v5w6x7y8z9a0b1c2d3e"
        with pytest.raises(ArgumentsInvalid, match="an id of table file"):
            await test.run_query(url_of, other)


async def test_the_secret_of_a_url_stands_for_the_file(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        file = await keep(test)
        known = await test.run_query(read, lambda ctx: ctx.storage.get_metadata(file))
        url = await test.run_query(url_of, file)
        assert url == f"/api/storage/{known.storage_id}"
        assert await test.run_query(read, lambda ctx: ctx.storage.get_url(known.storage_id)) == url
        assert await download(test, known.storage_id) == b"hello"
        await test.run_mutation(write, lambda ctx: ctx.storage.delete(known.storage_id))
        assert await test.run_query(url_of, file) is None


async def test_files_are_listed_newest_first(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        files = [await keep(test) for _ in range(5)]
        listed = await test.run_query(read, lambda ctx: ctx.storage.list())
        assert [one.id for one in listed] == files[::-1]
        second = await test.run_query(read, lambda ctx: ctx.storage.list(2, before=files[3]))
        assert [one.id for one in second] == [files[2], files[1]]
        for limit in (0, 1001):
            with pytest.raises(ValueInvalid, match="limit"):
                await test.run_query(read, lambda ctx, limit=limit: ctx.storage.list(limit))


async def test_the_creator_is_the_caller(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        ada = test.with_identity(subject="ada")
        url = await ada.run_mutation(ask)
        uploaded = (await test.http.post(url, content=b"hello")).json()["storageId"]
        known = await test.run_query(read, lambda ctx: ctx.storage.get_metadata(uploaded))
        assert known.creator == "test|ada"


@app.mutation(access=public)
async def ask(ctx: MutationCtx) -> str:
    return await ctx.storage.generate_upload_url()


# ----- transactions


async def test_a_deletion_takes_the_bytes_after_its_commit(database_url: str, place: str) -> None:
    async with TestApp(app, database_url, files=place) as test:
        file = await keep(test)

        async def fail(ctx: MutationCtx) -> None:
            await ctx.storage.delete(file)
            assert await ctx.storage.get_url(file) is None  # it sees its own deletion
            with pytest.raises(RowNotFound):
                await ctx.storage.delete(file)
            raise KeyError

        with pytest.raises(KeyError):
            await test.run_mutation(write, fail)
        await prune(test)
        assert await download(test, file) == b"hello"
        assert len(bytes_in(place)) == 1

        await test.run_mutation(write, lambda ctx: ctx.storage.delete(file))
        assert len(bytes_in(place)) == 1
        await prune(test)
        assert bytes_in(place) == {}
        assert await test.run_query(url_of, file) is None
        assert await download(test, file) is None
        with pytest.raises(RowNotFound, match=f"There is no file {file}"):
            await test.run_mutation(write, lambda ctx: ctx.storage.delete(file))


async def test_a_sub_transaction_that_fails_keeps_the_file(database_url: str, folder: str) -> None:
    async with TestApp(app, database_url, files=folder) as test:
        file = await keep(test)

        async def inner(ctx: MutationCtx) -> None:
            await ctx.storage.delete(file)
            raise KeyError

        async def outer(ctx: MutationCtx) -> str | None:
            with pytest.raises(KeyError):
                await ctx.run_mutation(write, inner)
            return await ctx.storage.get_url(file)

        assert await test.run_mutation(write, outer) is not None
        await prune(test)
        assert await download(test, file) == b"hello"


async def test_one_of_two_deletions_wins(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        file = await keep(test)
        both = [test.run_mutation(write, lambda ctx: ctx.storage.delete(file)) for _ in range(2)]
        ends = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(type(one).__name__ for one in ends) == ["NoneType", "RowNotFound"]


async def test_bytes_that_are_gone_before_are_settled(database_url: str, folder: str) -> None:
    async with TestApp(app, database_url, files=folder) as test:
        file = await keep(test)
        empty(folder)
        assert await download(test, file) is None
        await test.run_mutation(write, lambda ctx: ctx.storage.delete(file))
        await prune(test)
        assert await test.engine.store.files.list_owed(10) == {}


async def test_a_crash_between_bytes_and_note_deletes_again(database_url: str, folder: str) -> None:
    async def crash(**_: Any) -> None:
        raise KeyError

    async with TestApp(app, database_url, files=folder) as test:
        file = await keep(test)
        await test.run_mutation(write, lambda ctx: ctx.storage.delete(file))
        points.arm("file.deleted", crash)
        with pytest.raises(KeyError):
            await prune(test)
        points.disarm("file.deleted")
        assert len(await test.engine.store.files.list_owed(10)) == 1
        await sweep(test)
        assert await test.engine.store.files.list_owed(10) == {}
        assert bytes_in(folder) == {}


async def test_a_query_cannot_write_files(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        for verb in ("generate_upload_url", "delete", "store"):
            with pytest.raises(AttributeError, match=verb):
                await test.run_query(read, lambda ctx, verb=verb: getattr(ctx.storage, verb))
        with pytest.raises(AttributeError, match="store"):
            await test.run_mutation(write, lambda ctx: ctx.storage.store(b""))


async def test_a_call_that_nobody_awaits_is_told(database_url: str) -> None:
    async def story(ctx: MutationCtx) -> None:
        ctx.storage.generate_upload_url()  # type: ignore[unused-coroutine]

    async with TestApp(app, database_url) as test:
        with pytest.raises(ContextError, match=r"ctx\.storage\.generate_upload_url"):
            await test.run_mutation(write, story)


# ----- live queries


async def test_a_live_url_goes_with_its_file(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        file = await keep(test)
        async with test.live(url_of, file=file) as watch:
            assert (await anext(watch) or "").startswith("/api/storage/")
            await test.run_mutation(write, lambda ctx: ctx.storage.delete(file))
            assert await anext(watch) is None


async def signed(test: TestApp, file: Id[File]) -> str:
    """A URL that is good for an hour."""
    return await test.run_query(url_of, file, 1) or ""


async def test_a_url_expires_and_a_live_query_gets_another(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        file = await keep(test)
        first = await signed(test, file)
        assert first.startswith(f"/api/storage/{file}?token=")
        assert (await test.http.get(first)).content == b"hello"
        test.clock.advance(timedelta(minutes=29))
        assert await test.run_query(url_of, file, 1) == first  # so that browsers need not ask for the bytes again
        test.clock.advance(timedelta(minutes=1))
        second = await signed(test, file)
        assert second != first
        test.clock.advance(timedelta(minutes=30))
        late = await test.http.get(first)
        assert (late.status_code, late.json()["code"]) == (401, "StorageTokenExpired")
        assert (await test.http.get(second)).content == b"hello"
        answer = await test.http.get(f"/api/storage/{file}")
        assert (answer.status_code, answer.json()["code"]) == (401, "StorageTokenInvalid")
        for wrong in (timedelta(seconds=59), timedelta(days=400), timedelta(days=-1)):
            with pytest.raises(ValueInvalid, match="expire"):
                await test.run_query(read, lambda ctx, wrong=wrong: ctx.storage.get_url(file, expires_in=wrong))


# ----- claims


async def upload(test: TestApp, content: bytes = b"hello") -> Id[File]:
    return await keep(test, content)


async def test_unclaimed_files_go_and_claimed_ones_stay(database_url: str, place: str) -> None:
    async with TestApp(app, database_url, files=place) as test:
        files = [await upload(test, bytes([number])) for number in range(6)]

        async def claim(ctx: MutationCtx) -> None:
            await ctx.db.insert(Picture(file=files[0]))
            await ctx.db.insert(Album(cover=files[1], pages=[files[2], files[3]]))

        await test.run_mutation(write, claim)
        await sweep(test)
        assert len(bytes_in(place)) == 6  # none is a day old
        test.clock.advance(DAY)
        await sweep(test)
        listed = await test.run_query(read, lambda ctx: ctx.storage.list())
        assert [one.id for one in listed] == files[3::-1]
        assert sorted(bytes_in(place)) == await keys_of(test)
        assert len(await keys_of(test)) == 4


@pytest.mark.both_stores
async def test_the_older_id_stands_for_a_file_and_claims_it(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        first, second, third = [await test.storage.get_metadata(await upload(test, bytes([n]))) for n in range(3)]
        assert first is not None
        assert second is not None
        assert third is not None
        older = Id[File](first.storage_id), Id[File](second.storage_id)
        assert await test.run_query(url_of, older[0]) == f"/api/storage/{older[0]}"
        for wrong in (older[0].upper(), older[0][:-1], f"{{{older[0]}}}", f"{older[0]}\n", "file_x"):
            with pytest.raises(ArgumentsInvalid, match="id of table file"):
                await test.run_query(url_of, Id(wrong))
        await test.run_mutation(write, lambda ctx: ctx.db.insert(Picture(file=older[0])))
        await test.run_mutation(write, lambda ctx: ctx.db.insert(Album(cover=first.id, pages=[older[1]])))
        test.clock.advance(DAY)
        await sweep(test)
        listed = await test.run_query(read, lambda ctx: ctx.storage.list())
        assert {one.id for one in listed} == {first.id, second.id}
        (row,) = await test.run_query(read, lambda ctx: ctx.db.query(Picture).collect())
        assert row.file == older[0]


async def test_a_claim_during_the_sweep_counts(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with TestApp(app, database_url) as test:
        file = await upload(test)
        test.clock.advance(DAY)
        files = test.engine.store.files
        find, looks = files.find_claimed, 0

        async def find_and_claim(*args: Any) -> set[str]:
            nonlocal looks
            looks += 1
            found = await find(*args)
            if looks == 1:  # between the long look and the deletion
                await test.run_mutation(write, lambda ctx: ctx.db.insert(Picture(file=file)))
            return found

        monkeypatch.setattr(files, "find_claimed", find_and_claim)
        await sweep(test)
        assert looks > 1
        assert await test.run_query(url_of, file) is not None


async def test_a_program_without_fields_of_files_keeps_all(database_url: str) -> None:
    async with TestApp(bare, database_url) as test:
        file = await test.run_action(act_bare, lambda ctx: ctx.storage.store(b"hello"))
        test.clock.advance(10 * DAY)
        await sweep(test)
        assert await test.run_mutation(write_bare, lambda ctx: ctx.storage.get_url(file)) is not None


async def test_fields_of_another_program_claim(database_url: str) -> None:
    class Report(Table):
        file: Id[File]

    other = App(name="other", tables=[Report])
    write_other, _, _ = tell_in(other)
    async with TestApp(app, database_url) as test, TestApp(other, database_url) as there:
        kept, left = await upload(test), await upload(test)
        await there.run_mutation(write_other, lambda ctx: ctx.db.insert(Report(file=kept)))
        test.clock.advance(DAY)
        await sweep(test)
        assert await test.run_query(url_of, kept) is not None
        assert await test.run_query(url_of, left) is None


async def test_encrypted_fields_keep_all(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    class Sealed(Table):
        file: Encrypted[Id[File]]

    hidden = App(tables=[Sealed], codec=FernetCodec(Fernet.generate_key().decode()))
    write_hidden, _, act_hidden = tell_in(hidden)
    async with TestApp(hidden, database_url) as test:
        file = await test.run_action(act_hidden, lambda ctx: ctx.storage.store(b"hello"))
        test.clock.advance(DAY)
        await sweep(test)
        assert await test.run_mutation(write_hidden, lambda ctx: ctx.storage.get_url(file)) is not None
    assert [one["fields"] for one in events(caplog, "files.not_swept")] == ["sealed.file"]


async def test_left_over_bytes_go_and_those_of_other_databases_stay(database_url: str, folder: str) -> None:
    async with TestApp(app, database_url, files=folder) as test:
        await keep(test)
        (own,) = await keys_of(test)
        day, _, _ = own.rpartition("/")
        other = f"{'f' * 32}/2026-01-01/{'c' * 32}"  # of another database
        for name in (f"{day}/{'a' * 32}", f"{day}/b#1", other):
            write_bytes(folder, name, b"left over")
        await sweep(test)
        assert len(bytes_in(folder)) == 4  # they are young: their rows may come
        make_old(folder)
        await sweep(test)
        assert sorted(bytes_in(folder)) == sorted([own, other])


async def test_used_tokens_are_forgotten(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        url = await test.run_mutation(write, lambda ctx: ctx.storage.generate_upload_url(single_use=True))
        assert (await test.http.post(url, content=b"1")).status_code == 200
        again = await test.http.post(url, content=b"2")
        assert (again.status_code, again.json()["code"]) == (401, "StorageTokenUsed")
        assert await test.engine.store.files.prune(test.clock.now(), 10) == 0
        test.clock.advance(timedelta(hours=2))
        assert await test.engine.store.files.prune(test.clock.now(), 10) == 1
        assert len(await keys_of(test)) == 1


# ----- code that does not await


def test_a_program_without_await_has_files_too(database_url: str, folder: str) -> None:
    lines = App()

    @lines.action(access=public)
    def louder(ctx: sync.ActionCtx, file: Id[File]) -> Id[File]:
        opened = ctx.storage.open(file)
        assert opened is not None
        return ctx.storage.store((part.upper() for part in opened), content_type=opened.file.content_type)

    @lines.mutation(access=public)
    def forget(ctx: sync.MutationCtx, file: Id[File]) -> None:
        ctx.storage.delete(file)

    @lines.query(access=public)
    def where(ctx: sync.QueryCtx, file: Id[File]) -> str | None:
        return ctx.storage.get_url(file)

    with lines.sync.open(database_url, files=folder) as backend:
        file = backend.storage.store(io.BytesIO(b"hello"), content_type="text/plain")
        found = backend.run_action(louder, file)
        opened = backend.storage.open(found)
        assert opened is not None
        assert (opened.read(), opened.file.content_type) == (b"HELLO", "text/plain")
        assert backend.run_query(where, file) is not None
        backend.run_mutation(forget, file)
        assert backend.run_query(where, file) is None
        assert backend.storage.list(1)[0].id == found


async def test_a_job_that_shares_its_transaction_deletes_a_file(database_url: str, folder: str) -> None:
    async with TestApp(app, database_url, files=folder) as test:
        files = [await keep(test) for _ in range(3)]
        for file in files[:2]:
            await test.scheduler.run_after(timedelta(0), forget_file, file=file)
        await test.run_until_idle()
        await prune(test)
        assert [one.id for one in await test.storage.list()] == files[2:]
        assert sorted(bytes_in(folder)) == await keys_of(test)


@app.internal_mutation
async def forget_file(ctx: MutationCtx, file: Id[File]) -> None:
    await ctx.storage.delete(file)
