"""The settings of `penstock check`, from ``[tool.penstock.check]`` of pyproject.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from penstock.check.ignoring import CODE, the_rules
from penstock.check.rule import RULES


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a check."""

    paths: tuple[str, ...] = (".",)  # files and folders; the folder of pyproject.toml by default
    select: tuple[str, ...] = ()  # the rules to look for; all by default
    ignore: tuple[str, ...] = ()  # rules to leave out
    baseline: str = ""  # a file with findings that are not told; see `baseline`

    def codes(self) -> set[str]:
        """The rules to look for.

        Raises:
            ValueError: There is no such rule.
        """
        known = {*RULES, CODE}
        unknown = sorted({*self.select, *self.ignore} - known)
        if unknown:
            raise ValueError(no_rule(unknown[0]))
        return (set(self.select) or known) - set(self.ignore)


def no_rule(code: str) -> str:
    """The message about a code that no rule has."""
    return f"There is no rule {code}. {the_rules()}"


def read_settings(folder: Path) -> tuple[Settings, Path]:
    """The settings of the nearest pyproject.toml that has some, and its folder; else the default and this folder.

    Raises:
        ValueError: A setting is unknown or of a wrong type, or names a path that is not there.
    """
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            given = tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("penstock", {}).get("check")
        except ValueError as error:
            raise ValueError(f"{file} cannot be read: {error}.") from error
        if isinstance(given, dict):
            return Settings(**dict(_check(file, given))), place
        if given is not None:
            raise ValueError(f"{file}: [tool.penstock.check] is a table.")
    return Settings(), folder


def _check(file: Path, given: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    known = {one.name for one in fields(Settings)}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"{file}: [tool.penstock.check] has no setting {name}. It has {', '.join(sorted(known))}.")
        if name == "baseline":
            if not isinstance(value, str):
                raise ValueError(f"{file}: baseline is the path of a file.")
            yield name, value
        elif isinstance(value, list) and all(isinstance(one, str) for one in value):
            missing = [one for one in value if name == "paths" and not (file.parent / one).exists()]
            if missing:
                raise ValueError(f"{file}: paths names {missing[0]}, and there is no such file or folder.")
            yield name, tuple(value)
        else:
            raise ValueError(f'{file}: {name} is a list of texts, such as ["PEN003"].')
