"""Access: which callers a function lets in.

Owns the guards and how they are joined. Leaves asking them to `calls/run/runner`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from penstock.dataclass import dataclass
from penstock.errors import DeclarationError, ResultInvalid
from penstock.functions.signature import check_declaration
from penstock.identity.identity import Identity
from penstock.schema.table import Table

Guard = Callable[..., "bool | Awaitable[bool]"]
"""A function of a `QueryCtx` and of those arguments of the guarded function that it names; written with def, of a
`SyncQueryCtx`. It says whether the caller may call the function."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A call whose caller is to be let in or not."""

    arguments: Mapping[str, Any]
    identity: Callable[[], Identity | None]  # of the caller
    ask: Callable[[Guard, Mapping[str, Any]], Awaitable[Any]]  # what a guard says


class Access:
    """The access to a function: ``access=`` of a function's declaration. Join several with ``&`` and ``|``.

    Its text is how it is written: ``signed_in & is_open``.
    """

    def __init__(
        self,
        text: str,
        lets_in: Callable[[Asked], Awaitable[bool]],
        takes: frozenset[str] = frozenset(),
        guards: tuple[Guard, ...] = (),
        *,
        needs_identity: bool = False,
        judges: Callable[[Asked], Awaitable[bool]] | None = None,
    ) -> None:
        self._text = text
        self.lets_in = lets_in
        # whether it lets a caller in by a function or a row that it asks, and not just as `signed_in` or `public`
        self.judges = judges or lets_in
        self.takes = takes  # the arguments of the function that it looks at
        self.guards = guards  # the functions among it
        self.needs_identity = needs_identity  # whether it lets in nobody without an identity, such as jobs

    def __str__(self) -> str:
        return self._text

    def __and__(self, other: Access | Guard) -> Access:
        return _both(self, access_of(other))

    def __rand__(self, other: Guard) -> Access:
        return _both(access_of(other), self)

    def __or__(self, other: Access | Guard) -> Access:
        return _either(self, access_of(other))

    def __ror__(self, other: Guard) -> Access:
        return _either(access_of(other), self)

    def __bool__(self) -> NoReturn:
        raise DeclarationError("and, or and not would keep one of two guards.", fix="Join them with & and |.")


def access_of(given: Access | Guard) -> Access:
    """The access that a declaration gives, or the guard that it names; `DeclarationError` if it is neither."""
    if isinstance(given, Access):
        return given
    if not hasattr(given, "__globals__"):
        raise DeclarationError(
            f"access={given!r} says nothing about callers.", fix="Write signed_in, public, or a function of a ctx."
        )
    check_declaration(given, given.__name__, "guard", public=False)
    names = [*inspect.signature(given).parameters.values()][1:]

    async def lets_in(asked: Asked) -> bool:
        arguments = {one.name: asked.arguments[one.name] for one in names if one.name in asked.arguments}
        found = await asked.ask(given, arguments)
        if not isinstance(found, bool):  # a coroutine would be true
            raise ResultInvalid(f"The guard {given.__name__} returned {type(found).__name__}.", fix="Return a bool.")
        return found

    return Access(given.__name__, lets_in, frozenset(one.name for one in names if one.default is one.empty), (given,))


def _both(left: Access, right: Access) -> Access:
    async def lets_in(asked: Asked) -> bool:
        return await left.lets_in(asked) and await right.lets_in(asked)

    async def judges(asked: Asked) -> bool:
        return await lets_in(asked) and (await left.judges(asked) or await right.judges(asked))

    text = " & ".join(f"({one})" if " | " in str(one) else str(one) for one in (left, right))
    needs = left.needs_identity or right.needs_identity
    return Access(
        text, lets_in, left.takes | right.takes, left.guards + right.guards, needs_identity=needs, judges=judges
    )


def _either(left: Access, right: Access) -> Access:
    async def lets_in(asked: Asked) -> bool:
        return await left.lets_in(asked) or await right.lets_in(asked)

    async def judges(asked: Asked) -> bool:
        return await left.judges(asked) or await right.judges(asked)

    text, needs = f"{left} | {right}", left.needs_identity and right.needs_identity
    return Access(
        text, lets_in, left.takes | right.takes, left.guards + right.guards, needs_identity=needs, judges=judges
    )


async def _nobody(_asked: Asked) -> bool:
    return False


async def _anybody(_asked: Asked) -> bool:
    return True


async def _has_identity(asked: Asked) -> bool:
    return asked.identity() is not None


public = Access("public", _anybody, judges=_nobody)
"""Anybody may call the function, on purpose."""

signed_in = Access("signed_in", _has_identity, needs_identity=True, judges=_nobody)
"""Callers with an identity."""


def owner_of(table: type[Table], argument: str, *, field: str = "owner", claim: str = "token_identifier") -> Access:
    """The owner of the row whose id is an argument. A row that does not exist has none.

    Args:
        table: The row's table.
        argument: The name of the argument.
        field: The field of the row that names the owner.
        claim: The attribute of the caller's `Identity` that it equals. Users of two providers may have one ``subject``.

    Raises:
        DeclarationError: The table has no such field, or an identity no such attribute.
    """
    if field not in table.model_fields:
        fields = ", ".join(table.model_fields)
        raise DeclarationError(
            f"owner_of: table {table.__name__} has no field {field!r}.", fix=f"Write field=… with one of {fields}."
        )
    if claim not in Identity.model_fields and claim not in Identity.model_computed_fields:
        raise DeclarationError(
            f"owner_of: an identity has no {claim!r}.", fix="Write claim=… with a field of Identity, such as email."
        )

    async def owns(ctx: Any, row_id: Any) -> bool:
        identity = await ctx.auth.get_user_identity()
        wanted = None if identity is None else getattr(identity, claim)
        row = None if wanted is None else await ctx.db.get(table, row_id)
        return row is not None and getattr(row, field) == wanted

    async def lets_in(asked: Asked) -> bool:
        return bool(await asked.ask(owns, {"row_id": asked.arguments.get(argument)}))

    options = (field != "owner") * f', field="{field}"' + (claim != "token_identifier") * f', claim="{claim}"'
    text = f'owner_of({table.__name__}, "{argument}"{options})'
    return Access(text, lets_in, frozenset({argument}), needs_identity=True)
