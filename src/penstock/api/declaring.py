"""How functions are declared: the decorators of an app, and the registry that they fill."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from penstock.api.decorators import ActionDeclaration, MutationDecorator, QueryDecorator
from penstock.calls.run.ctxkinds import check_ctx
from penstock.errors import DeclarationError
from penstock.functions.batch import Batch
from penstock.functions.function import ActionFunction, MutationFunction, QueryFunction, Runtime
from penstock.functions.registry import Registry


class Declaring:
    """What declares functions."""

    def __init__(self) -> None:
        self.registry = Registry()

    @property
    def query(self) -> QueryDecorator:
        """Declare a public query: it reads one snapshot, and anyone who reaches the server may call it."""
        declare: QueryDecorator = self._declare("query", QueryFunction, public=True)
        return declare

    @property
    def internal_query(self) -> QueryDecorator:
        """Declare a query that only this program may call."""
        declare: QueryDecorator = self._declare("internal_query", QueryFunction, public=False)
        return declare

    @property
    def mutation(self) -> MutationDecorator:
        """Declare a public mutation: it reads and writes in one serializable transaction, and anyone may call it."""
        declare: MutationDecorator = self._declare("mutation", MutationFunction, public=True)
        return declare

    @property
    def internal_mutation(self) -> MutationDecorator:
        """Declare a mutation that only this program may call."""
        declare: MutationDecorator = self._declare("internal_mutation", MutationFunction, public=False)
        return declare

    @property
    def action(self) -> ActionDeclaration:
        """Declare a public action: it may call the outside world, has no transaction, and anyone may call it.

        It also takes options: ``runtime="process"``, for CPU-bound actions written with def, which then run in a
        process of their own. ``batch=100, of=Item``: the handler takes a list of items, one for each of up to so many
        calls, and returns a list of as many results or exceptions; the arguments of a call are those that make an item.
        ``linger``: how long the first job of a batch waits for more.
        """
        declare: ActionDeclaration = self._declare_action(public=True)
        return declare

    @property
    def internal_action(self) -> ActionDeclaration:
        """Declare an action that only this program may call; see `action`."""
        declare: ActionDeclaration = self._declare_action(public=False)
        return declare

    def _declare_action(self, *, public: bool) -> Any:
        def add(handler: Any, runtime: Runtime, batch: Batch | None) -> Any:
            return self._add(ActionFunction(handler, public=public, runtime=runtime, batch=batch))

        def declare(
            handler: Any = None,
            /,
            *,
            runtime: Runtime = "thread",
            batch: int | None = None,
            of: Any = None,
            linger: timedelta = timedelta(0),
        ) -> Any:
            if handler is not None:
                return add(handler, runtime, None)
            return lambda given: add(given, runtime, None if batch is None else Batch(given, batch, of, linger))

        return declare

    def _declare(self, word: str, kind: Callable[..., Any], *, public: bool) -> Any:
        def declare(*handler: Callable[..., Any], **options: Any) -> Any:
            if not handler and not options:
                return declare
            if len(handler) != 1 or options:
                raise DeclarationError(
                    f"@app.{word} takes no arguments.", fix=f"Write @app.{word} on the line above the function."
                )
            return self._add(kind(handler[0], public=public))

        return declare

    def _add(self, function: Any) -> Any:
        check_ctx(function)
        self.registry.add(function)
        return function
