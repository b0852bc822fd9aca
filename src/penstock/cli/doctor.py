"""``penstock doctor``: what is wrong with a running system, how bad it is, and the next step.

Owns how findings look, and the exit status. Leaves the findings to `api/health`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.error import URLError
from urllib.request import Request, urlopen

import click
from prometheus_client.parser import text_string_to_metric_families

from penstock.api.health import SEVERITIES, HealthFinding
from penstock.cli.failure import style
from penstock.cli.opening import with_backend
from penstock.cli.options import Options, json_option
from penstock.cli.output import print_json, wrapper
from penstock.cli.visible import visible_line
from penstock.config import load_config
from penstock.errors import ConfigError, DatabaseUnavailable
from penstock.observe.readable import counted

_SECONDS = 10.0
_WIDTH, _INDENT = 80, 10
_COLOURS = {"critical": "red", "warning": "yellow", "notice": "blue"}
_EXIT_STATUS = {"critical": 2, "warning": 1, "notice": 0}


@click.command("doctor")
@click.option("--metrics", multiple=True, metavar="URL", help="Read conflicts there too; may be repeated.")
@json_option()
def command(options: Options, metrics: Sequence[str]) -> int:
    """Find what needs a person: stuck leases, a full feed, halted outboxes, missing indexes, and more.

    Each finding says what is wrong, where, and the next step. Exit status 2 if one is critical, 1 if one is a warning,
    else 0. Conflicts are counted by the processes: name the /metrics of some with --metrics.
    """
    calls = _calls(metrics) if metrics else None
    try:
        found = with_backend(options, lambda backend: backend.health(calls))
    except DatabaseUnavailable as error:
        found = [HealthFinding("database-away", "critical", "database", error.what, error.fix)]
    if options.json:
        print_json({"findings": found})
    else:
        _show(found)
    return max((_EXIT_STATUS[one.severity] for one in found), default=0)


def _show(found: Sequence[HealthFinding]) -> None:
    indent = " " * _INDENT
    fill = wrapper(_WIDTH, initial_indent=indent, subsequent_indent=indent).fill
    for one in found:
        severity = style(f"{one.severity:{_INDENT}}", fg=_COLOURS[one.severity], bold=True)
        click.echo(f"{severity}{visible_line(one.where)}  ({one.code})")
        for text in (one.what, one.fix):
            click.echo(fill(visible_line(text)))
        if one.command:
            click.echo(f"{'':{_INDENT}}$ {visible_line(one.command)}")
        click.echo()
    numbers = Counter(one.severity for one in found)
    click.echo(", ".join(counted(numbers[one], one, one) for one in SEVERITIES if numbers[one]) or "nothing found")


def _calls(urls: Sequence[str]) -> Mapping[str, tuple[int, int]]:
    """By function, how often it conflicted and ran, summed over processes."""
    conflicts, runs = Counter[str](), Counter[str]()
    for url in urls:
        for family in text_string_to_metric_families(_read(url)):
            into = {"penstock_conflicts": conflicts, "penstock_calls": runs}.get(family.name, Counter[str]())
            for sample in family.samples:
                if sample.name.endswith("_total"):
                    into[sample.labels["function"]] += int(sample.value)
    return {name: (number, runs[name]) for name, number in conflicts.items()}


def _read(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url} is not the address of metrics.", fix="Use http://host:port/metrics.")
    try:
        headers = {"authorization": f"Bearer {load_config().metrics_token}"}
        with urlopen(Request(url, headers=headers), timeout=_SECONDS) as answer:  # noqa: S310 - checked above
            text: str = answer.read().decode()
    except (URLError, TimeoutError, ValueError) as error:
        fix = "Check the address, and the setting metrics_token."
        raise ConfigError(f"No metrics could be read at {url}: {error}.", fix=fix) from error
    return text
