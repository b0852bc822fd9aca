"""The registry: one function to a name."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import DeclarationError
from penstock.functions.function import MutationFunction, QueryFunction
from penstock.functions.registry import Registry


async def look(ctx: Any) -> int:
    """Look it up."""
    return 1


def named(name: str) -> QueryFunction[Any, Any, Any, Any]:
    return QueryFunction(look, public=True, name=name)


def test_functions_are_found_by_their_names_and_by_nothing_else() -> None:
    registry = Registry()
    first, second = named("shop.bookings:look"), named("look:look")
    registry.add(first)
    registry.add(second)
    registry.add(first)
    assert list(registry) == [first, second]
    assert registry.find("shop.bookings:look") is first
    assert registry.find("shop/bookings:look") is first, "as other clients spell it"
    for path in ("", "look", ":look", "look:", "shop.bookings", "shop.bookings:Look", "shop.bookings:look ", "a:b:c"):
        assert registry.find(path) is None


def test_a_name_is_taken_once() -> None:
    registry = Registry()
    registry.add(named("shop:look"))
    for other in (named("shop:look"), MutationFunction[Any, Any, Any, Any](look, public=False, name="shop:look")):
        with pytest.raises(DeclarationError, match="Two functions are named shop:look"):
            registry.add(other)
    assert len(list(registry)) == 1


@pytest.mark.parametrize("name", ["look", ":look", "shop:", "shop:<lambda>", "1shop:look", "shop:1", "a/b:c", "a:b:c"])
def test_names_that_no_path_could_say_are_refused(name: str) -> None:
    for spelled in (name, f"{name} ", f" {name}", f"{name}\n"):
        with pytest.raises(DeclarationError, match="is not a function name"):
            Registry().add(named(spelled))


def test_a_lambda_has_no_name() -> None:
    with pytest.raises(DeclarationError, match="is not a function name"):
        Registry().add(QueryFunction(lambda ctx: ctx, public=False))
