"""Any annotation, any value of it, through a database: rows, arguments, results, contexts, messages and cursors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any, cast

import pytest
from cryptography.fernet import Fernet
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretBytes, SecretStr
from stage.annotations import Make, alike, annotation_of
from stage.needs import LONG

from penstock import (
    ActionCtx,
    App,
    BigInt,
    Encrypted,
    FernetCodec,
    Id,
    Message,
    MutationCtx,
    QueryCtx,
    Success,
    Table,
    TaskCtx,
    WorkId,
    WorkResult,
)
from penstock.api.outbox.views import look_at_one
from penstock.errors import DeclarationError, PenstockError
from penstock.schema.encoder import MASKED
from penstock.schema.table import definition_of
from penstock.testing import TestApp
from penstock.testing.app import MessagesFailed
from penstock.wire.outgoing import Format, encode_result

pytestmark = pytest.mark.both_stores

_NUMBERS = count()  # of tables: one database gets many
_ENCRYPTED = 0.5  # the part of the programs that encrypt all of it
_PARTS = 10 if LONG else 1  # each has a database of its own, which grows by tables with each example
_EXAMPLES = 5 if LONG else 3
REFUSED = (PenstockError, ValueError, TypeError)
END: Any = object()


def annotated(function: Callable[..., Any], name: str, **types: Any) -> Any:
    function.__annotations__ |= types
    function.__name__ = function.__qualname__ = name
    return function


class Roads:
    """One annotation, with a function, a table and a topic of its own; `got` has what came by each road."""

    def __init__(self, app: App, number: int, annotation: Any) -> None:
        self.app, self.got = app, dict[str, Any]()
        column, encrypted = annotation | None, cast("Any", Encrypted)
        column = column if app.registry.codec is None else encrypted[column]
        got, topic = self.got, f"topic{number}"
        names = {"__annotations__": {"v": column}, "__module__": __name__, "v": None}
        self.table = table = type(f"Held{number}", (Table,), names)
        definition_of(table)
        app._tables.append(table)

        async def take(ctx: ActionCtx, v: Any) -> Any:
            got["argument"] = v
            return v

        async def after(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None:
            got["context"], got["on_complete"] = context, getattr(result, "value", None)

        async def put(ctx: MutationCtx, v: Any) -> Any:
            return await ctx.db.insert(table(v=v))

        async def get(ctx: QueryCtx, row: Any) -> Any:
            found: Any = await ctx.db.get(table, row)
            return found.v

        async def hear(ctx: ActionCtx, message: Message[Any]) -> None:
            got["message"] = message.payload

        async def wake(ctx: ActionCtx, v: Any) -> None:
            got["cron"] = v

        types = {"ctx": ActionCtx, "v": annotation, "return": annotation}
        self.take = app.internal_action(annotated(take, f"take{number}", **types))
        self.after = app.internal_mutation(annotated(after, f"after{number}", context=annotation))
        self.put = app.internal_mutation(annotated(put, f"put{number}"))
        self.get = app.internal_query(annotated(get, f"get{number}"))
        app.outbox(topic)(annotated(hear, f"hear{number}", message=Message[annotation]))
        self.topic = topic
        self.wake = app.internal_action(annotated(wake, f"wake{number}", v=annotation))
        self.watch_rows(number)

    def watch_rows(self, number: int) -> None:
        """Functions that change rows, and others that hear of it."""
        app, got = self.app, self.got
        table: Any = self.table

        async def swap(ctx: MutationCtx, row: Any, v: Any) -> None:
            old: Any = await ctx.db.get(table, row)
            await ctx.db.replace(table, row, old.model_copy(update={"v": v}))

        async def remove(ctx: MutationCtx, row: Any) -> None:
            await ctx.db.delete(table, row)

        async def share(ctx: ActionCtx, row: Any) -> None:
            got["shared"] = row.v

        async def follow(ctx: Any) -> None:
            if ctx.change == "delete":
                got["previous"] = ctx.previous.v
            else:
                got.update(task=(await ctx.get_document()).v, watched=ctx.watched_values["v"])

        self.swap = app.internal_mutation(annotated(swap, f"swap{number}"))
        self.remove = app.internal_mutation(annotated(remove, f"remove{number}"))
        app.outbox(table)(annotated(share, f"share{number}", row=table))
        task: Any = app.reactive_task(table, on=("enter", "change", "delete"))
        task(annotated(follow, f"follow{number}", ctx=TaskCtx[table]))

    async def try_all(self, test: TestApp, pool: Any, value: Any) -> AsyncIterator[None]:
        """Send a value by each road: it comes as a direct call gets it, or it is refused before it is sent.

        Whenever it yields, all that is enqueued is to be run.
        """
        self.got.clear()
        try:
            await test.run_action(self.take, value)
        except REFUSED:
            return
        direct, sent = self.got.pop("argument"), list[str]()
        try:
            row = await test.run_mutation(self.put, value)
        except REFUSED:
            row = None
        else:
            self.got["row"] = await test.run_query(self.get, row)
            sent += ["row", "task", "watched", "shared"]
        with suppress(*REFUSED):
            await self.app.outboxes.send(test, self.topic, value)
            sent.append("message")
        with suppress(*REFUSED):
            await self.app.crons.create(test, self.topic, timedelta(days=1), self.wake, {"v": value})
            await self.app.crons.run(test, self.topic)
            await self.app.crons.remove(test, self.topic)
            sent.append("cron")
        work = None
        with suppress(*REFUSED):
            done = pool.with_options(on_complete=self.after, context=value)
            work = await done.enqueue(test, self.take, value)
            sent += ["argument", "context"]
        yield
        if work is not None:
            result = await pool.result(test, work)
            if result.kind == "success":  # or else it was refused, at the end of the function
                self.got["result"] = result.value
                sent += ["result", "on_complete"]
        if row is not None:
            sent.append("previous")
            await self.swap_back(test, row, value)
            seen = dict(self.got)
            yield
            self.got.update(seen)
            await test.run_mutation(self.remove, row)
            yield
        for road in sent:
            assert road in self.got, f"{road} accepted what did not come: {value!r}"
            if not (road in {"context", "on_complete"} and direct is None):
                assert alike(direct, self.got[road]), f"{road}: {direct!r} is {self.got[road]!r}"

    async def swap_back(self, test: TestApp, row: Any, value: Any) -> None:
        """Replace the row by a copy that nobody checked, and put it back."""
        try:
            await test.run_mutation(self.swap, row, value)
        except REFUSED:
            pass
        else:
            found = await test.run_query(self.get, row)
            assert alike(value, found), f"unchecked: {value!r} is {found!r}"
        await test.run_mutation(self.swap, row, self.got["row"])


async def try_together(test: TestApp, tries: list[AsyncIterator[None]]) -> None:
    """Go through tries in step: what all of them have enqueued is run at once."""
    while tries:
        left = [one for one in tries if await anext(one, END) is not END]
        if left:
            await test.run_until_idle(raise_errors=False)
        tries = left


@pytest.mark.parametrize("part", range(_PARTS))
@settings(max_examples=_EXAMPLES)
@given(chance=st.randoms(use_true_random=True))
def test_a_value_comes_back_as_it_is_or_is_refused_on_both_stores(database_url: str, part: int, chance: Any) -> None:
    codec = FernetCodec(Fernet.generate_key()) if chance.random() < _ENCRYPTED else None
    app = App(codec=codec)
    pool = app.workpool("carried", max_parallelism=10)
    plain = Roads(app, next(_NUMBERS), list[float])
    tried: list[tuple[Roads, Make]] = [(plain, lambda _: [0.1 + 0.2])]
    while len(tried) < 7:
        annotation, make = annotation_of(chance, 1)
        with suppress(DeclarationError, TypeError):  # there is no such type
            tried.append((Roads(app, next(_NUMBERS), annotation), make))

    async def story() -> None:
        async with TestApp(app, database_url) as test:
            tries = list[AsyncIterator[None]]()
            for roads, make in tried:
                with suppress(TypeError, ValueError):  # there is no such value
                    tries.append(roads.try_all(test, pool, make(chance)))
            await try_together(test, tries)

    asyncio.run(story())
    assert "row" in plain.got, "for want of a table all rows would be refused"


def test_any_carries_bytes_and_big_integers_and_refuses_what_looks_like_their_tags(database_url: str) -> None:
    app = App()
    pool = app.workpool("carried", max_parallelism=10)
    carried: list[Any] = [b"\xff", BigInt(2**60), {"a": [b"", BigInt(1), 1, "AA=="]}, {"@bytes": "!"}, {"@int64": "1"}]
    carried.append({"@int64": 2**63})  # of more than 64 bits, so it is none
    roads = [Roads(app, next(_NUMBERS), annotation) for annotation in (Any, dict[str, Any], Any)]

    async def story() -> None:
        async with TestApp(app, database_url) as test:
            for value in carried:
                await try_together(test, [roads[0].try_all(test, pool, value)])
                await try_together(test, [roads[1].try_all(test, pool, {"a": value})])
                assert alike(roads[0].got["row"], value)
                assert alike(roads[1].got["row"], {"a": value})
            for value in ({"@bytes": "AA=="}, {"@int64": 1}, BigInt(2**63)):
                await try_together(test, [roads[2].try_all(test, pool, value)])
                assert "row" not in roads[2].got

    asyncio.run(story())


class Login(BaseModel):
    user: str
    password: SecretStr


class Account(Table):
    key: SecretStr
    logins: list[Login] = Field(default_factory=list)
    seal: SecretBytes = SecretBytes(b"\xff")


hidden = App(tables=[Account])
vault = hidden.workpool("vault", max_parallelism=1)
opened = list[Any]()


@hidden.internal_action
async def sign_in(ctx: ActionCtx, login: Login, codes: list[SecretStr]) -> SecretStr:
    opened.append((login.password.get_secret_value(), codes[0].get_secret_value()))
    return login.password


@hidden.internal_mutation
async def signed_in(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: dict[str, SecretStr]) -> None:
    assert isinstance(result, Success)
    opened.append((result.value.get_secret_value(), context["pin"].get_secret_value()))


@hidden.outbox("logins")
async def hear(ctx: ActionCtx, login: Login) -> None:
    opened.append(login.password.get_secret_value())
    raise ValueError("not today")


@hidden.outbox(Account)
async def share(ctx: ActionCtx, account: Account) -> None:
    opened.append(account.key.get_secret_value())
    raise ValueError("not today")


@hidden.internal_mutation
async def keep(ctx: MutationCtx, account: Account) -> Id[Account]:
    return await ctx.db.insert(account)


@hidden.internal_query
async def kept(ctx: QueryCtx, row: Id[Account]) -> Account | None:
    return await ctx.db.get(Account, row)


async def test_secrets_are_stored_and_hidden_from_all_who_only_look(database_url: str) -> None:
    opened.clear()
    login, secret = Login(user="ada", password=SecretStr("hunter2")), SecretStr("hunter2")
    async with TestApp(hidden, database_url) as test:
        row = await test.run_mutation(keep, Account(key=secret, logins=[login], seal=SecretBytes(b"hunter2")))
        found = await test.run_query(kept, row)
        assert found is not None
        assert (found.key, found.logins, found.seal.get_secret_value()) == (secret, [login], b"hunter2")
        pool = vault.with_options(on_complete=signed_in, context={"pin": secret})
        work = await pool.enqueue(test, sign_in, login, [secret])
        await hidden.outboxes.send(test, "logins", login)
        seen: list[Any] = [await test.jobs("pending")]
        with pytest.raises(MessagesFailed):
            await test.run_until_idle()
        assert set(opened) == {"hunter2", ("hunter2", "hunter2")}
        assert await vault.result(test, work) == Success(secret)
        store, now = test.engine.store, test.clock.now()
        messages = [
            await look_at_one(store, f"{__name__}:{one}", now, hidden.outboxes.find) for one in ("hear", "share")
        ]
        seen += [await test.jobs(), await test.job(work), messages]
        assert str(seen).count(MASKED) >= 8
        assert "hunter2" not in str(seen)
        assert b"hunter2" not in encode_result([found, await vault.status(test, work)], Format.CLEAN)
