"""The dashboard in several processes: all know a session, guesses are counted, and no edit loses another."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from html import unescape
from typing import Any

import httpx
import pytest
from programs.identities import Provider, provider
from pydantic import Field, SecretStr
from stage.waits import SOON

from penstock import OIDC, App, ConfigError, MutationCtx, QueryCtx, Table, asgi_app
from penstock.config import Config
from penstock.functions.function import MutationFunction, QueryFunction
from penstock.identity.api_key import PREFIX, hash_of
from penstock.testing import TestApp, TestClock

ADMIN = "the-admin-token-of-all"
HERE = "https://board.test"


class Parcel(Table):
    customer: str
    status: str = "new"
    note: str | None = None
    weight: int = 1
    fragile: bool = False
    pincode: str = "4711"
    key: SecretStr = SecretStr("first")
    long: str = "x"
    tags: list[str] = Field(default_factory=list)


class Crew:
    """Two processes that serve the dashboard of one database, and browsers whose requests reach either."""

    def __init__(self, issuer: Provider, clock: TestClock) -> None:
        self.issuer, self.clock = issuer, clock
        self.tests: list[TestApp] = []
        self.doors: list[Any] = []

    def browser(self, door: int, client: str = "192.0.2.7", cookies: httpx.Cookies | None = None) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.doors[door], client=(client, 4711))
        url = f"{HERE}/dashboard"
        return httpx.AsyncClient(transport=transport, base_url=url, headers={"origin": HERE}, cookies=cookies)

    async def sign_in(self, token: str = ADMIN, client: str = "192.0.2.7", door: int = 0) -> httpx.Response:
        async with self.browser(door, client) as browser:
            return await browser.post("/sign-in", data={"token": token})

    async def status(self, door: int, cookies: httpx.Cookies, path: str = "/") -> int:
        async with self.browser(door, cookies=cookies) as browser:
            return (await browser.get(path)).status_code


def program(issuer: Provider) -> App:
    """Each process has a program of its own."""
    return App(tables=[Parcel], auth=[OIDC(issuer.url, "shop", "board client")])


@asynccontextmanager
async def crew(database: str) -> AsyncIterator[Crew]:
    clock = TestClock()
    with provider(clock) as issuer:
        issuer.visitor = {"name": "Ada", "scopes": ["dashboard:operate"]}
        one = Crew(issuer, clock)
        apps = program(issuer), program(issuer)
        async with (
            TestApp(apps[0], database, clock=clock, admin_token=ADMIN) as first,
            TestApp(apps[1], database, clock=clock, admin_token=ADMIN) as second,
        ):
            one.tests += [first, second]
            one.doors += [
                asgi_app(app, backend=test, dashboard=True) for app, test in zip(apps, one.tests, strict=True)
            ]
            yield one


async def test_a_session_is_one_in_all_processes_until_it_ends_in_one(database_url: str) -> None:
    async with crew(database_url) as one:
        keys = one.tests[0].engine.store.api_keys
        await keys.create("a", hash_of(f"{PREFIX}a"), ["dashboard:look"], one.clock.now(), None)
        tokens = (ADMIN, f"{PREFIX}a", one.issuer.token(scopes=["dashboard:look"]))
        cookies = [(await one.sign_in(token)).cookies for token in tokens]
        for cookie in cookies:
            assert [await one.status(door, cookie) for door in (0, 1)] == [200, 200]
        async with one.browser(1, cookies=cookies[0]) as browser:
            assert (await browser.post("/sign-out")).status_code == 303
        assert [await one.status(door, cookies[0]) for door in (0, 1)] == [303, 303], "signed out"
        await keys.revoke("a")
        one.clock.advance(timedelta(seconds=3))
        assert await one.status(1, cookies[1]) == 303, "revoked"
        assert await one.status(1, cookies[2]) == 200
        one.clock.advance(timedelta(hours=1, seconds=6))
        assert [await one.status(door, cookies[2]) for door in (1, 0)] == [303, 303], "its token has expired"

        kept = (await one.sign_in()).cookies
        one.clock.advance(timedelta(hours=11, minutes=59))
        assert await one.status(1, kept) == 200
        app = program(one.issuer)
        async with TestApp(app, database_url, clock=one.clock, admin_token="x" * 32) as rotated:
            one.doors.append(asgi_app(app, backend=rotated, dashboard=True))
            assert await one.status(2, kept) == 303, "another admin token"
        again = (await one.sign_in()).cookies
        one.clock.advance(timedelta(minutes=2))
        assert [await one.status(0, cookie) for cookie in (kept, again)] == [303, 200], "twelve hours"
        for wrong in ("", again["penstock_dashboard"][:-1] + "~"):
            assert await one.status(0, httpx.Cookies({"penstock_dashboard": wrong})) == 303


async def test_a_database_does_not_tell_who_is_signed_in(sqlite_url: str) -> None:
    async with crew(sqlite_url) as one:
        cookie = (await one.sign_in()).cookies["penstock_dashboard"]
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as database:
            ((key, content),) = database.execute("select id, content from penstock_dashboard_session")
        assert cookie not in key + content
        assert ADMIN not in content
        assert await one.status(0, httpx.Cookies({"penstock_dashboard": key})) == 303


async def test_a_sign_in_by_redirect_ends_in_another_process(database_url: str) -> None:
    async with crew(database_url) as one, one.browser(0) as first:
        leaves = await first.get("/sign-in/with", params={"provider": one.issuer.url, "next": "/work"})
        async with httpx.AsyncClient(trust_env=False, timeout=SOON) as at_provider:
            back = (await at_provider.get(leaves.headers["location"])).headers["location"]
        async with one.browser(1, cookies=first.cookies) as second:
            assert (await second.get(back)).status_code == 200
            assert await one.status(0, second.cookies) == 200


async def test_guesses_are_counted_by_address_over_all_processes(database_url: str) -> None:
    async with crew(database_url) as one:
        found = [await one.sign_in(f"guess {number}", door=number % 2) for number in range(25)]
        assert [answer.status_code for answer in found] == [403] * 20 + [429] * 5
        assert 1 <= int(found[-1].headers["retry-after"]) <= 60
        assert "Too many" in found[-1].text
        assert (await one.sign_in(client="::ffff:192.0.2.7")).status_code == 429, (
            "the right one tells nobody that it is"
        )
        async with one.browser(1) as browser:
            leaves = await browser.get("/sign-in/with", params={"provider": one.issuer.url})
            assert leaves.status_code == 429
        assert (await one.sign_in(client="192.0.2.8")).status_code == 303
        async with one.browser(0, "192.0.2.9") as other:
            for _ in range(21):
                forged = await other.post("/sign-in", data={"token": "x"}, headers={"origin": "https://evil.test"})
                assert forged.status_code == 403, "another site's page uses up nobody's attempts"
        assert (await one.sign_in(client="192.0.2.9")).status_code == 303
        one.clock.advance(timedelta(seconds=int(found[-1].headers["retry-after"])))
        assert (await one.sign_in()).status_code == 303


def test_a_short_admin_token_is_refused() -> None:
    for token in ("x" * 11, f"  {'x' * 11}  "):
        with pytest.raises(ConfigError, match="12 characters or more") as refused:
            App(admin_token=token)
        assert repr(token) not in str(refused.value)
    assert Config(admin_token="ü" * 12).admin_token
    assert not Config(admin_token="").admin_token


# ----- edits

HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')
FORM = re.compile(r'<form method="post".*?</form>', re.DOTALL)


def sent(value: str) -> str:
    """The value of an input as browsers send it."""
    return unescape(value).replace("\r\n", "\n").replace("\n", "\r\n")


class Editor:
    """Somebody with a row's page before them, as a browser holds it, who changes some inputs and saves."""

    def __init__(self, browser: httpx.AsyncClient, path: str) -> None:
        self._browser, self._path = browser, path
        self.text = ""

    async def open(self) -> None:
        self.text = (await self._browser.get(self._path)).text

    def form(self, act: str) -> dict[str, str]:
        found = next(form for form in FORM.findall(self.text) if f'name="act" value="{act}"' in form)
        words = {name: sent(value) for name, value in HIDDEN.findall(found)}
        for tag, name, rest in re.findall(r'<input (?:type="(\w+)" )[^>]*name="(arg\.\w+)"([^>]*)>', found):
            value = re.search(rf'<input type="{tag}" value="([^"]*)"[^>]*name="{re.escape(name)}"', found)
            if tag != "checkbox" or "checked" in rest:
                words[name] = unescape(value[1]) if value else ""
        for name, value in re.findall(r'<textarea[^>]*name="(arg\.\w+)"[^>]*>\n?(.*?)</textarea>', found, re.DOTALL):
            words[name] = sent(value)
        return words

    async def save(self, act: str = "edit", /, **changes: str | None) -> bool:
        """Whether it was done. Otherwise the page shows why, and the form to save again."""
        words = self.form(act) | {f"arg.{name}": value for name, value in changes.items() if value is not None}
        for name in (name for name, value in changes.items() if value is None):
            words.pop(f"arg.{name}", None)
        answer = await self._browser.post(self._path, data=words | ({"sure": "yes"} if act == "delete" else {}))
        self.text = answer.text
        done = answer.status_code == 303 and "Not%20done" not in answer.headers.get("set-cookie", "")
        if done:
            await self.open()
        return done


async def read(ctx: QueryCtx, key: str) -> Any:
    found = await ctx.db.get(Parcel, key)  # type: ignore[arg-type]  # an id as text
    return found and {**found.model_dump(), "key": found.key.get_secret_value()}


async def patch(ctx: MutationCtx, key: str, values: dict[str, Any]) -> None:
    found = {name: SecretStr(value) if name == "key" else value for name, value in values.items()}
    await ctx.db.patch(Parcel, key, **found)  # type: ignore[arg-type]  # likewise


async def insert(ctx: MutationCtx) -> str:
    return await ctx.db.insert(Parcel(customer="Ada", note="two\nlines", tags=["a"], long="y" * 20_000))


parcel: Any = QueryFunction(read, public=False, name="parcel")
change: Any = MutationFunction(patch, public=False, name="change")
send: Any = MutationFunction(insert, public=False, name="send")


@asynccontextmanager
async def desk(database: str) -> AsyncIterator[tuple[Crew, Editor, Editor, str]]:
    async with crew(database) as one:
        key = await one.tests[0].run_mutation(send)
        path, cookies = f"/data/parcel/row?key={key}", (await one.sign_in()).cookies
        async with one.browser(0, cookies=cookies) as first, one.browser(1, cookies=cookies) as second:
            yield one, Editor(first, path), Editor(second, path), key


NEWER: dict[str, tuple[Any, str | None]] = {  # what another program writes, and what somebody types meanwhile
    "customer": ("Bob", "Eve"),
    "status": ("paid", "sent"),
    "note": (None, "mine"),
    "weight": (7, "5"),
    "fragile": (True, "true"),
    "pincode": ("newer-0815", "0000"),
    "key": ("newer-key", "mine"),
    "long": ("z", "short"),
    "tags": (["b"], '["mine"]'),
}


async def test_an_edit_never_overwrites_a_newer_value(database_url: str) -> None:
    async with desk(database_url) as (one, editor, _, key):
        test = one.tests[1]
        for column, (newer, typed) in NEWER.items():
            await editor.open()
            await test.run_mutation(change, key, {column: newer})
            assert not await editor.save(**{column: typed}), f"{column}: it is refused"
            assert "has changed" in editor.text
            assert column in editor.text
            assert (await test.run_query(parcel, key))[column] == newer
            assert await editor.save(**{column: typed}), "who has seen the newer one may replace it"
            assert (await test.run_query(parcel, key))[column] != ""
            assert not re.search("newer-0815|newer-key", editor.text)


async def test_a_form_without_versions_is_held_to_the_texts_that_it_says_were_shown(database_url: str) -> None:
    async with desk(database_url) as (one, editor, _, key):
        newer = {"customer": "Bob", "note": "three\n", "tags": []}
        await one.tests[0].run_mutation(change, key, newer)
        for name, shown in (("customer", "Ada"), ("note", "two\r\nlines"), ("tags", '["a"]')):
            words = {"act": "edit", f"arg.{name}": "7", f"was.{name}": shown}
            answer = await editor._browser.post(f"/data/parcel/row?key={key}", data=words)
            assert (answer.status_code, "has changed" in answer.text) == (200, True), name
        assert (await one.tests[0].run_query(parcel, key)).items() >= newer.items()


async def test_edits_of_other_columns_are_both_kept_and_none_is_undone_by_a_form_that_is_shown_again(
    database_url: str,
) -> None:
    async with desk(database_url) as (one, ada, bob, key):
        test = one.tests[0]
        await ada.open()
        await bob.open()
        assert await bob.save(status="paid", weight="9")
        assert await ada.save(customer="Eve")
        found = await test.run_query(parcel, key)
        assert (found["customer"], found["status"], found["weight"], found["key"]) == ("Eve", "paid", 9, "first")

        await ada.open()
        await bob.open()
        assert await bob.save(status="sent", fragile="true", note="new")
        assert not await ada.save(status="lost", weight="heavy"), "refused for what is newer, before what is wrong"
        assert not await ada.save(weight="heavy"), "refused for what is wrong"
        await test.run_mutation(change, key, {"weight": 50})
        assert not await ada.save(weight="4"), "what came since the form was shown first is newer, too"
        assert await ada.save(status="lost", weight="3")
        found = await test.run_query(parcel, key)
        assert (found["status"], found["weight"], found["fragile"], found["note"]) == ("lost", 3, True, "new")


async def test_a_row_that_has_changed_since_it_was_shown_is_not_deleted(database_url: str) -> None:
    async with desk(database_url) as (one, ada, bob, key):
        await ada.open()
        await bob.open()
        assert await bob.save(status="paid")
        assert not await ada.save("delete")
        await ada.open()
        assert await ada.save("delete")
        assert not await bob.save(status="sent"), "nor does an edit bring it back"
        assert await one.tests[0].run_query(parcel, key) is None


async def test_of_edits_at_once_none_is_lost(database_url: str) -> None:
    async with desk(database_url) as (one, ada, bob, key):
        for turn in range(4):
            await ada.open()
            await bob.open()
            begun = (await one.tests[0].run_query(parcel, key))["weight"]
            won = await asyncio.gather(ada.save(weight=str(begun + turn + 1)), bob.save(weight=str(begun + turn + 2)))
            assert sum(won) == 1, "one of them has seen an older row"
