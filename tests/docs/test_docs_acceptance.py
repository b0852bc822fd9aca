"""Each behaviour that users of state-based tasks rely on has a test or a reason why it does not apply; a page sums up.

To write it anew::

    PENSTOCK_WRITE_DOCS=1 python -m pytest tests/docs/test_docs_acceptance.py
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_TEST = re.compile(r"^(?:async )?def (?P<name>test_\w+)\(", re.MULTILINE)
_IDS = re.compile(r"^test(?P<ids>(?:_[a-z]{1,3}\d+)+)_")
_BEHAVIOURS, _FAULTS = 238, 27
_PAGE = "reactive-tasks-acceptance.md"
_HEAD = """\
# Acceptance of reactive tasks

```console
$ python -m pytest tests -k test_f12
```

Users of state-based task systems rely on 238 behaviours, and such systems are known for 27 faults.
Each has an id, and either a test or a reason why it does not apply to penstock.
[acceptance.toml](../tests/docs/acceptance.toml) describes each id, and most tests are named after the ids they cover.

Tests of stories run on both stores. `tests/docs/test_docs_acceptance.py` generates this page.

| behaviours | ids | tests |
|---|---|---|
"""


@dataclass(frozen=True)
class Item:
    """A behaviour.

    Attributes:
        id: By which it is known.
        what: What it is.
        tests: Names of tests that do not bear its id.
        absent: Why it does not apply.
    """

    id: str
    what: str
    tests: tuple[str, ...] = ()
    absent: str = ""


@dataclass(frozen=True)
class Section:
    """Behaviours that belong together."""

    title: str
    faults: bool
    items: list[Item] = field(default_factory=list)


@pytest.fixture(scope="module")
def sections() -> list[Section]:
    text = Path(__file__).with_name("acceptance.toml").read_text("utf-8")
    return [
        Section(
            group["title"],
            group.get("defects", False),
            [
                Item(name, given) if isinstance(given, str) else Item(id=name, **given)
                for name, given in group["items"].items()
            ],
        )
        for group in tomllib.loads(text)["group"]
    ]


@pytest.fixture(scope="module")
def files(root: Path) -> dict[str, list[str]]:
    """All tests by name, each with the files that have one of this name."""
    found: dict[str, list[str]] = {}
    for path in sorted((*(root / "tests").rglob("test_*.py"), *(root / "tests/conformance").rglob("*.py"))):
        for one in re.finditer(_TEST.pattern.replace("^", r"^\s*"), path.read_text("utf-8"), re.MULTILINE):
            found.setdefault(one["name"], []).append(str(path.relative_to(root)))
    return found


@pytest.fixture(scope="module")
def by_id(files: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The tests that bear an id, by id."""
    found: dict[str, list[str]] = {}
    for name in files:
        if bears := _IDS.match(name):
            for one in bears["ids"].upper().split("_")[1:]:
                found.setdefault(one, []).append(name)
    return found


def named_for(item: Item, by_id: Mapping[str, list[str]], files: Mapping[str, list[str]]) -> list[str]:
    return sorted({*by_id.get(item.id, ()), *(name for name in item.tests if name in files)})


def row(section: Section, by_id: Mapping[str, list[str]], files: Mapping[str, list[str]]) -> str:
    where = sorted({files[name][0] for item in section.items for name in named_for(item, by_id, files)})
    links = ", ".join(f"[{Path(one).stem}](../{one})" for one in where)
    return f"| {section.title} | {spans([item.id for item in section.items])} | {links or 'none'} |"


def spans(ids: list[str]) -> str:
    """Ids, those of one prefix from the first to the last."""
    prefixes = dict.fromkeys(one.rstrip("0123456789") for one in ids)
    groups = [[one for one in ids if one.rstrip("0123456789") == prefix] for prefix in prefixes]
    return ", ".join(group[0] if len(group) == 1 else f"{group[0]} to {group[-1]}" for group in groups)


def test_every_behaviour_has_a_test_or_a_reason(
    sections: list[Section], by_id: dict[str, list[str]], files: dict[str, list[str]]
) -> None:
    items = [item for section in sections for item in section.items]
    ids = [one.id for one in items]
    faults = [one.id for section in sections if section.faults for one in section.items]
    assert faults == [f"F{number}" for number in range(1, _FAULTS + 1)]
    assert len({*ids}) == len(ids) == _BEHAVIOURS + _FAULTS
    tests = {one.id: named_for(one, by_id, files) for one in items}
    without = [one.id for one in items if bool(tests[one.id]) == bool(one.absent)]
    assert not without, "either a test is named after it, or acceptance.toml says why it does not apply"
    unknown = {one.id: name for one in items for name in one.tests if name not in files}
    assert not unknown, "acceptance.toml names tests that are not there"
    named = {name for found in tests.values() for name in found}
    assert not {name: files[name] for name in named if len(files[name]) > 1}, "the page could link only one of them"
    prefixes = {re.sub(r"\d+", "", one) for one in ids}
    assert not [one for one in by_id if re.sub(r"\d+", "", one) in prefixes and one not in ids]


def test_the_page_is_that_of_the_tests(
    root: Path, sections: list[Section], by_id: dict[str, list[str]], files: dict[str, list[str]]
) -> None:
    made = _HEAD + "".join(f"{row(section, by_id, files)}\n" for section in sections)
    page = root / "docs" / _PAGE
    if os.environ.get("PENSTOCK_WRITE_DOCS"):
        page.write_text(made, "utf-8")
        return
    assert page.read_text("utf-8") == made, "PENSTOCK_WRITE_DOCS=1 python -m pytest tests/docs/test_docs_acceptance.py"
