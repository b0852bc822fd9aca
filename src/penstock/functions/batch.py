"""Batch functions: a handler that takes the calls of many jobs at once, and gives a result for each.

Owns the type of one call, and the check of the handler's answer. Its callers make one call at a time: the arguments
are those of one item of the handler's list.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import ValidationError

from penstock.dataclass import dataclass
from penstock.errors import ArgumentsInvalid, DeclarationError, ResultInvalid

LARGEST_BATCH = 10_000
LONGEST_LINGER = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Batch:
    handler: Callable[..., Any]  # takes a ctx and a list of calls; gives a list of as many results, or exceptions
    size: int  # how many calls it takes at most
    of: Callable[..., Any]  # the type of one call, such as a dataclass or a pydantic model
    linger: timedelta  # how long the first of them waits for more
    # whether the handler takes each call with the attempt at its job, as those of reactive tasks do
    with_attempts: bool = False

    def item(self, name: str, arguments: dict[str, Any]) -> Any:
        try:
            return self.of(**arguments)
        except (ValidationError, ValueError) as error:
            raise ArgumentsInvalid(f"{name}: invalid arguments: {error}.", function=name) from error

    def results(self, name: str, answer: Any, count: int) -> Sequence[Any]:
        """The answer of a handler, if it has one result for each call."""
        if not isinstance(answer, list | tuple):
            raise ResultInvalid(f"{name} returned {type(answer).__name__}; a batch function returns a list.")
        if len(answer) != count:
            raise ResultInvalid(
                f"{name} returned {len(answer)} results for {count} calls.",
                fix="Return one result or exception for each call, in order.",
                function=name,
            )
        return answer

    def single(self, name: str, *, is_async: bool) -> Callable[..., Any]:
        """A handler for a single call, which gives or raises the only result."""

        def only(answer: Any) -> Any:
            (result,) = self.results(name, answer, 1)
            if isinstance(result, Exception):
                raise result
            return result

        async def single(ctx: Any, /, **arguments: Any) -> Any:
            return only(await self.handler(ctx, [self.item(name, arguments)]))

        def single_in_thread(ctx: Any, /, **arguments: Any) -> Any:
            return only(self.handler(ctx, [self.item(name, arguments)]))

        own = list(inspect.signature(self.handler).parameters.values())[:1]
        taken = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(self.of).parameters.values()
            if parameter.kind in {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
        ]
        chosen: Any = functools.wraps(self.handler)(single if is_async else single_in_thread)
        chosen.__signature__ = inspect.Signature([*own, *taken])
        return chosen  # type: ignore[no-any-return]


def check_batch(batch: Batch, name: str, runtime: str, parameters: int) -> None:
    size: Any = batch.size
    linger: Any = batch.linger
    if type(size) is not int or not 1 <= size <= LARGEST_BATCH:
        raise DeclarationError(f"{name}: a batch has from 1 to {LARGEST_BATCH} calls, not {size!r}.")
    if not isinstance(linger, timedelta) or not timedelta(0) <= linger <= LONGEST_LINGER:
        raise DeclarationError(f"{name}: linger is a timedelta of at most a minute, not {linger!r}.")
    if not isinstance(batch.of, type):
        raise DeclarationError(
            f"{name}: a batch function says what one call is.", fix="Write batch=…, of= and a dataclass or a model."
        )
    if runtime != "thread":
        raise DeclarationError(f'{name}: a batch function does not run with runtime="{runtime}".')
    if parameters != 1:
        raise DeclarationError(f"{name}: a batch function takes its ctx and one list of calls.")


def result_of_one(annotation: Any, name: str) -> Any:
    """The result of one call, of ``list[str | Exception]``: ``str``."""
    if annotation is Any or annotation is list:
        return Any
    if get_origin(annotation) not in {list, tuple, Sequence} or not get_args(annotation):
        raise DeclarationError(f"{name}: a batch function returns a list.", fix="Annotate -> list[Result | Exception].")
    element = get_args(annotation)[0]
    if get_origin(element) not in {Union, UnionType}:
        return None if isinstance(element, type) and issubclass(element, Exception) else element
    kept = tuple(one for one in get_args(element) if not (isinstance(one, type) and issubclass(one, Exception)))
    return Union[kept] if kept else None  # noqa: UP007 - its members are known at run time only
