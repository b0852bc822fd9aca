"""``penstock outbox``: how outboxes stand, and the messages that they cannot hand over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from penstock.api.outbox.admin import STATES
from penstock.api.outbox.overview import MOST_COUNTED, look_at_one
from penstock.api.outbox.views import OutboxMessage, OutboxPage, OutboxStatus
from penstock.app import Backend
from penstock.cli.opening import open_app, with_backend
from penstock.cli.options import Options, json_option, pass_options
from penstock.cli.outboxchanges import drop, move, pause, rebuild, resend, resume, retry, skip
from penstock.cli.output import counted, plain, print_fields, print_json, print_list, print_rows, readable_time, say
from penstock.cli.visible import first_line


@click.group("outbox", invoke_without_command=True)
@json_option()
@pass_options
@click.pass_context
def command(context: click.Context, options: Options) -> None:
    """Show all outboxes and their backlog.

    Counts up to 100,000 messages per outbox.
    """
    if context.invoked_subcommand is not None:
        return
    app = open_app(options)
    found = with_backend(app, options, app.outboxes.list)
    headers = ("outbox", "source", "messages", "behind", "parked", "delivered", "per second", "read by", "state")
    print_list("outboxes", found, headers, _row, as_json=options.json, right=headers[2:7])


@command.command("show")
@click.argument("outbox")
@json_option()
@pass_options
def show(options: Options, outbox: str) -> None:
    """Show the state of OUTBOX, and the message that blocks it, with its traceback."""
    app = open_app(options)

    async def look(backend: Backend) -> tuple[OutboxStatus, list[OutboxMessage]]:
        return await look_at_one(backend.engine.store, outbox, backend.job_calls.now(), app.outboxes.declares)

    status, found = with_backend(app, options, look)
    if options.json:
        print_json({"outbox": status, "messages": found})
        return
    print_fields(_facts(status))
    for message in found:
        click.echo()
        _show_message(message)
    if (advice := _advice(status, found)) is not None:
        say(f"\n{advice}")


@command.command("messages")
@click.argument("outbox")
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    help="Only messages in this state; may be repeated.",
)
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many messages to list."
)
@click.option("--after", type=int, metavar="NUMBER", help="Continue after this number, from the last list.")
@json_option()
@pass_options
def messages(options: Options, outbox: str, states: tuple[Any, ...], limit: int, after: int | None) -> None:
    """Show messages of OUTBOX that failed, are parked, or wait for a failed one.

    Omits messages that were not attempted yet.
    """
    app = open_app(options)

    async def look(backend: Backend) -> OutboxPage:
        return await app.outboxes.messages(backend, outbox, states=states or STATES, limit=limit, after=after)

    page = with_backend(app, options, look)
    if options.json:
        print_json(page)
        return
    if not page.messages:
        click.echo("no such messages")
        return
    headers = ("number", "state", "kind", "key", "written", "attempts", "again at", "error")
    print_rows(headers, [_message_row(one) for one in page.messages], right=headers[::5], needed=headers[-1])
    if page.next is not None:
        say(f"There are more: --after {page.next}")


for _command in (retry, skip, pause, resume, move, resend, rebuild, drop):
    command.add_command(_command)


# ----- what is shown


def _row(one: OutboxStatus) -> tuple[str, ...]:
    behind = _length(one.seconds) if one.messages else "-"
    numbers = (_counted(one.messages), behind, f"{one.parked:,}", f"{one.delivered:,}", f"{one.rate:,.1f}")
    again = "" if one.retry_at is None else f", next try at {readable_time(one.retry_at)}"
    return (one.name, one.source, *numbers, one.read_by or "nobody", f"{_state(one)}{again}")


def _state(one: OutboxStatus) -> str:
    said = ["paused"] if one.paused else []
    if one.halted:
        said.append("HALTED")
    elif one.error is not None:
        said.append("tries again")
    if one.waits_for:
        said.append(f"waits for {counted(one.waits_for, 'key')}")
    if one.older_rows is not None:
        said.append(f"sends the rows there are: {one.older_rows:,} so far")
    if one.position is None:
        said.append("its reader is gone")
    if not one.declared:
        said.append("not of this program")
    return ", ".join(said)


def _facts(one: OutboxStatus) -> dict[str, Any]:
    return {
        "outbox": one.name,
        "state": _state(one) or "well",
        "source": one.source,
        "handler": f"{one.handler}, {_article(one.kind)}, version {one.version}",
        "declared": ", ".join(f"{name}={_word(value)}" for name, value in one.spec.items() if value not in (None, [])),
        "kept for": str(one.keep_for) if one.keep_for else None,
        "read by": one.read_by or "nobody",
        "messages": f"{_counted(one.messages)} to be delivered, {_length(one.seconds)} behind" if one.messages else "0",
        "waiting": f"{one.waiting:,} of these, for others" if one.waiting else None,
        "parked": f"{one.parked:,}" if one.parked else None,
        "delivered": f"{one.delivered:,}, {one.rate:,.1f} a second"
        + (f", the last one at {readable_time(one.delivered_at)}" if one.delivered_at else ""),
        "error": one.error,
        "again at": None if one.retry_at is None else readable_time(one.retry_at),
        "position": one.position,
    }


def _advice(one: OutboxStatus, found: Sequence[OutboxMessage]) -> str | None:
    """What to do about an outbox that does not go on."""
    name = one.name
    if not one.declared and one.read_by is None:
        return (
            f"This program does not declare {name}, and nobody hands over its messages: its handler was renamed or "
            f"removed. They wait for a program that declares it under this name, as name={name!r} does; or let it go "
            f"with penstock outbox drop {name}."
        )
    if one.position is None:
        return f"Start the program once: it halts {name}, and says what can be done."
    if one.halted and not found:
        return f"Go on with penstock outbox rebuild, move or retry {name}."
    if found:
        number = found[0].number
        said = f"-- {number}" if number < 0 else str(number)
        return (
            f"Try it again at once with penstock outbox retry {name} {said}, or pass it by with "
            f"penstock outbox skip {name} --reason … {said}"
        )
    return f"Go on with penstock outbox resume {name}." if one.paused else None


def _show_message(one: OutboxMessage) -> None:
    facts = {
        "message": f"{one.number}, {one.state}",
        "id": one.id,
        "kind": one.kind,
        "key": one.key,
        "written": None if one.written_at is None else readable_time(one.written_at),
        "attempts": f"{one.attempts}, the first one at {readable_time(one.failed_at)}" if one.failed_at else None,
        "again at": "not by itself" if one.retry_at is None else readable_time(one.retry_at),
        "content": one.content,
        "error": None if one.traceback else one.error,
        "traceback": one.traceback,
    }
    print_fields(facts)


def _message_row(one: OutboxMessage) -> tuple[str, ...]:
    written = "" if one.written_at is None else readable_time(one.written_at)
    again = "" if one.retry_at is None else readable_time(one.retry_at)
    error = first_line(one.error or "")
    return (str(one.number), one.state, one.kind or "", one.key or "", written, str(one.attempts), again, error)


def _counted(number: int) -> str:
    return f"{number:,}{'+' if number >= MOST_COUNTED else ''}"


def _length(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _article(kind: str) -> str:
    return f"an {kind}" if kind == "action" else f"a {kind}"


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value
    return ",".join(value) if isinstance(value, list) else json.dumps(plain(value), ensure_ascii=False, default=str)
