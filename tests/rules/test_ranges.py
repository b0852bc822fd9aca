"""Ranges: bounds that are combined, one of each."""

from __future__ import annotations

import pytest

from penstock.errors import ValueInvalid
from penstock.transaction.segments import Range, between, gt, gte, lt, lte


def test_each_word_is_one_bound() -> None:
    assert gt(5) == Range(lower=(5, False))
    assert gte(5) == Range(lower=(5, True))
    assert lt(5) == Range(upper=(5, False))
    assert lte(5) == Range(upper=(5, True))
    assert between(1, 5) == gte(1) & lte(5) == lte(5) & gte(1)


def test_a_bound_may_be_anything_even_what_is_false() -> None:
    for value in (0, "", False, None):
        assert (gt(value) & lt(value)).lower == (value, False)
        with pytest.raises(ValueInvalid):
            gt(value) & gte(value)


@pytest.mark.parametrize("second", [gt(1), gte(2), between(1, 2), gt(1) & lt(2)])
def test_two_bounds_of_one_side_are_refused(second: Range) -> None:
    with pytest.raises(ValueInvalid, match="at most one lower and one upper bound"):
        gt(0) & second
    with pytest.raises(ValueInvalid, match="at most one lower and one upper bound"):
        between(0, 1) & second


def test_no_bound_is_neutral() -> None:
    assert Range() & gt(1) == gt(1) & Range() == gt(1)
