"""An interest: the changes of one table that one reader wants.

Owns the declaration and its digest. Leaves the triggers that capture it to the stores, and writing its SQL to others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cached_property, lru_cache

from penstock.changes.change import KINDS
from penstock.dataclass import dataclass
from penstock.errors import DeclarationError

ROW = "{row}"
_LONGEST_NAME = 200
_ROW_KINDS = frozenset({"enter", "change", "leave"})


@dataclass(frozen=True, kw_only=True)
class Interest:
    """The changes of one table that one reader wants.

    Two interests of one name may stand side by side, as those of two releases of a program do. Each is known by its
    name and the digest of all the rest.

    Raises:
        DeclarationError: It has no name, no table, no key or no kind, or an unknown kind.
    """

    name: str
    table: str  # with its schema, if that is not the one in which the database looks first
    key: Sequence[str]  # the columns that tell its rows apart
    # Its rows: an SQL condition, in which {row} stands for the row; all by default. No row may make it fail, or writing
    # that row fails.
    matches: str | None = None
    watches: Sequence[str] | None = None  # SQL expressions with {row} that must differ for a change; any by default
    kinds: Sequence[str] = KINDS
    before: Sequence[str] = ()  # columns captured as they were
    after: Sequence[str] = ()  # columns captured as they are then
    # Whether `matches` says exactly which rows it is about. If it says more, the reader decides by what is captured.
    # Then a change of anything captured counts, even if only rows that enter or leave are wanted.
    exact: bool = True
    order: Sequence[str] = ()  # columns by which its rows are read, before the key; by the key alone by default
    each: bool = False  # each change counts: none may be merged with another one of its row before it is written
    meaning: str = ""  # the use that its reader makes of it, unlike that of another one that captures the same
    on_demand: bool = False  # captured only while a reader demands it, see `Changes.demand`

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > _LONGEST_NAME or not self.name.isprintable():
            raise DeclarationError(
                f"An interest cannot be named {self.name!r}.", fix=f"Use 1 to {_LONGEST_NAME} printable characters."
            )
        if not self.table or self.table.startswith(("penstock_", "penstock.")):
            self._refuse(f"changes of {self.table or 'no table'} are not captured")
        if not self.key or len(set(self.key)) != len(self.key):
            fix = "Give the table a primary key, or declare the columns that are its key."
            self._refuse(f"the rows of {self.table} have no key to tell them apart", fix)
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown or not self.kinds:
            none = ", ".join(map(repr, unknown)) or "nothing"
            self._refuse(f"{none} is no kind of change", f"Choose from {', '.join(KINDS)}.")

    def __hash__(self) -> int:
        return hash(self.digest)  # some of its fields may be lists

    def _refuse(self, why: str, fix: str = "") -> None:
        raise DeclarationError(f"Interest {self.name}: {why}.", fix=fix)

    @cached_property  # it is compared with all others each time that they are read
    def digest(self) -> str:
        """The hash that tells it from another interest of its name."""
        return hashlib.blake2s(self.text().encode(), digest_size=8).hexdigest()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns whose values are captured, each once."""
        return tuple(dict.fromkeys((*self.key, *self.before, *self.after, *self.order)))

    @property
    def place(self) -> tuple[str, ...]:
        """The columns by which its rows are read: a total order."""
        return tuple(dict.fromkeys((*self.order, *self.key)))

    def narrow(self, matches: str, columns: Sequence[str]) -> Interest:
        """This interest in some of its rows only, with these columns as they were before."""
        both = matches if self.matches is None else f"({self.matches}) and ({matches})"
        return replace(self, matches=both, before=tuple(columns))

    def wants(self, kind: str) -> bool:
        """Whether a kind of change is captured. With a wide `matches`, an entering row may look like a change."""
        if kind == "change" and not self.exact:
            return not _ROW_KINDS.isdisjoint(self.kinds)
        return kind in self.kinds and (kind != "change" or self.watches is None or bool(self.watches))

    def text(self) -> str:
        """The interest as JSON, equal for equal interests."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        said["kinds"] = [kind for kind in KINDS if kind in self.kinds]
        if not self.on_demand:  # others have the digests that they had before
            del said["on_demand"]
        return json.dumps(said)

    @classmethod
    @lru_cache(256)  # all of them are read several times when a program starts
    def parse(cls, text: str) -> Interest:
        """An interest from its text. Fields that another version has written are left out."""
        given = json.loads(text)
        return cls(**{field.name: given[field.name] for field in fields(cls) if field.name in given})
