"""``penstock init``: writes a small project that runs at once.

Owns what it asks and where its files go. Their contents are in the folder `project`: `base`, and over it the folder of
each choice. A line that begins with ``@choice:`` is for that choice; ``,`` is or, ``+`` is and. `$name` is the project.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

import click

from penstock.cli.options import Options, pass_options
from penstock.cli.output import say
from penstock.distribution import requirement
from penstock.errors import ConfigError
from penstock.observe.readable import amount

_LINE = re.compile(r"@([a-z,+]+):(?: |$)(.*\n)")
_WEB = ("none", "fastapi", "django")


@click.command("init")
@click.argument("folder", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option("--postgres/--sqlite", default=None, help="The database to develop with.  [default: --sqlite]")
@click.option("--web", type=click.Choice(_WEB), help="A web framework that serves the app.  [default: none]")
@click.option("--react/--no-react", default=None, help="A page in React, with live queries.  [default: --no-react]")
@pass_options
def command(_options: Options, folder: Path, *, postgres: bool | None, web: str | None, react: bool | None) -> None:
    """Write a small project into a folder: an app with tests, a Dockerfile, a CI workflow and tasks for VS Code.

    The folder is the current one unless you name another. Files that exist are never changed. Asks for what no option
    says, if there is a terminal.
    """
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "app"
    if _can_ask():
        if postgres is None:
            postgres = _ask("Which database do you develop with?", ("sqlite", "postgres")) == "postgres"
        web = web or _ask("Which web framework serves the app?", _WEB)
        if react is None:
            react = _ask("A page in React?", ("no", "yes")) == "yes"
    framework = "penstock" if web in {None, "none"} else str(web)
    chosen = ["postgres" if postgres else "sqlite", framework, "react" if react else "pageless"]
    extras = ["dashboard", "migrations", *(["postgres"] if postgres else [])]
    wanted = requirement(*extras)
    written = _texts(chosen, {"name": name, "requirement": wanted})
    found = [place for place in written if (folder / place).exists()]
    if found:
        raise ConfigError(
            f"{folder} has {', '.join(found)} already; nothing was written.",
            fix="Name a new folder: penstock init shop.",
        )
    for place, text in written.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        click.echo(path)
    if " @ file:" in wanted:
        say(f"pyproject.toml requires {wanted}. Docker and CI cannot read that: name an address there that they can.")
    enter = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    runs_at_once = framework == "penstock" and not react and not postgres
    start = f"{enter}penstock dev" if runs_at_once else f"see {folder / 'README.md'}"
    say(f"{amount(len(written), 'file')} written. Start the app: {start}")


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask(question: str, answers: tuple[str, ...]) -> str:
    answer: str = click.prompt(question, type=click.Choice(answers), default=answers[0], err=True)
    return answer


def _texts(chosen: list[str], facts: dict[str, str]) -> dict[str, str]:
    """The files by their places; a choice replaces those of `base`, and a web framework those of the page."""
    source, found = files("penstock.cli") / "project", {}
    for layer in ("base", "postgres", "react", "fastapi", "django"):
        if layer == "base" or layer in chosen:
            for place, text in _walk(source / layer):
                lines = (_line_for(line, chosen) for line in text.splitlines(keepends=True))
                found[place] = Template("".join(lines)).substitute(facts)
    return found


def _walk(folder: Traversable, above: str = "") -> Iterator[tuple[str, str]]:
    for one in sorted(folder.iterdir(), key=lambda one: one.name):
        place = above + re.sub(r"^_", ".", one.name.removesuffix(".txt"))
        if one.is_dir():
            yield from _walk(one, f"{place}/")
        else:
            yield place, one.read_text("utf-8")


def _line_for(line: str, chosen: list[str]) -> str:
    if (condition := _LINE.fullmatch(line)) is None:
        return line
    fits = any(set(every.split("+")) <= set(chosen) for every in condition[1].split(","))
    return condition[2] if fits else ""
