"""Whole snapshots: one of Convex moves in with its ids, and an export of penstock comes back equal."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from doors.cli_fixtures import Console

PROGRAM = """
from typing import Any, Literal

from penstock import App, File, Id, Index, Int64, QueryCtx, Table

app = App()


class User(Table):
    name: str
    nick_name: str | None


class UserProfile(Table):
    owner: Id[User]


class Message(Table):
    author: Id[User]
    body: str
    likes: int = 0
    weight: float = 0.0
    large: Int64 | None = None
    seal: bytes | None = None
    seen_by: list[Id[User]] = []
    stars: dict[Id[User], float] = {}
    seen_in: Id[User] | Literal["all"] = "all"
    file: Id[File] | None = None
    anything: Any = None

    by_body = Index("body", unique=True)


@app.query
async def first(ctx: QueryCtx) -> list[Any]:
    found = await ctx.db.query(Message).order("asc").take(10)
    kinds = [{name: type(one).__name__ for name, one in (row.anything or {}).items()} for row in found]
    return [[row.body, row.likes, row.large, row.seal == b"\\xff", kind] for row, kind in zip(found, kinds)]
"""

_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
USERS, MESSAGES, PROFILES, GONE = 10_001, 10_002, 10_003, 10_004


def convex_id(table: int, number: int) -> str:
    """An id as Convex spells it."""
    raw = bytes((table & 127 | 128, table >> 7)) if table > 127 else bytes((table,))
    raw += number.to_bytes(16, "big")
    low = high = 0
    for one in raw:
        low = (low + one) % 256
        high = (high + low) % 256
    raw += bytes((low, high))
    size = -(-len(raw) * 8 // 5)
    bits = int.from_bytes(raw, "big") << (size * 5 - len(raw) * 8)
    return "".join(_LETTERS[bits >> 5 * place & 31] for place in reversed(range(size)))


def write_zip(
    path: Path, tables: dict[str, list[str]], *, typed: bool = True, root: str = "snapshot/", **more: str
) -> None:
    numbers = {"users": USERS, "messages": MESSAGES, "userProfiles": PROFILES, "gone": GONE}
    with zipfile.ZipFile(path, "w") as archive:
        lines = [json.dumps({"name": name, "id": number}) for name, number in numbers.items()]
        archive.writestr(f"{root}_tables/documents.jsonl", "\n".join(lines))
        for name, rows in tables.items():
            archive.writestr(f"{root}{name}/documents.jsonl", "\n".join(rows))
            if typed:
                archive.writestr(f"{root}{name}/generated_schema.jsonl", '"uniform"\n')
        for name, text in more.items():
            archive.writestr(f"{root}{name}/documents.jsonl", text)


def document(table: int, number: int, **fields: Any) -> str:
    """A document of Convex; its creation time has a fraction, as they have."""
    return json.dumps({"_id": convex_id(table, number), "_creationTime": 1_700_000_000_000.25 + number, **fields})


def tagged(kind: str, raw: bytes) -> dict[str, str]:
    return {kind: base64.b64encode(raw).decode()}


OTHER = '{"format": 1, "tables": ["user"]}'  # which are not there
ADA, BOB, LOST = convex_id(USERS, 1), convex_id(USERS, 2), convex_id(USERS, 99)
TABLES = {
    "users": [document(USERS, 2, name="Bob", nickName="b"), document(USERS, 1, name="Ada")],
    "userProfiles": [document(PROFILES, 1, owner=ADA)],
    "messages": [
        document(MESSAGES, 3, author=LOST, body="late"),
        document(
            MESSAGES, 1, author=ADA, body=f"to {BOB}", likes=3.0, weight=2.0, large=2**60,
            seal=tagged("$bytes", b"\xff"), seenBy=[BOB, LOST], stars={BOB: 5.0}, seenIn=BOB,
            anything={"whole": 7, "id": BOB, "bytes": tagged("$bytes", b"\xff")},
        ),
        document(MESSAGES, 2, author=BOB, body=BOB, weight=tagged("$float", struct.pack("<d", float("inf")))),
    ],
}  # fmt: skip


@pytest.fixture
def moved(shell: Console) -> Console:
    shell.write("chat.py", PROGRAM)
    shell.ok("migrate")
    write_zip(shell.folder / "snapshot.zip", TABLES, _components="{}")
    return shell


def rows_of(shell: Console, table: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shell.ok("export", table, "-o", "-").out.splitlines()]


def test_ids_of_convex_become_ids_wherever_they_stand(moved: Console) -> None:
    assert convex_id(1017, int.from_bytes(bytes(pow(251, n + 1, 256) for n in range(16)), "big")) == (
        "z43zp6c3e75gkmz1kfwj6mbbx5sw281h"  # a known one
    )
    done = moved.ok("import", "convex", "snapshot.zip", "--json").json
    assert [(one["from"], one["table"], one["rows"]) for one in done["tables"]] == [
        ("users", "user", 2), ("userProfiles", "user_profile", 1), ("messages", "message", 3),
    ]  # fmt: skip
    assert done["left_out"] == ["_components"]
    users = rows_of(moved, "user")
    assert [(one["name"], one["nick_name"]) for one in users] == [("Ada", None), ("Bob", "b")], "by creation time"
    assert users[0]["_creationTime"] == 1_700_000_000_001.25
    ada, bob = (one["_id"] for one in users)
    assert rows_of(moved, "user_profile")[0]["owner"] == ada
    first, second, late = rows_of(moved, "message")
    assert (first["author"], second["author"]) == (ada, bob)
    assert first["body"] == f"to {BOB}", "an id in a sentence is a part of it"
    assert second["body"] == first["anything"]["id"] == first["seen_by"][0] == bob
    assert (first["stars"], first["seen_in"], second["seen_in"]) == ({bob: 5}, bob, "all")
    assert late["author"] == first["seen_by"][1] != LOST, "a row that was deleted has one id, too"
    told = moved.ok("run", "first", "--json").json
    assert told[0] == [
        f"to {BOB}", 3, str(2**60), True, {"whole": "BigInt", "id": "str", "bytes": "bytes"},
    ]  # fmt: skip


def test_rows_that_do_not_fit_are_reported_before_any_is_stored(moved: Console) -> None:
    bad = [
        document(MESSAGES, 5, author=ADA, body=7), document(MESSAGES, 6, author=ADA, body="x", colour="red"),
        document(MESSAGES, 7, author="nobody", body="y"), '{"body": "z"}',
        document(MESSAGES, 8, author=ADA, body="late"),
        document(MESSAGES, 9, author=ADA, body="", file=convex_id(9, 1)), document(MESSAGES, 10, large=2**63),
        '{"_id": "' + ADA + '", "_creationTime": 1e400, "author": "' + ADA + '", "body": ""}',
    ]  # fmt: skip
    write_zip(moved.folder / "bad.zip", TABLES | {"messages": [*TABLES["messages"], *bad]})
    refused = moved("import", "convex", "bad.zip")
    assert refused.code == 1
    for said in (
        "7 rows cannot be imported, so nothing was.",
        "messages, line 4: body: Input should be a valid string",
        "messages, line 5: colour: Extra inputs are not permitted",
        "messages, line 6: author: Input should be an id of table user",
        "messages, line 7: it has no _id or no _creationTime.",
        "messages, line 9: file: Input should be an id of table file",
        "messages, line 10: An integer does not fit into 64 bits.",
        "messages, line 11: _creationTime: inf is no number of milliseconds",
        "npx convex export --include-file-storage",
    ):
        assert said in refused.err
    assert rows_of(moved, "user") == []
    done = moved.ok("import", "convex", "bad.zip", "--skip-refused", "--json").json["tables"][2]
    assert (done["rows"], done["refused"]) == (3, 8), "the eighth one is refused by the unique index"
    assert "already holds this key" in done["first_refused"][-1]


def test_an_import_goes_on_where_it_was_interrupted_and_replaces_all_or_nothing(moved: Console) -> None:
    same = document(MESSAGES, 4, author=ADA, body="late")
    write_zip(moved.folder / "same.zip", TABLES | {"messages": [*TABLES["messages"], same]})
    refused = moved("import", "same.zip")
    assert "messages, line 4: Table message: " in refused.err
    assert "go on with --append" in refused.err
    assert len(rows_of(moved, "user")) == 2
    assert "Not all tables are empty: user has 2 rows" in moved("import", "snapshot.zip").err
    done = moved.ok("import", "snapshot.zip", "--append", "--json").json["tables"]
    assert [(one["rows"], one["present"]) for one in done] == [(0, 2), (0, 1), (3, 0)]
    before = rows_of(moved, "message")
    assert "already holds this key" in moved("import", "same.zip", "--replace", "--yes").err
    assert rows_of(moved, "message") == before
    moved.ok("import", "snapshot.zip", "--replace", "--yes")
    assert rows_of(moved, "message") == before, "the ids are the same each time"


def test_tables_are_chosen_and_named(moved: Console) -> None:
    write_zip(moved.folder / "other.zip", {"members": [document(USERS, 1, name="Ada")], **TABLES}, root="")
    refused = moved("import", "other.zip")
    assert "The app has no table for 'members'" in refused.err
    assert "--table members=TABLE" in refused.err
    assert "has no table 'nobody'" in moved("import", "other.zip", "--table", "nobody").err
    done = moved.ok("import", "other.zip", "--table", "members=User", "--table", "userProfiles", "--json").json
    assert [(one["from"], one["rows"]) for one in done["tables"]] == [("members", 1), ("userProfiles", 1)]
    (profile,) = rows_of(moved, "user_profile")
    assert profile["owner"] == rows_of(moved, "user")[0]["_id"]


def test_numbers_without_types_are_floats_and_old_snapshots_are_refused(moved: Console) -> None:
    row = document(MESSAGES, 1, author=ADA, body="x", likes=1, anything={"n": 7})
    write_zip(moved.folder / "plain.zip", {"messages": [row], "users": TABLES["users"]}, typed=False)
    moved.ok("import", "plain.zip")
    assert rows_of(moved, "message")[0]["anything"] == {"n": 7}
    with zipfile.ZipFile(moved.folder / "plain.zip", "a") as archive:
        archive.writestr("snapshot/messages/generated_schema.jsonl", '{"likes": "int64"}\n')
    assert "is of an old form" in moved("import", "plain.zip").err
    moved.write("no.zip", "no zip")
    assert "no.zip cannot be read: File is not a zip file." in moved("import", "no.zip").err
    with zipfile.ZipFile(moved.folder / "empty.zip", "w") as archive:
        archive.writestr("readme.txt", "")
    assert "has neither penstock.json nor _tables/documents.jsonl" in moved("import", "empty.zip").err


def test_damaged_snapshots_are_refused_before_any_row_is_stored(moved: Console) -> None:
    whole = (moved.folder / "snapshot.zip").read_bytes()
    with zipfile.ZipFile(moved.folder / "snapshot.zip") as archive:
        entry = archive.getinfo("snapshot/messages/documents.jsonl")
    place = entry.header_offset + 30 + len(entry.filename) + 9  # within the first row
    changed = bytearray(whole)
    changed[place] ^= 1
    encrypted = bytearray(whole)
    central = whole.rindex(b"PK\x01\x02", 0, whole.rindex(entry.filename.encode()))
    encrypted[central + 8] |= 1
    for bad, said in ((changed, "Bad CRC-32"), (encrypted, "is encrypted")):
        (moved.folder / "bad.zip").write_bytes(bad)
        refused = moved("import", "bad.zip", "--skip-refused")
        assert refused.code == 1
        assert f"{entry.filename} cannot be read" in refused.err
        assert said in refused.err
        assert rows_of(moved, "user") == []
    for manifest, said in (("{", "penstock.json cannot"), ("{}", "penstock.json cannot"), (OTHER, "user.jsonl cannot")):
        with zipfile.ZipFile(moved.folder / "bad.zip", "w") as archive:
            archive.writestr("penstock.json", manifest)
        assert said in moved("import", "bad.zip").err
    for cut in (len(whole) - 10, len(whole) // 2, 0):
        (moved.folder / "bad.zip").write_bytes(whole[:cut])
        assert "bad.zip cannot be read" in moved("import", "bad.zip").err
    for name, said in (
        ("_tables/documents.jsonl", "has more than 16,777,216 bytes"),
        ("messages/generated_schema.jsonl", "has more than 16,777,216 bytes"),
        ("users/documents.jsonl", "line 1: it is longer than"),
    ):
        with zipfile.ZipFile(moved.folder / "bad.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for other in {"_tables/documents.jsonl", "messages/documents.jsonl"} - {name}:
                archive.writestr(other, "")
            archive.writestr(name, b" " * (64 * 1024 * 1024))
        assert said in moved("import", "bad.zip").err


def test_an_export_of_all_tables_comes_back_equal(moved: Console) -> None:
    moved.ok("import", "convex", "snapshot.zip")
    moved.ok("export", "-o", "all.zip")
    before = {name: rows_of(moved, name) for name in ("user", "user_profile", "message")}
    moved.ok("import", "all.zip", "--replace", "--yes")
    assert {name: rows_of(moved, name) for name in before} == before
    assert "is no snapshot of Convex" in moved("import", "convex", "all.zip").err
    assert moved("import", "all.zip", "--csv").code == moved("import", "user").code == 2


def test_csv_and_arrays_are_read(moved: Console) -> None:
    moved.write("users.csv", '\ufeffname,nick_name\r\nAda,\r\n"Bob, the\n1st",b\r\n')
    moved.ok("import", "user", "users.csv")
    assert [(one["name"], one["nick_name"]) for one in rows_of(moved, "user")] == [
        ("Ada", None),
        ("Bob, the\n1st", "b"),
    ]
    ada = rows_of(moved, "user")[0]["_id"]
    cells = f'{ada},7,3,0.5,9007199254740993,/w==,"[""{ada}""]",{{}}\n'
    head = b"author,body,likes,weight,large,seal,seen_by,anything\n"
    moved.ok("import", "message", "-", "--csv", stdin=head + cells.encode())
    (row,) = rows_of(moved, "message")
    assert (row["body"], row["likes"], row["weight"], row["seen_by"]) == ("7", 3, 0.5, [ada])
    assert moved.ok("run", "first", "--json").json[0][2:4] == [str(2**53 + 1), True]
    for text, said in (
        (b"name,nick_name\nAda\n", "line 2: it does not have 2 cells"),
        (b"name,nick_name\nAda,b,c\n", "line 2: it does not have 2 cells"),
        (b"name\nAda\n\xff\n", "It is no UTF-8"),
        (b'name,nick_name\n"Ada,b\n', "line 2: unexpected end of data"),
        (b"name,nick_name,name\nAda,b,Eve\n", "line 1: the header has the column 'name' more than once"),
    ):
        assert said in moved("import", "user", "-", "--csv", "--append", stdin=text).err
    moved.ok(
        "import",
        "user",
        "-",
        "--append",
        stdin=b' [{"name": "Eve", "nick_name": null},\n {"name": "Sam", "nick_name": "s"}]',
    )
    assert [one["name"] for one in rows_of(moved, "user")][2:] == ["Eve", "Sam"]
    assert (
        "line 2: this is no JSON object"
        in moved("import", "user", "-", "--append", stdin=b'[{"name": "A", "nick_name": ""}, 7]').err
    )
    assert "This is not valid JSON" in moved("import", "user", "-", "--append", stdin=b"[7").err


# ----- components

INNER = """
from penstock import App, Table


class Label(Table):
    text: str


app = App(tables=[Label])
"""
OUTER = """
import inner
from penstock import App, File, Id, Table


class Remark(Table):
    text: str
    parent: Id["Remark"] | None = None
    file: Id[File] | None = None


app = App(tables=[Remark])
app.use(inner.app, name="labels")
"""
HOST = """
import outer
from penstock import App, Table


class User(Table):
    name: str
    remark: str


class MyNotesRemark(Table):
    text: str


app = App(tables=[User, MyNotesRemark])
app.use(outer.app, name="my_notes")
app.use(outer.app, name="others")
"""
STORED, STORED_URL = convex_id(9, 5), "3f0c2b5e-7a86-4c55-9f3e-0d6d3f1f8a11"
PARTS = {  # all with tables of one number: each component has numbers of its own
    "": {"users": [document(USERS, 1, name="Ada", remark=convex_id(USERS, 7))], "myNotesRemarks": []},
    "_components/myNotes/": {
        "remarks": [
            document(USERS, 7, text="first", parent=convex_id(USERS, 99), file=STORED),
            document(USERS, 8, text=convex_id(USERS, 1), parent=convex_id(USERS, 7)),
        ]
    },
    "_components/myNotes/_components/labels/": {"labels": [document(USERS, 3, text="red")]},
    "_components/mailer/": {"letters": [document(USERS, 4, text="none here")]},
}


def write_parts(path: Path, content: bytes = b"hello") -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for folder, tables in PARTS.items():
            names = (json.dumps({"name": name, "id": USERS + place}) for place, name in enumerate(tables))
            archive.writestr(f"snapshot/{folder}_tables/documents.jsonl", "\n".join(names))
            for name, rows in tables.items():
                archive.writestr(f"snapshot/{folder}{name}/documents.jsonl", "\n".join(rows))
        digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
        file = document(9, 5, sha256=digest, size=len(content), contentType="text/plain", internalId=STORED_URL)
        archive.writestr("snapshot/_components/myNotes/_storage/documents.jsonl", file)
        archive.writestr(f"snapshot/_components/myNotes/_storage/{STORED}.txt", content)
        archive.writestr("snapshot/_components/myNotes/_scheduled/documents.jsonl", "")


@pytest.mark.both_stores
def test_components_of_convex_move_into_the_ones_of_their_names_and_on_from_there(shell: Console) -> None:
    for name, text in {"inner.py": INNER, "outer.py": OUTER, "host.py": HOST}.items():
        shell.write(name, text)
    shell.write("penstock.toml", 'app = "host"\n')
    shell.ok("migrate")
    write_parts(shell.folder / "all.zip")
    done = shell.ok("import", "convex", "all.zip", "--json").json
    assert [(one["from"], one["table"], one["rows"]) for one in done["tables"]] == [
        ("myNotes/_storage", "file", 1), ("users", "user", 1), ("myNotesRemarks", "my_notes_remark", 0),
        ("myNotes/remarks", "my_notes__remark", 2), ("myNotes/labels/labels", "my_notes__labels__label", 1),
    ]  # fmt: skip
    assert done["left_out"] == ["myNotes/_scheduled", "component mailer"]
    (ada,), (first, second) = rows_of(shell, "user"), rows_of(shell, "my_notes__remark")
    assert ada["remark"] == first["_id"] == second["parent"], "a row of a component is known in the program"
    assert second["text"] == ada["_id"]
    assert first["parent"].startswith("remark_"), "a deleted row of the component's table, not of the program's"
    assert first["file"].startswith("file_")
    assert rows_of(shell, "others__remark") == []
    again = shell.ok("import", "convex", "all.zip", "--append", "--json").json["tables"]
    assert [(one["rows"], one["present"]) for one in again] == [(0, 1), (0, 1), (0, 0), (0, 2), (0, 1)]
    shell.ok("import", "convex", "all.zip", "--table", "myNotes/remarks=others__remark")
    assert [one["text"] for one in rows_of(shell, "others__remark")] == ["first", ada["_id"]]
    # penstock's own zip keeps the component of rows and of files, and --replace leaves the files of other components
    shell.ok("export", "-o", "own.zip")
    with zipfile.ZipFile(shell.folder / "own.zip") as own:
        (file,) = map(json.loads, own.read("_files/documents.jsonl").splitlines())
        before = {name: own.read(name) for name in own.namelist()}
    assert (file["_id"], file["component"], file["storageId"]) == (first["file"], "my_notes", STORED_URL)
    write_parts(shell.folder / "changed.zip", b"damaged")
    assert "another file has its id" in shell("import", "convex", "changed.zip", "--append").err
    shell.ok("import", "own.zip", "--replace", "--yes")
    shell.ok("export", "-o", "again.zip")
    with zipfile.ZipFile(shell.folder / "again.zip") as again_zip:
        assert {name: again_zip.read(name) for name in again_zip.namelist()} == before
