"""Makes annotations and values of them by chance, and compares values and their classes throughout."""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypeVar, Union
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    AnyUrl,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    FutureDatetime,
    Json,
    PlainValidator,
    PrivateAttr,
    Secret,
    SecretBytes,
    SecretStr,
    SerializeAsAny,
    SkipValidation,
    StringConstraints,
    WrapSerializer,
    computed_field,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypeAliasType, TypedDict

from penstock import BigInt

T = TypeVar("T")
Chance = Any  # a random.Random, as hypothesis gives it
Make = Callable[[Chance], Any]
BERLIN = ZoneInfo("Europe/Berlin")


class Colour(enum.Enum):
    RED, CRIMSON, BLUE = "red", "red", "blue"


class Size(enum.IntEnum):
    S, L = 1, 2


class Shade(enum.StrEnum):
    DARK, LIGHT = "dark", "light"


class Rights(enum.Flag):
    READ, WRITE = 1, 2


class Odd(enum.Enum):
    PAIR, NONE = (1, 2), None


class Day(date):
    """A subclass, as libraries have some for dates, points in time and numbers."""


class Moment(datetime):
    pass


class Span(timedelta):
    pass


class Blob(bytes):
    pass


class Money(Decimal):
    pass


class Cat(BaseModel):
    name: str
    lives: int = 9


class Dog(BaseModel):
    name: str
    lives: int = 9


class Kitten(Cat):
    toys: list[str] = []


class Basket(BaseModel):
    cents: int

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def euros(self) -> float:
        return self.cents / 100


class Renamed(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    number: int = Field(validation_alias=AliasChoices(AliasPath("a", 0), "no"), serialization_alias="out")
    other: int = Field(default=0, validation_alias=AliasPath("b", 1))
    third: int = Field(default=3, alias="drei")


class Hidden(BaseModel):
    note: str = Field(exclude=True)
    numbers: Json[list[int]]


class Odds(BaseModel):
    model_config = ConfigDict(
        extra="allow", ser_json_timedelta="float", ser_json_bytes="hex", val_json_bytes="hex", ser_json_inf_nan="null"
    )
    wait: timedelta = timedelta(0)
    raw: bytes = b""
    real: float = 0.0


class Secretive(BaseModel):
    _seen: int = PrivateAttr(default=0)
    user: str
    password: SecretStr
    key: SecretBytes = SecretBytes(b"\\xff")
    born: Secret[date] = Secret(date(2000, 1, 1))


class Box(BaseModel, Generic[T]):
    content: T


class Tree(BaseModel):
    leaves: "list[Tree | bytes | str]" = []  # noqa: UP037 - it is not declared yet


class ByKind(BaseModel):
    kind: Literal["a"] = "a"
    pets: dict[str, Cat | Dog] = {}


class ByOther(BaseModel):
    kind: Literal["b"] = "b"


@dataclasses.dataclass
class Point:
    x: float
    y: int | str = 0


@pydantic_dataclass
class Stamp:
    seal: bytes | str = b""
    points: list[Point] = dataclasses.field(default_factory=list)


class Entry(TypedDict, total=False):
    at: datetime
    what: str | bytes


class Noted(TypedDict, Generic[T]):
    content: T
    note: NotRequired[T]


@dataclasses.dataclass(kw_only=True, slots=True)
class Doubled:
    number: int
    factor: dataclasses.InitVar[int] = 1
    double: int = dataclasses.field(init=False)

    def __post_init__(self, factor: int) -> None:
        self.double = 2 * factor * self.number


class Lazy(BaseModel):
    weight: float = 0
    names: list[str] = ()  # type: ignore[assignment]  # pydantic does not check defaults


class Pair(NamedTuple):
    left: int
    right: str | bytes


Maybe = TypeAliasType("Maybe", T | None, type_params=(T,))
Several = TypeAliasType("Several", list[T], type_params=(T,))

TEXTS = [
    "",
    "a",
    "word",
    "\u00e9\U0001f600",
    "2030-01-01",
    "2030-01-01T00:00:00Z",
    "P1D",
    "1.50",
    "1",
    "red",
    "NaN",
    "YQ==",
]
TEXTS += [
    "6f1c9b1e-6c1a-4a56-8a0c-2f4c1d1c9a11",
    "true",
    "null",
    '{"@str": "a"}',
    "dark",
    "/tmp",
    "127.0.0.1",
    "12:30:00",
]
NUMBERS = [0, 1, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, 1.5, -2.25, 1e22, 1e16, 1e-7, 5e-324, 1.7976931348623157e308, 0.1 + 0.2]
MOMENTS = [
    datetime(2030, 1, 1, tzinfo=UTC),
    datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN),
    datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN),
    datetime(1850, 5, 1, 12, 0, 0, 1, tzinfo=BERLIN),
    datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
]
TAGGED: list[Any] = [
    b"",
    BigInt(2**60),
    {"a": [b"\xff", BigInt(1), 1]},
    {"@bytes": "AA=="},
    {"@int64": 1},
    {"@int64": True},
]
ODD_ONES: list[Any] = [
    (1, 2),
    b"x",
    {1},
    -0.0,
    1e22,
    math.nan,
    math.inf,
    Colour.RED,
    MOMENTS[0],
    Cat(name="a"),
    {1: 2},
    SecretStr("s"),
]
PLAIN: list[tuple[Any, Make]] = [
    (str, lambda r: r.choice(TEXTS)),
    (int, lambda r: r.choice(NUMBERS)),
    (float, lambda r: r.choice(FLOATS)),
    (bool, lambda r: r.random() < 0.5),
    (bytes, lambda r: r.choice([b"", b"\xff\x00", b"word", b"a"])),
    (datetime, lambda r: r.choice(MOMENTS)),
    (date, lambda r: r.choice([date(2030, 1, 1), date.min, date.max])),
    (time, lambda r: r.choice([time(12, 30), time(1, 2, 3, 4), time(5, tzinfo=UTC)])),
    (timedelta, lambda r: r.choice([timedelta(1), timedelta(microseconds=-1), timedelta(days=400, microseconds=7)])),
    (Decimal, lambda r: Decimal(r.choice(["1.50", "1E+2", "-0", "0.000001", "12345678901234567890.123456789"]))),
    (UUID, lambda r: UUID(int=r.getrandbits(128))),
    (SecretStr, lambda r: SecretStr(r.choice(TEXTS))),
    (SecretBytes, lambda _: SecretBytes(b"\xff\x00")),
    (Secret[int], lambda _: Secret[int](7)),
    (Colour, lambda r: r.choice(list(Colour))),
    (Size, lambda r: r.choice(list(Size))),
    (Shade, lambda r: r.choice(list(Shade))),
    (Rights, lambda r: r.choice([Rights.READ, Rights.READ | Rights.WRITE])),
    (Odd, lambda r: r.choice(list(Odd))),
    (Literal["red", 1], lambda r: r.choice(["red", 1])),
    (Literal[Colour.RED, Size.S], lambda r: r.choice([Colour.RED, Size.S])),
    (Literal[Shade.DARK, "dark"], lambda r: r.choice([Shade.DARK, "dark"])),
    (Literal[Size.L, 2, "x"], lambda r: r.choice([Size.L, 2])),
    (Literal[True, "x"] | None, lambda r: r.choice([True, None, "x"])),
    (Path, lambda r: Path(r.choice(["/tmp", "a/b"]))),
    (ipaddress.IPv4Address, lambda _: ipaddress.IPv4Address("127.0.0.1")),
    (Fraction, lambda _: Fraction(1, 3)),
    (complex, lambda r: complex(r.choice([1, -0.0]), -2)),
    (AnyUrl, lambda _: AnyUrl("https://example.org/a?b=c")),
    (Any, lambda r: r.choice([None, 1, 1.0, "a", True, [1, "x"], {"a": [None, 2.5]}, *TAGGED, *ODD_ONES])),
    (Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True)], lambda r: r.choice([" A ", "b"])),
    (Annotated[str, AfterValidator(lambda text: text + "!")], lambda _: "a"),
    (Annotated[int, AfterValidator(abs)], lambda r: r.choice([-1, 1])),
    (Annotated[date, WrapSerializer(lambda day, _handler: day.strftime("%d.%m.%Y"))], lambda _: date(2030, 1, 1)),
    (Json[list[int]], lambda _: "[1, 2]"),
    (Basket, lambda _: Basket(cents=150)),
    (Renamed, lambda _: Renamed.model_validate({"number": 1, "other": 2, "third": 4})),
    (Hidden, lambda _: Hidden.model_validate({"note": "n", "numbers": "[1]"})),
    (
        Odds,
        lambda r: Odds.model_validate({"wait": timedelta(9**6, 0, 1), "raw": b"\xff", "more": r.choice(["x", b"x"])}),
    ),
    (Secretive, lambda r: _seen(Secretive(user="ada", password=SecretStr("hunter2")), r.choice([0, 5]))),
    (Tree, lambda r: Tree(leaves=[b"x", "word", Tree(leaves=[r.choice(TEXTS)])])),
    (Cat, lambda r: r.choice([Cat(name="a"), Kitten(name="a", toys=["x"]), _broken(Cat(name="a"))])),
    (SerializeAsAny[Cat], lambda r: r.choice([Cat(name="a"), Kitten(name="a")])),
    (
        Annotated[ByKind | ByOther, Discriminator("kind")],
        lambda r: r.choice([ByKind(pets={"x": Dog(name="d")}), ByOther()]),
    ),
    (Point, lambda r: Point(1.5, r.choice([1, "1"]))),
    (Stamp, lambda r: Stamp(r.choice([b"x", "word"]), [Point(-0.0)])),
    (Entry, lambda r: {"at": r.choice(MOMENTS), "what": r.choice([b"x", "word"])}),
    (Pair, lambda r: Pair(1, r.choice([b"x", "word"]))),
    (date, lambda _: Day(2030, 1, 1)),
    (datetime, lambda _: Moment(2030, 1, 1, tzinfo=UTC)),
    (timedelta, lambda r: r.choice([Span(1), timedelta(-400, 5, 7)])),
    (Decimal, lambda _: Money("1.5")),
    (bytes, lambda _: Blob(b"x")),
    (FutureDatetime, lambda _: datetime(2990, 1, 1, tzinfo=UTC)),
    (SkipValidation[int], lambda r: r.choice([1, 1.5, True, "a"])),
    (SkipValidation[str], lambda r: r.choice(["a", Shade.DARK])),
    (Noted[bytes | str], lambda r: {"content": b"x"} if r.random() < 0.5 else {"content": "x", "note": b"y"}),
    (Doubled, lambda r: Doubled(number=2, factor=r.choice([1, 3]))),
    (Lazy, lambda r: r.choice([Lazy(), Lazy(weight=1.0, names=["a"])])),
    (OrderedDict[str, int], lambda _: OrderedDict(b=1, a=2)),
    (Maybe[int], lambda r: r.choice([None, 1])),
    (Several[Maybe[str | bytes]], lambda r: [None, r.choice(["a", b"a"])]),
    *(
        (
            Annotated[kind, PlainValidator(lambda given: given)],
            lambda r: r.choice([1, 1.0, True, Size.S, "a", Shade.DARK]),
        )
        for kind in (int, float, str, bool)
    ),
]


def _seen(secretive: Secretive, seen: int) -> Secretive:
    secretive._seen = seen
    return secretive


def _broken(cat: Cat) -> Cat:
    cat.lives = "nine"  # type: ignore[assignment]  # pydantic does not check it
    return cat


def of(kind: Any, *parts: Any) -> Any:
    return kind[parts if len(parts) > 1 else parts[0]]


def annotation_of(r: Chance, depth: int = 2) -> tuple[Any, Make]:
    """An annotation, and what makes values of it."""
    if depth == 0 or r.random() < 0.4:
        return r.choice(PLAIN)  # type: ignore[no-any-return]
    inner, make = annotation_of(r, depth - 1)
    other, make_other = annotation_of(r, depth - 1)
    several: Make = lambda s: [make(s) for _ in range(s.randrange(3))]  # noqa: E731 - a value of each kind is made by one
    either: Make = lambda s: s.choice([make, make_other])(s)  # noqa: E731
    kinds: list[tuple[Callable[[], Any], Make]] = [
        (lambda: inner | other if r.random() < 0.9 else of(Union, inner, other), either),
        (lambda: inner | other | str, either),
        (lambda: inner | None, lambda s: s.choice([None, make(s)])),
        (lambda: of(list, inner), several),
        (lambda: of(tuple, inner, ...), lambda s: tuple(several(s))),
        (lambda: of(tuple, inner, other), lambda s: (make(s), make_other(s))),
        (lambda: of(dict, str, inner), lambda s: {"a": make(s), "@str": make(s)}),
        (lambda: of(dict, inner, other), lambda s: {make(s): make_other(s)}),
        (lambda: of(set, inner), lambda s: set(several(s))),
        (lambda: of(frozenset, inner), lambda s: frozenset(several(s))),
        (lambda: of(deque, inner), lambda s: deque(several(s))),
        (lambda: of(defaultdict, str, of(list, inner)), lambda s: defaultdict(list, {"a": several(s)})),
        (lambda: of(Box, inner), lambda s: of(Box, inner)(content=make(s))),
        (lambda: of(list, inner) | of(list, other), lambda s: [either(s)]),
    ]
    found, maker = r.choice(kinds)
    try:
        return found(), maker
    except TypeError:  # the two cannot be joined with a bar
        return inner, make


def alike(one: Any, other: Any) -> bool:
    """Whether two values are equal and of the same classes throughout."""
    if type(one) is not type(other):
        return False
    mine, theirs = _parts(one), _parts(other)
    if isinstance(mine, list):
        return len(mine) == len(theirs) and all(map(alike, mine, theirs))
    if isinstance(mine, set | frozenset):
        return len(mine) == len(theirs) and all(any(alike(item, known) for known in theirs) for item in mine)
    return bool(mine == theirs)


def _room(value: Any) -> Any:
    return getattr(value, "maxlen", None)


def _parts(value: Any) -> Any:
    """What a value consists of, in a form that tells it from others."""
    if isinstance(value, BaseModel):
        fields = [value.__dict__[name] for name in sorted(value.__dict__)]
        return [sorted(value.__dict__), fields, value.__pydantic_extra__, value.__pydantic_private__]
    if dataclasses.is_dataclass(value):
        return [getattr(value, one.name) for one in dataclasses.fields(value)]
    if isinstance(value, dict):
        return [len(value), *(list(pair) for pair in sorted(value.items(), key=repr))]
    if isinstance(value, list | tuple | deque | SecretStr | SecretBytes | Secret):
        return [value.get_secret_value()] if hasattr(value, "get_secret_value") else [_room(value), *value]
    if isinstance(value, datetime) and value.tzinfo:
        return value.replace(tzinfo=UTC, fold=0) - MOMENTS[0] - (value.utcoffset() or timedelta(0))
    return repr(value) if isinstance(value, float | complex) else value
