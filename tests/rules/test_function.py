"""Functions as they are declared: a name by which others find them, a kind, and the handler as it was."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from penstock import App
from penstock.errors import DeclarationError
from penstock.functions.function import ActionFunction, FunctionKind, MutationFunction, QueryFunction, name_of
from penstock.functions.registry import Registry


async def look(ctx: Any, number: int = 1) -> int:
    """Look it up."""
    return number


def compute(ctx: Any, number: int) -> int:
    """Work it out."""
    return number * 2


class Service:
    """Has methods, which no other process could find."""

    async def method(self, ctx: Any) -> int:
        """Be a method."""
        return 1

    @staticmethod
    async def static(ctx: Any) -> int:
        """Be nearly a function."""
        return 1


def test_a_function_keeps_its_name_its_text_and_its_handler() -> None:
    function = QueryFunction[Any, Any, Any, Any](look, public=True)
    assert (function.name, function.kind, function.public, function.is_async) == (
        "test_function:look", FunctionKind.QUERY, True, True,
    )  # fmt: skip
    assert function.handler is look
    assert function.__doc__ == "Look it up."
    assert repr(function) == "<query test_function:look>"
    assert repr(MutationFunction(look, public=False)) == "<internal mutation test_function:look>"
    assert function.signature is function.signature
    assert function.signature.parameters == ("number",)
    called = ActionFunction[Any, Any, Any, Any](compute, public=False)
    assert called("ctx", 5) == 10
    assert called("ctx", number=6) == 12
    assert not called.is_async
    with pytest.raises(TypeError):
        called(ctx="ctx", number=6)  # type: ignore[call-arg]  # the ctx has a place, no name


def test_what_is_no_function_that_could_be_found_is_refused() -> None:
    given: Any
    for given in (5, "look", Service(), len, QueryFunction(look, public=True)):
        with pytest.raises(DeclarationError, match=r" is not a function\. Decorate a function"):
            QueryFunction(given, public=True)
    for given in (Service.method, Service.static, Service().method):
        with pytest.raises(DeclarationError, match="is a method; declare functions at the top of a module"):
            QueryFunction(given, public=False)
    for word in ("query", "internal_query", "mutation", "internal_mutation"):
        decorate = getattr(App(), word)
        assert decorate() is not None, "parentheses do no harm"
        for arguments in ((), (look,)):
            with pytest.raises(DeclarationError, match=rf"^@app\.{word}: there is no option public\. There is access"):
                decorate(*arguments, public=True)
        with pytest.raises(DeclarationError, match=rf"^@app\.{word} takes one function\. Write @app\.{word} on the"):
            decorate(look, compute)


def test_only_actions_written_with_def_run_in_processes() -> None:
    runtime: Any
    for runtime in ("proces", None, 5):
        with pytest.raises(DeclarationError, match=r"there is no runtime .*\. Write one of 'thread', 'process'\.$"):
            ActionFunction(compute, public=True, runtime=runtime)
    for handler in (look, compute):
        for kind in (QueryFunction, MutationFunction):
            with pytest.raises(DeclarationError, match='runtime="process" is for CPU-bound actions written with def'):
                kind(handler, public=False, runtime="process")
    with pytest.raises(DeclarationError, match="not async def"):
        ActionFunction(look, public=False, runtime="process")
    assert ActionFunction(compute, public=False, runtime="process").runtime == "process"


@pytest.mark.parametrize(
    ("spec", "file", "name"),
    [
        (None, "/somewhere/shop.py", "shop:look"),
        (None, None, "__main__:look"),
        ("shop.main", "/somewhere/shop/main.py", "shop.main:look"),
        ("shop.__main__", "/somewhere/shop/__main__.py", "shop:look"),
    ],
)
def test_a_program_run_as_main_bears_the_name_by_which_others_import_it(
    monkeypatch: pytest.MonkeyPatch, spec: str | None, file: str | None, name: str
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = None if spec is None else type("Spec", (), {"name": spec})()
    if file is not None:
        main.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(look, "__module__", "__main__")
    assert name_of(look) == name


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
