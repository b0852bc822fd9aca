"""The web socket of Convex's clients: what is watched moves in steps of one snapshot, and mutations run once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from doors.http_fixtures import Api, Shop
from stage.outboxes import sql
from stage.sockets import PATIENCE, SocketClient, listening, socket_client
from stage.waits import until
from starlette.applications import Starlette
from starlette.routing import Mount
from websockets.exceptions import ConnectionClosed, InvalidStatus

from penstock.clock import SystemClock
from penstock.errors import LimitExceeded
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


async def test_a_query_has_its_answer_and_each_other_one_whoever_writes(far_shop: Shop) -> None:
    async with far_shop() as (api, test), one(api) as client:
        await client.modify([client.added(0, "count"), client.added(7, "find", title="Emma")])
        await client.transition()
        assert client.answers == {0: 0, 7: None}
        await api.value("mutation", "add", title="Emma")
        changed = await client.transition()
        assert changed.keys() == {0, 7}, "one transition for what changed together"
        assert client.answers[7]["title"] == "Emma"
        await sql(test, "update book set copies = 9")
        assert (await client.transition()).keys() == {7}, "an equal answer is not sent again"
        assert client.answers[7]["copies"] == 9


async def test_a_query_that_is_refused_or_fails_fails_alone(far_shop: Shop) -> None:
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("nothing", {}, "Could not find public function"),
        ("hidden", {"number": 1}, "Could not find public function"),
        ("add", {"title": "x"}, "is a mutation, and was called as a query"),
        ("find", {"title": 3}, "title"),
        ("echo", {"value": {"$integer": 3}}, "$integer"),
    ]
    async with far_shop() as (api, _), one(api) as client:
        await client.modify([])
        assert await client.transition() == {}
        added = [client.added(number, function, **args) for number, (function, args, _) in enumerate(wrong, 2)]
        values = [{"$float": "AAAAAAAA8H8="}, {"$bytes": "aGk="}, 1.5, None, "\u2028 \U0001f600"]
        watched = [client.added(0, "none_or_fail"), client.added(1, "echo", value=values)]
        await client.modify([*watched, *added])
        await client.transition()
        assert client.answers[0] is None
        assert client.answers[1] == [values[0], "aGk=", *values[2:]]
        for number, (*_, said) in enumerate(wrong, 2):
            assert client.answers[number]["type"] == "QueryFailed"
            assert said in client.answers[number]["errorMessage"]
        removed = [{"type": "Remove", "queryId": number} for number in range(1, 2 + len(wrong))]
        await client.modify(removed)
        assert {change["type"] for change in (await client.transition()).values()} == {"QueryRemoved"}
        assert client.version["querySet"] == 3
        await api.value("mutation", "add", title="Emma")
        failed = (await client.transition())[0]
        assert failed["type"] == "QueryFailed"
        assert failed["errorMessage"].endswith("] Server Error")
        assert "errorData" not in failed
        await api.value("mutation", "rename", title="Emma", to="Persuasion")
        assert (await client.transition())[0]["errorData"] == "sold out"
        backend = await api.asgi.opening.backend()
        assert sum(entry.watchers for entry in backend.live_queries.report()) == 1
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
            assert sent[1]["journal"] is None
            await sql(test, "delete from book where title = 'Emma'")
            assert (await client.transition())[0]["journal"] == journal
            assert titles(client, 0) == ["Ulysses"]
            following = client.answers[0]["continueCursor"]
        async with one(api) as client:
            await client.modify([page(client, 0, None, journal), page(client, 1, following, None)])
            await client.transition()
            assert (titles(client, 0), titles(client, 1)) == (["Ulysses"], ["Dubliners"])
            await client.modify([page(client, 2, None, None)])
            await client.transition()
            assert titles(client, 2) == ["Ulysses", "Dubliners"], "without a journal it has as many rows as it asks for"


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
        query: Any = test.engine.registry.find(f"{MODULE}:all_books")
        with pytest.raises(LimitExceeded):
            test.live(query)
        await client.modify([{"type": "Remove", "queryId": 1}])
        await client.watch(3, "all_books")  # the answer that is kept makes room for it
        await client.until(3, [])
        assert len(test.live_queries.report()) == 2


async def test_metrics_tell_what_is_watched(far_shop: Shop) -> None:
    async with far_shop(metrics_token="x") as (api, test), one(api) as client, one(api) as other:
        for watching in (client, other):
            await watching.modify([watching.added(0, "count")])
            await watching.until(0, 0)
        await client.watch(1, "find", title="Emma")
        await client.until(1, None)
        await api.value("mutation", "add", title="Emma")
        await other.until(0, 1)
        await sql(test, "update book set copies = 7")
        while (client.answers[1] or {}).get("copies") != 7:
            await client.transition()
        text = (await api.http.get("/metrics", headers={"authorization": "Bearer x"})).text
        found = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("penstock_live"))
        gauges = [float(found[f"penstock_live_{name}"]) for name in ("clients", "watched", "entries", "bytes")]
        assert gauges[:3] == [2, 3, 2]
        assert gauges[3] > 10
        count = 'penstock_live_runs_total{function="doors.http_fixtures:count",outcome='
        assert float(found[f'{count}"changed"}}']) == 2
        assert float(found[f'{count}"equal"}}']) >= 1
        assert float(found["penstock_live_transitions_total"]) >= 5
        assert float(found["penstock_live_tick_seconds_count"]) >= 3


# ----- mutations and actions


async def test_the_response_of_a_mutation_comes_right_before_the_transition_that_shows_it(far_shop: Shop) -> None:
    async with far_shop() as (api, _), one(api) as client:
        await client.call("Mutation", "add", title="0")
        assert (await client.receive())["success"]
        assert await client.transition() == {}, "it watches nothing"
        await client.watch(0, "count")
        await client.until(0, 1)
        for number in range(1, 20):
            request = await client.call("Mutation", "add", title=f"{number}")
            response = await client.receive()
            assert (response["type"], response["requestId"], response["success"]) == ("MutationResponse", request, True)
            await client.transition()
            assert client.answers[0] == number + 1
            assert response["ts"] == client.version["ts"]
        for function, args, data in (
            ("sell", {"title": "Emma"}, {"kind": "unknown book"}),
            ("add_and_fail", {"title": "x"}, None),
            ("nothing", {}, None),
            ("rate", {"stars": 9}, None),
        ):
            request = await client.call("Mutation", function, **args)
            response = await client.receive()
            assert (response["requestId"], response["success"], response["ts"]) == (request, False, None)
            assert isinstance(response["result"], str)
            if data is None:
                assert "errorData" not in response
            else:
                assert data.items() <= response["errorData"].items()
            assert await client.transition() == {}
        assert await api.value("query", "count") == 20


async def test_actions_run_beside_each_other_and_do_not_wait_for_mutations(far_shop: Shop) -> None:
    async with far_shop() as (api, _), one(api) as client:
        slow, mutation = api.hold("slow"), api.hold("held mutation")
        await client.call("Action", "wait_in_action", title="slow")
        await client.call("Mutation", "wait_and_add", title="held mutation")
        await slow.running.wait()
        await mutation.running.wait()
        request = await client.call("Action", "fail_in_action", by="exit")
        response = await client.receive()
        assert (response["type"], response["requestId"], response["success"]) == ("ActionResponse", request, False)
        slow.may_go_on.set()
        assert await client.receive() == {
            "type": "ActionResponse",
            "requestId": 0,
            "success": True,
            "result": "done",
            "logLines": [],
        }
        mutation.may_go_on.set()
        assert (await client.receive())["requestId"] == 1


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


async def test_a_mutation_that_is_sent_again_takes_effect_once_also_while_it_runs(far_shop: Shop) -> None:
    session = "6a0e8a52-0000-4000-8000-000000000001"
    async with far_shop() as (api, _):
        async with one(api) as other:
            await other.call("Mutation", "add", title="Emma")
            await other.receive()
        gate = api.hold("Emma 3")
        async with socket_client(str(api.http.base_url), MODULE) as client:
            await client.connect(session)
            await client.call("Mutation", "add", 5, title="Emma 2")
            first = await client.receive()
            await client.call("Mutation", "wait_and_add", 6, title="Emma 3")
            await gate.running.wait()
        async with socket_client(str(api.http.base_url), MODULE) as client:
            await client.connect(session, 1)
            await client.watch(0, "count")
            await client.call("Mutation", "add", 5, title="Emma 2")
            again = await client.receive()
            assert (again["success"], again["result"]) == (True, first["result"])
            await client.until(0, 2)
            await client.call("Mutation", "wait_and_add", 6, title="Emma 3")
            gate.may_go_on.set()
            while (response := await client.receive())["type"] != "MutationResponse":
                pass
            assert response["success"]
        await until(lambda: _idle(api))
        assert await api.value("query", "count") == 3


async def _idle(api: Api) -> bool:
    return not api.asgi.opening.under_way


async def test_a_client_with_a_new_session_is_known_by_the_time_that_it_saw(far_shop: Shop) -> None:
    async with far_shop() as (api, _):
        async with one(api, client=PYTHON, path="/api/sync") as client:
            await client.transition()
            await client.call("Mutation", "add", title="Emma")
            first = await client.receive()
            await client.transition()
            seen = client.version["ts"]
        for count in (1, 2):
            async with socket_client(str(api.http.base_url), MODULE, client=PYTHON, path="/api/sync") as client:
                await client.connect(None, count, seen)
                await client.modify([client.added(0, "count")])
                await client.call("Mutation", "add", 0, title="Emma")
                again = await client.receive()
                assert again["type"] == "MutationResponse", "it comes before the first transition"
                assert again["result"] == first["result"]
                await client.transition()
                assert client.answers == {0: 1}
                assert read_u64(client.version["ts"]) >= read_u64(seen)
                seen = client.version["ts"]
        async with one(api, client=PYTHON, path="/api/sync") as stranger:
            await stranger.call("Mutation", "add", 0, title="Emma 2")
            while (response := await stranger.receive())["type"] != "MutationResponse":
                pass
            assert response["result"] != first["result"]


async def test_who_only_watches_writes_nothing_and_two_who_draw_one_number_are_told_apart(
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
        assert await sql(test, f"select 1 from {requests}") == []
        for client, left in ((first, 8), (second, 7)):
            await client.call("Mutation", "sell", title="Emma")
            assert (await client.receive())["result"] == left
            await client.transition()
        for client, left in ((first, 8), (second, 7)):
            async with socket_client(str(api.http.base_url), MODULE, **python) as again:
                await again.connect(None, 1, client.version["ts"])
                await again.call("Mutation", "sell", 0, title="Emma")
                assert (await again.receive())["result"] == left


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
        async with one(api) as client:
            await client.send({"type": "Authenticate", "baseVersion": 0, "tokenType": "None"})
            await client.transition()
            assert client.version["identity"] == 1
            await client.send({"type": "Authenticate", "baseVersion": 1, "tokenType": "User", "value": "x.y.z"})
            refused = await client.receive()
            assert (refused["type"], refused["baseVersion"], refused["authUpdateAttempted"]) == ("AuthError", 1, True)
            assert await closed(client) == (1000, "AuthError")
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
            for path in ("/api/sync", "/shop/sync", "/shop/api/1/2/sync", "/shop/admin/tasks"):
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
