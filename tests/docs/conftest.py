"""The pages of the documentation, and the code on them, read once."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage.repository import PAGES, ROOT, Block, blocks_of, modules_of, own_module


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def pages() -> list[Path]:
    """All pages."""
    return PAGES


@pytest.fixture(scope="session")
def blocks() -> dict[Path, list[Block]]:
    """All code on all pages."""
    return {page: list(blocks_of(page)) for page in PAGES}


@pytest.fixture(scope="session")
def modules() -> dict[Path, dict[str, str]]:
    """All Python modules on all pages."""
    return {page: modules_of(page) for page in PAGES}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `code_page` runs once for each page with Python code."""
    if "code_page" in metafunc.fixturenames:
        found = [page for page in PAGES if page.exists() and modules_of(page)]
        metafunc.parametrize("code_page", found, ids=[own_module(page) for page in found])
