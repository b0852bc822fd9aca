"""``penstock codegen`` and ``function-spec``: write typed clients of the app, and describe it for Convex's tools.

Owns where files go, and that no file of the user's own is written over. Leaves their text to `penstock.codegen`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from penstock.app import App
from penstock.cli.failure import ProgramFailed, show_failure, style
from penstock.cli.opening import open_app
from penstock.cli.options import Options, pass_options
from penstock.cli.output import print_json, say
from penstock.cli.watch import Watch, start_again
from penstock.codegen.description import Description, describe
from penstock.codegen.functionspec import function_spec
from penstock.codegen.openapi import openapi
from penstock.codegen.python import python_module
from penstock.codegen.typescript import typescript_files
from penstock.config import project_files
from penstock.errors import ConfigError, UsageError

_WRITERS: dict[str, Callable[[Description], dict[str, str]]] = {
    "typescript": typescript_files,
    "python": lambda description: {"api.py": python_module(description)},
    "openapi": lambda description: {"openapi.json": json.dumps(openapi(description), indent=2) + "\n"},
}
_OURS = ("penstock codegen", '"openapi": "3')  # at the beginning of what was written here
_HEAD = 200

Places = Mapping[str, Path]  # the folders of clients, by their language


@click.command("codegen")
@click.option("--out", metavar="FOLDER", help="Where to write; by default where the project file says.")
@click.option(
    "--typescript", "chosen", flag_value="typescript", multiple=True, help="Write types for Convex's clients."
)
@click.option("--python", "chosen", flag_value="python", multiple=True, help="Write a Python module.")
@click.option("--openapi", "chosen", flag_value="openapi", multiple=True, help="Write an OpenAPI document.")
@click.option("--check", is_flag=True, help="Write nothing, and fail if something would be written.")
@click.option("--watch", is_flag=True, help="Write again whenever the source changes.")
@pass_options
def command(options: Options, out: str | None, chosen: tuple[str, ...], check: bool, watch: bool) -> int:
    """Write typed clients of the public functions: for TypeScript, for Python, and an OpenAPI document.

    The project file says where, such as typescript = "web/api" in [tool.penstock.codegen].
    """
    places = project_places() if out is None else dict.fromkeys(_WRITERS, Path(out))
    places = {language: place for language, place in places.items() if language in (chosen or _WRITERS)}
    if not places:
        raise ConfigError(
            "Nothing says where to write.",
            fix='Add --out FOLDER, or typescript = "FOLDER" to [tool.penstock.codegen] of this folder.',
        )
    if not watch:
        return _write(options, places, check=check)
    seen = Watch(options, sources_in(places))
    try:
        _write(options, places, check=check)
    except (ProgramFailed, UsageError) as error:
        show_failure(error, as_json=False, debug=options.debug)
    say(style("Waiting for a change of the source.", fg="cyan"))
    return start_again(asyncio.run(seen.next_change()), {})


@click.command("function-spec")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The address of the server.")
@pass_options
def function_spec_command(options: Options, url: str) -> None:
    """Print the functions as Convex's function spec, in JSON, for tools such as convex-helpers."""
    registry = open_app(options).registry
    print_json(function_spec(describe(registry, http=registry.http), url), pretty=True)


def project_places() -> dict[str, Path]:
    """The folders that the project file of the current folder names.

    Raises:
        ConfigError: It names another language, or no folder.
    """
    for file, content in reversed(project_files(Path.cwd())):
        found: Any = content.get("codegen", {})
        if not isinstance(found, dict) or not all(isinstance(place, str) and place for place in found.values()):
            raise ConfigError(f'{file}: codegen must be a table of folders, such as typescript = "web/api".')
        if unknown := [language for language in found if language not in _WRITERS]:
            raise ConfigError(f"{file}: codegen writes no {unknown[0]}.", fix=f"It writes {', '.join(_WRITERS)}.")
        if found:
            return {language: Path(place) for language, place in found.items()}
    return {}


def sources_in(places: Places) -> set[Path]:
    """The files of clients that would pass for the program's own source."""
    return {Path.cwd() / place / "api.py" for place in places.values()}


def stale_files(app: App, places: Places) -> dict[Path, str]:
    """The files of clients that are missing or say something else, with what they should say."""
    if not places:
        return {}
    tables = app.definitions()
    own = [one for one in tables if one.row_type is one.table]
    foreign = {one.row_type: one.name for one in tables if one.row_type is not one.table}
    description = describe((one for one in app.registry if one.public), own, foreign=foreign)
    public = describe((one for one in app.registry if one.public), http=app.registry.http)  # whose rows callers see
    files = {
        place / name: text
        for language, place in places.items()
        for name, text in _WRITERS[language](public if language == "openapi" else description).items()
    }
    return {path: text for path, text in files.items() if not path.is_file() or path.read_text("utf-8") != text}


def write_files(files: Mapping[Path, str]) -> None:
    """Write files of clients.

    Raises:
        ConfigError: One of them is there, and was not written by this.
    """
    for path in files:
        if path.is_file() and not any(mark in path.read_text("utf-8")[:_HEAD] for mark in _OURS):
            raise ConfigError(f"{path} was not written by penstock codegen.", fix="Move it, or name another folder.")
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}.", fix="Name another folder.") from error


def _write(options: Options, places: Places, *, check: bool) -> int:
    """Write, or check, what is not current; the exit code."""
    files = stale_files(open_app(options), places)
    if not check:
        write_files(files)
    for path in files:
        say(f"{'not current' if check else 'wrote'}: {path}")
    if check and files:
        say("Run penstock codegen to write them.")
    return int(check and bool(files))
