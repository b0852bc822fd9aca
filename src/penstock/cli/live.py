"""``penstock live``: the watched queries of one server, and why each ran last.

Only the memory of the server's process knows them, so this command asks a running server, with the admin token.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import click

from penstock.cli.devserver import find_server
from penstock.cli.options import Options, json_option
from penstock.cli.output import MOST_LINES, print_json, print_table, say
from penstock.config import load_config
from penstock.errors import ConfigError

_SECONDS = 30.0
_HERE = "http://127.0.0.1:8000"
_HEADERS = ("query", "arguments", "caller", "watchers", "runs", "per minute", "ms each", "why it ran last")
_TOKEN = "Give both the server and this command its token, in PENSTOCK_ADMIN_TOKEN."  # noqa: S105 - no token


@click.command("live")
@click.option(
    "--url", help="The address of the server; default: penstock dev in this folder, or http://127.0.0.1:8000."
)
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many to list.")
@json_option()
def command(options: Options, url: str | None, limit: int) -> None:
    """Show the queries that a server watches for its clients, the most expensive first.

    The server needs the setting admin_token; this command reads it from the environment or the project files. It knows
    the token of a penstock dev that runs in this folder.
    """
    dev, token = find_server(), load_config().admin_token
    url = (url or (dev.url if dev is not None else _HERE)).rstrip("/")
    if dev is not None and url == dev.url:
        token = token or dev.token
    found = _ask(url, f"/admin/live?limit={limit}", token)
    if options.json:
        print_json(found)
        return
    if not found["queries"]:
        click.echo("no queries are watched")
        return
    print_table(_HEADERS, [_row(one) for one in found["queries"]], right=_HEADERS[3:7], most_lines=MOST_LINES)
    if found["more"]:
        say(f"There {'is' if found['more'] == 1 else 'are'} {found['more']:,} more: --limit")


def _ask(url: str, path: str, token: str) -> Any:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url} is not the address of a server.", fix="Use http://host:port, or https://….")
    try:
        with urlopen(Request(url + path, headers={"authorization": f"Bearer {token}"}), timeout=_SECONDS) as answer:  # noqa: S310 - checked above
            return json.load(answer)
    except HTTPError as error:
        fix = _TOKEN if error.code in {401, 404} else ""
        raise ConfigError(f"The server at {url} answered with status {error.code}.", fix=fix) from error
    except (URLError, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(f"No server answers at {url}: {reason}.", fix="Name another one with --url.") from error
    except ValueError as error:
        raise ConfigError(f"The server at {url} is not penstock's.", fix="Name another one with --url.") from error


def _row(query: dict[str, Any]) -> tuple[str, ...]:
    runs, causes = query["runs"], query["causes"]
    rate = f"{runs / max(1.0, query['watched_for'] / 60):.1f}"
    each = f"{query['seconds'] * 1000 / runs:.1f}" if runs else ""
    why = causes[-1] if causes else "it has not run yet"
    caller = query["caller"] or "anybody"
    return query["function"], query["arguments"], caller, f"{query['watchers']:,}", f"{runs:,}", rate, each, why
