"""Messages on the web socket that are broken, huge or too many: each fails its own call, and nothing else."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import pytest
from doors.http_fixtures import Api, Shop
from doors.test_socket import closed, one
from stage.needs import LONG, examples
from stage.sockets import PATIENCE, SocketClient, socket_client
from stage.waits import until
from websockets.exceptions import ConnectionClosed

from penstock.clock import Random, SystemClock, random_of
from penstock.server import frames as frames_module
from penstock.server.frames import WebSocketFrames
from penstock.server.sockets import calls as calls_module
from penstock.server.sockets import client as client_module
from penstock.server.sockets import socket as socket_module
from penstock.server.sockets import watched as watched_module
from penstock.wire import sockets as wire_module

MODULE = "doors.http_fixtures"
BAD = 500_000  # the numbers of what is broken begin here
MIB = 1024 * 1024

# what stands where a value should be, as bytes: JSON that nobody can read, and values of the wrong type
UNREADABLE = (
    b'"I \\ud83d"',
    b'"open',
    b"NaN",
    b"1" * 5000,
    b"[,]",
    b'{"a":}',
    b"[" * 300 + b"]" * 300,
    b"[" * 20_000 + b"]" * 20_000,
    b"[" + b"[]," * 40_000 + b"[]]",
    b'"' + b"x" * (5 * MIB if LONG else MIB) + b'"',
)
WRONG = (b"null", b"-1", b"1e999", b"1" * 400, b'"x"', b"[]", b"[{},{}]", b'{"$integer":1}', b'{"\\u0000":1}')


def _dice() -> Random:
    seed = SystemClock().seed() if LONG else 34
    print(f"seed {seed}")  # noqa: T201 - of a failure
    return random_of(seed)


class Page:
    """A client that watches a count and calls good mutations between bad messages; it checks each answer."""

    def __init__(self, client: SocketClient) -> None:
        self.client = client
        client._request = 7 * BAD  # not what is left of a number of a broken call
        self.responses: dict[int, dict[str, Any]] = {}

    async def begin(self) -> Self:
        await self.client.watch(0, "count")
        await self.until(lambda: 0 in self.client.answers)
        return self

    async def look(self) -> None:
        message = await self.client.receive()
        if message["type"].endswith("Response"):
            assert message["requestId"] not in self.responses, message
            self.responses[message["requestId"]] = message

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            await self.look()

    async def add(self, title: str) -> None:
        """A good mutation: it succeeds, and the live query shows it."""
        before = self.client.answers[0]
        number = await self.client.call("Mutation", "add", title=title)
        await self.until(lambda: number in self.responses and self.client.answers[0] > before)
        assert self.responses[number]["success"], self.responses[number]


def call(number: int, args: bytes, *, kind: str = "Mutation", last: bool = False, **more: bytes) -> bytes:
    """A call as JavaScript's client writes it; with `last` as Python's does, its arguments first."""
    fields = {"type": b'"%b"' % kind.encode(), "requestId": b"%d" % number, "udfPath": b'"%b:rate"' % MODULE.encode()}
    return written(fields | more, args, last=last)


def added(number: int, args: bytes, *, last: bool = False, **more: bytes) -> bytes:
    fields = {"type": b'"Add"', "queryId": b"%d" % number, "udfPath": b'"%b:echo"' % MODULE.encode()}
    return written(fields | more, args, last=last)


def written(fields: dict[str, bytes], args: bytes, *, last: bool) -> bytes:
    members = [b'"%b":%b' % (name.encode(), value) for name, value in fields.items()]
    members.insert(0 if last else len(members), b'"args":' + args)
    return b"{" + b",".join(members) + b"}"


def large(size: int, number: int, *, last: bool) -> bytes:
    """A call of so many bytes."""
    empty = len(call(number, b'[{"stars":""}]', last=last))
    return call(number, b'[{"stars":"%b"}]' % (b"x" * (size - empty)), last=last)


def broken_call(dice: Random, number: int) -> bytes:
    """A call that has its number, and cannot be served."""
    how: dict[str, Any] = {"kind": dice.choice(["Mutation", "Action"]), "last": dice.random() < 0.5}
    value, wrong, good = dice.choice(UNREADABLE), dice.choice(WRONG), b'[{"stars":3}]'
    match dice.randrange(6):
        case 0:
            return call(number, b'[{"stars":%b}]' % value, **how)
        case 1:
            return call(number, value, **how)
        case 2:
            return call(number, good, udfPath=dice.choice([wrong, value]), kind=how["kind"])
        case 3:
            return call(number, good, more=dice.choice(UNREADABLE[:-2]), kind=how["kind"], last=True)
        case 4:
            return call(number, good, type=dice.choice([b'"Nonsense"', b'"mutation"', b"7"]), last=how["last"])
    return call(number, dice.choice([b'[{"stars":%b}]', b"[[%b]]", b'{"%b":1}', b"[%b,1]"]) % wrong, **how)


async def test_a_call_that_cannot_be_served_fails_and_nothing_else_does(
    far_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    dice = _dice()
    async with far_shop() as (api, _), one(api) as client:
        page = await Page(client).begin()
        for number in range(BAD, BAD + examples(400)):
            text = broken_call(dice, number)
            sent = text[:300] + b" ... " + text[-300:]
            await client.send(text)
            if dice.random() < 0.2:
                await page.add(f"{number}")
            await page.until(lambda: number in page.responses)  # noqa: B023 - at once
            response = page.responses[number]
            assert not response["success"], (sent, response)
            assert isinstance(response["result"], str), sent
            assert "Server Error" not in response["result"], (sent, response)
        await page.add("the last")
        assert not [line for line in caplog.messages if "socket.failed" in line or "socket.bad_message" in line]


async def test_a_query_that_cannot_be_read_fails_among_good_ones(
    far_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    def change(*changes: bytes) -> bytes:
        return b'{"type":"ModifyQuerySet","baseVersion":0,"newVersion":1,"modifications":[%b]}' % b",".join(changes)

    whole = [one for one in UNREADABLE if one.count(b'"') % 2 == 0 and one.count(b"[") == one.count(b"]")]
    ways: tuple[Callable[[int, bytes], bytes], ...] = (
        lambda number, value: added(number, b'[{"value":%b}]' % value),
        lambda number, value: added(number, value, last=True),
        lambda number, value: added(number, b"[{}]", udfPath=value, last=True),
        lambda number, value: added(number, b"[{}]", journal=value if len(value) < 50_000 else b"1"),
        lambda number, _: added(number, b"[{}]", type=b'"Nonsense"'),
    )
    async with far_shop() as (api, _), one(api) as client:
        page = await Page(client).begin()
        for start, (way, value) in enumerate(itertools.product(ways, whole)):
            good, bad, last = numbers = [BAD + 3 * start + place for place in range(3)]
            adds = added(good, b'[{"value":0}]', last=True), way(bad, value), added(last, b'[{"value":2}]')
            await client.send(change(*adds))
            await page.until(lambda: client.answers.keys() >= {*numbers})  # noqa: B023 - at once
            assert (client.answers[good], client.answers[last]) == (0, 2)
            assert client.answers[bad]["type"] == "QueryFailed", (adds[1][:200], client.answers[bad])
            removed = (b'{"type":"Remove","queryId":%d}' % number for number in numbers)
            await client.send(change(*removed))
            await page.until(lambda: list(client.answers) == [0])
        for number, kind in (0, b"Add"), (BAD, b"Remove"):  # it is watched already; it is not watched
            await client.send(change(b'{"type":"%b","queryId":%d,"udfPath":"a:b"}' % (kind, number)))
        await page.add("the last")
        assert "socket.failed" not in caplog.text
        assert caplog.text.count("socket.bad_message") == 2


async def test_after_any_message_good_calls_are_answered_or_the_log_says_why_the_socket_ended(
    far_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    whole = call(BAD, b'[{"stars":3}]', kind="Action")
    connect = b'{"type":"Connect","sessionId":"x","connectionCount":0}'
    token = b'{"type":"Authenticate","baseVersion":0,"tokenType":"User","value":"a.b.c"}'
    ends = 0
    async with far_shop() as (api, _), one(api) as bystander:
        other = await Page(bystander).begin()
        for text in (b"", b'{"type":"Nonsense"}', whole[:-9], whole[9:], b"\xff" + whole, connect, token, *WRONG[4:]):
            async with one(api) as client:
                page, said = await Page(client).begin(), None
                caplog.clear()
                try:
                    await client.send(text)
                    await page.add(repr(text))
                except ConnectionClosed as end:
                    said = end.rcvd and (end.rcvd.code, end.rcvd.reason)
                    ends += 1
                assert said in {(1008, "BadRequest"), (1000, "AuthError"), None}, text
                assert said != (1008, "BadRequest") or "socket.bad_message" in caplog.text, text
                assert said == {connect: (1008, "BadRequest"), token: (1000, "AuthError")}.get(text, said)
                assert "socket.failed" not in caplog.text, text
        await other.add("the last")
    assert ends > 5


# ----- large messages


async def test_a_message_that_is_too_large_is_thrown_away_and_fails_its_call(
    far_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 64 * 1024
    for module in (frames_module, wire_module):
        monkeypatch.setattr(module, "MOST_BYTES", most)
    dice, session, said = _dice(), "6a0e8a52-0000-4000-8000-000000000001", dict[int, list[str]]()
    async with far_shop() as (api, _):
        for count in range(2):
            async with socket_client(str(api.http.base_url), MODULE) as client:
                await client.connect(session, count)
                page = await Page(client).begin()
                for number, size in enumerate((most, most + 1, 3 * most + 1), BAD):
                    text = large(size, number, last=number % 2 == 0)
                    cuts = [0, *sorted(dice.sample(range(1, size), number % 3)), size]
                    await client.socket.send([text[a:b] for a, b in itertools.pairwise(cuts)], text=True)
                    await page.until(lambda: number in page.responses)  # noqa: B023 - at once
                    assert page.responses[number]["success"] is False
                    said.setdefault(number, []).append(page.responses[number]["result"])
                    assert (f"This message has {size} bytes" in said[number][0]) is (size > most)
                await page.add(f"{count}")
        assert all(first == again for first, again in said.values()), "a call that is sent again has the same error"


async def test_a_large_message_fails_the_query_at_its_ends_or_ends_the_socket_and_the_log_says_why(
    far_shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(frames_module, "MOST_BYTES", 64 * 1024)
    monkeypatch.setattr(wire_module, "MOST_BYTES", 64 * 1024)
    async with far_shop() as (api, _), one(api) as client, one(api) as other:
        await client.send(b'{"type":"Event","event":"%b"}' % (b"x" * 100_000))  # it has no answer
        await client.modify([])
        await client.transition()
        await client.watch(0, "find", title="x" * 100_000)
        await client.watch(1, "count")
        await client.until(1, 0)
        assert "This message has 100" in client.answers[0]["errorMessage"]
        add = b'{"args":[{"title":"%b"}],"type":"Add","queryId":2,"udfPath":"x:y"}' % (b"x" * 100_000)
        await client.send(b'{"modifications":[%b],"type":"ModifyQuerySet","newVersion":4}' % add)
        while 2 not in client.answers:
            await client.transition()
        assert "This message has 100" in client.answers[2]["errorMessage"]
        await client.send(
            b'{"type":"ModifyQuerySet","modifications":[{"type":"Add","args":[{"title":"%b"}]}]}' % (b"x" * 100_000)
        )
        assert await closed(client) == (1008, "BadRequest")
        assert "socket.bad_message client=npm-1.48.0 error=This message has 100" in caplog.text
        await other.watch(0, "count")
        await other.until(0, 0)


async def test_a_client_watches_no_more_than_one_message_can_bring_back(
    far_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_module, "_MOST_BYTES", 10_000)
    async with far_shop() as (api, _), one(api) as client:
        for number in range(3):
            await client.watch(number, "find", title="x" * 4000)
            await client.transition()
        assert "may have" in client.answers[2]["errorMessage"]
        await client.modify([{"type": "Remove", "queryId": number} for number in (0, 2)])
        await client.transition()
        await client.watch(3, "find", title="x" * 4000)
        await client.transition()
        assert client.answers == {1: None, 3: None}


async def test_large_messages_take_turns_in_bounded_memory_and_none_waits_for_ever(
    far_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames_module, "_SMALL", 1024)
    monkeypatch.setattr(frames_module, "_AT_ONCE", 1)
    turns, most = WebSocketFrames.turns, 0
    take = WebSocketFrames._take_turn

    def watched(one: WebSocketFrames) -> None:
        nonlocal most
        take(one)
        most = max(most, sum(len(each._message) + each._untaken for each in turns))

    monkeypatch.setattr(WebSocketFrames, "_take_turn", watched)

    async def call_large(api: Api) -> None:
        async with one(api) as client:
            for number in range(3):
                text = large(900_000, number, last=number % 2 == 0)
                await client.socket.send([text[:300_000], text[300_000:]], text=True)
                assert not (await client.receive())["success"]
                await client.transition()

    async with far_shop() as (api, _):
        await asyncio.gather(*(call_large(api) for _ in range(8)))
        assert MIB / 2 < most < 3 * MIB, "all of 7 MB do not lie there at once; others hold what had come by then"
        assert not turns
        stalled = asyncio.Event()

        async def begun() -> AsyncIterator[bytes]:
            yield large(1_200_000, 0, last=False)
            await stalled.wait()
            yield b""

        async with one(api) as client:
            sending = asyncio.create_task(client.socket.send(begun(), text=True))
            await until(lambda: len(turns) == 1)
            (first,) = turns
            others = asyncio.create_task(call_large(api))
            await until(lambda: len(turns) == 2)
            first.ping_sent_at = first._heard_at  # it has sent nothing since it was asked whether it is there
            first.keepalive_timeout()
            await others
            with pytest.raises(ConnectionClosed):
                await client.receive()
            stalled.set()
            await asyncio.gather(sending, return_exceptions=True)
        assert not turns


async def test_an_answer_that_is_too_large_for_its_client_fails_alone(
    far_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_MOST_BYTES_READ_BY_RUST", 1000)
    monkeypatch.setattr(client_module, "_MOST_BYTES_READ", 5000)
    for options, most in ({"client": "python-0.8.1", "path": "/api/sync"}, 1000), ({}, 5000):
        async with far_shop() as (api, _), one(api, **options) as client:
            sizes = {0: most - 200, 1: most, 2: most - 300, 3: most - 400}
            await client.modify([client.added(number, "echo", value="x" * size) for number, size in sizes.items()])
            while len(client.answers) < len(sizes):
                await client.transition()
            assert client.answers[1]["type"] == "QueryFailed"
            assert f"{most}" in client.answers[1]["errorMessage"]
            assert all(client.answers[number] == "x" * sizes[number] for number in (0, 2, 3))
            await client.call("Mutation", "say_back", text="x" * most)
            while (response := await client.receive())["type"] != "MutationResponse":
                pass
            assert not response["success"]
            assert await api.value("query", "count") == 0


# ----- many calls


@pytest.mark.parametrize("kind", ["Action", "large Mutation"])
async def test_calls_beyond_those_that_may_wait_are_not_read_until_others_end(
    far_shop: Shop, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(calls_module, "_MOST", 3 if kind == "Action" else 1000)
    monkeypatch.setattr(calls_module, "_MOST_BYTES", 200_000)
    async with far_shop() as (api, _), one(api) as client:
        held = api.hold("x")
        if kind == "Action":
            for number in range(9):
                await client.call(kind, "wait_in_action", number, title="x")
        else:
            await client.call("Mutation", "wait_and_add", 0, title="x")
            for number in range(1, 9):
                await client.call("Mutation", "rename", number, title="x" * 90_000, to="y")
        await held.running.wait()
        (socket,) = api.asgi.opening.endless
        assert isinstance(socket, socket_module.Socket)
        await until(lambda: socket._calls.are_many)
        frames = socket._websocket._receive.__self__  # type: ignore[attr-defined]
        await until(lambda: not frames.transport.is_reading())
        frames.ping_interval = 1000
        frames.keepalive_timeout()  # its answer to a ping is not read either
        assert socket._calls._number == (3 if kind == "Action" else 4)
        held.may_go_on.set()
        answered = set[int | None]()
        while answered < {*range(9)}:
            answered |= {(await client.receive()).get("requestId")} - {None}
        assert not socket._calls._bytes
        await until(frames.transport.is_reading)
        frames.ping_sent_at = frames._heard_at  # nothing has come since
        frames.keepalive_timeout()
        async with asyncio.timeout(PATIENCE):
            await client.socket.wait_closed()
