"""A declared outbox: its capture, how its changes become messages, and its plan for the store."""

from __future__ import annotations

from typing import Any

from penstock.calls.handlers.deliveries import HandlerInput, Messages, payload_of
from penstock.changes.interest import Interest
from penstock.dataclass import dataclass
from penstock.functions.function import AnyFunction
from penstock.outbox.outbox import MessageCriteria, Outbox
from penstock.schema.encoder import MASKED
from penstock.store.nouns.outboxes import OutboxPlan
from penstock.store.sql.conditions import column_sql, condition_sql
from penstock.store.sql.dialect import Dialect

_ROW = "{row}"


@dataclass(frozen=True, slots=True)
class DeclaredOutbox:
    """An outbox with its handler as written, the function that runs it, and its reset."""

    outbox: Outbox
    function: AnyFunction
    handler: Any
    reset: AnyFunction | None = None

    def interest(self, dialect: Dialect, order: tuple[str, ...] | None = None) -> Interest:
        """The capture of its table; rows are read in the order of these columns, by default as declared.

        A change of such a column is captured, too. So it is known of each row whether a backfill has passed it.
        """
        ordered = self.outbox.order_by if order is None else order
        outbox, definition = self.outbox, self.outbox.definition
        assert definition is not None  # noqa: S101 - a topic has none
        asked = None if outbox.condition is None else condition_sql(outbox.condition, definition, dialect, _ROW)
        exact = asked is None or asked.exact
        names = (*definition.key, *outbox.fields) if outbox.fields else tuple(one.name for one in definition.columns)
        also = () if exact or asked is None else asked.columns
        also = (*also, *((outbox.partition_by,) if outbox.partition_by else ()), *ordered)
        after = tuple(dict.fromkeys((*names, *also)))
        wants_before = not exact or bool(ordered) or not {"update", "delete"}.isdisjoint(outbox.on)
        watched = dict.fromkeys((*(outbox.fields if "update" in outbox.on else ()), *ordered))
        all_columns = "update" in outbox.on and not outbox.fields
        return Interest(
            name=outbox.reader,
            table=definition.name,
            key=definition.key,
            matches=None if asked is None else asked.sql,
            watches=None if all_columns else tuple(column_sql(name, definition, dialect, _ROW) for name in watched),
            kinds=tuple(dict.fromkeys((*outbox.kinds, "change"))) if ordered else outbox.kinds,
            before=after if wants_before else (),
            after=after,
            exact=exact,
            order=ordered,
            each=True,
            meaning=self._meaning(exact=exact, ordered=bool(ordered)).text(),
        )

    def messages(self, dialect: Dialect) -> Messages:
        """The maker of messages from its changes."""
        exact = self.outbox.definition is None or self.interest(dialect).exact
        meaning = self._meaning(exact=exact, ordered=bool(self.outbox.order_by))
        return Messages(self.outbox, dialect, HandlerInput(self.handler, self.outbox), meaning)

    def _meaning(self, *, exact: bool, ordered: bool) -> MessageCriteria:
        outbox = self.outbox
        return MessageCriteria(
            condition=None if exact else outbox.condition,
            kinds=outbox.kinds,
            fields=outbox.fields if ordered or not exact else (),
        )

    def mask(self, content: Any) -> Any:
        """The content of a message without what annotations call secrets."""
        outbox = self.outbox
        if outbox.definition is None:
            return payload_of(self.handler, outbox).mask_one("payload", content)
        hidden = {column.name for column in outbox.definition.columns if column.secrets}
        return {**content, **dict.fromkeys(hidden & content.keys(), MASKED)} if isinstance(content, dict) else content

    def plan(self) -> OutboxPlan:
        """The plan that is stored of it."""
        outbox = self.outbox
        return OutboxPlan(
            outbox.name,
            self.function.name,
            self.function.kind.value,
            outbox.source,
            outbox.spec(),
            outbox.version,
            outbox.keep_for,
        )
