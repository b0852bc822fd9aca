"""``penstock keys``: lists API keys, creates one, and revokes one; rotates the keys of tokens of one's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta

import click

from penstock.app import Backend
from penstock.cli.opening import with_backend
from penstock.cli.operations import DURATION, add_commands, list_command
from penstock.cli.options import Options, json_option
from penstock.cli.output import print_json, print_table, readable_time, say
from penstock.clock import secret
from penstock.errors import DataError
from penstock.identity.api_key import PREFIX, hash_of
from penstock.operations import keys
from penstock.store.nouns.api_keys import ApiKeyRow
from penstock.store.nouns.signing_keys import SigningKey

_NAME = re.compile(r"[\w.@:-]{1,100}")


def _row(key: ApiKeyRow) -> tuple[str, ...]:
    expires = "never" if key.expires_at is None else readable_time(key.expires_at)
    return key.name, " ".join(key.scopes), readable_time(key.created_at), expires


command = list_command(keys.every, ("name", "scopes", "created", "expires"), _row)


@command.command("create")
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, help="A word that functions can ask for; may be given several times.")
@click.option("--expires", type=DURATION, help="How long the key holds, such as 90d; without an end by default.")
@json_option("Print the key as JSON.")
def create(options: Options, name: str, scopes: tuple[str, ...], expires: float | None) -> None:
    """Create the API key NAME and print it, this one time."""
    if not _NAME.fullmatch(name):
        raise click.BadParameter("write 1 to 100 letters, digits, and . _ - : @", param_hint="NAME")
    if expires == 0:
        raise click.BadParameter("write how long the key holds, such as 90d", param_hint="'--expires'")
    key = PREFIX + secret()
    with_backend(options, lambda backend: _create(backend, name, key, scopes, expires))
    if options.json:
        print_json({"name": name, "key": key})
    else:
        say("Keep it now: it is stored as a hash, and cannot be shown again.")
        click.echo(key)


def _show_signing(found: Sequence[SigningKey]) -> None:
    if not found:
        say("There are no keys yet. ctx.auth.sign_jwt makes the first one.")
        return
    words = ["signs", *(["verifies"] * (len(found) - 1))]
    rows = [(one.id, readable_time(one.created_at), word) for one, word in zip(found, words, strict=True)]
    print_table(("id", "created", "does"), rows)


add_commands(command, keys.revoke, keys.rotate)
add_commands(command, keys.signing, show=_show_signing, data=keys.signing.answers)


async def _create(backend: Backend, name: str, key: str, scopes: tuple[str, ...], expires: float | None) -> None:
    now = backend.engine.clock.now()
    until = None if expires is None else now + timedelta(seconds=expires)
    if not await backend.engine.store.api_keys.create(name, hash_of(key), scopes, now, until):
        raise DataError(f"There is a key {name!r} already.", fix="Revoke it first, or choose another name.")
