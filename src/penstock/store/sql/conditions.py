"""Filters and watches as SQL: conditions for a trigger's WHEN, where no parameter can be given, and for a WHERE.

Owns joining and negating conditions, and the promise: the SQL is never false of a row for which the filter is
true. Where a database cannot say a condition exactly, the SQL is *wider* and `exact` is false. Python then asks the row
again, with `reactive.evaluate`. Each store spells the conditions that are not made of others: a `Spelling`.
"""

from __future__ import annotations

from penstock.dataclass import dataclass
from penstock.reactive.expression import LEAVES, TERMS, Condition, Every, Expression, Leaf, Not, OneOf, fields
from penstock.reactive.tracing import Watch
from penstock.schema.table import TableDefinition
from penstock.store.sql.dialect import TEXT_MARK, Dialect, Part, Spelling, Where


@dataclass(frozen=True, slots=True)
class ConditionSql:
    """A condition as SQL."""

    sql: str  # without parameters, in parentheses where it needs them
    exact: bool  # true of exactly the rows that are meant; otherwise it may be true of more
    columns: tuple[str, ...]  # the columns that Python needs to ask a row again


@dataclass(frozen=True, slots=True)
class WatchSql:
    """A watch as SQL."""

    expressions: tuple[str, ...]  # one of them differs if there is a change; NULL is a value like others
    exact: bool  # whether they differ only then
    columns: tuple[str, ...]  # the columns that Python needs to ask about a change again


class _Writer:
    """Writes one condition."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        self.exact = True

    def condition(self, node: Condition, *, positive: bool = True) -> str:
        """A condition or its opposite. Only leaves are negated, so the whole is wider where a leaf is."""
        if isinstance(node, Not):
            return self.condition(node.condition, positive=not positive)
        if isinstance(node, LEAVES):
            return self._leaf(node, positive)
        sign = " and " if isinstance(node, Every) is positive else " or "
        return "(" + sign.join(self.condition(one, positive=positive) for one in node.conditions) + ")"

    def _leaf(self, leaf: Leaf, positive: bool) -> str:
        if isinstance(leaf, OneOf) and not leaf.constants:
            return self.spelling.never if positive else self.spelling.true
        part = self.spelling.leaf(leaf)
        asked = self.spelling.ask(leaf)
        if asked:
            wide = asked if positive else f"not {asked}"
        else:
            wide = (part.wide if positive else part.wide_not) or self.spelling.true
        return self.guard(part, wide, positive=positive, asked=bool(asked))

    def guard(self, part: Part, wide: str, *, positive: bool, asked: bool = False) -> str:
        """SQL that is exact for rows that pass the guards, and wide for all others."""
        if part.sql is None or part.guards:
            self.exact = self.exact and asked
        if part.sql is None:
            return f"({wide})"
        exact = f"({part.sql})" if positive else f"(({part.sql}) is not true)"
        # In this order: a guard may fail where the one before it is not true.
        failed = " ".join(f"when ({guard}) is not true then {wide}" for guard in dict.fromkeys(part.guards))
        return f"(case {failed} else {exact} end)" if failed else exact

    def watch(self, expression: Expression) -> str:
        """A term or a condition as a value, which differs between rows that differ in its meaning."""
        if isinstance(expression, TERMS):
            part = self.spelling.watch(expression)
            return self.guard(part, part.wide, positive=True)
        writer = _Writer(self.spelling)
        sql = writer.condition(expression)
        if writer.exact:
            return f"({sql} is true)"
        self.exact = False
        return self.spelling.raw(tuple(fields(expression)))


def condition_sql(
    condition: Condition, definition: TableDefinition, dialect: Dialect, alias: str, *, own: bool = False
) -> ConditionSql:
    """A filter as SQL; `alias` is the prefix of columns: ``new`` or ``old`` in a trigger, that of the table in a query.

    With `own` it runs on connections of penstock's only; on SQLite it is exact then.
    """
    writer = _Writer(dialect.spelling(definition, dialect, alias, own=own))
    sql = writer.condition(condition)
    return ConditionSql(sql, writer.exact, tuple(fields(condition)))


def query_sql(condition: Condition, definition: TableDefinition, dialect: Dialect, alias: str) -> tuple[Where, bool]:
    """A filter for queries on connections of penstock's own, whose texts are parameters; and whether it is exact."""
    spelling = dialect.spelling(definition, dialect, alias, own=True)
    spelling.texts = []
    writer = _Writer(spelling)
    sql, *rest = TEXT_MARK.split(writer.condition(condition))
    return Where((sql, *rest[1::2]), tuple(spelling.texts[int(place)] for place in rest[::2])), writer.exact


def column_sql(name: str, definition: TableDefinition, dialect: Dialect, alias: str) -> str:
    """A column to compare with what it was: as text where it may have no equality, as those of other programs."""
    if definition.managed and not definition.column(name).long:
        return f"{alias}.{dialect.quote(name)}"
    return dialect.spelling(definition, dialect, alias, own=False).raw((name,))


def watch_sql(watch: Watch, definition: TableDefinition, dialect: Dialect, alias: str) -> WatchSql:
    """A watch as SQL expressions over one row, to be compared with those over the row as it was before."""
    writer = _Writer(dialect.spelling(definition, dialect, alias, own=False))
    expressions = tuple(map(writer.watch, watch.expressions))
    columns = tuple(dict.fromkeys(name for one in watch.expressions for name in fields(one)))
    return WatchSql(expressions, writer.exact, columns)
