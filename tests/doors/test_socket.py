"""The web socket of Convex's clients: what is watched moves in steps of one snapshot, and mutations run once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from doors.http_fixtures import SECRET, Api, Shop
from stage.databases import sql
from stage.sockets import PATIENCE, SocketClient, listening, socket_client
from stage.waits import until
from starlette.applications import Starlette
from starlette.routing import Mount
from websockets.exceptions import ConnectionClosed, InvalidStatus

from penstock.clock import SystemClock
from penstock.server.sockets import socket as socket_module
from penstock.wire.tags import read_u64, u64_text

MODULE = "doors.http_fixtures"
PYTHON = "python-0.8.1"


@asynccontextmanager
async def one(api: Api, **options: Any) -> AsyncIterator[SocketClient]:
    """A client that has connected for the first time."""
    async with socket_client(str(api.http.base_url), MODULE, **options) as client:
        await client.connect()
        yield client


async def closed(client: SocketClient) -> tuple[int, str]:
    """How the server ends the connection."""
    with pytest.raises(ConnectionClosed) as end:
        await _read_on(client)
    assert end.value.rcvd is not None
    return end.value.rcvd.code, end.value.rcvd.reason


async def _read_on(client: SocketClient) -> None:
    while True:
        await client.receive()


# ----- queries


async def test_a_query_that_is_refused_or_fails_fails_alone(far_shop: Shop) -> None:
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("nothing", {}, "Could not find public function"),
        ("hidden", {"number": 1}, "Could not find public function"),
        ("find", {"title": 3}, "title"),
        ("echo", {"value": {"$integer": 3}}, "$integer"),
    ]
    async with far_shop() as (api, _), one(api) as client:
        await client.modify([])
        assert await client.transition() == {}
        added = [client.added(number, function, **args) for number, (function, args, _) in enumerate(wrong, 1)]
        await client.modify([client.added(0, "none_or_fail"), *added])
        await client.transition()
        assert client.answers[0] is None
        for number, (*_, said) in enumerate(wrong, 1):
            assert client.answers[number]["type"] == "QueryFailed"
            assert said in client.answers[number]["errorMessage"]
        await client.modify([{"type": "Remove", "queryId": number} for number in range(1, 1 + len(wrong))])
        assert {change["type"] for change in (await client.transition()).values()} == {"QueryRemoved"}
        await api.value("mutation", "add", title="Emma")
        failed = (await client.transition())[0]
        assert (failed["errorMessage"][-14:], "errorData" in failed) == ("] Server Error", False)
        await api.value("mutation", "rename", title="Emma", to="Persuasion")
        assert (await client.transition())[0]["errorData"] == "sold out"
        await client.modify([client.added(number, "echo", value=number) for number in range(1, 1001)])
        await client.transition()
        assert client.answers[999] == 999
        assert "1000 queries" in client.answers[1000]["errorMessage"]


async def test_a_page_keeps_its_end_for_a_client_that_is_back_with_its_journal(far_shop: Shop) -> None:
    def page(client: SocketClient, number: int, cursor: str | None, journal: str | None) -> dict[str, Any]:
        options = {"numItems": 2, "cursor": cursor, "id": 1}
        return {**client.added(number, "books_of", paginationOpts=options), "journal": journal}

    def titles(client: SocketClient, number: int) -> list[str]:
        return [book["title"] for book in client.answers[number]["page"]]

    async with far_shop() as (api, test):
        for title in ("Emma", "Ulysses", "Dubliners"):
            await api.value("mutation", "add", title=title)
        async with one(api) as client:
            await client.modify([page(client, 0, None, None), page(client, 1, "nonsense", None)])
            sent = await client.transition()
            journal = sent[0]["journal"]
            assert titles(client, 0) == ["Emma", "Ulysses"]
            assert sent[1]["errorData"] == {"isConvexSystemError": True, "paginationError": "InvalidCursor"}
            following = client.answers[0]["continueCursor"]
            await sql(test, "delete from book where title = 'Emma'")
        async with one(api) as client:
            await client.modify([page(client, 0, None, journal), page(client, 1, following, None)])
            await client.transition()
            assert (titles(client, 0), titles(client, 1)) == (["Ulysses"], ["Dubliners"])


async def test_a_process_watches_so_many_queries_and_takes_no_more_clients_then(far_shop: Shop) -> None:
    async with far_shop(max_watched=2) as (api, test), one(api) as client, one(api) as other:
        await client.modify([client.added(0, "count"), client.added(1, "echo", value=1), client.added(2, "all_books")])
        await client.transition()
        assert (client.answers[0], client.answers[1]) == (0, 1)
        assert "Raise max_watched" in client.answers[2]["errorMessage"]
        await other.watch(0, "count")
        await other.until(0, 0)
        subscribe = f"/api/subscribe?path={MODULE}:count"
        refused = await api.http.get(subscribe)
        assert (refused.status_code, refused.json()["code"]) == (503, "Overloaded")
        async with socket_client(str(api.http.base_url), MODULE) as third:
            assert await closed(third) == (1013, "TooManyConcurrentRequests")
        await client.modify([{"type": "Remove", "queryId": 1}])
        await client.watch(3, "all_books")  # the answer that is kept makes room for it
        await client.until(3, [])
        assert len(test.live_queries.report()) == 2


async def test_metrics_tell_what_is_watched(far_shop: Shop) -> None:
    async with far_shop(metrics_token="x") as (api, _), one(api) as client, one(api) as other:
        for watching in (client, other):
            await watching.modify([watching.added(0, "count")])
            await watching.until(0, 0)
        await client.watch(1, "find", title="Emma")
        await client.until(1, None)
        await api.value("mutation", "add", title="Emma")
        await other.until(0, 1)
        text = (await api.http.get("/metrics", headers={"authorization": "Bearer x"})).text
        found = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("penstock_live"))
        gauges = [float(found[f"penstock_live_{name}"]) for name in ("clients", "watched", "entries", "bytes")]
        assert (gauges[:3], gauges[3] > 10) == ([2, 3, 2], True)
        assert float(found['penstock_live_runs_total{function="doors.http_fixtures:count",outcome="changed"}']) == 2
        assert float(found["penstock_live_transitions_total"]) >= 4
        assert float(found["penstock_live_tick_seconds_count"]) >= 2


# ----- mutations and actions


async def test_actions_run_beside_each_other_and_do_not_wait_for_mutations(far_shop: Shop) -> None:
    async with far_shop() as (api, _), one(api) as client:
        slow, mutation = api.hold("slow"), api.hold("held mutation")
        await client.call("Action", "wait_in_action", title="slow")
        await client.call("Mutation", "wait_and_add", title="held mutation")
        await slow.running.wait()
        await mutation.running.wait()
        slow.may_go_on.set()
        response = await client.receive()
        assert (response["type"], response["requestId"], response["result"]) == ("ActionResponse", 0, "done")
        mutation.may_go_on.set()
        assert (await client.receive())["requestId"] == 1


async def test_an_administrator_sees_errors_and_what_calls_log(far_shop: Shop) -> None:
    token = "the-admin-token"
    shown = f"Server Error\nUncaught ValueError: cannot open the door with {SECRET}\n    at _raise ("
    async with far_shop(admin_token=token) as (api, _), one(api) as client, one(api) as other:
        said = {"type": "Authenticate", "baseVersion": 0, "tokenType": "Admin", "value": token}
        client.identity += 1
        await client.send(said)
        for watching, is_admin in ((other, False), (client, True)):  # they share the runs of the query
            await watching.modify([watching.added(0, "fail"), watching.added(1, "say_in_thread")])
            changed: dict[int, Any] = {}
            while not changed.keys() >= {0, 1}:
                changed |= await watching.transition()
            assert (shown in changed[0]["errorMessage"]) is is_admin
            assert changed[1]["logLines"] == ["[ERROR] and 5%", "[ERROR] %d"] * is_admin
            await watching.call("Action", "say_in_action")
            while (answer := await watching.receive())["type"] != "ActionResponse":
                pass
            assert answer["logLines"] == ["[WARNING] from outside"] * is_admin
        for headers, is_admin in (({}, False), ({"authorization": f"Convex {token}"}, True)):
            answer = (await api.post("/api/query", {"path": "doors.http_fixtures:fail"}, headers=headers)).json()
            assert (shown in answer["errorMessage"]) is is_admin


async def test_what_functions_log_is_told_in_development(far_shop: Shop) -> None:
    in_thread = ["[ERROR] and 5%", "[ERROR] %d"]
    for dev in (True, False):
        async with far_shop(dev=dev) as (api, _), one(api) as client, one(api) as other:
            for watching in (client, other):
                await watching.modify([watching.added(0, "say_in_thread"), watching.added(1, "count")])
                changed = await watching.transition()
                assert [changed[number]["logLines"] for number in (0, 1)] == [in_thread * dev, []], "one run is of both"
            for fails in (False, True):
                await client.call("Mutation", "say", text="hello", fails=fails)
                assert (await client.receive())["logLines"] == ["[WARNING] said hello", *in_thread] * dev
                await client.transition()
            await client.call("Action", "say_in_action")
            assert (await client.receive())["logLines"] == ["[WARNING] from outside"] * dev


# ----- clients that come back


async def test_a_mutation_that_is_sent_again_while_it_runs_takes_effect_once(far_shop: Shop) -> None:
    """One that is sent again later is attacked in `clients/test_returns`."""
    session = "6a0e8a52-0000-4000-8000-000000000001"
    async with far_shop() as (api, _):
        held = api.hold("Emma")
        async with socket_client(str(api.http.base_url), MODULE) as client:
            await client.connect(session)
            await client.call("Mutation", "wait_and_add", 6, title="Emma")
            await held.running.wait()
        async with socket_client(str(api.http.base_url), MODULE) as client:
            await client.connect(session, 1)
            await client.call("Mutation", "wait_and_add", 6, title="Emma")
            held.may_go_on.set()
            while (response := await client.receive())["type"] != "MutationResponse":
                pass
            assert response["success"]
        await until(lambda: not api.asgi.opening.under_way)
        assert await api.value("query", "count") == 1


async def test_clients_with_new_sessions_are_known_by_the_times_that_they_saw_also_if_they_draw_one_number(
    far_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dull(SystemClock):
        def seed(self) -> int:
            return 7

    monkeypatch.setattr(socket_module, "SystemClock", Dull)
    python = {"client": PYTHON, "path": "/api/sync"}
    async with far_shop() as (api, test), one(api, **python) as first, one(api, **python) as second:
        await api.value("mutation", "add", title="Emma", copies=9)
        for client in (first, second):
            await client.transition()
            await client.watch(0, "count")
            await client.until(0, 1)
        requests = (
            "penstock_session_request" if test.config.database.startswith("sqlite") else "penstock.session_request"
        )
        assert await sql(test, f"select 1 from {requests}") == [], "who only watches writes nothing"
        for client, left in ((first, 8), (second, 7)):
            await client.call("Mutation", "sell", title="Emma")
            assert (await client.receive())["result"] == left
            await client.transition()
        for client, left in ((first, 8), (second, 7)):
            seen = client.version["ts"]
            for count in (1, 2):
                async with socket_client(str(api.http.base_url), MODULE, **python) as again:
                    await again.connect(None, count, seen)
                    await again.modify([again.added(0, "count")])
                    await again.call("Mutation", "sell", 0, title="Emma")
                    response = await again.receive()
                    assert response["type"] == "MutationResponse", "it comes before the first transition"
                    assert response["result"] == left
                    await again.transition()
                    assert again.answers == {0: 1}
                    assert read_u64(again.version["ts"]) >= read_u64(seen)
                    seen = again.version["ts"]
        async with one(api, **python) as stranger:
            await stranger.call("Mutation", "sell", 0, title="Emma")
            while (response := await stranger.receive())["type"] != "MutationResponse":
                pass
            assert response["result"] == 6


async def test_times_go_on_where_a_client_saw_a_later_one_than_the_database_has(
    far_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    seen = u64_text(2**62)
    async with far_shop() as (api, _), socket_client(str(api.http.base_url), MODULE) as client:
        await client.connect(None, 1, seen)
        await client.watch(0, "count")
        await client.until(0, 0)
        assert read_u64(client.version["ts"]) >= 2**62
        await client.call("Mutation", "add", title="Emma")
        assert read_u64((await client.receive())["ts"]) >= 2**62
        await client.until(0, 1)
        assert "socket.clock_went_back" in caplog.text


# ----- what ends a connection


async def test_a_connection_ends_with_a_code_that_tells_why(far_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async with far_shop() as (api, _):
        async with socket_client(str(api.http.base_url), MODULE) as client:
            await client.watch(0, "count")
            assert await closed(client) == (1008, "BadRequest"), "the first message is Connect"
        with monkeypatch.context() as patch:
            patch.setattr(socket_module, "_HEARTBEAT", 0.01)
            async with one(api) as client:
                assert json.loads(await client.socket.recv()) == {"type": "Ping"}
        async with one(api) as client:
            await client.watch(0, "count")
            await client.transition()
            api.asgi.opening.drain()
            assert await closed(client) == (1001, "Shutdown")


async def test_other_origins_and_other_paths_get_no_socket(far_shop: Shop) -> None:
    async with far_shop(cors_origins="https://a.example") as (api, _):
        here = str(api.http.base_url)
        for origin in ("https://a.example", here):
            async with one(api, origin=origin) as client:
                await client.modify([])
                await client.transition()
        with pytest.raises(InvalidStatus) as refused:
            async with one(api, origin="https://b.example"):
                pass
        assert refused.value.response.status_code == 403
        web = Starlette(routes=[Mount("/shop", api.asgi)])
        async with listening(web) as url, socket_client(url, MODULE, path="/shop/api/sync") as client:
            await client.connect()
            await client.watch(0, "count")
            await client.until(0, 0)
            for path in ("/api/sync", "/shop/admin/tasks"):
                with pytest.raises(InvalidStatus):
                    async with socket_client(url, MODULE, path=path):
                        pass


async def test_a_mutation_that_cannot_be_served_now_ends_the_connection_and_the_client_comes_back(
    far_shop: Shop,
) -> None:
    async with far_shop(max_calls=1) as (api, _), one(api) as client:
        gate = api.hold("x")
        await client.call("Action", "wait_in_action", title="x")
        await gate.running.wait()
        await client.call("Mutation", "add", title="Emma")
        assert await closed(client) == (1013, "TooManyConcurrentRequests")
        gate.may_go_on.set()
        assert await api.value("query", "count") == 0


async def test_a_large_transition_comes_in_parts_to_clients_that_take_them(
    far_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.wire.sockets._CHUNK", 100)
    async with far_shop() as (api, _):
        async with one(api) as client:
            await client.watch(0, "echo", value="x" * 500)
            parts = [await client.receive()]
            while len(parts) < parts[0]["totalParts"]:
                parts.append(await client.receive())
            assert [part["partNumber"] for part in parts] == list(range(len(parts)))
            assert {part["transitionId"] for part in parts} == {parts[0]["transitionId"]}
            whole = json.loads("".join(part["chunk"] for part in parts))
            assert whole["modifications"][0]["value"] == "x" * 500
        for options in ({"client": PYTHON, "path": "/api/sync"}, {"path": "/api/1.27.9/sync"}):
            async with one(api, **options) as client:
                await client.watch(0, "echo", value="x" * 500)
                await client.until(0, "x" * 500)


async def test_a_client_that_reads_nothing_holds_up_nobody(far_shop: Shop) -> None:
    async with far_shop() as (api, _), one(api, path="/api/sync", client=PYTHON) as idle, one(api) as client:
        await idle.modify([idle.added(number, "all_books") for number in range(20)])
        await client.watch(0, "count")
        await client.until(0, 0)
        for number in range(1, 25):
            await client.call("Mutation", "add", title=f"{number}", cover={"$bytes": "eHh4" * 5000})
            while client.answers[0] != number:
                await client.receive()
        async with asyncio.timeout(PATIENCE):
            while len(idle.answers.get(0, ())) < 24:
                await idle.transition()
