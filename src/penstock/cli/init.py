"""``penstock init``: writes a small project that runs at once.

Owns where its files go. Their contents are in the folder `project`, with `$name` for the project's name.
"""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path
from string import Template

import click

from penstock.cli.options import Options, pass_options
from penstock.cli.output import say
from penstock.distribution import requirement
from penstock.errors import ConfigError
from penstock.observe.readable import amount

_PLACES = (
    "app.py", "tests/conftest.py", "tests/test_app.py", "pyproject.toml", "README.md", "Dockerfile", ".dockerignore",
    "compose.yaml", ".github/workflows/ci.yml", ".gitignore",
)  # fmt: skip


@click.command("init")
@click.argument("folder", default=".", type=click.Path(file_okay=False, path_type=Path))
@pass_options
def command(_options: Options, folder: Path) -> None:
    """Write a small project into a folder: an app with a test, a Dockerfile, a compose file and a CI workflow.

    The folder is the current one unless you name another. Files that exist are never changed.
    """
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "app"
    found = [place for place in _PLACES if (folder / place).exists()]
    if found:
        raise ConfigError(
            f"{folder} has {', '.join(found)} already; nothing was written.",
            fix="Name a new folder: penstock init shop.",
        )
    source, wanted = files("penstock.cli") / "project", requirement("dashboard", "migrations", "postgres")
    for place in _PLACES:
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        template = Template((source / f"{path.name.removeprefix('.')}.txt").read_text("utf-8"))
        path.write_text(template.substitute(name=name, requirement=wanted), "utf-8")
        click.echo(path)
    if " @ file:" in wanted:
        say(f"pyproject.toml requires {wanted}. Docker and CI cannot read that: name an address there that they can.")
    enter = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    say(f"{amount(len(_PLACES), 'file')} written. Start the app: {enter}penstock dev")
