"""``penstock config``: the settings in force, each with its origin and its meaning."""

from __future__ import annotations

import inspect
import re
from dataclasses import asdict
from typing import Any

import click

from penstock.cli.opening import open_app, safe_url
from penstock.cli.options import Options, json_option
from penstock.cli.output import print_json, print_table
from penstock.config import SECRETS, Config, find_settings

_ATTRIBUTE = re.compile(r"(\w+): (.+)")


@click.command("config")
@json_option()
def command(options: Options) -> None:
    """Show the settings in force, where each comes from, and what it means."""
    config = open_app(options).config(**options.place)
    hidden = {name: safe_url(getattr(config, name)) for name in ("database", "direct_database", "read_url")}
    secret = {name: getattr(config, name) and "***" for name in SECRETS}
    values = asdict(config) | secret | hidden
    sources = _sources(options, config)
    meanings = _meanings()
    if options.json:
        print_json({name: {"value": value, "source": sources[name]} for name, value in values.items()})
        return
    rows = [(name, _text_of(value), sources[name], meanings.get(name, "")) for name, value in values.items()]
    print_table(("setting", "value", "from", "meaning"), rows)


def _sources(options: Options, config: Config) -> dict[str, str]:
    """The origin of each setting; one from neither the environment nor a file comes from the program."""
    found, default, sources = find_settings(), asdict(Config()), {}
    for name, value in asdict(config).items():
        if options.place.get(name):
            sources[name] = f"--{name}"
        elif name in found and found[name][0] == value:
            sources[name] = found[name][1]
        else:
            sources[name] = "default" if value == default[name] else "App(…)"
    return sources


def _meanings() -> dict[str, str]:
    _before, _attributes, listed = (inspect.getdoc(Config) or "").partition("Attributes:\n")
    joined = re.sub(r"\n\s{8,}", " ", listed)
    found = filter(None, (_ATTRIBUTE.fullmatch(line.strip()) for line in joined.splitlines()))
    return {match[1]: match[2].partition(". ")[0].rstrip(".").replace("`", "") for match in found}


def _text_of(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
