"""``penstock import FILE.zip``: all tables of an export, or of a snapshot that Convex exported.

All rows are read once before any is stored, so that what does not fit is known by then. Ids of Convex become ids of
penstock: the same ones each time, made of the row's creation time and its old id.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sqlite3
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any, ClassVar, Self

from pydantic_core import from_json, to_json

from penstock.app import Backend
from penstock.cli.confirm import confirm
from penstock.cli.data import Documents, count_rows, find_table, names_of, parse_line, read_creation_time, statements_of
from penstock.cli.lines import LineRefused, Lines, Piece, Read, load_piece, show_progress
from penstock.cli.opening import UNHURRIED, snapshot, with_backend
from penstock.cli.options import Options
from penstock.cli.output import print_json, print_table, say
from penstock.clock import layout_uuid7
from penstock.dataclass import dataclass
from penstock.errors import ArgumentsInvalid, ConfigError, InputError, ValueInvalid
from penstock.functions.signature import Signature
from penstock.observe.readable import amount
from penstock.schema.ids import format_id
from penstock.store.sql.statements import TableStatements
from penstock.transaction.rows import advance_numbers
from penstock.transaction.transaction import Transaction
from penstock.wire.incoming import Message
from penstock.wire.tags import tag_integer

_MANIFEST = "penstock.json"
_TABLES = "_tables/documents.jsonl"  # by which a snapshot of Convex is known
_ROWS = "/documents.jsonl"
_DAMAGE: tuple[type[Exception], ...] = (zipfile.BadZipFile, zlib.error, EOFError)
_FORM = (LookupError, TypeError, ValueError)  # of JSON that says something else than it should
_SHOWN = 20  # refused rows of a table


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """The options of an import."""

    append: bool
    replace: bool
    skip_refused: bool
    sure: bool


@contextlib.contextmanager
def writing_snapshot(stream: IO[bytes]) -> Iterator[Callable[[str], contextlib.AbstractContextManager[IO[bytes]]]]:
    """Write tables into a zip; what is yielded opens the entry of a table."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        tables = []

        def add(table: str) -> contextlib.AbstractContextManager[IO[bytes]]:
            tables.append(table)
            return archive.open(f"{table}.jsonl", "w", force_zip64=True)

        yield add
        archive.writestr(_MANIFEST, json.dumps({"format": 1, "tables": tables}))


def import_snapshot(options: Options, path: Path, only: Sequence[str], mode: Mode, *, of_convex: bool) -> None:
    with Snapshot(path) as source:
        if of_convex and not source.of_convex:
            raise ConfigError(f"{path} is no snapshot of Convex: it has no {_TABLES}.")
        parts = with_backend(
            options,
            lambda backend: _Import(backend, source, only, mode).run(),
            fitting=True,
            statement_timeout=UNHURRIED,
        )
        left = source.others()
    if options.json:
        print_json({"tables": [part.report() for part in parts], "left_out": left})
        return
    headers = ("from", "table", "imported", "there before", "refused")
    rows = [(one.name, one.table, *(f"{n:,}" for n in (one.stored, one.present, one.refused))) for one in parts]
    print_table(headers, rows, right=headers[2:])
    for line in [line for part in parts for line in part.describe_refused()]:
        say(line)
    if left:
        say(f"Not imported: {', '.join(left)}.")


class Snapshot:
    """A zip of tables, each as JSON lines."""

    def __init__(self, path: Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{path} cannot be read: {error}.") from None
        names = self._zip.namelist()
        self.of_convex = _MANIFEST not in names
        if not self.of_convex:
            with self._reading(_MANIFEST, *_FORM):
                manifest = from_json(self._zip.read(_MANIFEST))
                number, self._entries = manifest["format"], {table: f"{table}.jsonl" for table in manifest["tables"]}
            if number != 1:
                raise ConfigError(f"{path} was written by a newer penstock.", fix="Upgrade penstock, and import again.")
            return
        roots = [name.removesuffix(_TABLES) for name in names if name.endswith(_TABLES) and "_components/" not in name]
        if len(roots) != 1:
            fix = "Write it with penstock export -o FILE.zip, or with npx convex export."
            raise ConfigError(f"{path} has neither {_MANIFEST} nor {_TABLES}.", fix=fix)
        (self._root,) = roots
        inside = [name.removeprefix(self._root) for name in names if name.startswith(self._root)]
        found = [name.removesuffix(_ROWS) for name in inside if name.endswith(_ROWS) and name.count("/") == 1]
        self._entries = {name: f"{self._root}{name}{_ROWS}" for name in found if not name.startswith("_")}
        self._others = {name.split("/")[0] for name in inside if name.startswith("_")} - {"_tables"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._zip.close()

    @property
    def tables(self) -> list[str]:
        return list(self._entries)

    @contextlib.contextmanager
    def lines(self, table: str) -> Iterator[Lines]:
        name = self._entries[table]
        with self._reading(name, KeyError, RuntimeError):  # it is not there, or encrypted
            stream, size = self._zip.open(name), self._zip.getinfo(name).file_size
        with self._reading(name), stream:
            yield Lines(stream, size)

    def others(self) -> list[str]:
        """The parts that are not imported."""
        return sorted(self._others) if self.of_convex else []

    def numbers(self) -> dict[int, str]:
        """The names of Convex's tables, by the numbers in their ids."""
        name = f"{self._root}{_TABLES}"
        with self._reading(name, *_FORM):
            return {int(one["id"]): one["name"] for one in map(from_json, self._zip.read(name).splitlines())}

    def is_typed(self, table: str) -> bool:
        """Whether integers in the rows are told from floats by their spelling."""
        name = f"{self._root}{table}/generated_schema.jsonl"
        if name not in self._zip.namelist():
            return False
        if self._zip.read(name).strip() != b'"uniform"':
            fix = "Export it again with a Convex of 2024 or later."
            raise ConfigError(f"{name} is of an old form, which says the types of numbers apart from them.", fix=fix)
        return True

    @contextlib.contextmanager
    def _reading(self, name: str, *errors: type[Exception]) -> Iterator[None]:
        """Name an entry that is damaged, or has one of these errors."""
        try:
            yield
        except (*_DAMAGE, *errors) as error:
            what = f"{self._zip.filename}: {name} cannot be read: {error}."
            raise ConfigError(what, fix="Export again, and copy the file whole.") from error


@dataclass(slots=True)
class _Part:
    """The import of one table."""

    name: str
    statements: TableStatements
    read: Read
    stored: int = 0
    present: int = 0
    refused: int = 0
    shown: list[LineRefused] = field(default_factory=list)

    @property
    def table(self) -> str:
        return self.statements.definition.name

    def refuse(self, line: LineRefused) -> None:
        self.refused += 1
        if len(self.shown) < _SHOWN:
            self.shown.append(line)

    def describe_refused(self) -> list[str]:
        lines = [f"{self.name}, {line.what}" for line in self.shown]
        more = self.refused - len(self.shown)
        return [*lines, f"{self.name}: {amount(more, 'more row')} refused."] if more else lines

    def report(self) -> dict[str, Any]:
        refused = [line.what for line in self.shown]
        numbers = {"rows": self.stored, "present": self.present, "refused": self.refused}
        return {"from": self.name, "table": self.table, **numbers, "first_refused": refused}


class _Import:
    def __init__(self, backend: Backend, source: Snapshot, only: Sequence[str], mode: Mode) -> None:
        self._backend = backend
        self._source = source
        self._mode = mode
        targets = self._targets(only)
        if not source.of_convex:
            self._parts = [
                _Part(name, found, Documents(found, backend.engine.clock).row) for name, found in targets.items()
            ]
            return
        every = {**{name: found for name in source.tables if (found := self._near(name))}, **targets}
        self._ids = ConvexIds(
            {name: found.definition.table.__id_prefix__ or "" for name, found in every.items()}, source
        )
        self._parts = [
            _Part(name, found, ConvexRows(found, self._ids, is_typed=source.is_typed(name)).row)
            for name, found in targets.items()
        ]

    async def run(self) -> list[_Part]:
        mode = self._mode
        counts = await self._count()
        if (full := [f"{name} has {amount(rows, 'row')}" for name, rows in counts.items() if rows]) and not mode.append:
            if not mode.replace:
                fix = "Add to them with --append, which passes over the rows that are there, or --replace them."
                raise ConfigError(f"Not all tables are empty: {', '.join(full)}.", fix=fix)
            confirm(f"Delete all rows? {', '.join(full)}.", sure=mode.sure)
        self._check()
        if mode.replace:
            await self._backend.runner.write(self._replace)
            return self._parts
        for part in self._parts:
            try:
                await self._append(part)
            except InputError as error:
                error.what = f"{part.name}, {error.what}"
                error.fix = "What was imported before stays. Correct the row, and go on with --append."
                raise
        return self._parts

    # ----- steps

    def _targets(self, only: Sequence[str]) -> dict[str, TableStatements]:
        """The tables to import, and where to."""
        if only:
            pairs = [one.partition("=") for one in only]
            if missing := sorted({name for name, _, _ in pairs} - {*self._source.tables}):
                known = ", ".join(self._source.tables)
                raise ConfigError(f"The file has no table {missing[0]!r}.", fix=f"Its tables are {known}.")
            return {name: find_table(self._backend, yours) if yours else self._find(name) for name, _, yours in pairs}
        return {name: self._find(name) for name in self._source.tables}

    def _find(self, name: str) -> TableStatements:
        found = self._near(name)
        if found is None:
            names = ", ".join(one.name for one in self._backend.app.definitions())
            fix = f"Say where its rows go with --table {name}=TABLE, or name the others with --table. Yours: {names}."
            raise ConfigError(f"The app has no table for {name!r}.", fix=fix)
        return found

    def _near(self, name: str) -> TableStatements | None:
        """The table of a name; one of Convex may be the plural in camel case."""
        for definition in self._backend.app.definitions():
            is_like = self._source.of_convex and _simplify(definition.name) & _simplify(name)
            if is_like or name in names_of(definition):
                return statements_of(self._backend, definition)
        return None

    async def _count(self) -> dict[str, int]:
        async with snapshot(self._backend) as session:
            return {part.table: await count_rows(session, part.statements) for part in self._parts}

    def _check(self) -> None:
        """Read all rows; raise if one does not fit, unless these are passed over."""
        if self._source.of_convex:
            for name in self._source.tables:
                with self._source.lines(name) as lines:
                    self._ids.learn(name, lines)
        for part in self._parts:
            with self._source.lines(part.name) as lines:
                for _piece in lines.pieces(part.read, part.refuse):
                    """Only the refused ones are kept."""
        if self._mode.skip_refused or not any(part.refused for part in self._parts):
            return
        refused = sum(part.refused for part in self._parts)
        told = [line for part in self._parts for line in part.describe_refused()]
        raise ValueInvalid(
            "\n".join([f"{amount(refused, 'row')} cannot be imported, so nothing was.", *told]),
            fix="Change the tables or the rows, or import the others with --skip-refused.",
            refused=refused,
        )

    async def _append(self, part: _Part) -> None:
        statements = part.statements
        with self._source.lines(part.name) as lines, show_progress(part.name, lines.size, size=True) as advance:
            for piece in lines.pieces(part.read, _pass_over):
                stored = await self._backend.runner.write(partial(self._store, part=part, piece=piece))
                part.stored += stored
                advance(piece.size)
        await self._backend.runner.write(partial(advance_numbers, statements=statements))

    async def _store(self, transaction: Transaction, part: _Part, piece: Piece) -> int:
        """Store a piece but for the rows that are there. A row that the database refuses may be passed over."""
        if self._mode.append and part.statements.definition.managed:
            await self._pass_over_present(transaction, part, piece)
        while piece.rows:
            try:
                async with transaction.branch():
                    await load_piece(transaction, part.statements, piece)
                break
            except LineRefused as error:
                if not self._mode.skip_refused:
                    raise
                part.refuse(error)
                place = piece.numbers.index(error.facts["line"])
                del piece.rows[place], piece.numbers[place]
        return len(piece.rows)

    async def _pass_over_present(self, transaction: Transaction, part: _Part, piece: Piece) -> None:
        place = part.statements.definition.positions["id"]
        statement, args = part.statements.get_many([row[place] for row in piece.rows])
        present = {row[place] for row in await transaction.fetch(statement, args)}
        part.present += len(present)
        kept = [
            (row, number) for row, number in zip(piece.rows, piece.numbers, strict=True) if row[place] not in present
        ]
        piece.rows, piece.numbers = [row for row, _ in kept], [number for _, number in kept]

    async def _replace(self, transaction: Transaction) -> None:
        for part in self._parts:
            await transaction.execute(part.statements.clear(), ())
        for part in self._parts:
            part.stored = 0
            with self._source.lines(part.name) as lines, show_progress(part.name, lines.size, size=True) as advance:
                for piece in lines.pieces(part.read, _pass_over):
                    part.stored += await self._store(transaction, part, piece)
                    advance(piece.size)
            await advance_numbers(transaction, part.statements)


def _pass_over(_line: LineRefused) -> None:
    """Pass over a row that was refused, and counted, when all rows were checked."""


def _simplify(name: str) -> set[str]:
    """The forms of a name by which a table is found: without case and underscores, and in the singular."""
    plain = name.replace("_", "").lower()
    ends = (("ies", "y"), ("es", ""), ("s", ""))
    return {plain, *(plain.removesuffix(end) + instead for end, instead in ends if plain.endswith(end))}


# ----- Convex


class ConvexRows:
    """Makes rows of Convex's documents, as if a client of Convex had sent them to a function that takes the table."""

    def __init__(self, statements: TableStatements, ids: ConvexIds, *, is_typed: bool) -> None:
        definition = statements.definition
        if not definition.managed:
            fix = "Import into a managed table."
            raise ConfigError(f"{definition.name} has keys of its own, and Convex's documents have none.", fix=fix)
        self._statements = statements
        self._ids = ids
        self._is_typed = is_typed
        self._names = {_camel(column.name): column.name for column in definition.columns}
        fields = definition.table.model_fields
        self._nulls = {
            name: None for name, one in fields.items() if one.is_required() and definition.column(name).optional
        }

        async def take(_ctx: Any, row: Any) -> None:
            """Take a row."""

        take.__annotations__["row"] = definition.table
        self._signature = Signature(take, definition.name)

    def row(self, line: bytes) -> list[Any]:
        """The row of a line as the store takes it; an InputError says what is wrong with it."""
        given = parse_line(line)
        old, created = given.pop("_id", None), given.pop("_creationTime", None)
        if not isinstance(old, str) or created is None:
            raise ValueInvalid("it has no _id or no _creationTime.")
        fields = self._nulls | {self._names.get(name, name): self._convert(value) for name, value in given.items()}
        message = Message(to_json({"row": fields}, inf_nan_mode="constants"))
        try:
            row = self._signature.check_json(message.arguments(message.value))["row"]
        except ArgumentsInvalid as error:
            what = error.what.partition("invalid arguments: ")[2] or error.what
            raise ValueInvalid(what.replace("row.", "")) from None
        neutral = self._statements.definition.encode_row(row, self._ids.convert(old), read_creation_time(created))
        return self._statements.encode(neutral)

    def _convert(self, value: Any) -> Any:
        """A value with penstock's ids, and with integers as Convex's clients send them."""
        if isinstance(value, str):
            return self._ids.convert(value)
        if isinstance(value, dict):
            return {name: self._convert(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._convert(one) for one in value]
        is_integer = self._is_typed and isinstance(value, int) and not isinstance(value, bool)
        return tag_integer(value) if is_integer else value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


class ConvexIds:
    """The ids of penstock for those of Convex.

    Args:
        prefixes: The prefix of the ids of each table that has a place here.
        source: The snapshot.
    """

    _LOOKS_LIKE: ClassVar = re.compile(r"[0-9a-hjkmnp-tv-z]{31,37}")
    _LETTERS: ClassVar = {letter: value for value, letter in enumerate("0123456789abcdefghjkmnpqrstvwxyz")}

    def __init__(self, prefixes: dict[str, str], source: Snapshot) -> None:
        self._prefixes = prefixes
        self._numbers = source.numbers()
        self._known = sqlite3.connect("")  # a file of its own, which goes with the connection: there may be millions
        self._known.execute("create table known (old text primary key, new text) without rowid")
        self.convert = lru_cache(100_000)(self._convert)

    def learn(self, table: str, lines: Lines) -> None:
        """Note the ids of a table's rows; they begin with the creation time, as the rows are in its order."""
        prefix = self._prefixes.get(table)
        if prefix is None:
            return

        def pair(line: bytes) -> list[Any]:
            given = parse_line(line)
            old, created = given.get("_id"), given.get("_creationTime")
            if not isinstance(old, str) or not isinstance(created, int | float):
                raise ValueInvalid("it has no _id or no _creationTime.")
            return [old, format_id(prefix, _bits(old, created))]

        for piece in lines.pieces(pair, _pass_over):
            self._known.executemany("insert or ignore into known values (?, ?)", piece.rows)

    def _convert(self, text: str) -> str:
        """The id of penstock for a text that is one of Convex; else the text."""
        if self._LOOKS_LIKE.fullmatch(text) is None:
            return text
        found = self._known.execute("select new from known where old = ?", (text,)).fetchone()
        if found is not None:
            return str(found[0])
        prefix = self._prefixes.get(self._numbers.get(self._table_number(text), ""))
        return text if prefix is None else format_id(prefix, _bits(text, 0))  # of a row that was deleted

    def _table_number(self, text: str) -> int:
        """The table's number in an id whose check sum is right; else -1."""
        bits = 0
        for letter in text:
            bits = bits << 5 | self._LETTERS[letter]
        size = len(text) * 5 // 8
        raw = (bits >> (len(text) * 5 - size * 8)).to_bytes(size, "big")
        low = high = 0
        for one in raw[:-2]:
            low = low + one & 255
            high = high + low & 255
        if raw[-2:] != bytes((low, high)):  # Fletcher's check sum, of 256
            return -1
        return sum((one & 127) << 7 * place for place, one in enumerate(raw[:-18]))


def _bits(old: str, created: float) -> int:
    milliseconds = min(max(int(created), 0), 2**48 - 1)
    part = int(created % 1 * 4096)
    chance = part << 62 | int.from_bytes(hashlib.sha256(old.encode()).digest()[:8], "big") >> 2
    return layout_uuid7(milliseconds, chance)
