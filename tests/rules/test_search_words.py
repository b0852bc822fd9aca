# ruff: noqa: RUF001 - the letters of these texts look like others: they are about that
"""The tokens of texts, the words of searches, and the order of rows: each computed in Python alone."""

from __future__ import annotations

import random  # noqa: TID251 - seeded
import sys
import unicodedata
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from itertools import pairwise, permutations
from time import process_time  # noqa: TID251 - of this process, however busy the machine is
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ValueInvalid
from penstock.search.encoding import MAX_BYTES, MAX_REPEATS, encode, filter_token, fts5_match, tsquery
from penstock.search.query import MAX_WORDS, Query, Word, parse_query
from penstock.search.rank import Rank, scorer
from penstock.search.tokenizer import MAX_WORD, fold, is_unbroken, tokens

TEXTS = st.text(st.characters(exclude_categories=()), max_size=40)


def words(text: str) -> list[str]:
    return list(tokens(text))


@pytest.mark.parametrize(
    "spellings",
    [
        ("Straße", "STRASSE", "strasse", "STRAẞE"),
        ("İstanbul", "ISTANBUL", "istanbul"),
        ("ὈΔΟΣ", "οδος", "όδος", "ὀδόσ"),
        ("ﬁne", "ｆｉｎｅ", "FINE", "𝐟𝐢𝐧𝐞"),
        ("café", "cafe\u0301", "CAFÉ", "Cafe", "c\u0327afe"),
        ("Việt", "viet", "VIỆT"),
        ("ё", "е\u0308", "Ё"),
        ("замо́к", "замок"),
        ("co\u00adoperate", "cooperate", "co\u200doperate"),
        ("ｶﾞ", "ガ", "カ\u3099"),
        ("한국", "\u1112\u1161\u11ab\u1100\u116e\u11a8"),
        ("１２３", "123", "①②③"),
        ("क़लम", "क\u093cलम"),
    ],
    ids=lambda spellings: spellings[0],
)
def test_spellings_of_a_word_are_one(spellings: tuple[str, ...]) -> None:
    assert len({tuple(words(spelling)) for spelling in spellings}) == 1


@pytest.mark.parametrize(
    ("one", "other"), [("й", "и"), ("ё", "е"), ("ї", "і"), ("हिन्दी", "हनद"), ("ガ", "カ"), ("ø", "o")]
)
def test_different_letters_stay_different(one: str, other: str) -> None:
    assert words(one) != words(other)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://example.com/a-b?q=1#top", "https example com a b q 1 top"),
        ("joe.bloggs+tag@x.org", "joe bloggs tag x org"),
        ("snake_case don't don’t v2.0.1 2024-01-02", "snake case don t don t v2 0 1 2024 01 02"),
        ("<b>C++</b> /usr/bin\x00node.js\ttab", "b c b usr bin node js tab"),
        ("हिन्दी 🎉 👨‍👩‍👧 🏽 1️⃣ \u0301 \ud800", "हिन्दी 1"),
        ("東京都庁", "東京 京都 都庁 庁"),
        ("京", "京"),
        ("iPhone手机2台", "iphone 手机 机 2 台"),
        ("ไทยab", "ไท ทย ย ab"),
        ("zero\u200bwidth a\u3000b。c、d", "zero width a b c d"),
        ("", ""),
        ("?! ~ — “”", ""),
    ],
)
def test_tokens(text: str, expected: str) -> None:
    assert words(text) == expected.split()


def test_folding_twice_changes_nothing_and_tokens_have_letters_digits_and_marks() -> None:
    rest = range(0x10000, sys.maxunicode, 61)  # and all but Han and Hangul below
    for code in (*range(0x3400), *range(0xA000, 0xAC00), *range(0xD7A0, 0x10000), *rest):
        char = chr(code)
        folded = fold(char)
        assert fold(folded) == folded, hex(code)
        for token in words(f"x {char}")[1:]:
            assert {unicodedata.category(one)[0] for one in token} <= {*"LNM"}, hex(code)
            assert not any("A" <= one <= "Z" for one in token)


@given(TEXTS, TEXTS)
def test_texts_split_at_spaces_and_their_tokens_stay(one: str, other: str) -> None:
    assert fold(fold(one)) == fold(one)
    assert words(f"{one} {other}") == words(one) + words(other)
    assert words(unicodedata.normalize("NFD", one)) == words(unicodedata.normalize("NFC", one)) == words(one)
    plain = [token for token in words(one) if not is_unbroken(token)]
    assert words(" ".join(plain)) == plain
    assert encode(one).split(" ") == (words(one) or [""])


@pytest.mark.parametrize("gap", [" ", "\n", "。", "，"])
def test_long_texts_are_cut_between_words(gap: str) -> None:
    text = gap.join(f"wörd{number}" for number in range(10_000))
    assert words(text) == [f"word{number}" for number in range(10_000)]


def test_long_runs_keep_their_pairs() -> None:
    text = "".join(chr(0x4E00 + number) for number in range(20_000))
    assert {*map("".join, pairwise(text))} <= {*words(text)}


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("h" * 10_000_000, 2_000),
        ("a" + "\u0301\u0316" * 500_000, 200),
        ("ｶ" + "ﾞ\u0301" * 500_000, 5_000),
        ("\u0e01" + "\u0e48\u0323" * 500_000, 10_000),
        ("\ufdfa" * 100_000, 400_000),
        ("a\u200d" * 500_000, 200),
        (" " * 10_000_000, 0),
        ("é" * 10_000, 2),
    ],
    ids=["letters", "marks", "narrow", "thai", "expanding", "invisible", "spaces", "word"],
)
def test_hostile_texts_take_linear_time(text: str, most: int) -> None:
    began = process_time()
    found = words(text)
    assert process_time() - began < 5
    assert len(found) <= most
    assert max(map(len, found), default=0) <= MAX_WORD


def test_what_is_stored_of_a_row_is_bounded() -> None:
    assert encode("again " * 1000) == " ".join(["again"] * MAX_REPEATS)
    stored = encode(" ".join(f"wörter{number}" for number in range(200_000)))
    assert MAX_BYTES - 20 < sum(map(len, stored.encode().split())) <= MAX_BYTES
    assert encode(None) == encode("") == encode("!?") == ""


def test_a_text_becomes_words_and_the_last_is_a_prefix() -> None:
    assert parse_query("Héllo  wor") == Query((Word(("hello",)), Word(("wor",), prefix=True)))
    assert parse_query("wor ", "all") == Query((Word(("wor",), prefix=True),), "all")
    assert parse_query("東京都 a") == Query((Word(("東京", "京都")), Word(("a",), prefix=True)))
    assert parse_query("京 東京") == Query((Word(("京",), prefix=True), Word(("東京",), prefix=True)))
    assert parse_query("foo bar foo") == Query((Word(("foo",), prefix=True), Word(("bar",))))
    assert parse_query("") == parse_query("🎉 !") == Query(())
    assert [word.tokens for word in parse_query("a OR NOT b*").words] == [("a",), ("or",), ("not",), ("b",)]


def test_words_beyond_the_sixteenth_are_ignored() -> None:
    numbers = [f"w{number}" for number in range(17)]
    sixteen = parse_query(" ".join(numbers[:MAX_WORDS])).words
    assert sixteen[-1] == Word(("w15",), prefix=True)
    assert parse_query(" ".join(numbers)).words == (*sixteen[:-1], Word(("w15",)))
    assert len(parse_query("a " * 5_000_000).words) == 1


def test_a_long_word_is_found_by_its_beginning() -> None:
    assert scorer(parse_query("x" * 10_000))(encode("x" * 9_000))
    assert not scorer(parse_query("x" * 63 + " y"))(encode("x" * 9_000))


def test_wrong_searches_are_refused() -> None:
    wrong: list[object] = [None, 1, b"a"]
    for text in wrong:
        with pytest.raises(ValueInvalid, match="looks for a text"):
            parse_query(text)  # type: ignore[arg-type]  # at run time
    with pytest.raises(ValueInvalid, match="matches any or all"):
        parse_query("a", "none")  # type: ignore[arg-type]  # at run time


def test_a_search_is_written_for_each_database() -> None:
    query = parse_query("a 東京都 OR \"b'")
    assert fts5_match(query) == '"a" OR ("東京" AND "京都") OR "or" OR "b"*'
    assert tsquery(parse_query("a 東京都 b", "all")) == "'a' & ('東京' & '京都') & 'b':*"


def test_equal_values_of_a_filter_have_one_token_and_others_another() -> None:
    equal = [
        (1, 1),
        (Decimal("1.10"), Decimal("1.1")),
        (Decimal(100), Decimal("1E+2")),
        (0.0, -0.0),
        (NOW, NOW.astimezone(timezone(timedelta(hours=5)))),
    ]
    assert all(filter_token(0, one) == filter_token(0, other) for one, other in equal)
    others = [1, 2, "1", None, "None", True, b"1", NOW, NOW.date(), 1.5, Decimal("0.1"), 0.1, UUID(int=1), ""]
    assert len({filter_token(number, value) for value in others for number in (0, 1)}) == 2 * len(others)
    assert not words(filter_token(3, "a"))[0].startswith("\ue000")
    query, needed = parse_query("a b"), [filter_token(0, 1), filter_token(15, "x")]
    assert fts5_match(query, needed) == f'("a" OR "b"*) AND "{needed[0]}" AND "{needed[1]}"'
    assert tsquery(query, needed) == f"('a' | 'b':*) & '{needed[0]}' & '{needed[1]}'"


NOW = datetime(2030, 1, 1, tzinfo=UTC)
ROWS = {
    1: "apple",
    2: "apple pie",
    3: "apples and pies",
    4: "pie pie pie",
    5: "an apple, a pie, and an apple",
    6: "apple",
    7: "nothing",
    8: "東京都庁",
    9: "京都",
}


@pytest.mark.parametrize(
    ("text", "match", "expected"),
    [
        ("apple pie", "any", [5, 2, 4, 6, 1, 3]),  # of one word those with most hits, then the newest
        ("apple pie", "all", [5, 2]),
        ("apple", "any", [5, 6, 2, 1, 3]),  # whole words before prefixes
        ("appl", "any", [5, 6, 3, 2, 1]),
        ("appl pie", "any", [4, 5, 2, 3]),  # only the last word is a prefix
        ("aplle", "any", []),
        ("", "any", []),
        ("京都", "any", [9, 8]),
        ("京", "any", [9, 8]),
        ("庁", "any", [8]),
    ],
)
def test_the_order_of_rows(text: str, match: str, expected: list[int]) -> None:
    score = scorer(parse_query(text, match))  # type: ignore[arg-type]  # one of the two
    found = [(Rank(*one, None, key), key) for key, row in ROWS.items() if (one := score(encode(row)))]
    assert [key for _, key in sorted(found, reverse=True)] == expected


def test_the_order_is_of_each_row_alone() -> None:
    score, rnd = scorer(parse_query("a b c")), random.Random(1)
    rows = [" ".join(rnd.choices("abcd", k=3)) for _ in range(50)]
    ranks = [Rank(*one, None, key) for key, row in enumerate(rows) if (one := score(row))]
    for some in permutations(ranks[:5]):
        assert sorted(some) == sorted(ranks[:5])
    assert len({rank[:3] for rank in ranks}) > 5
