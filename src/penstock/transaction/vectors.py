"""`ctx.vector_search`: the rows whose vectors are the nearest to another one, with their scores.

Owns the steps of a search. The index gives candidates, and rows with changes that the indexer has not read are looked
at as they are now. So a search finds all that its transaction sees, by any writer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.changes.readset import VectorRead
from penstock.changes.searches import TableVectors
from penstock.dataclass import dataclass
from penstock.errors import ValueInvalid
from penstock.reactive import expression as ex
from penstock.reactive.evaluate import holds
from penstock.schema.ids import Id
from penstock.schema.table import Table
from penstock.search.encoding import filter_number
from penstock.search.vectors import VectorsOf, pack, read_vector, scorer, unit_vector
from penstock.store.nouns.searches import Nearest
from penstock.store.sql.statements import TableStatements
from penstock.store.sql.values import decode_key, decode_stored_values
from penstock.transaction.rows import read_rows
from penstock.transaction.rules import CallersRule, rule_of
from penstock.transaction.searching import filter_value, find_unread, is_spelled, pieces
from penstock.transaction.transaction import Scope
from penstock.values import total_bytes

T = TypeVar("T", bound=Table)

DEFAULT_LIMIT, MAX_LIMIT = 10, 256
MAX_VALUES = 64  # of filters, in one search
MOST_LOOKED_AT = 4096  # of the nearest rows, where rules leave out some
_MORE = 4


class VectorHit(NamedTuple, Generic[T]):
    """A row that a vector search has found.

    Attributes:
        id: The row's id.
        score: The cosine similarity of its vector, from -1 to 1: the nearest row has the greatest one.
    """

    id: Id[T]
    score: float


async def search_vectors(
    scope: Scope, of: VectorsOf[T], vector: Sequence[float], limit: int, filters: Mapping[str, Any]
) -> list[VectorHit[T]]:
    """See `QueryCtx.vector_search`."""
    search, unit, allowed = _check(scope, of, vector, limit, filters)
    statements = scope.table(of.table)
    scope.transaction.note_range(VectorRead(search.definition.name, allowed))
    rule = await rule_of(scope, statements, "read")
    return await _Search(scope, search, statements, unit, dict(allowed), rule).find(limit)


class _Found(NamedTuple):
    """A row that the caller may read, in the order of the results."""

    score: float  # negative
    key: str  # as the change feed spells it; no two are equal
    row_id: Any


@dataclass(frozen=True, slots=True)
class _Search:
    """A search for the rows that are nearest to a vector of length one."""

    scope: Scope
    search: TableVectors
    statements: TableStatements
    vector: tuple[float, ...]
    allowed: Mapping[str, Collection[Any]]  # by filter, in the form of `reactive.evaluate`
    rule: CallersRule | None

    async def find(self, limit: int) -> list[VectorHit[Any]]:
        """The best rows that the caller may read."""
        transaction, score = self.scope.transaction, scorer(self.vector)
        async with self.scope.lock:
            number, unread = await find_unread(transaction, self.search)
            keys = [key for key in unread if key is not None]
            changed = [(-score(packed), key) for key, packed in await self._read_changed(keys)]
        names, found, seen, wanted = self.search.index.filters, list[_Found](), set[str](), limit
        numbers = {names.index(name): [*map(filter_number, values)] for name, values in self.allowed.items()}
        most = inf if self.rule is None else MOST_LOOKED_AT
        while True:
            nearest = Nearest(self.vector, numbers, keys, wanted)
            async with self.scope.lock:
                hits = await transaction.store.searches.nearest(transaction, number, nearest)
            best = sorted([*((-score(packed), key) for key, packed in hits), *changed])
            scores = {key: points for points, key in best[:wanted] if key not in seen}
            seen.update(scores)
            for some in pieces([*scores]):
                async with self.scope.lock:
                    found += [_Found(scores[key], key, row_id) for key, row_id in await self._read_allowed(some)]
            if len(found) >= limit or (len(hits) < wanted and len(best) <= wanted) or wanted >= most:
                return [VectorHit(one.row_id, -one.score) for one in sorted(found)[:limit]]
            wanted = int(min(_MORE * wanted, most))

    async def _read_changed(self, keys: Sequence[str]) -> list[tuple[str, bytes]]:
        """The packed vectors of rows that the index has not read."""
        index, found = self.search.index, list[tuple[str, bytes]]()
        for some in pieces(keys):
            for key, stored in (await self._load(some, (index.column, *index.filters))).items():
                vector = read_vector(stored[index.column], index.dimensions)
                if vector is not None and self._fits(self._values(stored, index.filters)):
                    found.append((key, pack(vector)))
        return found

    async def _read_allowed(self, keys: Sequence[str]) -> list[tuple[str, Any]]:
        """Keys and ids of the rows that are there, fit the filters themselves, and may be read by the caller."""
        definition, condition = self.statements.definition, None if self.rule is None else self.rule.condition
        needed = {} if condition is None else ex.fields(condition)
        # A condition needs no vector, which is most of a row.
        whole = self.rule is not None and (condition is None or any(map(self._is_opaque, needed)))
        names = [*definition.positions] if whole else [*dict.fromkeys((*self.allowed, *needed))]
        loaded = await self._load(keys, names)
        self.scope.transaction.count_read(len(loaded), sum(total_bytes(row.values()) for row in loaded.values()))
        found = list[tuple[str, Any]]()
        for key in keys:
            if (stored := loaded.get(key)) is None or not self._fits(self._values(stored, self.allowed)):
                continue
            if self.rule is not None and whole:
                (row,) = read_rows(self.statements, [[stored[name] for name in names]])
                may = self.rule.allows(row)
            else:
                may = condition is None or holds(condition, self._values(stored, needed))
            if may:
                found.append((key, self._id_of(stored)))
        return found

    async def _load(self, keys: Sequence[str], names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Some columns of rows, and their keys, as the driver gives them; by keys as the change feed spells them."""
        transaction, statements, found = self.scope.transaction, self.statements, dict[str, dict[str, Any]]()
        definition, dialect = statements.definition, statements.dialect
        read = tuple(dict.fromkeys((*definition.key, *names)))
        given = {key: decode_key(dialect, definition, key) for key in keys}
        if definition.managed and dialect.any_of:
            statement, _ = statements.part(read, many=True)
            spelled = {values[0]: key for key, values in given.items()}
            rows = [dict(zip(read, row, strict=True)) for row in await transaction.fetch(statement, [[*spelled]])]
            return {spelled[row["id"]]: row for row in rows}
        statement, _ = statements.part(read)
        for key, values in given.items():
            for row in await transaction.fetch(statement, values):
                stored = dict(zip(read, row, strict=True))
                if is_spelled([stored[name] for name in definition.key], values):
                    found[key] = stored
        return found

    def _values(self, stored: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
        return decode_stored_values(self.statements.dialect, self.statements.definition, stored, names)

    def _fits(self, values: Mapping[str, Any]) -> bool:
        """Whether a row's filters have the values themselves: other values may have their numbers."""
        return all(values[name] in allowed for name, allowed in self.allowed.items())

    def _is_opaque(self, name: str) -> bool:
        return bool(self.statements.definition.column(name).order_obstacle)

    def _id_of(self, stored: Mapping[str, Any]) -> Any:
        """The id of a row, as `Table.id` gives it."""
        definition = self.statements.definition
        _, decode = self.statements.part(definition.key)
        (fields,) = decode([[stored[name] for name in definition.key]])
        return Id(fields[definition.key[0]]) if len(definition.key) == 1 else definition.key_in(fields)


def _check(
    scope: Scope, of: VectorsOf[T], vector: Sequence[float], limit: int, filters: Mapping[str, Any]
) -> tuple[TableVectors, tuple[float, ...], tuple[tuple[str, tuple[Any, ...]], ...]]:
    """The index, the vector of length one, and the values that filters may have.

    Raises:
        ValueInvalid: One of them cannot be.
    """
    given: Any = of
    if not isinstance(given, VectorsOf) or not issubclass(of.table, Table):
        raise ValueInvalid(
            f"ctx.vector_search takes a vector index, not {of!r}.",
            fix="Pass one of a table, such as Message.by_meaning.",
        )
    definition, index = scope.table(of.table).definition, of.index
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise ValueInvalid(
            f"ctx.vector_search takes a limit from 1 to {MAX_LIMIT}, not {limit!r}.", convex="VectorLimitTooLargeError"
        )
    if unknown := filters.keys() - {*index.filters}:
        raise ValueInvalid(
            f"Vector index {definition.name}.{index.name} has no filter {', '.join(sorted(unknown))}.",
            fix=f"Its filters are {', '.join(index.filters) or 'none'}; declare more.",
            convex="IncorrectVectorFilterField",
        )
    unit = unit_vector(f"{definition.name}.{index.name}", vector, index.dimensions)
    asked = {name: _several(filters[name]) for name in index.filters if name in filters}
    if sum(map(len, asked.values())) > MAX_VALUES:
        raise ValueInvalid(
            f"A search in index {definition.name}.{index.name} asks for more than {MAX_VALUES} values.",
            convex="TooManyElementsInVectorQueryError",
        )
    allowed = [(name, tuple(filter_value(definition, name, one) for one in values)) for name, values in asked.items()]
    return TableVectors(definition, index), unit, tuple(allowed)


def _several(value: Any) -> Sequence[Any]:
    """The values that a filter may have: one, or some of a list."""
    return [*value] if isinstance(value, list | tuple | set | frozenset) else [value]
