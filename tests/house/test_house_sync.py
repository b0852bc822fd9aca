"""The faces of asynchronous classes have what their stubs say. `make check` compares the stubs with the classes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from house.syncfaces import PACKAGE, PAGES, Function, module_of, names_in

from penstock.calls.enqueue.jobs import JobCalls
from penstock.transaction.scan import Scan


def stubs() -> Iterator[tuple[str, type[Any], Function]]:
    """Each method and property of each stub, with the page and the face."""
    for page in PAGES:
        tree = ast.parse((PACKAGE / page).with_suffix(".pyi").read_text("utf-8"))
        for kind in (one for one in tree.body if isinstance(one, ast.ClassDef)):
            face = getattr(import_module(module_of(page)), kind.name)
            yield from ((page, face, one) for one in kind.body if isinstance(one, Function))


def test_a_face_has_what_its_stub_says() -> None:
    for _page, face, stub in stubs():
        given = inspect.getattr_static(face, stub.name)
        assert isinstance(given, property) is bool(stub.decorator_list), (face, stub.name)
        assert given.__doc__ or stub.name.startswith("__") or stub.name == "db", (face, stub.name)
        if not isinstance(given, property):
            args = stub.args
            named = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
            taken = inspect.signature(given).parameters.values()
            assert [one.name for one in taken] == [one.arg for one in named if one is not None], (face, stub.name)


def test_no_face_gives_what_is_to_be_awaited() -> None:
    """Such as an object of a class that has no face."""
    awaited = set()
    for page, face, stub in stubs():
        imports = ast.parse((PACKAGE / page).with_suffix(".pyi").read_text("utf-8")).body
        homes = {name.name: one.module for one in imports if isinstance(one, ast.ImportFrom) for name in one.names}
        for name in names_in([ast.unparse(stub.returns)] if stub.returns else []) & homes.keys():
            kind = getattr(import_module(str(homes[name])), name)
            if isinstance(kind, type) and kind is not JobCalls and is_awaited(kind):
                awaited.add((face, stub.name))
    assert not awaited
    assert is_awaited(Scan)


def is_awaited(kind: type) -> bool:
    """Whether a class has methods that are awaited."""
    methods = [one for name, one in vars(kind).items() if inspect.isfunction(one) and not name.startswith("_")]
    return not kind.__name__.startswith("Sync") and any(
        inspect.iscoroutinefunction(inspect.unwrap(one))
        or str(one.__annotations__.get("return")).startswith("Coroutine")
        for one in methods
    )
