"""Patterns of `matches`: those that all understand alike, and how long a match may take."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.needs import examples

from penstock.reactive.pattern import PatternInvalid, common_pattern, is_found

ATOMS = st.sampled_from(
    ["a", "b", r"\.", ".", "[ab]", "[^a]", r"\d", r"\W", r"\s", "(a|b)", "(?:ab)", r"\n", r"[a-c\]]", "é"]
)
EDGES = st.sampled_from(["^", "$"])
COUNTS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}"])


def joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.tuples(inner, COUNTS).map(lambda pair: f"({pair[0]}){pair[1]}")
    repeated = st.tuples(ATOMS, COUNTS).map("".join)
    return st.lists(repeated | group | EDGES, max_size=4).map("".join) | st.tuples(inner, inner).map("|".join)


PATTERNS = st.recursive(ATOMS, joined, max_leaves=6)
TEXTS = st.text(st.sampled_from("abc.1\n] é_"), max_size=6)


@settings(max_examples=examples(400))
@given(pattern=PATTERNS, texts=st.lists(TEXTS, min_size=1, max_size=8))
def test_a_pattern_finds_what_pythons_own_finds(pattern: str, texts: list[str]) -> None:
    common_pattern(pattern)
    python = re.compile(re.sub(r"\$", r"\\Z", pattern), re.ASCII)  # Python's $ is also before the last line's end
    for text in texts:
        assert is_found(pattern, text) is bool(python.search(text)), text


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("(?=a)", "'(?='"),
        ("(?i)a", "'(?i'"),
        ("a*?", "'?'"),
        ("*a", "'*'"),
        ("[a", "'['"),
        ("a]", "']'"),
        ("[[:alpha:]]", "'['"),
        (r"[\d-z]", "'-'"),
        ("a{2,1}", "'{2,1}'"),
        ("a{256}", "'{256}'"),
        (r"\b", r"'\\b'"),
        (r"\1", r"'\\1'"),
        ("\\", r"'\\'"),
        ("a" * 501, "501 characters"),
        ("(a{200}){200}", "repeats more than"),
    ],
)
def test_other_patterns_are_refused_and_the_part_is_named(pattern: str, part: str) -> None:
    with pytest.raises(PatternInvalid) as raised:
        common_pattern(pattern)
    assert part in str(raised.value)


@pytest.mark.parametrize("pattern", ["(a+)+$", "^(a|a)*$", "^(a|aa)+$", "a*a*a*a*a*b", "(.*)*x"])
def test_no_text_stalls_a_match(pattern: str) -> None:
    """Python's own would take longer than the universe is old."""
    assert not is_found(pattern, "a" * 50_000 + "!")
