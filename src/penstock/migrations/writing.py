"""Writes a migration file: what a schema push does not do by itself, in steps that old and new processes survive.

Owns the text of the file. A file is for people to review: comments in it say what each step is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from penstock.dataclass import dataclass
from penstock.errors import DeclarationError
from penstock.schema.diff import Difference
from penstock.schema.fields import Column, Kind
from penstock.schema.stored import StoredColumn, next_name
from penstock.store.sql.ddl import kind_type, literal
from penstock.store.sql.dialect import Dialect

_HEAD = '''"""{title}.

`penstock migration run` runs expand() and the backfills: do that before you start the new release. Once no process of
the old release runs, `penstock migration run --contract` runs contract().
"""
'''
_EDIT = "raise NotImplementedError({why!r})  # then delete this line"
_COMMENTS = {
    "expand": "# New columns, next to the old ones. Triggers keep both equal, whichever release writes a row.",
    "backfills": "# Rows that were written before expand(), in batches.",
    "contract": "# Drops what only the old release uses: a process of it that still runs fails from here on.",
    "down": "# Undoes expand(), until contract() has run.",
}


def write_file(changes: Sequence[Difference], renames: Mapping[tuple[str, str], Sequence[str]], sql: Dialect) -> str:
    """The text of a migration file; `renames` has the new names of columns by table and old name."""
    file = _File(sql)
    for change in changes:
        for old, stored in change.gone.items():
            given = [change.definition.column(name) for name in renames.get((change.table, old), ())]
            file.rename(change.table, stored, given, change.new) if given else file.drop(change.table, stored)
        for stored, column in change.retyped.values():
            file.retype(change.table, stored, column)
        renamed = {name for (table, _old), names in renames.items() if table == change.table for name in names}
        for name, column in change.columns_without_value.items():
            if name not in renamed:
                file.require(change.table, column, new=name in change.new)
    return file.text()


@dataclass
class _File:
    """The parts of a file, and the SQL of the database that it is written for."""

    sql: Dialect
    titles: list[str] = field(default_factory=list)
    edits: list[str] = field(default_factory=list)
    expand: list[str] = field(default_factory=list)
    backfills: list[str] = field(default_factory=list)
    contract: list[str] = field(default_factory=list)
    down: list[str] = field(default_factory=list)

    def rename(self, table: str, old: StoredColumn, new: Sequence[Column], missing: Mapping[str, Column]) -> None:
        """A renamed column; split, if there are several new ones."""
        names = [column.name for column in new]
        self.titles.append(f"{'Rename' if len(new) == 1 else 'Split'} {table}.{old.name} to {', '.join(names)}")
        if len(new) > 1:
            why = f"Write SQL for each part of {table}.{old.name}, and for {old.name} from its parts."
            self.edits.append(_EDIT.format(why=why))
        up = {column.name: self._cast(old.name, old.type, kind_type(column.kind, self.sql)) for column in new}
        down = {old.name: self._cast(names[0], kind_type(new[0].kind, self.sql), old.type)}
        self._beside(table, [column for column in new if column.name in missing], old, up, down)
        self.contract.append(f"op.drop_column({table!r}, {old.name!r})")

    def retype(self, table: str, old: StoredColumn, column: Column) -> None:
        """A column of the new type under another name, which takes the old one's name at the end."""
        title, shadow = f"Change the type of {table}.{column.name}", next_name(column.name)
        self.titles.append(title)
        self.expand.append("# A process reads one type only: start the new release right after contract(). To run both")
        self.expand.append(f"# releases side by side, give the new type a new field: --rename {table}.{old.name}=NEW.")
        kind = kind_type(column.kind, self.sql)
        up = {shadow: self._cast(old.name, old.type, kind)}
        named = Column(shadow, column.kind, optional=True, long=column.long)
        self._beside(table, [named], old, up, {old.name: self._cast(shadow, kind, old.type)}, relaxed=False)
        self.contract.append(f"op.drop_column({table!r}, {old.name!r})")
        self.contract.append(f"op.alter_column({table!r}, {shadow!r}, new_column_name={column.name!r})")

    def drop(self, table: str, old: StoredColumn) -> None:
        """A column that nobody needs: new processes insert without it first."""
        self.titles.append(f"Drop {table}.{old.name}")
        if not (old.nullable or old.filled):
            self.expand.append(f"relax({table!r}, {old.name!r})  # the new release inserts without it")
        self.contract.append(f"op.drop_column({table!r}, {old.name!r})  # its values are lost")

    def require(self, table: str, column: Column, *, new: bool) -> None:
        """A column that may not be NULL: filled here, and made NOT NULL by the push of the new release."""
        self.titles.append(f"Require {table}.{column.name}")
        default = None if column.required else column.default()
        value = "NULL" if default is None else literal(column.kind, default, self.sql)
        if default is None:
            self.edits.append(_EDIT.format(why=f"Write SQL for {table}.{column.name} where it is NULL."))
        up = {column.name: value}
        if new:
            self.expand.append(self._add(table, column))
            self.down.append(f"op.drop_column({table!r}, {column.name!r})")
        self.expand.append("# The old release may leave it NULL. The new one makes it NOT NULL when it starts.")
        self._sync(table, column.name, up, None)

    def _beside(
        self,
        table: str,
        new: Sequence[Column],
        old: StoredColumn,
        up: Mapping[str, str],
        down: Mapping[str, str],
        *,
        relaxed: bool = True,
    ) -> None:
        for column in new:
            self.expand.append(self._add(table, column))
            self.down.append(f"op.drop_column({table!r}, {column.name!r})")
        if relaxed and not old.nullable:
            self.expand.append(f"relax({table!r}, {old.name!r})  # the new release inserts without it")
        self._sync(table, old.name, up, down)

    def _sync(self, table: str, name: str, up: Mapping[str, str], down: Mapping[str, str] | None) -> None:
        back = "" if down is None else f", down={dict(down)!r}"
        self.expand.append(f"sync({table!r}, {name!r}, up={dict(up)!r}{back})")
        empty = " and ".join(f"{self.sql.quote(column)} is null" for column in up)
        self.backfills.append(f"Backfill(table={table!r}, values={dict(up)!r}, where={empty!r}),")
        self.contract.append(f"unsync({table!r}, {name!r})")
        self.down.insert(0, f"unsync({table!r}, {name!r})")

    def _add(self, table: str, column: Column) -> str:
        long = ", long=True" if column.long else ""
        return f"op.add_column({table!r}, Column({column.name!r}, Stored({column.kind.value!r}{long})))"

    def _cast(self, name: str, was: str, to: str) -> str:
        if was.casefold() != to.casefold() and kind_type(Kind.ENCRYPTED, self.sql) in {was, to}:
            raise DeclarationError(
                f"SQL can neither encrypt nor decrypt {name}.",
                fix="Declare a new field, copy the values in a mutation, and drop the old field then.",
            )
        quoted = self.sql.quote(name)
        was, to = (one.partition(" /*")[0].partition(" collate")[0] for one in (was, to))
        return quoted if was.casefold() == to.casefold() else f"cast({quoted} as {to})"

    def text(self) -> str:
        """The file. A file for several tables has their steps in one transaction."""
        body = "\n".join([*self.edits, *self._parts()]).strip("\n")
        words = [word for word in ("Backfill", "Stored", "relax", "sync", "unsync") if f"{word}(" in body]
        column = "from sqlalchemy import Column\n" if "Column(" in body else ""
        ours = f"\nfrom penstock.migrations import {', '.join(words)}\n" if words else ""
        head = f"{_HEAD.format(title='; '.join(self.titles))}\nfrom alembic import op\n{column}{ours}"
        return f"{head}\n{'' if self.edits else chr(10)}{body}\n"

    def _parts(self) -> Iterator[str]:
        for name, lines in (("expand", self.expand), ("contract", self.contract), ("down", self.down)):
            if name == "contract" and self.backfills:
                yield f"\n\n{_COMMENTS['backfills']}\nbackfills = ["
                yield from (f"    {line}" for line in self.backfills)
                yield "]"
            if lines:
                yield f"\n\ndef {name}() -> None:\n    {_COMMENTS[name]}"
                yield from (f"    {line}" for line in lines)
