"""Rules of a table as they hold for the caller of one transaction.

Owns asking them: as SQL where a rule is a condition on the row, in Python where it is not. Leaves to `scan` and
`database` where they are asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from penstock.dataclass import dataclass
from penstock.errors import AccessDenied, DeclarationError, NotSignedIn, ResultInvalid, UsageError
from penstock.reactive import expression as ex
from penstock.reactive.evaluate import holds, row_values
from penstock.reactive.tracing import trace_rule
from penstock.schema.fields import Kind
from penstock.schema.rules import Rules
from penstock.schema.table import Table
from penstock.store.sql.conditions import query_sql
from penstock.store.sql.dialect import ALL, Where
from penstock.store.sql.statements import TableStatements
from penstock.transaction.transaction import Scope

Verb = Literal["read", "insert", "patch", "delete"]

_NOBODY = ex.OneOf(ex.Constant(Kind.TEXT, ""), ())


@dataclass(slots=True, eq=False)
class CallersRule:
    """A rule for one caller."""

    statements: TableStatements  # those of its table
    verb: Verb  # what it allows
    function: Any  # the rule as it is declared
    given: tuple[Any, ...]  # its arguments after the row
    condition: ex.Condition | None  # what it says of a row; None if SQL cannot say it, for `reason`
    reason: str = ""

    def allows(self, row: Table) -> bool:
        if self.condition is None:
            found = self.function(row, *self.given)
            if not isinstance(found, bool):  # a coroutine would be true
                table = self.statements.definition.table.__name__
                raise ResultInvalid(f"A rule of {table} returned {type(found).__name__}.", fix="Return a bool.")
            return found
        return holds(self.condition, row_values(self.statements.definition, row, ex.fields(self.condition)))

    def check(self, row: Table) -> None:
        if not self.allows(row):
            table = self.statements.definition.table.__name__
            raise AccessDenied(f"The rules of {table} do not let this caller {self.verb} the row.")

    def where(self, order: Sequence[str], prefix: Sequence[Any]) -> tuple[Where, bool]:
        """The rule as SQL for rows whose first columns, in an order, equal a prefix; and whether that is exact."""
        if self.condition is None:
            return ALL, False
        definition = self.statements.definition
        if definition.managed and _is_met(self.condition, dict(zip(order, prefix, strict=False))):
            return ALL, True
        return query_sql(self.condition, definition, self.statements.dialect, self.statements.table)

    def exact_where(self, order: Sequence[str], prefix: Sequence[Any], what: str) -> Where:
        """The rule as SQL for what only the database computes; UsageError if it has to be asked in Python."""
        where, is_exact = self.where(order, prefix)
        if not is_exact:
            raise UsageError(
                f"{what} runs in the database, which cannot run a rule of {self.statements.definition.table.__name__}. "
                f"{self.reason}".rstrip(),
                fix="Write the rule as a condition on the row, or compute in an async for.",
            )
        return where


async def rule_of(scope: Scope, statements: TableStatements, verb: Verb) -> CallersRule | None:
    """The rule that a run has to keep; None if there is none.

    Raises:
        NotSignedIn: The caller is anonymous, and the table has no rules for these.
        AccessDenied: The table has rules, and none for this verb.
    """
    rules, transaction = statements.definition.rules, scope.transaction
    if rules is None or not scope.ruled:
        return None
    identity, function = transaction.identity(), getattr(rules, verb)
    if identity is None and not rules.anonymous:
        raise NotSignedIn
    if function is None:
        table = statements.definition.table.__name__
        raise AccessDenied(f"No caller may {verb} rows of {table}: its rules have none for {verb}.")
    given = (identity,) if rules.facts is None else (identity, await _facts(scope, rules))
    key = (statements.definition.table, verb)
    known = transaction.rules.get(key)
    if known is None or known.given[-1] is not given[-1]:
        known = transaction.rules[key] = _trace(statements, verb, function, given)
    return known


def _trace(statements: TableStatements, verb: Verb, function: Any, given: tuple[Any, ...]) -> CallersRule:
    try:
        said = trace_rule(statements.definition, function, given, f"The rule for {verb}")
    except DeclarationError as error:
        return CallersRule(statements, verb, function, given, None, str(error))
    condition = said if not isinstance(said, bool) else ex.Not(_NOBODY) if said else _NOBODY
    return CallersRule(statements, verb, function, given, condition)


async def _facts(scope: Scope, rules: Rules) -> Any:
    """The facts that the rules need, read once, and again after writes to a table that they were read from."""
    transaction, ask = scope.transaction, rules.facts
    known = transaction.facts.get((ask, scope.component))
    if known is None:
        async with scope.hold():
            noted, rows = len(transaction.read_set.ranges), transaction.rows
            transaction.rows = {}  # so that each row that is read is noted
            try:
                value = await transaction.ask(ask, scope.component)
            finally:
                transaction.rows = rows
            tables = {read.table for read in transaction.read_set.ranges[noted:]}
            known = transaction.facts[ask, scope.component] = (
                value,
                None if transaction.read_set.everything else tables,
            )
    return known[0]


def _is_met(condition: ex.Condition, known: Mapping[str, Any]) -> bool:
    """Whether a condition is true of all rows that have these texts in their columns."""
    match condition:
        case ex.Every(parts):
            return all(_is_met(one, known) for one in parts)
        case ex.Some(parts):
            return any(_is_met(one, known) for one in parts)
        case ex.Not(inner):
            return inner == _NOBODY
        case ex.Compare("==", ex.Field(column, Kind.TEXT), ex.Constant(Kind.TEXT, value)):
            return bool(known.get(column) == value)
        case ex.OneOf(ex.Field(column, Kind.TEXT), constants):
            return known.get(column) in {one.value for one in constants}
    return False
