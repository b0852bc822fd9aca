"""How many changes are read at once: many while there are more, few where they are large, whatever came before."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.changes.change import CapturedChange
from penstock.changes.position import Position
from penstock.services.reading import ReadSize
from penstock.store.nouns.changes import Batch

MEBIBYTE = 2**20


def batch(number: int, size: int, *, complete: bool = False) -> Batch:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    changes = [CapturedChange(one, 1, "enter", "k", None, "x" * size, at) for one in range(number)]
    return Batch(changes, Position(), complete, Position())


def read(size: ReadSize, bytes_each: int, times: int) -> list[int]:
    """The number of changes in each of some reads, of which none is the last."""
    numbers = []
    for _ in range(times):
        numbers.append(size.number)
        size.adapt(batch(size.number, bytes_each))
    return numbers


def test_it_grows_while_there_is_more() -> None:
    size = ReadSize(2000)
    assert read(size, 100, 6) == [25, 100, 400, 1600, 2000, 2000]
    size.adapt(batch(30, 100, complete=True))
    assert size.number == 100, "what is large may come next"
    size.adapt(batch(0, 0, complete=True))
    assert read(size, 100, 2) == [100, 400]


def test_a_burst_of_small_ones_is_read_at_once() -> None:
    size = ReadSize(2000)
    size.adapt(batch(20, 100, complete=True))
    assert size.number == 100
    size.adapt(batch(20, MEBIBYTE, complete=True))
    assert size.number == 25, "those were not small"


def test_after_few_that_are_large_it_stays_small() -> None:
    size = ReadSize(2000)
    size.adapt(batch(25, 4 * MEBIBYTE))
    size.adapt(batch(3, 4 * MEBIBYTE, complete=True))
    assert size.number == 4
    size.adapt(batch(0, 0, complete=True))
    assert size.number == 4


def test_few_are_read_that_are_large() -> None:
    size = ReadSize(2000)
    numbers = read(size, 4 * MEBIBYTE, 3)
    assert numbers == [25, 4, 4]
    assert read(size, MEBIBYTE // 4, 3) == [4, 16, 64]


def test_one_is_read_that_is_larger_than_all_may_be() -> None:
    size = ReadSize(2000)
    size.adapt(batch(1, 20 * MEBIBYTE))
    assert size.number == 1


def test_it_is_no_more_than_the_most() -> None:
    assert ReadSize(10).number == 10
