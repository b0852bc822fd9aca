"""Declarations of tables and indexes: what they mean, and which are refused when they are made."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from pydantic import BaseModel, Field, ValidationError

from penstock.errors import DeclarationError, IdInvalid, ValueInvalid
from penstock.schema.fields import Kind
from penstock.schema.ids import Id
from penstock.schema.index import Index, redundant_indexes
from penstock.schema.table import Table, definition_of, make_row

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Booking(Table):
    customer: str
    seats: int = 1
    note: str | None = None

    by_customer = Index("customer", "creation_time")
    by_seats = Index("seats", unique=True)
    by_id = Index("id", "note")


class Order(Table, source="shop.orders", key="number", managed=False):
    number: int
    customer: str

    by_customer = Index("customer")


OWNED = {"managed": False, "source": "t"}


class Line(Table, source="shop.lines", key=("order", "line"), managed=False):
    """A table of another program whose key has two columns."""

    text: str
    line: int
    order: str

    by_line = Index("line")
    by_text = Index("text", "order")


def declare(class_name: str, body: dict[str, Any], **arguments: Any) -> type[Table]:
    """A table class, made as a class statement makes one, of annotations and indexes."""
    indexes = {name: value for name, value in body.items() if isinstance(value, Index)}
    annotations = {name: value for name, value in body.items() if name not in indexes}
    make: Any = type(Table)
    namespace = {"__annotations__": annotations, "__module__": __name__, **indexes}
    made: type[Table] = make(class_name, (Table,), namespace, **arguments)
    return made


# ----- what a declaration means


@pytest.mark.parametrize(
    ("name", "sql_name"),
    [
        ("Booking", "booking"),
        ("BookingItem", "booking_item"),
        ("HTTPRequest", "http_request"),
        ("Order2", "order2"),
        ("A", "a"),
    ],
)
def test_a_table_is_named_after_its_class_in_snake_case(name: str, sql_name: str) -> None:
    assert definition_of(declare(name, {"x": int})).name == sql_name


def test_a_definition_tells_all_that_a_store_needs() -> None:
    found = definition_of(Booking)
    assert found is definition_of(Booking)
    assert (found.name, found.key, found.managed, found.table) == ("booking", ("id",), True, Booking)
    assert [column.name for column in found.columns] == ["id", "creation_time", "customer", "seats", "note"]
    assert [column.kind for column in found.columns[:2]] == [Kind.TEXT, Kind.DATETIME]
    assert found.positions == {"id": 0, "creation_time": 1, "customer": 2, "seats": 3, "note": 4}
    assert list(found.indexes) == ["by_customer", "by_seats", "by_id"]
    assert found.column("seats").kind is Kind.INTEGER
    with pytest.raises(ValueInvalid, match="has no column 'unknown'"):
        found.column("unknown")
    other = definition_of(Order)
    assert (other.name, other.key, other.managed) == ("shop.orders", ("number",), False)
    assert [column.name for column in other.columns] == ["number", "customer"]


def test_a_key_has_one_column_or_several() -> None:
    line, single = definition_of(Line), definition_of(declare("One", {"x": int}, **OWNED, key=["x"]))
    assert (line.key, [column.name for column in line.key_columns]) == (("order", "line"), ["order", "line"])
    assert (line.encode_key(("a", 7)), line.encode_key(["a", "7"])) == (("a", 7), ("a", 7))
    assert (line.key_at(("text", 7, "a")), line.key_in({"line": 7, "order": "a"})) == (("a", 7), ("a", 7))
    assert line.key_values(("a", 7)) == ("a", 7)
    assert (single.key, single.encode_key("7"), single.key_at((7,)), single.key_values(7)) == (("x",), 7, 7, (7,))
    row = line.make_rows([{"text": "t", "line": 7, "order": "a"}])[0]
    assert row.id == cast("Any", ("a", 7))
    assert repr(row) == "Line(text='t', line=7, order='a')"
    other = line.make_rows([{"text": "t", "line": 8, "order": "a"}])[0]
    assert (row == row, row == other, len({row, other})) == (True, False, 2)  # noqa: PLR0124 - equality is meant


def test_every_order_is_total() -> None:
    line = definition_of(Line)
    assert line.order_of(None) == ("order", "line")
    assert line.order_of(Line.by_line) == ("line", "order")
    assert line.order_of(Line.by_text) == ("text", "order", "line")
    found = definition_of(Booking)
    assert found.order_of(None) == ("id",)
    assert found.order_of(Booking.by_customer) == ("customer", "creation_time", "id")
    assert found.order_of(Booking.by_id) == ("id", "note")
    assert definition_of(Order).order_of(Order.by_customer) == ("customer", "number")


def test_a_table_inherits_fields_and_indexes() -> None:
    class Special(Booking):
        reason: str

        by_reason = Index("reason")
        by_seats = Index("seats", "reason")

    found = definition_of(Special)
    assert found.name == "special"
    assert [column.name for column in found.columns[2:]] == ["customer", "seats", "note", "reason"]
    assert found.indexes["by_customer"] is Booking.by_customer
    assert found.indexes["by_seats"].columns == ("seats", "reason")
    assert definition_of(Booking).indexes["by_seats"].columns == ("seats",)


def test_tables_may_name_each_other_before_they_exist() -> None:
    class Parent(Table):
        child: Id[Child] | None = None
        children: list[Id[Child]] = Field(default_factory=list)

    class Child(Table):
        parent: Id[Parent]

    Parent.model_rebuild(_types_namespace={"Child": Child, "Id": Id})
    assert definition_of(Parent).column("child").kind is Kind.TEXT
    good = "child_01jd3k4v5w6x7y8z9a0b1c2d3e"
    assert Parent(child=Id(good), children=[Id(good)]).child == good
    for wrong in ({"child": "parent" + good[5:]}, {"children": ["x"]}):
        with pytest.raises(ValidationError):
            Parent.model_validate(wrong)

    class Orphan(Table):
        parent: Id[Paernt]  # type: ignore[name-defined]  # noqa: F821 - it is the mistake

    with pytest.raises(DeclarationError, match=r"Table Orphan.* names 'Paernt', which does not exist.* Import it"):
        definition_of(Orphan)


# ----- rows


def test_a_row_is_encoded_in_the_order_of_its_columns() -> None:
    row = Booking(customer="Ada", seats=2)
    assert definition_of(Booking).encode_row(row, "booking_x", NOW) == ("booking_x", NOW, "Ada", 2, None)
    assert definition_of(Order).encode_row(Order(number=5, customer="Ada"), "", NOW) == (5, "Ada")
    with pytest.raises(ValueInvalid, match=r"booking\.customer cannot be None"):
        definition_of(Booking).encode_row(Booking.model_construct(seats=1), "x", NOW)
    with pytest.raises(ValueInvalid, match=r"booking\.seats: this str is not a value of its column"):
        definition_of(Booking).encode_row(Booking.model_construct(customer="x", seats="many"), "x", NOW)


def test_a_stored_row_is_made_without_being_validated_and_has_all_fields() -> None:
    fields = {"id": Id[Any]("booking_x"), "creation_time": NOW, "customer": "Ada", "seats": 1, "note": None}
    row = make_row(Booking, fields)
    assert isinstance(row, Booking)
    assert row == make_row(Booking, dict(fields))
    assert row not in (make_row(Booking, fields | {"id": "booking_y"}), Booking(customer="Ada"), "booking_x")
    assert hash(row) == hash(make_row(Booking, fields | {"seats": 5}))
    assert row.model_copy(update={"seats": 5}).id == row.id
    one, two = definition_of(Booking).make_rows([dict(fields), dict(fields)])
    assert one.model_dump(exclude_unset=True) == fields
    assert "unheard_of" in one.model_copy(update={"unheard_of": 1}).model_fields_set
    assert one.model_fields_set == two.model_fields_set == set(fields)


def test_a_field_that_cannot_be_stored_is_refused_at_import() -> None:
    class Opaque:
        """Nothing that could be stored."""

    with pytest.raises(DeclarationError, match=r"Table Odd \(.*:\d+\): a field cannot be stored"):
        declare("Odd", {"x": Opaque})
    with pytest.raises(DeclarationError, match=r"odd.line: Id\[Line\] cannot be stored: it is a tuple") as raised:
        declare("Odd", {"line": Id[Line]})
    assert raised.value.fix == "Declare a field for each of them."


def test_the_row_of_another_program_is_validated() -> None:
    row = definition_of(Order).make_rows([{"number": 5, "customer": "Ada"}])[0]
    assert (row.id, type(row.id)) == ("5", Id)
    with pytest.raises(ValidationError):
        definition_of(Order).make_rows([{"number": None, "customer": "Ada"}])


def test_a_key_is_what_an_id_stands_for() -> None:
    good = "booking_01jd3k4v5w6x7y8z9a0b1c2d3e"
    assert definition_of(Booking).encode_key(good) == good
    assert definition_of(Order).encode_key("5") == 5
    given: Any
    for given in ("order_01jd3k4v5w6x7y8z9a0b1c2d3e", "", None, 5):
        with pytest.raises(IdInvalid):
            definition_of(Booking).encode_key(given)
    for given in ("x", "", "5.5", None, 5.5, [], b"5"):
        with pytest.raises(IdInvalid):
            definition_of(Order).encode_key(given)
    key: Any = 5
    assert definition_of(Order).encode_key(key) == 5, "the key itself, as its rows have it"


# ----- what is refused


@pytest.mark.parametrize(
    ("name", "fields", "arguments", "message"),
    [
        ("Odd", {"id": int}, {}, "the field id is penstock's own"),

        ("Odd", {"Upper": int}, {}, "cannot be named 'Upper'"),
        ("Odd", {"a" * 49: int}, {}, "at most 48"),
        ("Odd", {f"f{n}": int for n in range(1025)}, {}, "more than 1024 fields"),




        ("Odd", {"x": int}, {"name": "penstock_lease"}, "is reserved"),



        ("Odd", {"x": int}, {"name": "job"}, "the name 'job' is reserved"),
        ("Odd", {"x": int}, {"source": "t"}, "Add managed=False"),

        ("Odd", {"x": int}, {"managed": False, "source": "t"}, "needs source= and key="),
        ("Odd", {"x": int}, {"managed": False, "source": "t", "key": "y"}, "its key 'y' is not one of its fields"),
        ("Odd", {"x": int, "y": int}, {"key": ("x", "y")}, "Add managed=False. A table of penstock's own has its id"),
        ("Odd", {"x": int}, {**OWNED, "key": ()}, "needs source= and key="),
        ("Odd", {"x": int, "y": int}, {**OWNED, "key": ("x", "y", "x")}, r"its key \(x, y, x\) names a column twice"),

        ("Odd", {"x": int, "y": list[int]}, {**OWNED, "key": ("x", "y")}, "key contains y, which is stored as JSON"),
        ("Odd", {"x": int}, {"colour": "red"}, "unknown class argument colour"),

        ("Odd", {"x": int, "by_x": Index("x", "creation_time", "y", "z")}, {}, "names y, z, which is no field"),

        ("Odd", {"x": int, "by_id": Index("id")}, {"managed": False, "source": "t", "key": "x"}, "names id"),
    ],
)  # fmt: skip
def test_a_declaration_that_cannot_be_is_refused_at_import(
    name: str, fields: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(DeclarationError, match=message):
        declare(name, fields, **arguments)


def test_what_is_stored_as_json_has_no_order_and_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    for annotation in (list[int], dict[str, int], Any, int | str, tuple[int, ...]):
        with pytest.raises(DeclarationError, match="by_x contains x, which is stored as JSON"):
            declare("Odd", {"x": annotation, "y": int, "by_x": Index("y", "x")})
    early = declare("Early", {"later": "Id[Later]", "x": list[int], "by_x": Index("x")})
    monkeypatch.setitem(globals(), "Later", Booking)
    with pytest.raises(DeclarationError, match="by_x contains x, which is stored as JSON"):
        definition_of(early)


@pytest.mark.parametrize("thing", [Table, BaseModel, int, None, "booking", Booking(customer="x")])
def test_only_tables_are_tables(thing: Any) -> None:
    with pytest.raises(DeclarationError, match="is not a table"):
        definition_of(thing)


# ----- as strict as a database


def test_naive_times_and_huge_numbers_are_refused_wherever_a_field_has_them() -> None:
    class Strict(Table):
        moment: datetime | None = None
        config: datetime | None = None  # a field may bear any word of pydantic's
        moments: list[datetime] = Field(default_factory=list)
        number: int = 0
        positive: int = Field(default=1, ge=1)
        small: int = Field(default=1, lt=10)
        wide: int = Field(default=0, ge=-(10**30), le=10**30)
        numbers: dict[int, list[int]] = Field(default_factory=dict)

    naive, huge = datetime(2030, 1, 1), 2**63  # noqa: DTZ001 - what is tested
    wrong: list[dict[str, Any]] = [
        {"moment": naive}, {"config": naive}, {"moments": [naive]}, {"number": huge}, {"number": -huge - 1},
        {"positive": huge}, {"positive": 0}, {"small": 10}, {"small": -huge - 1}, {"numbers": {huge: []}},
        {"numbers": {1: [huge]}},
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(ValidationError):
            Strict(**given)
    kept = Strict(moment=NOW, config=NOW, number=huge - 1, positive=huge - 1, small=-huge, wide=10**30)
    assert kept.wide == 10**30, "a field that says otherwise is left alone"


class Visit(Table):
    customer: str
    place: str
    number: int

    by_customer = Index("customer")
    by_place = Index("customer", "place")
    by_all = Index("customer", "place", "number")
    by_number = Index("number", unique=True)
    by_number_too = Index("number", "place")


def test_an_index_without_columns_or_with_one_twice_is_refused() -> None:
    with pytest.raises(DeclarationError, match="at least one column"):
        Index()
    with pytest.raises(DeclarationError, match="names a column twice"):
        Index("x", "y", "x")


def test_an_index_whose_columns_begin_another_one_is_redundant_unless_it_is_unique() -> None:
    found = redundant_indexes(list(Visit.__indexes__))
    assert [(one.name, other.name) for one, other in found] == [("by_customer", "by_place"), ("by_place", "by_all")]
    assert redundant_indexes([]) == []
    assert redundant_indexes([Index("a"), Index("a")]) == [], "of two equal ones neither is longer"
