"""Classes with ``stored=False``: rows with more fields, which leave as rows and are no tables."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from pydantic import ConfigDict, ValidationError
from pydantic.alias_generators import to_camel
from stage.sockets import listening

from penstock import (
    App,
    DeclarationError,
    File,
    Id,
    Int64,
    MutationCtx,
    QueryCtx,
    Table,
    UsageError,
    ValueInvalid,
    asgi_app,
)
from penstock.codegen.description import describe
from penstock.codegen.typescript import typescript_files
from penstock.schema.table import definition_of
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores


class Letter(Table):
    model_config = ConfigDict(alias_generator=to_camel)

    sender: str
    text: str
    reply_to: str | None = None
    number: Int64 = 2**60


class SignedLetter(Letter, stored=False):
    name: str | None
    size: Int64


app = App(tables=[Letter])


@app.mutation
async def write(ctx: MutationCtx, text: str) -> Id[Letter]:
    return await ctx.db.insert(Letter(sender="ada", text=text))


@app.query
async def letters(ctx: QueryCtx) -> list[SignedLetter]:
    found = await ctx.db.query(Letter).collect()
    return [SignedLetter.from_row(row, name=row.sender.title(), size=2**60 + 1) for row in found]


@app.query
async def again(ctx: QueryCtx, letter: SignedLetter) -> SignedLetter:
    return letter


class SentFile(File):
    author: str


@app.query
async def files(ctx: QueryCtx, file: Id[File]) -> tuple[File, SentFile]:
    known = await ctx.storage.get_metadata(file)
    assert known is not None
    return known, SentFile(**dict(known), author="ada")


@app.mutation
async def misuse(ctx: MutationCtx, how: str) -> None:
    (row,) = await ctx.db.query(Letter).collect()
    signed = SignedLetter.from_row(row, name=None, size=0)
    ways: dict[str, Callable[[], Awaitable[Any]]] = {
        "query": lambda: ctx.db.query(SignedLetter).collect(),
        "get": lambda: ctx.db.get(SignedLetter, Id(row.id)),
        "insert": lambda: ctx.db.insert(signed),
        "delete": lambda: ctx.db.delete(SignedLetter, Id(row.id)),
    }
    with pytest.raises(DeclarationError, match=r"SignedLetter has stored=False, so it is no table\. Pass Letter"):
        await ways[how]()
    with pytest.raises(ValueInvalid, match="replace takes a row of letter, not SignedLetter"):
        await ctx.db.replace(Letter, row.id, signed)


async def call(test: TestApp, name: str, **args: Any) -> Any:
    """The result of a query, as clients get it."""
    async with listening(asgi_app(app, backend=test)) as url, httpx.AsyncClient(base_url=url) as http:
        body = {"path": f"{__name__}:{name}", "args": args, "format": "json"}
        return (await http.post("/api/query", json=body)).json()["value"]


async def test_a_row_with_more_fields_leaves_as_a_row(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        letter = await test.run_mutation(write, "hello")
        (row,) = await test.run_query(letters)
        assert (type(row), row.id, row.text, row.name) == (SignedLetter, letter, "hello", "Ada")
        assert await test.run_query(again, row) == row
        assert await call(test, "letters") == [
            {
                "_id": letter,
                "_creationTime": row.creation_time.timestamp() * 1000,
                "sender": "ada",
                "text": "hello",
                "replyTo": None,
                "number": str(2**60),
                "name": "Ada",
                "size": str(2**60 + 1),
            }
        ]
        for how in ("query", "get", "insert", "delete"):
            await test.run_mutation(misuse, how)


async def test_a_file_leaves_as_a_row_too(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        stored = await test.storage.get_metadata(await test.storage.store(b"x"))
        assert stored is not None
        known, sent = await call(test, "files", file=stored.id)
        assert (known["_id"], known["_creationTime"]) == (stored.id, stored.creation_time.timestamp() * 1000)
        assert sent == known | {"author": "ada"}
    (model,) = [text for name, text in typescript_files(describe([files])).items() if "dataModel" in name]
    assert model.count('{ _id: Id<"_storage">; _creationTime: number; size: number;') == 2


def test_it_is_no_table_of_the_app() -> None:
    assert [definition.name for definition in app.definitions()] == ["letter"]


def test_clients_get_a_type_of_its_own() -> None:
    described = describe([letters], [definition_of(Letter)])
    (model,) = [text for name, text in typescript_files(described).items() if "dataModel" in name]
    marks = '_id: Id<"letter">; _creationTime: number'
    row = f"{marks}; sender: string; text: string; replyTo: string | null; number: bigint"
    assert f'export interface Rows {{\n  "letter": {{ {row} }};\n}}' in model
    assert f"export type SignedLetter = {{ {row}; name: string | null; size: bigint }};" in model


def stored(text: str) -> Letter:
    marks = {"id": "letter_01jd3k4v5w6x7y8z9a0b1c2d3e", "creation_time": datetime(2030, 1, 1, tzinfo=UTC)}
    return Letter.model_validate({**marks, "sender": "ada", "text": text})


def test_the_row_of_another_program_keeps_its_key() -> None:
    class Stamp(Table, source="stamp", key=("land", "value"), managed=False):
        land: str
        value: int

    class PricedStamp(Stamp, stored=False):
        price: int

    (stamp,) = definition_of(Stamp).make_rows([{"land": "fr", "value": 3}])
    priced = PricedStamp.from_row(stamp, price=7)
    assert dict(priced) == {"land": "fr", "value": 3, "price": 7, "id": ("fr", 3)}
    with pytest.raises(UsageError, match=r"SignedLetter\.from_row does not take this Stamp"):
        SignedLetter.from_row(stamp, name=None, size=0)


@pytest.mark.parametrize("given", [{}, {"name": "Ada"}, {"name": 7, "size": 1}, {"name": "Ada", "size": 1, "more": 1}])
def test_fields_are_checked(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SignedLetter.from_row(stored("hello"), **given)


def test_a_field_of_the_row_may_be_replaced() -> None:
    signed = SignedLetter.from_row(stored("hello"), text="HELLO", name=None, size=5)
    assert (signed.text, signed.size, signed.id) == ("HELLO", 5, stored("").id)


def test_only_stored_rows_of_its_table_become_one() -> None:
    with pytest.raises(UsageError, match=r"SignedLetter\.from_row does not take this Letter"):
        SignedLetter.from_row(Letter(sender="ada", text="new"), name=None, size=0)
    with pytest.raises(UsageError, match=r"Letter\.from_row does not take this Letter\. Derive a class from Letter"):
        Letter.from_row(stored("hello"))


def test_wrong_declarations_are_refused() -> None:
    with pytest.raises(DeclarationError, match=r"Alone \(.+\): stored=False needs a table to derive from"):

        class Alone(Table, stored=False):
            text: str

    for given in ({"name": "other"}, {"live": True}, {"managed": False}, {"source": "other", "key": "id"}):
        with pytest.raises(DeclarationError, match=r"Named \(.+\): stored=False takes no other class arguments"):

            class Named(Letter, stored=False, **given):
                more: str

    with pytest.raises(
        DeclarationError, match=r"Timed \(.+\): stored=False: the field creation_time is penstock's own"
    ):

        class Timed(Letter, stored=False):
            creation_time: float  # type: ignore[assignment]  # which penstock refuses too
