"""The command line about what is encrypted: ciphertext for all who look, export and import, and migrations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from cryptography.fernet import Fernet

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)

PROGRAM = """
import os
from datetime import timedelta

from penstock import ActionCtx, App, Encrypted, FernetCodec, MutationCtx, QueryCtx, Table

app = App(codec=FernetCodec(*os.environ["KEYS"].split(",")) if "KEYS" in os.environ else None)


class Patient(Table):
    name: str
    phone: str
    notes: list[int | str] = []


@app.internal_mutation
async def admit(ctx: MutationCtx, phone: str) -> None:
    await ctx.db.insert(Patient(name="Ada", phone=phone, notes=[1, phone]))
    await ctx.scheduler.run_after(timedelta(days=1), call, phone)


@app.internal_query
async def phones(ctx: QueryCtx) -> list[list[int | str]]:
    return [[one.phone, *one.notes] for one in await ctx.db.query(Patient).take(5)]


@app.internal_action
async def call(ctx: ActionCtx, phone: str) -> None:
    raise ValueError
"""
ENCRYPTED = PROGRAM.replace("phone: str\n", "phone: Encrypted[str]\n").replace(
    "notes: list[int | str]", "notes: Encrypted[list[int | str]]"
)


def test_ciphertext_is_shown_travels_and_comes_back(
    console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("KEYS", old)
    console.write("clinic.py", ENCRYPTED)
    console.ok("migrate")
    console.ok("run", "admit", "phone=gentian")
    assert console.ok("run", "phones", "--json").json == [["gentian", 1, "gentian"]]
    shown = console.ok("jobs", "--json").json["jobs"]
    assert shown[0]["args"] == {"phone": "gentian"}
    (row,) = map(json.loads, console.ok("data", "patient", "--jsonl").out.splitlines())
    assert row["name"] == "Ada"
    assert row["phone"].keys() == row["notes"].keys() == {"$encrypted"}
    console.ok("export", "patient", "-o", "patients.jsonl")
    assert json.loads(console.folder.joinpath("patients.jsonl").read_text()) == row
    console.ok("import", "patient", "patients.jsonl", "--replace", "-y")
    assert json.loads(console.ok("data", "patient", "--jsonl").out) == row
    console.write("plain.jsonl", json.dumps(row | {"phone": "lobelia", "notes": ["7", 7]}))
    console.ok("import", "patient", "plain.jsonl", "--replace", "-y")
    assert console.ok("run", "phones", "--json").json == [["lobelia", "7", 7]]
    assert "lobelia" not in console.ok("data", "patient", "--jsonl").out
    assert "encrypted" in console("data", "patient", "--where", "phone=lobelia").err
    monkeypatch.setenv("KEYS", new)
    refused = console("import", "patient", "patients.jsonl", "--replace", "-y")
    assert "no key of the codec fits" in refused.err
    assert "gentian" not in console.ok("jobs").out + console.ok("jobs", "--json").out
    assert '"$encrypted"' in console.ok("jobs", "show", shown[0]["id"]).out
    monkeypatch.delenv("KEYS")
    assert "no codec to encrypt patient.phone, patient.notes" in console("migrate").err


def test_a_mark_on_a_column_with_values_is_refused_and_so_is_a_cast(
    console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("KEYS", Fernet.generate_key().decode())
    console.write("clinic.py", PROGRAM)
    console.ok("migrate")
    console.ok("run", "admit", "phone=gentian")
    console.write("clinic.py", ENCRYPTED)
    refused = console("migrate")
    assert "patient.phone is declared as" in refused.err + refused.out
    assert "SQL can neither encrypt nor decrypt phone" in console("migration", "new", "mark").err
    beside = ENCRYPTED.replace("phone: Encrypted", "sealed: Encrypted").replace("phone=phone", "sealed=phone")
    console.write("clinic.py", beside.replace("one.phone", "one.sealed"))
    renamed = console("migration", "new", "mark", "--rename", "patient.phone=sealed")
    assert "SQL can neither encrypt nor decrypt" in renamed.err
