"""``penstock import FILE.zip``: all tables and files of an export, or of a snapshot that Convex exported.

All rows are read once before any is stored, so that what does not fit is known by then. Files come first, so that no
row refers to one that is not there yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from penstock.app import Backend
from penstock.cli.confirm import confirm
from penstock.cli.data import Documents, count_rows, find_table, names_of, statements_of
from penstock.cli.lines import LineRefused, Piece, Read, load_piece, pass_over, show_progress
from penstock.cli.opening import UNHURRIED, snapshot, with_backend
from penstock.cli.options import Options
from penstock.cli.output import print_json, print_table, say
from penstock.cli.snapshots.archive import Snapshot
from penstock.cli.snapshots.convex import ConvexIds, ConvexRows
from penstock.cli.snapshots.files import FileImport
from penstock.cli.snapshots.parts import Part
from penstock.dataclass import dataclass
from penstock.errors import ConfigError, InputError, ValueInvalid
from penstock.functions.component import SEPARATOR
from penstock.observe.readable import amount
from penstock.schema.ids import FILE_PREFIX
from penstock.schema.table import TableDefinition, definition_of
from penstock.store.sql.statements import TableStatements
from penstock.transaction.rows import advance_numbers
from penstock.transaction.transaction import Transaction

_NO_FILE = f"an id of table {FILE_PREFIX}"
_NO_LIMIT = 2**31  # for files, which come in one transaction with --replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """The options of an import."""

    append: bool
    replace: bool
    skip_refused: bool
    sure: bool


def import_snapshot(options: Options, path: Path, only: Sequence[str], mode: Mode, *, of_convex: bool) -> None:
    with Snapshot(path) as source:
        if of_convex and not source.of_convex:
            raise ConfigError(f"{path} is no snapshot of Convex.", fix="Leave out convex: it is one of penstock's.")
        parts, left = with_backend(
            options,
            lambda backend: _Import(backend, source, only, mode).run(),
            fitting=True,
            statement_timeout=UNHURRIED,
            max_rows_written=_NO_LIMIT,
        )
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


@dataclass(slots=True, kw_only=True)
class _Rows(Part):
    """The import of one table."""

    statements: TableStatements
    read: Read

    @classmethod
    def of(cls, name: str, statements: TableStatements, read: Read) -> _Rows:
        return cls(name=name, table=statements.definition.name, statements=statements, read=read)


class _Import:
    def __init__(self, backend: Backend, source: Snapshot, only: Sequence[str], mode: Mode) -> None:
        self._backend = backend
        self._source = source
        self._mode = mode
        self._homes = {one: home for one in _components(source) if (home := self._home(one)) is not None}
        chosen = [name for name in only if name not in source.files]
        targets = self._targets(chosen) if chosen or not only else {}
        files = [name for name in source.files if _component(name) in self._homes and (not only or name in only)]
        self._ids: ConvexIds | None = None
        if not source.of_convex:
            self._parts = [
                _Rows.of(name, found, Documents(found, backend.engine.clock).row) for name, found in targets.items()
            ]
            self._files = [FileImport(backend, source, name) for name in files]
            return
        every = {**{name: found for name in source.tables if (found := self._near(name))}, **targets}
        prefixes = {name: found.definition.table.__id_prefix__ or "" for name, found in every.items()}
        self._ids = ConvexIds(prefixes | dict.fromkeys(source.files, FILE_PREFIX), source)
        within = {one: self._ids.within(one) for one in _components(source)}
        self._parts = [
            _Rows.of(name, found, ConvexRows(found, within[_component(name)], is_typed=source.is_typed(name)).row)
            for name, found in targets.items()
        ]
        self._files = [
            FileImport(backend, source, name, self._homes[_component(name)], within[_component(name)]) for name in files
        ]

    async def run(self) -> tuple[Sequence[Part], list[str]]:
        """Import all, or raise: the numbers of each part, and the parts of the snapshot that have no place here."""
        mode = self._mode
        await self._look_for_rows()
        self._check()
        for files in self._files:
            with self._saying_where(files):
                await files.store(skip_refused=mode.skip_refused, with_rows=not mode.replace)
        if mode.replace:
            await self._backend.runner.write(self._replace)
        else:
            for part in self._parts:
                with self._saying_where(part):
                    await self._append(part)
        known = {*self._homes, *(_component(part.name) for part in self._parts)}
        homeless = [f"component {one}" for one in _components(self._source) if one not in known]
        return self._every, [*self._source.others(), *homeless]

    # ----- steps

    @property
    def _every(self) -> list[Part]:
        return [*self._files, *self._parts]

    @contextmanager
    def _saying_where(self, part: Part) -> Iterator[None]:
        """Name the part whose row is refused after others were stored."""
        try:
            yield
        except InputError as error:
            error.what = f"{part.name}, {error.what}"
            error.fix = "What was imported before stays. Correct the row, and go on with --append."
            raise

    def _targets(self, only: Sequence[str]) -> dict[str, TableStatements]:
        """The tables to import, and where to."""
        if only:
            pairs = [one.partition("=") for one in only]
            if missing := sorted({name for name, _, _ in pairs} - {*self._source.tables}):
                known = ", ".join(self._source.tables)
                raise ConfigError(f"The file has no table {missing[0]!r}.", fix=f"Its tables are {known}.")
            return {name: find_table(self._backend, yours) if yours else self._find(name) for name, _, yours in pairs}
        return {name: self._find(name) for name in self._source.tables if _component(name) in self._homes}

    def _find(self, name: str) -> TableStatements:
        found = self._near(name)
        if found is None:
            names = ", ".join(one.name for one in self._backend.app.definitions())
            fix = f"Say where its rows go with --table {name}=TABLE, or name the others with --table. Yours: {names}."
            raise ConfigError(f"The app has no table for {name!r}.", fix=fix)
        return found

    def _near(self, name: str) -> TableStatements | None:
        """The table of a name; one of Convex may be the plural in camel case."""
        app, found = self._backend.app, list[TableDefinition]()
        if not self._source.of_convex:
            found = [one for one in app.definitions() if name in names_of(one)]
        else:
            home, short = self._homes.get(_component(name)), name.rpartition(SEPARATOR)[2]
            owners = {twin: one.name for one in app.components.values() for twin in one.tables.values()}
            own = [(one, definition_of(one.row_type)) for one in app.definitions() if owners.get(one.table, "") == home]
            found += [one for one, declared in own if short in names_of(declared)]
            found += [one for one, declared in own if _simplify(declared.name) & _simplify(short)]
        return statements_of(self._backend, found[0]) if found else None

    def _home(self, component: str) -> str | None:
        """The component of the program for one of the snapshot, by its name without case and underscores."""
        names = ["", *self._backend.app.components]
        return (
            component if component in names else next((one for one in names if _plain(one) == _plain(component)), None)
        )

    async def _look_for_rows(self) -> None:
        """Refuse tables that are not empty, unless the user says what becomes of their rows."""
        async with snapshot(self._backend) as session:
            counts = {part.table: await count_rows(session, part.statements) for part in self._parts}
        full = [f"{name} has {amount(rows, 'row')}" for name, rows in counts.items() if rows]
        if self._files and await self._files[0].find_any():
            full.append("there are files")
        if not full or self._mode.append:
            return
        if not self._mode.replace:
            fix = "Add to them with --append, which passes over the rows that are there, or --replace them."
            raise ConfigError(f"Not all tables are empty: {', '.join(full)}.", fix=fix)
        confirm(f"Delete all rows? {', '.join(full)}.", sure=self._mode.sure)

    def _check(self) -> None:
        """Read all rows; raise if one does not fit, unless these are passed over."""
        if self._ids is not None:
            for name in (*self._source.tables, *self._source.files):
                with self._source.lines(name) as lines:
                    self._ids.learn(name, lines)
        for part in self._parts:
            with self._source.lines(part.name) as lines:
                for _piece in lines.pieces(part.read, part.refuse):
                    """Only the refused ones are kept."""
        for files in self._files:
            files.check()
        refused = sum(part.refused for part in self._every)
        if self._mode.skip_refused or not refused:
            return
        told = [line for part in self._every for line in part.describe_refused()]
        fix = "Change the tables or the rows, or import the others with --skip-refused."
        if self._ids is not None and not self._source.files and any(_NO_FILE in line for line in told):
            fix += " Files are in snapshots of npx convex export --include-file-storage."
        raise ValueInvalid(
            "\n".join([f"{amount(refused, 'row')} cannot be imported, so nothing was.", *told]),
            fix=fix,
            refused=refused,
        )

    async def _append(self, part: _Rows) -> None:
        statements = part.statements
        with self._source.lines(part.name) as lines, show_progress(part.name, lines.size, size=True) as advance:
            for piece in lines.pieces(part.read, pass_over):
                stored = await self._backend.runner.write(partial(self._store, part=part, piece=piece))
                part.stored += stored
                advance(piece.size)
        await self._backend.runner.write(partial(advance_numbers, statements=statements))

    async def _store(self, transaction: Transaction, part: _Rows, piece: Piece) -> int:
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

    async def _pass_over_present(self, transaction: Transaction, part: _Rows, piece: Piece) -> None:
        place = part.statements.definition.positions["id"]
        statement, args = part.statements.get_many([row[place] for row in piece.rows])
        present = {row[place] for row in await transaction.fetch(statement, args)}
        part.present += len(present)
        kept = [
            (row, number) for row, number in zip(piece.rows, piece.numbers, strict=True) if row[place] not in present
        ]
        piece.rows, piece.numbers = [row for row, _ in kept], [number for _, number in kept]

    async def _replace(self, transaction: Transaction) -> None:
        for files in self._files:
            await files.replace(transaction)
        for part in self._parts:
            await transaction.execute(part.statements.clear(), ())
        for part in self._parts:
            part.stored = 0
            with self._source.lines(part.name) as lines, show_progress(part.name, lines.size, size=True) as advance:
                for piece in lines.pieces(part.read, pass_over):
                    part.stored += await self._store(transaction, part, piece)
                    advance(piece.size)
            await advance_numbers(transaction, part.statements)


def _component(name: str) -> str:
    """The component of a part of a snapshot; empty for the program."""
    return name.rpartition(SEPARATOR)[0]


def _components(source: Snapshot) -> list[str]:
    return list(dict.fromkeys(map(_component, (*source.tables, *source.files))))


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _simplify(name: str) -> set[str]:
    """The forms of a name by which a table is found: without case and underscores, and in the singular."""
    plain = _plain(name)
    ends = (("ies", "y"), ("es", ""), ("s", ""))
    return {plain, *(plain.removesuffix(end) + instead for end, instead in ends if plain.endswith(end))}
