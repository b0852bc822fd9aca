"""Every Python block on every page runs, and so does every function that a page declares.

The blocks of a page are one module, in their order; code that readers need not see stands in HTML comments. After the
import all functions named ``test_…`` or ``main`` are run.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from stage.repository import own_module

from penstock import App
from penstock.calls.run.runner import FunctionCalls
from penstock.calls.workflows.body import Body
from penstock.check.checker import check
from penstock.functions.component import short_name
from penstock.functions.function import Function

_CODE_WIDTH = 100


@pytest.fixture
def folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code_page: Path, modules: dict[Path, dict[str, str]]
) -> Iterator[Path]:
    """An empty folder from which modules are imported; they, and what they did to logging, are forgotten afterwards."""
    for name in modules[code_page]:
        monkeypatch.delitem(sys.modules, name, raising=False)  # of another page, or of an example
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in list(os.environ):
        if name.startswith("PENSTOCK_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    logger = logging.getLogger("penstock")
    handlers, level = list(logger.handlers), logger.level
    yield tmp_path
    logger.handlers[:] = handlers
    logger.setLevel(level)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the functions that have been run, by penstock or as plain helpers."""
    names: set[str] = set()
    ways: tuple[tuple[type, str], ...] = (
        (FunctionCalls, "run_handler"),
        (FunctionCalls, "action"),
        (Function, "__call__"),
        (Body, "begin"),
    )
    for owner, method in ways:
        monkeypatch.setattr(owner, method, noting(getattr(owner, method), names))
    return names


def noting(method: Callable[..., Any], names: set[str]) -> Callable[..., Any]:
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        function = self if isinstance(self, Function) else (self if isinstance(self, Body) else args[0]).function
        names.add(short_name(function.name))
        return method(self, *args, **kwargs)

    return noted


def test_the_code_of_a_page_runs(
    code_page: Path, modules: dict[Path, dict[str, str]], folder: Path, ran: set[str]
) -> None:
    found = modules[code_page]
    for name, text in found.items():
        (folder / f"{name}.py").write_text(text, "utf-8")
    importlib.invalidate_caches()
    loaded = [importlib.import_module(name) for name in found]
    for story in (story for module in loaded for story in stories_of(module)):
        result = story()
        if inspect.iscoroutine(result):
            asyncio.run(result)
    assert not declared_by(loaded) - ran, "functions that the page shows and never runs"


def declared_by(loaded: list[ModuleType]) -> set[str]:
    apps = {id(app): app for module in loaded for app in vars(module).values() if isinstance(app, App)}
    return {short_name(function.name) for app in apps.values() for function in app.registry}


def stories_of(module: ModuleType) -> list[Any]:
    return [
        value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and (name.startswith("test_") or name == "main")
    ]


def test_code_keeps_to_the_best_practices(modules: dict[Path, dict[str, str]], tmp_path: Path) -> None:
    for page, found in modules.items():
        (tmp_path / own_module(page)).mkdir()
        for name, text in found.items():
            (tmp_path / own_module(page) / f"{name}.py").write_text(text, "utf-8")
    assert not check([tmp_path]).findings


def test_code_fits_on_the_page(modules: dict[Path, dict[str, str]]) -> None:
    wide = [
        f"{page.name}:{number}"
        for page, found in modules.items()
        for text in found.values()
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > _CODE_WIDTH
    ]
    assert not wide
