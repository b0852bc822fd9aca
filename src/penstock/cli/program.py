"""Finds the app of a program and imports it.

Owns the order of the search: the name given by the caller, then ``app = "…"`` in the project files, then modules of
the current folder. Leaves how a failing program is shown to `failure`.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.app import App
from penstock.cli.failure import ProgramFailed
from penstock.config import project_files
from penstock.dataclass import dataclass
from penstock.errors import ConfigError

_MAKES_APP = re.compile(r"^\w+[ \t]*(?::[^=\n]+)?=[ \t]*(?:penstock\.)?App\(", re.MULTILINE)
_NAMES_PENSTOCK = re.compile(r"^\s*(?:from|import)[ \t]+penstock\b", re.MULTILINE)
_USUAL = ("app", "main")
_NAMED = re.compile(r"(?P<place>[^:].*?)(?::(?P<name>[A-Za-z_][\w.]*))?")


@dataclass(frozen=True, slots=True)
class Program:
    """Where an app is: a dotted module, the app's name in it if one was given, and the folder to import it from."""

    module: str
    name: str | None
    folder: Path

    @property
    def sources(self) -> Path:
        """The folder or file that holds its source: its package, or the folder of a lone module."""
        top = self.folder / self.module.partition(".")[0]
        if top.is_dir():
            return top
        if not top.with_suffix(".py").is_file():
            with suppress(ImportError, ValueError):
                spec = importlib.util.find_spec(top.name)
                if spec is not None and spec.origin:
                    return Path(spec.origin).parent
        return self.folder


def find_program(named: str | None, folder: Path) -> Program:
    """The program that is named, as ``module[:name]`` or ``path/file.py[:name]``, or the one in a folder."""
    named = named or _project_app(folder)
    if not named:
        return Program(_search(folder), None, folder)
    match = _NAMED.fullmatch(named)
    if match is None:
        raise ConfigError(f"{named!r} names no app.", fix="Write --app module:app, or --app path/file.py.")
    place, name = match["place"], match["name"]
    if place.endswith(".py") or "/" in place:
        return _at_path(folder / place, name)
    return Program(place, name, folder)


def load_app(program: Program) -> App:
    for folder in (Path.cwd(), program.folder):
        if str(folder) not in sys.path[:2]:
            sys.path.insert(0, str(folder))
    return _app_in(_import(program), program)


def _import(program: Program) -> ModuleType:
    top = program.module.partition(".")[0]
    try:
        return importlib.import_module(program.module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if program.module == missing or program.module.startswith(f"{missing}."):
            raise ConfigError(
                f"There is no module {missing!r} here.",
                fix=f"Start penstock where {top!r} can be imported, or name its file: --app path/to/{top}.py.",
            ) from None
        raise ProgramFailed from error
    except (Exception, SystemExit) as error:
        raise ProgramFailed from error


def _app_in(module: ModuleType, program: Program) -> App:
    found = {name: value for name, value in vars(module).items() if isinstance(value, App)}
    if program.name is not None:
        value: Any = module
        for part in program.name.split("."):
            value = getattr(value, part, None)
        if isinstance(value, App):
            return value
        what = f"{program.name} in it is no App" if value is not None else f"it has no {program.name}"
        raise ConfigError(
            f"The module {program.module} was found, but {what}.", fix=_choice(program.module, list(found))
        )
    if not found:
        raise ConfigError(
            f"{program.module} has no App.", fix="Write app = App() in it, or name another module: --app."
        )
    if len({id(value) for value in found.values()}) > 1:
        raise ConfigError(f"{program.module} has more than one App.", fix=_choice(program.module, list(found)))
    return next(iter(found.values()))


def _choice(module: str, names: list[str]) -> str:
    listed = " or ".join(f"--app {module}:{name}" for name in names)
    return f"Name it: {listed}." if listed else f"Write app = App() in {module}."


# ----- where it may be


def _at_path(path: Path, name: str | None) -> Program:
    """The program in a file or a package's folder; its module is named as its package would import it."""
    path = path.resolve()
    if not path.exists():
        raise ConfigError(f"{path} does not exist.", fix="Name an existing file: --app path/to/file.py.")
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if parts[-1] == "__init__":
        parts.pop()
    return Program(".".join(parts), name, folder)


def _project_app(folder: Path) -> str | None:
    for file, content in reversed(project_files(folder)):
        if not isinstance(app := content.get("app"), str | None):
            raise ConfigError(f'{file}: app must be text such as "shop.main:app", not {app!r}.')
        if app:
            return app
    return None


def _search(folder: Path) -> str:
    """The only module of a folder that makes an App; ``app`` and ``main`` come before all others."""
    texts = {module: file.read_text("utf-8", errors="replace") for module, file in _modules(folder) if file.is_file()}
    found = [module for module, text in texts.items() if _MAKES_APP.search(text) and _NAMES_PENSTOCK.search(text)]
    for usual in _USUAL:
        if usual in found:
            return usual
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(
            f"There is no app in {folder}.",
            fix='Name it: --app module:app, PENSTOCK_APP, or app = "module:app" in penstock.toml. '
            "Or make one: penstock init.",
        )
    raise ConfigError(
        f"There is more than one app in {folder}: {', '.join(found)}.",
        fix=f'Name one: --app {found[0]}, PENSTOCK_APP, or app = "{found[0]}" in penstock.toml.',
    )


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Modules of a folder, and those of its packages where an app usually is."""
    found = [(file.stem, file) for file in sorted(folder.glob("*.py")) if file.stem.isidentifier()]
    for package in sorted(folder.glob("*/__init__.py")):
        name = package.parent.name
        if name.isidentifier():
            found.append((name, package))
            found += [(f"{name}.{usual}", package.parent / f"{usual}.py") for usual in _USUAL]
    return found
