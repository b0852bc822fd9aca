"""Ids: their spelling keeps all bits and their order, and nothing else is taken for one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from penstock.clock import SystemClock, layout_uuid7
from penstock.errors import IdInvalid
from penstock.jobs.job import JobId, job_id, job_ids, job_uuid
from penstock.schema.ids import Id, format_id, format_ids, is_id, parse_id
from penstock.schema.table import Table

BITS = st.integers(0, 2**128 - 1)
PREFIXES = st.from_regex(r"\A[a-z_][a-z0-9_]{0,47}\Z")


class Booking(Table):
    """A table."""


class Orders(Table, source="shop.orders", key="number", managed=False):
    number: int


class Lines(Table, source="shop.lines", key=("order", "line"), managed=False):
    order: UUID
    line: int


def test_an_id_of_several_columns_is_a_tuple() -> None:
    adapter, one = TypeAdapter[Any](Id[Lines]), UUID(int=1)
    for given_one in ((one, 7), [str(one), 7], (str(one), "7")):
        assert adapter.validate_python(given_one, strict=True) == (one, 7)
    assert adapter.validate_json(f'["{one}", 7]', strict=True) == (one, 7)
    assert adapter.dump_python(adapter.validate_python((one, 7)), mode="json") == [str(one), 7]
    for wrong in ("x", (one,), (one, 7, 8), (7, one), (one, None), {"order": one, "line": 7}, None):
        with pytest.raises(ValidationError, match=r"whose key is \(order, line\)"):
            adapter.validate_python(wrong)


@given(PREFIXES, BITS)
def test_an_id_keeps_all_bits(prefix: str, bits: int) -> None:
    text = format_id(prefix, bits)
    assert is_id(prefix, text)
    assert parse_id(prefix, text) == bits
    assert text.startswith(f"{prefix}_")
    assert len(text) == len(prefix) + 27


@given(PREFIXES, st.lists(BITS | st.integers(0, 4).map(lambda step: step << 40) | st.integers(0, 2**41)))
def test_many_are_spelled_as_each_is(prefix: str, ids: list[int]) -> None:
    assert list(format_ids(prefix, ids)) == [format_id(prefix, bits) for bits in ids]
    assert job_ids(UUID(int=bits) for bits in ids) == [job_id(UUID(int=bits)) for bits in ids]


@given(BITS, BITS)
def test_ids_are_ordered_as_their_bits_are(first: int, second: int) -> None:
    assert (format_id("x", first) < format_id("x", second)) == (first < second)


@given(PREFIXES, BITS, st.integers(0, 60), st.characters(exclude_characters="0123456789abcdefghjkmnpqrstvwxyz"))
def test_one_wrong_character_and_it_is_no_id(prefix: str, bits: int, place: int, character: str) -> None:
    text = format_id(prefix, bits)
    place %= len(text)
    if place < len(prefix) and text[place] == character:
        return
    if text[place] != character:
        assert not is_id(prefix, text[:place] + character + text[place + 1 :])
    assert not is_id(prefix, text + character)


GOOD = "booking_01jd3k4v5w6x7y8z9a0b1c2d3e"
BAD: list[Any] = [
    *("", "x", "booking", "booking_", "_", GOOD[8:], GOOD[:-1], GOOD + "0", GOOD.replace("_", "-"), GOOD.upper()),
    *("B" + GOOD[1:], "booking_8" + "z" * 25, " " + GOOD, GOOD + "\n", GOOD[:-1] + "\0", GOOD[:-1] + "\ud800"),
    *(GOOD[:-1] + letter for letter in "iloulIE!_ "),
    "booking_\N{ARABIC-INDIC DIGIT ZERO}" + GOOD[9:],
    *(None, 5, GOOD.encode(), [GOOD], {}, True),
]


@pytest.mark.parametrize("text", BAD)
def test_nothing_else_is_an_id(text: Any) -> None:
    with pytest.raises(IdInvalid):
        parse_id("booking", text)
    with pytest.raises(ValidationError):
        TypeAdapter(Id[Booking]).validate_python(text)


def test_the_largest_id_is_one_and_the_next_is_none() -> None:
    assert parse_id("x", "x_7zzzzzzzzzzzzzzzzzzzzzzzzz") == 2**128 - 1
    assert format_id("x", 0) == "x_00000000000000000000000000"
    with pytest.raises(IdInvalid):
        parse_id("x", "x_80000000000000000000000000")


def test_an_annotation_checks_the_table_of_an_id() -> None:
    text = format_id("booking", 5)
    bare: Any = Id
    adapters: list[TypeAdapter[Any]] = list(map(TypeAdapter, (Id[Booking], Id[Any], bare)))
    for adapter in adapters:
        found = adapter.validate_python(text)
        assert (found, type(found)) == (text, Id)
        assert adapter.dump_python(found) == text
        assert adapter.dump_json(found) == f'"{text}"'.encode()
        assert type(adapter.validate_json(f'"{text}"')) is Id
    with pytest.raises(ValidationError, match="should be an id of table booking"):
        TypeAdapter(Id[Booking]).validate_python(format_id("other", 5))
    with pytest.raises(ValidationError):
        TypeAdapter(Id[Orders]).validate_python(text)  # its key is a number
    assert TypeAdapter(Id[Orders]).validate_python("17") == "17"


@given(BITS)
def test_a_job_has_an_id_as_rows_have(bits: int) -> None:
    text = job_id(UUID(int=bits))
    assert (type(text), text[:4]) == (JobId, "job_")
    assert job_uuid(text) == UUID(int=bits)
    with pytest.raises(IdInvalid):
        job_uuid(format_id("task", bits))


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1))
def test_uuids_are_of_version_7_and_ordered_by_time(ms: int, chance: int) -> None:
    uuid = UUID(int=layout_uuid7(ms, chance))
    assert (uuid.version, uuid.variant) == (7, "specified in RFC 4122")
    assert uuid.int >> 80 == ms
    if ms:
        assert uuid.int > layout_uuid7(ms - 1, 2**74 - 1)
    if chance:
        assert uuid.int > layout_uuid7(ms, chance - 1)


def test_a_clock_never_makes_the_same_id_twice() -> None:
    clock = SystemClock()
    made = [clock.uuid7() for _ in range(20_000)]
    assert made == sorted(set(made)), "they rise, even inside one millisecond"


# Far ahead of the time, each id is a step beyond the last one, and steps are drawn in advance.
_FORK = """
import os
from penstock.clock import SystemClock

clock = SystemClock()
clock._last_ms = 2**47
clock.uuid7()
reads, writes = os.pipe()
if os.fork() == 0:
    os.write(writes, str([clock.uuid7() for _ in range(9)]).encode())
    os._exit(0)
os.wait()
print(os.read(reads, 10_000).decode() != str([clock.uuid7() for _ in range(9)]))
"""


def test_a_forked_process_makes_ids_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True\n"
