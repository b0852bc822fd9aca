"""Snapshots with files: they come back equal on both stores, and a snapshot of Convex brings its own."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from doors.cli_fixtures import Console
from doors.test_cli_snapshots import convex_id, document
from pydantic import Field
from stage.needs import LONG
from stage.servers import bucket, bytes_in, empty, keys_of, sweep
from stage.stories import tell_in

from penstock import App, File, Id, Table
from penstock.testing import TestApp

MIB = 1024 * 1024
KILLED = """
import os, signal, sys
from penstock.cli.main import main
from penstock.observe import points

left = int(os.environ["DIES_AT"])

async def die(**_):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

points.arm("file.stored", die)
main()
"""
STORAGE, PICTURES = 9, 10_001
PICTURE, LEGACY = convex_id(STORAGE, 1), "1f0c2b5e-7a86-4c55-9f3e-0d6d3f1f8a11"
TEXT, TEXT_LEGACY = convex_id(STORAGE, 2), "2f0c2b5e-7a86-4c55-9f3e-0d6d3f1f8a11"


class Picture(Table, name="picture_of_snapshots"):
    file: Id[File]
    others: list[Id[File]] = Field(default_factory=list)
    note: str = ""


app = App(tables=[Picture])
write, read, act = tell_in(app)


@pytest.fixture
def moving(shell: Console, monkeypatch: pytest.MonkeyPatch) -> Console:
    monkeypatch.setenv("PENSTOCK_APP", f"{__name__}:app")
    shell.ok("migrate")
    return shell


def tell(moving: Console, database: str, story: Callable[[TestApp], Awaitable[Any]]) -> Any:
    """Tell a story on a database, with the folder of files that commands take."""

    async def work() -> Any:
        async with TestApp(app, database, files=str(moving.folder / "penstock-files")) as test:
            return await story(test)

    return asyncio.run(work())


async def fill(test: TestApp) -> None:
    async def store(ctx: Any) -> list[str]:
        image = await ctx.storage.store(b"\x89PNG" * 700_000, content_type="image/png")
        return [image, await ctx.storage.store(b""), await ctx.storage.store(b"gone")]

    image, nothing, gone = await test.run_action(act, store)
    await test.run_mutation(write, lambda ctx: ctx.db.insert(Picture(file=image, others=[nothing], note="x")))
    await test.run_mutation(write, lambda ctx: ctx.storage.delete(gone))


def content_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_files_go_to_another_store_and_back(moving: Console, sqlite_url: str, postgres_url: str) -> None:
    for url in (sqlite_url, postgres_url):
        moving.ok("migrate", "--database", url)
    tell(moving, sqlite_url, fill)
    told = moving.ok("export", "-o", "one.zip", "--database", sqlite_url).err.splitlines()
    assert told == ["picture_of_snapshots: 1 row → one.zip", "_files: 2 files → one.zip"]
    moving.ok("import", "one.zip", "--database", postgres_url)
    moving.ok("export", "-o", "two.zip", "--database", postgres_url)
    moving.ok("import", "two.zip", "--database", sqlite_url, "--replace", "--yes")
    moving.ok("export", "-o", "three.zip", "--database", sqlite_url)
    one, two, three = (content_of(moving.folder / f"{name}.zip") for name in ("one", "two", "three"))
    assert one == two == three
    newest, oldest = map(json.loads, one["_files/documents.jsonl"].splitlines())
    assert (newest["size"], oldest["contentType"], oldest["size"]) == (0, "image/png", 2_800_000)
    assert one[f"_files/{oldest['_id']}"] == b"\x89PNG" * 700_000

    async def look(test: TestApp) -> None:
        (row,) = await test.run_query(read, lambda ctx: ctx.db.query(Picture).collect())
        url = await test.run_query(read, lambda ctx: ctx.storage.get_url(row.file))
        assert url == f"/api/storage/{oldest['storageId']}"
        assert hashlib.sha256((await test.http.get(url)).content).hexdigest() == oldest["sha256"]
        test.clock.advance(timedelta(days=9))
        await sweep(test)
        assert len(await keys_of(test)) == 2

    tell(moving, postgres_url, look)
    tell(moving, sqlite_url, look)


@pytest.mark.both_stores
def test_replace_leaves_the_files_of_the_snapshot_and_append_adds_them(moving: Console, database_url: str) -> None:
    tell(moving, database_url, fill)
    moving.ok("export", "-o", "all.zip")
    before = content_of(moving.folder / "all.zip")

    async def change(test: TestApp) -> None:
        first, *_ = await test.storage.list(1)
        await test.run_mutation(write, lambda ctx: ctx.storage.delete(first.id))
        await test.storage.store(b"new")

    tell(moving, database_url, change)
    assert "there are files" in moving("import", "all.zip").err
    done = moving.ok("import", "all.zip", "--append", "--json").json["tables"]
    assert [(one["from"], one["rows"], one["present"]) for one in done] == [
        ("_files", 1, 1),
        ("picture_of_snapshots", 0, 1),
    ]
    assert len(moving.ok("export", "-o", "more.zip", "--json").json) == 2
    moving.ok("import", "all.zip", "--replace", "--yes")
    moving.ok("export", "-o", "again.zip")
    assert content_of(moving.folder / "again.zip") == before
    for only, expected in (("_files", ["_files"]), ("picture_of_snapshots", ["picture_of_snapshots"])):
        done = moving.ok("import", "all.zip", "--append", "--table", only, "--json").json["tables"]
        assert [one["from"] for one in done] == expected
    tell(moving, database_url, sweep)
    assert len(bytes_in(str(moving.folder / "penstock-files"))) == 2


def test_lost_bytes_are_named_and_the_rest_is_exported(moving: Console, database_url: str) -> None:
    tell(moving, database_url, fill)
    empty(str(moving.folder / "penstock-files"))
    told = moving("export", "-o", "all.zip")
    assert told.code == 1
    assert "The bytes of 1 file are not there" in told.err
    documents = content_of(moving.folder / "all.zip")["_files/documents.jsonl"].splitlines()
    assert [json.loads(line)["size"] for line in documents] == [0]


# ----- Convex


def file_document(name: str, content: bytes, **fields: Any) -> dict[str, Any]:
    number = 1 if name == PICTURE else 2
    digest = hashlib.sha256(content).digest()
    return {
        "_id": name, "_creationTime": 1_700_000_000_000.25 + number, "size": len(content), "contentType": "image/png",
        "sha256": base64.b64encode(digest).decode(),
        "internalId": LEGACY if number == 1 else TEXT_LEGACY, **fields,
    }  # fmt: skip


def write_zip(path: Path, documents: list[dict[str, Any]], files: dict[str, bytes]) -> None:
    rows = [
        document(PICTURES, 1, file=PICTURE, others=[TEXT_LEGACY, convex_id(STORAGE, 77)], note=f"see {PICTURE}"),
        document(PICTURES, 2, file=LEGACY, note=TEXT),
    ]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("_tables/documents.jsonl", json.dumps({"name": "pictures", "id": PICTURES}))
        archive.writestr("picture_of_snapshots/documents.jsonl", "\n".join(rows))
        archive.writestr("_storage/documents.jsonl", "\n".join(map(json.dumps, documents)))
        for name, content in files.items():
            archive.writestr(f"_storage/{name}", content)


DOCUMENTS = [file_document(PICTURE, b"\x89PNG"), file_document(TEXT, b"hello", contentType=None)]
FILES = {f"{PICTURE}.png": b"\x89PNG", TEXT: b"hello"}


@pytest.mark.both_stores
def test_files_of_convex_move_in_with_their_ids_and_urls(moving: Console, database_url: str) -> None:
    write_zip(moving.folder / "snapshot.zip", DOCUMENTS, FILES)
    done = moving.ok("import", "convex", "snapshot.zip", "--json").json
    assert [(one["from"], one["table"], one["rows"]) for one in done["tables"]] == [
        ("_storage", "file", 2),
        ("picture_of_snapshots", "picture_of_snapshots", 2),
    ]
    assert done["left_out"] == []
    again = moving.ok("import", "convex", "snapshot.zip", "--append", "--json").json["tables"]
    assert [(one["rows"], one["present"]) for one in again] == [(0, 2), (0, 2)]

    async def look(test: TestApp) -> None:
        first, second = await test.run_query(read, lambda ctx: ctx.db.query(Picture).order("asc").collect())
        text, picture = await test.storage.list()
        assert (first.file, second.file, first.others[0]) == (picture.id, picture.id, text.id)
        assert first.others[1].startswith("file_"), "an id of a deleted file is one, too"
        assert (first.note, second.note) == (f"see {PICTURE}", text.id)
        assert (picture.content_type, text.content_type, picture.creator) == ("image/png", None, None)
        assert picture.creation_time.timestamp() == 1_700_000_000.00125 + 0.0
        answer = await test.http.get(f"/api/storage/{LEGACY}")
        assert (answer.content, answer.headers["content-type"]) == (b"\x89PNG", "image/png")
        found = await test.storage.get_metadata(LEGACY)
        assert found is not None
        assert found.id == picture.id

    tell(moving, database_url, look)


def test_files_come_into_a_bucket_and_go_on_from_there(
    moving: Console, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = [file_document(PICTURE, b"\x89PNG" * 3_000_000), DOCUMENTS[1]]
    write_zip(moving.folder / "snapshot.zip", large, {f"{PICTURE}.png": b"\x89PNG" * 3_000_000, TEXT: b"hello"})
    with bucket() as url:
        monkeypatch.setenv("PENSTOCK_FILES", url)
        moving.ok("import", "convex", "snapshot.zip")
        moving.ok("export", "-o", "all.zip")
        assert sorted(bytes_in(url).values()) == [5, 12_000_000]
    content = content_of(moving.folder / "all.zip")
    files = {name: found for name, found in content.items() if name.startswith("_files/file_")}
    assert sorted(map(len, files.values())) == [5, 12_000_000]


def test_what_does_not_fit_is_named_and_nothing_is_imported(moving: Console, database_url: str) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"size": 3}, "its bytes are not all in the snapshot"),
        ({"_id": convex_id(STORAGE, 3)}, "its bytes are not in the snapshot"),
        ({"_id": "../../x"}, "'../../x' is not an id of a file"),
        ({"_id": None}, "it has no _id"),
        ({"internalId": "x"}, "'x' is no UUID"),
        ({"internalId": 7}, "7 is no UUID"),
        ({"sha256": "abc"}, "'abc' is no SHA-256"),
        ({"contentType": "a\nb"}, "is no content type"),
        ({"_creationTime": "now"}, "'now' is no number of milliseconds"),
    ]
    for changed, said in cases:
        write_zip(moving.folder / "bad.zip", [DOCUMENTS[0] | changed, DOCUMENTS[1]], FILES)
        told = moving("import", "convex", "bad.zip")
        assert told.code == 1, changed
        assert "_storage, line 1: " in told.err, told.err
        assert said in told.err, told.err
    assert bytes_in(str(moving.folder / "penstock-files")) == {}
    done = moving.ok("import", "convex", "bad.zip", "--skip-refused", "--json").json["tables"]
    assert [(one["rows"], one["refused"]) for one in done] == [(1, 1), (2, 0)]
    assert tell(moving, database_url, keys_of)


def test_an_import_of_damaged_bytes_stops_before_the_rows_and_goes_on_later(moving: Console, database_url: str) -> None:
    write_zip(moving.folder / "bad.zip", DOCUMENTS, FILES | {TEXT: b"hullo"})
    told = moving("import", "convex", "bad.zip")
    assert "_storage, line 2: The bytes of the file have another SHA-256" in told.err
    assert "go on with --append" in told.err
    assert moving.ok("export", "picture_of_snapshots", "-o", "-").out == ""
    write_zip(moving.folder / "good.zip", DOCUMENTS, FILES)
    done = moving.ok("import", "convex", "good.zip", "--append", "--json").json["tables"]
    assert [(one["rows"], one["present"]) for one in done] == [(1, 1), (2, 0)]
    whole = bytearray((moving.folder / "good.zip").read_bytes())
    whole[whole.index(b"hello")] ^= 1
    (moving.folder / "damaged.zip").write_bytes(whole)
    told = moving("import", "damaged.zip", "--replace", "--yes")
    assert told.code == 0, "its bytes are there"
    tell(moving, database_url, lambda test: test.run_mutation(write, delete_all))
    told = moving("import", "damaged.zip", "--append")
    assert "Bad CRC-32" in told.err, told.err


@pytest.mark.both_stores
def test_an_import_that_was_killed_goes_on(moving: Console, database_url: str) -> None:
    tell(moving, database_url, fill)
    moving.ok("export", "-o", "all.zip")
    before = content_of(moving.folder / "all.zip")
    tell(moving, database_url, lambda test: test.run_mutation(write, delete_all))
    tell(moving, database_url, sweep)
    kept = before["_files/documents.jsonl"].splitlines()
    for step in (0, 1):
        environment = {"PYTHONPATH": os.pathsep.join(sys.path), "DIES_AT": str(step)}
        told = subprocess.run(
            [sys.executable, "-c", KILLED, "import", "all.zip", "--append"],
            env=os.environ | environment, cwd=moving.folder, check=False,
        )  # fmt: skip
        assert told.returncode == -signal.SIGKILL
    (there,) = tell(moving, database_url, lambda test: test.storage.list())
    assert there.id == json.loads(kept[0])["_id"], "the second file has bytes, and no row"
    done = moving.ok("import", "all.zip", "--append", "--json").json["tables"]
    assert [(one["rows"], one["present"]) for one in done] == [(1, 1), (0, 1)]
    moving.ok("export", "-o", "again.zip")
    assert content_of(moving.folder / "again.zip") == before


async def delete_all(ctx: Any) -> None:
    for file in await ctx.storage.list():
        await ctx.storage.delete(file.id)


# ----- memory


@pytest.fixture
def peak() -> Callable[[], int]:
    """The bytes of memory that this process has taken at most since the test began."""

    def measure(name: str) -> int:
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    Path("/proc/self/clear_refs").write_text("5", "utf-8")
    before = measure("VmRSS")
    return lambda: measure("VmHWM") - before


def test_large_files_are_streamed(moving: Console, database_url: str, peak: Callable[[], int]) -> None:
    size = (1024 if LONG else 128) * MIB

    async def store(test: TestApp) -> None:
        piece = hashlib.shake_256(b"").digest(MIB)
        await test.storage.store(piece for _ in range(size // MIB))

    tell(moving, database_url, store)
    moving.ok("export", "-o", "all.zip")
    moving.ok("import", "all.zip", "--table", "_files", "--append")
    tell(moving, database_url, lambda test: test.run_mutation(write, delete_all))
    done = moving.ok("import", "all.zip", "--append", "--json").json["tables"]
    assert done[0]["rows"] == 1
    print(f"{size // MIB} MiB took {peak() / MIB:.1f} MiB of memory")  # noqa: T201 - a figure
    assert peak() < 40 * MIB
