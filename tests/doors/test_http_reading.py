"""Queries at a snapshot over HTTP, functions of any kind for the admin token, and watched queries as events."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from doors.http_fixtures import Api, Door, Shop
from stage.waits import SOON, until

from penstock.clock import SystemClock
from penstock.errors import DatabaseUnavailable
from penstock.server.opening import ABORT
from penstock.server.subscribe import EventStream, answer_events

# ----- snapshots

SECOND = timedelta(seconds=1)


async def take(api: Api) -> str:
    """A new ts, asked for as the official client does: without a body, though its type is named."""
    response = await api.http.post("/api/query_ts", headers={"content-type": "application/json"})
    assert response.status_code == 200, response.text
    ts = response.json()["ts"]
    assert len(base64.b64decode(ts, validate=True)) == 8
    return str(ts)


async def at(api: Api, ts: Any, function: str = "count", /, **args: Any) -> httpx.Response:
    body = {"path": f"doors.http_fixtures:{function}", "args": [args], "ts": ts, "format": "convex_encoded_json"}
    return await api.post("/api/query_at_ts", body)


async def value_at(api: Api, ts: str, function: str = "count", /, **args: Any) -> Any:
    response = await at(api, ts, function, **args)
    assert response.status_code == 200, response.text
    assert response.json()["status"] == "success", response.text
    return response.json()["value"]


async def turns() -> None:
    """Let others do all that they can."""
    for _ in range(20):
        await SystemClock().sleep(0)


async def test_all_queries_at_one_ts_read_one_state_at_one_time(shop: Shop) -> None:
    async with shop() as (api, test):
        await api.value("mutation", "add", title="Emma")
        ts = await take(api)
        now = await value_at(api, ts, "now")
        await api.value("mutation", "add", title="Persuasion")
        assert await api.value("query", "count") == 2
        test.clock.advance(SECOND)
        assert (await value_at(api, ts), await value_at(api, ts, "read_all")) == (1, 1)
        assert await value_at(api, ts, "now") == now
        assert await value_at(api, await take(api)) == 2, "a new one shows what was committed before"


async def test_a_snapshot_is_closed_after_three_seconds_though_a_query_in_it_ends(shop: Shop) -> None:
    async with shop() as (api, test), shop() as (other, _):
        ts, held = await take(api), api.hold("slow")
        slow = asyncio.create_task(value_at(api, ts, "wait_and_count", title="slow"))
        await held.running.wait()
        test.clock.advance(3 * SECOND)
        await turns()
        response = await at(api, ts)
        assert (response.status_code, response.json()["code"]) == (503, "OutOfRetention")
        held.may_go_on.set()
        assert await slow == 0
        again = await take(api)
        assert (await at(other, again)).json()["code"] == "OutOfRetention", "it means nothing in another process"
        for wrong in (None, "AAAA", "not base 64!", "AAAAAAAAAAAAAAAA"):
            response = await at(api, wrong)
            assert (response.status_code, response.json()["code"]) == (400, "BadRequest"), wrong


async def test_a_crowd_shares_few_snapshots_and_leaves_connections_to_others(shop: Shop) -> None:
    async with shop(max_connections=4) as (api, test):
        first = await take(api)
        crowd = [asyncio.create_task(take(api)) for _ in range(50)]
        await turns()
        assert not any(one.done() for one in crowd), "its snapshot is still to come"
        await api.value("mutation", "add", title="Emma")
        assert await value_at(api, first) == 0
        test.clock.advance(3 * SECOND)
        (ts,) = set(await asyncio.gather(*crowd))
        assert await value_at(api, ts) == 1
        assert await asyncio.gather(*[api.value("query", "count") for _ in range(20)]) == [1] * 20


async def test_a_snapshot_ends_with_a_slow_query_and_with_the_database_and_the_next_one_is_taken(shop: Shop) -> None:
    async with shop(call_timeout=1.0) as (api, test):

        async def gone(response: httpx.Response, code: str) -> None:
            assert (response.status_code, response.json()["code"]) == (503, code)

        async def lost(*_given: Any) -> Any:
            raise DatabaseUnavailable("The server has gone.")

        ts = await take(api)
        api.hold("slow")
        await gone(await at(api, ts, "wait_and_count", title="slow"), "CallTimeout")
        await gone(await at(api, ts), "OutOfRetention")
        test.clock.advance(SECOND)
        ts = await take(api)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(test.engine.store, "begin_read", lost)
            patch.setattr(test.runner, "_queries_in", lost)
            test.clock.advance(SECOND)
            await gone(await at(api, ts), "DatabaseUnavailable")
            await gone(await api.http.post("/api/query_ts"), "DatabaseUnavailable")
        await gone(await at(api, ts), "OutOfRetention")
        test.clock.advance(SECOND)
        assert await value_at(api, await take(api)) == 0


async def test_a_backend_closes_while_snapshots_are_open_and_waited_for(shop: Shop) -> None:
    async with asyncio.timeout(20):
        async with shop(max_connections=4) as (api, _):
            await take(api)
            waiting = asyncio.create_task(take(api))
            await turns()
        with pytest.raises(asyncio.CancelledError):
            await waiting


# ----- functions of any kind


async def test_whoever_has_the_admin_token_and_nobody_else_calls_any_function(near_door: Door) -> None:
    async with near_door(admin_token="top-secret-of-all") as api:

        async def answer(function: str, token: str | None = "Bearer top-secret-of-all", /, **more: Any) -> Any:
            headers = {} if token is None else {"authorization": token}
            body = {"path": f"doors.http_fixtures:{function}", "args": {}, **more}
            return await api.post("/api/function", body, headers=headers)

        three = {"args": [{"number": 3}], "componentPath": None, "format": "convex_encoded_json"}
        assert (await answer("hidden", **three)).json() == {"status": "success", "value": 3}
        for name, args in (("add", {"title": "Emma"}), ("count", {}), ("restock", {"title": "Persuasion"})):
            assert (await answer(name, args=args, componentPath="")).json()["status"] == "success", name
        assert await api.value("query", "count") == 2
        response = await answer("count", componentPath="sms")
        assert (response.status_code, response.json()["code"]) == (400, "BadRequest")

        for other in (None, "Convex wrong", "Basic top-secret-of-all", "Convex a|top-secret-of-all"):
            response = await answer("hidden", other, **three)
            assert (response.status_code, response.json()["code"]) == (401, "Unauthenticated"), other
        body = {"path": "doors.http_fixtures:hidden", "args": {"number": 3}}
        response = await api.post("/api/mutation", body, headers={"authorization": "Convex top-secret-of-all"})
        assert "Could not find public function" in response.json()["errorMessage"], "the token opens nothing else"
    async with near_door() as api:
        assert (await api.post("/api/function", body)).status_code == 404


# ----- watched queries


def address(function: str, form: str = "", /, **args: Any) -> str:
    said = {"path": f"doors.http_fixtures:{function}", "args": json.dumps(args), **({"format": form} if form else {})}
    return f"/api/subscribe?{urlencode(said)}"


class Reader:
    """One who reads a stream: its events and comments, in their order."""

    def __init__(self, response: httpx.Response) -> None:
        self._texts = response.aiter_text()
        self._text = ""

    async def block(self) -> list[str]:
        """The next lines, up to an empty one; none at the end of the stream."""
        async with asyncio.timeout(SOON):
            while "\n\n" not in self._text:
                more = await anext(self._texts, None)
                if more is None:
                    return []
                self._text += more
        block, _, self._text = self._text.partition("\n\n")
        return re.split("\r\n|\n|\r", block)

    async def event(self) -> tuple[int, dict[str, Any]]:
        """The number and the data of the next event."""
        number, data = await self.block()
        assert number.startswith("id: ")
        assert data.startswith("data: ")
        return int(number[4:]), json.loads(data[6:])

    async def value(self) -> Any:
        _, found = await self.event()
        assert found.keys() == {"status", "value"}, found
        return found["value"]


@asynccontextmanager
async def reading(api: Api, function: str, form: str = "", /, **args: Any) -> AsyncIterator[Reader]:
    async with api.http.stream("GET", address(function, form, **args)) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].partition(";")[0] == "text/event-stream"
        yield Reader(response)


def watchers(backend: Any) -> int:
    return sum(entry.watchers for entry in backend.live_queries.report())


async def test_an_error_of_the_query_is_an_event_and_the_stream_goes_on(
    far_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    async with far_shop() as (api, _), reading(api, "none_or_fail") as one, reading(api, "none_or_fail") as other:
        assert (await one.value(), await other.value()) == (None, None)
        await api.value("mutation", "add", title="Emma")
        (_, found), (_, same) = await one.event(), await other.event()
        assert found == same
        assert found.keys() == {"status", "errorMessage"}
        assert found["errorMessage"].endswith("] Server Error")
        records = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(records) == 1, "it is logged once, for all who watch"
        assert found["errorMessage"].split()[2].strip("]") in records[0].getMessage()
        await api.value("mutation", "rename", title="Emma", to="Persuasion")
        _, found = await one.event()
        assert found["errorData"] == "sold out"


async def test_what_cannot_be_watched_is_refused_as_a_call_is(near_door: Door) -> None:
    async with near_door() as api:
        for function, args in (("hidden", {}), ("nothing", {}), ("add", {"title": "x"}), ("find", {"title": 1})):
            response = await api.http.get(address(function, **args))
            assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
            assert response.json().keys() == {"status", "errorMessage"}, function
        for query in ("", "?path=1", "?path=doors.http_fixtures:count&args=[", "?path=a:b&format=xml"):
            assert (await api.http.get(f"/api/subscribe{query}")).status_code == 400, query
        assert not (await api.asgi.opening.backend()).live_queries.report()


async def test_a_stream_has_the_headers_and_the_form_that_are_asked_for(far_door: Door) -> None:
    async with far_door(cors_origins="https://shop.example") as api:
        for origin, allowed in (("https://shop.example", "https://shop.example"), ("https://evil.example", None)):
            async with api.http.stream("GET", address("count"), headers={"origin": origin}) as response:
                assert response.headers.get("access-control-allow-origin") == allowed
        assert (await api.http.head(address("count"))).headers["content-type"].startswith("text/event-stream")
        large, text = {"$integer": "AAAAAAAAABA="}, "two\nlines\r\n\u2028data: x"
        async with reading(api, "same_large", large=large) as clean, reading(api, "echo", value=text) as lines:
            assert (await clean.value(), await lines.value()) == (str(2**60), text)
            async with reading(api, "same_large", "convex_encoded_json", large=large) as encoded:
                assert await encoded.value() == large
        backend = await api.asgi.opening.backend()
        await until(lambda: watchers(backend) == 0)


async def test_a_silent_stream_has_a_comment_every_15_seconds(far_shop: Shop) -> None:
    async with far_shop() as (api, test), reading(api, "typed") as reader:
        await reader.event()
        for _ in range(2):
            silent = asyncio.create_task(reader.block())
            for _ in range(14):
                test.clock.advance(timedelta(seconds=1))
                await test.live_queries.clock.sleep(0)
            assert not silent.done()
            while not silent.done():
                test.clock.advance(timedelta(seconds=1))
                await asyncio.wait([silent], timeout=0.02)
            assert await silent == [":"]


async def test_a_reader_that_reads_nothing_is_owed_only_the_newest_answer(far_shop: Shop) -> None:
    async with far_shop() as (api, test), reading(api, "all_books") as reader:
        await reader.event()
        cover = "A" * 400_000
        for number in range(25):  # more than the system holds for it
            await api.value("mutation", "add", title=str(number), cover=cover)
            if number > 0:
                await api.value("mutation", "remove_oldest")
        events = 0
        while True:
            events += 1
            _, found = await reader.event()
            if found["value"] and found["value"][-1]["title"] == "24":
                break
        assert events < 25
        assert watchers(test) == 1


async def test_the_end_of_the_server_ends_streams_at_once(far_shop: Shop) -> None:
    async with far_shop() as (api, test), reading(api, "count") as reader, reading(api, "typed") as other:
        await reader.event()
        await other.event()
        async with asyncio.timeout(SOON):
            api.asgi.opening.drain()
            assert await reader.block() == await other.block() == []
            await api.asgi.opening.idle()
        assert watchers(test) == 0
        refused = await api.http.get(address("count"))
        assert (refused.status_code, refused.json()["code"]) == (503, "ShuttingDown")


# ----- a connection that takes nothing


class Connection:
    """The ASGI messages of a connection, which takes so many of them."""

    def __init__(self, most: int) -> None:
        self.most, self.sent = most, list[Any]()
        self.cut, self.full = asyncio.Event(), asyncio.Event()
        self.scope: Any = {"type": "http", "state": {ABORT: self.cut.set}}

    async def send(self, message: Any) -> None:
        if len(self.sent) == self.most:
            self.full.set()
            await asyncio.Event().wait()
        self.sent.append(message)

    async def receive(self) -> Any:
        await self.cut.wait()
        return {"type": "http.disconnect"}


async def ready() -> None:
    pass


def stream_to(api: Api, test: Any, connection: Connection) -> asyncio.Task[None]:
    view = test.live_queries.view()
    view.add(0, *test.dispatch.prepare_query("doors.http_fixtures:count", "{}"))
    events = answer_events(view, lambda answer: b"%d" % answer.result, test.clock, ready)
    stream = EventStream(events, api.asgi.opening, view.close)
    return asyncio.create_task(stream(connection.scope, connection.receive, connection.send))


async def test_a_connection_that_takes_nothing_is_cut_after_a_minute_or_at_the_end_of_the_server(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop() as (api, test):
        quick = Connection(most=9)
        serving = stream_to(api, test, quick)
        await until(lambda: len(quick.sent) == 2)
        serving.cancel()
        await asyncio.wait_for(serving, SOON)
        assert quick.sent[-1] == {"type": "http.response.body"}, "it ends as others do"
        for end in ("a minute", "the end of the server"):
            with monkeypatch.context() as patch:
                if end == "a minute":
                    patch.setattr("penstock.server.subscribe._PATIENCE", 0.1)
                connection = Connection(most=2)
                serving = stream_to(api, test, connection)
                await until(lambda: len(connection.sent) == 2)  # noqa: B023 - at once
                await api.value("mutation", "add", title=end)
                await asyncio.wait_for(connection.full.wait(), SOON)
                if end != "a minute":
                    api.asgi.opening.drain()
                await asyncio.wait_for(serving, SOON)
                assert connection.cut.is_set()
        assert watchers(test) == 0
