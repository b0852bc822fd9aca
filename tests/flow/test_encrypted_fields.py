"""Fields marked `Encrypted`: what may be done with them, and what is refused where it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NewType

import pytest
from cryptography.fernet import Fernet
from pydantic import BaseModel
from stage.databases import run_sql, sql

from penstock import (
    App,
    DeclarationError,
    Encrypted,
    FernetCodec,
    Id,
    Index,
    MutationCtx,
    QueryCtx,
    SchemaMismatch,
    Table,
    TaskCtx,
    Undecryptable,
    ValueInvalid,
)
from penstock.schema.fields import Kind
from penstock.schema.table import definition_of
from penstock.testing import TestApp

KEY = Fernet.generate_key()
app = OPENED = App(codec=FernetCodec(KEY))
Phone = NewType("Phone", str)
Hidden = Encrypted[str]


class Address(BaseModel):
    street: Encrypted[str]


class Patient(Table):
    name: str
    phone: Encrypted[str | None] = None
    age: Encrypted[int] = 0

    by_name = Index("name")


ran = list[Any]()


@app.internal_mutation
async def admit(ctx: MutationCtx, phone: str) -> Id[Patient]:
    return await ctx.db.insert(Patient(name="Ada", phone=phone))


@app.internal_mutation
async def change(ctx: MutationCtx, row: Id[Patient], phone: str | None) -> Patient:
    return await ctx.db.patch(Patient, row, phone=phone)


@app.internal_query
async def without(ctx: QueryCtx) -> list[Patient]:
    return await ctx.db.query(Patient).filter(lambda patient: patient.phone == None).take(5)  # noqa: E711


@app.internal_query
async def ask(ctx: QueryCtx, how: str) -> Any:
    rows: Any = ctx.db.query(Patient)
    return await {
        "sum": lambda: rows.sum("age"),
        "max": lambda: rows.max("phone"),
        "filter": lambda: rows.filter(lambda patient: patient.phone == "2").take(1),
        "group": lambda: rows.with_index(Patient.by_name).group_by("phone").count(),
    }[how]()


@app.reactive_task(Patient, watch=["phone"])
async def follow(ctx: TaskCtx[Patient]) -> None:
    ran.append((ctx.change, (await ctx.get_document()).phone))


async def test_a_task_runs_again_for_another_value_and_not_for_another_ciphertext(database_url: str) -> None:
    ran.clear()
    async with TestApp(app, database_url) as test:
        row = await test.run_mutation(admit, "1")
        await test.run_until_idle()
        before = await sql(test, "select phone from patient")
        assert (await test.run_mutation(change, row, "1")).phone == "1"
        assert await sql(test, "select phone from patient") != before
        await test.run_until_idle()
        assert ran == [("enter", "1")]
        assert await test.run_query(ask, "filter") == []
        for phone in ("2", None):
            await test.run_mutation(change, row, phone)
            await test.run_until_idle()
        assert ran[1:] == [("change", "2"), ("change", None)]
        assert [one.id for one in await test.run_query(without)] == [row]
        for how in ("sum", "max", "group"):
            with pytest.raises((ValueInvalid, DeclarationError), match=r"encrypted|index whose"):
                await test.run_query(ask, how)
        await test.run_mutation(change, row, "3")
    other = App(codec=FernetCodec(Fernet.generate_key()))
    look = other.internal_query(ask.handler)
    async with TestApp(other, database_url) as test:
        with pytest.raises(Undecryptable, match="column phone: A stored value cannot be decrypted") as caught:
            await test.run_query(look, "filter")
        assert caught.value.code == "undecryptable"
        assert "Add the key" in str(caught.value)


def test_any_spelling_of_the_mark_counts_and_a_marked_part_encrypts_the_whole() -> None:
    class Spelled(Table):
        plain: str
        a: Encrypted[str]
        b: Encrypted[int] | None = None
        c: Annotated[Encrypted[bytes], "odd"] = b""
        d: Hidden = ""
        e: list[Encrypted[str]] = []  # noqa: RUF012 - what is tested
        f: Address | None = None
        g: Encrypted[Phone] = Phone("")

    found = definition_of(Spelled)
    assert {one.kind for one in found.columns[3:]} == {Kind.ENCRYPTED}
    assert [one.name for one in found.columns[3:] if one.optional] == ["b", "f"]
    assert found.ciphertext_columns == tuple("abcdefg")


def _indexed() -> None:
    type("Listed", (Table,), {"__annotations__": {"phone": Hidden}, "__module__": __name__, "by_phone": Index("phone")})


def _keyed() -> None:
    fields = {"__annotations__": {"phone": Hidden}, "__module__": __name__}
    type("Owned", (Table,), fields, managed=False, source="owned", key="phone")


async def _task(ctx: TaskCtx[Patient]) -> None: ...


async def _outbox(ctx: MutationCtx, row: Patient) -> None: ...


def _of_task(**options: Any) -> Callable[[], object]:
    return lambda: App().reactive_task(Patient, **options)(_task)


def _of_outbox(**options: Any) -> Callable[[], object]:
    return lambda: App().outbox(Patient, **options)(_outbox)


REFUSED: dict[str, Callable[[], object]] = {
    "index by_phone contains phone": _indexed,
    "key contains phone": _keyed,
    "key: phone is encrypted": _of_task(key="phone"),
    "on Patient: phone is encrypted": _of_task(filter=lambda row: row.phone == "1"),
    "phone is encrypted, so": _of_task(filter=lambda row: row.phone.startswith("1")),
    "age is encrypted, so": _of_task(watch=[lambda row: row.age > row.age]),
    "watch on Patient: age is encrypted": _of_task(watch=[lambda row: row.age + 1]),
    "name": _of_task(filter=lambda row: row.name == row.phone),
    "partition_by: phone is encrypted": _of_outbox(partition_by="phone"),
    "order_by: age is encrypted": _of_outbox(order_by="age"),
    "phone is encrypted, so the database": _of_outbox(filter=lambda row: row.phone == "1"),
}


def test_what_would_compare_ciphertext_is_refused_where_it_is_declared() -> None:
    for said, declare in REFUSED.items():
        with pytest.raises(DeclarationError, match=said):
            declare()
    with pytest.raises(DeclarationError, match="codec= takes an object"):
        App(codec=FernetCodec)  # type: ignore[arg-type]  # as somebody forgets the key


async def test_an_encrypted_field_needs_a_codec_and_in_another_programs_table_a_column_of_text(
    database_url: str,
) -> None:
    class Person(Table, managed=False, source="person", key="id"):
        id: int  # type: ignore[assignment]  # it is a column of theirs
        age: Encrypted[int | None] = None

    with pytest.raises(DeclarationError, match=r"no codec to encrypt patient\.phone, patient\.age"):
        await TestApp(App(tables=[Patient]), database_url).__aenter__()
    of_theirs = App(codec=FernetCodec(KEY), tables=[Person])
    await run_sql(database_url, "create table person (id integer primary key, age integer)")
    with pytest.raises(SchemaMismatch, match="ciphertext is text: give it a column of the type text"):
        await TestApp(of_theirs, database_url).__aenter__()
    await run_sql(database_url, "drop table person", "create table person (id integer primary key, age text)")
    async with TestApp(of_theirs, database_url):
        pass
