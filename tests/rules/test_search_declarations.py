"""Declarations of search indexes: what they mean, and which are refused when they are made."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock.codec import Encrypted
from penstock.errors import DeclarationError
from penstock.schema.ids import Id
from penstock.schema.index import Index
from penstock.schema.table import Table, definition_of
from penstock.search.index import MAX_FILTERS, SearchIndex


class Channel(Table):
    title: str


class Message(Table):
    channel: Id[Channel]
    body: str
    subject: str | None = None
    pinned: bool = False

    by_channel = Index("channel")
    by_body = SearchIndex("body", filters=("channel", "pinned"))
    by_subject = SearchIndex("subject")


class Mail(Table, source="shop.mails", key="number", managed=False):
    number: int
    text: str

    by_text = SearchIndex("text", filters=["number"])


def declare(index: SearchIndex, **annotations: Any) -> type[Table]:
    make: Any = type(Table)
    made: type[Table] = make("Made", (Table,), {"__annotations__": annotations, "__module__": __name__, "by_it": index})
    return made


def test_search_indexes_stand_beside_indexes() -> None:
    definition = definition_of(Message)
    assert definition.searches == {"by_body": Message.by_body, "by_subject": Message.by_subject}
    assert list(definition.indexes) == ["by_channel"]
    assert (Message.by_body.column, Message.by_body.filters) == ("body", ("channel", "pinned"))
    assert repr(Message.by_body) == "SearchIndex('body', filters=('channel', 'pinned'))"
    assert repr(Message.by_subject) == "SearchIndex('subject')"
    assert definition_of(Mail).searches["by_text"].filters == ("number",)
    assert "by_body" not in Message.model_fields


def test_search_indexes_are_inherited() -> None:
    class Note(Message):
        pass

    assert definition_of(Note).searches.keys() == {"by_body", "by_subject"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SearchIndex(cast("str", 1)), "given by its name"),
        (lambda: SearchIndex("body", filters="channel"), "names of fields"),
        (lambda: SearchIndex("body", filters=cast("tuple[str]", (1,))), "names of fields"),
        (lambda: SearchIndex("body", filters=("body",)), "names a column twice"),
        (lambda: SearchIndex("body", filters=("a", "a")), "names a column twice"),
        (lambda: SearchIndex("body", filters=[f"f{n}" for n in range(MAX_FILTERS + 1)]), "17 filters, more than 16"),
        (lambda: declare(SearchIndex("text"), body=str), "by_it names text, which is no field"),
        (lambda: declare(SearchIndex("body", filters=("a", "b")), body=str), "by_it names a, b, which is no field"),
        (lambda: declare(SearchIndex("body"), body=int), "over body, which is no text"),
        (lambda: declare(SearchIndex("body"), body=list[str]), "over body, which is no text"),
        (lambda: declare(SearchIndex("body"), body=Encrypted[str]), "over body, which is encrypted"),
        (
            lambda: declare(SearchIndex("body", filters=("tags",)), body=str, tags=list[str]),
            "filter tags, which is stored",
        ),
        (
            lambda: declare(SearchIndex("body", filters=("key",)), body=str, key=Encrypted[str]),
            "filter key, which is enc",
        ),
    ],
)
def test_wrong_search_indexes_are_refused(make: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        make()
