"""``penstock outbox``: lists outboxes and the messages that they cannot deliver, and changes both."""

from __future__ import annotations

import json
from typing import Any

import click

from penstock.api.outbox.views import MOST_COUNTED, OutboxMessage, OutboxPage, OutboxStatus, advice, read_place
from penstock.cli.opening import with_backend
from penstock.cli.operations import add_commands, list_command, takes
from penstock.cli.options import Options, json_option, whole_option
from penstock.cli.output import (
    MOST_LINES,
    plain,
    print_fields,
    print_json,
    print_table,
    readable_time,
    say,
    trace_of,
)
from penstock.cli.visible import first_line
from penstock.errors import ValueInvalid
from penstock.observe.readable import amount, cap, span
from penstock.operations import outbox
from penstock.operations.operation import Given


def _row(one: OutboxStatus) -> tuple[str, ...]:
    behind = span(one.seconds) if one.messages else "-"
    numbers = (cap(one.messages, MOST_COUNTED), behind, f"{one.parked:,}", f"{one.delivered:,}", f"{one.rate:,.1f}")
    again = "" if one.retry_at is None else f", next try at {readable_time(one.retry_at)}"
    return (one.name, one.source, *numbers, one.read_by or "nobody", f"{_state(one)}{again}")


def _state(one: OutboxStatus) -> str:
    said = ["paused"] if one.paused else []
    if one.halted:
        said.append("HALTED")
    elif one.error is not None:
        said.append("tries again")
    if one.waits_for:
        said.append(f"waits for {amount(one.waits_for, 'key')}")
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
        "handler": f"{one.handler}, {'an' if one.kind == 'action' else 'a'} {one.kind}, version {one.version}",
        "declared": ", ".join(f"{name}={_word(value)}" for name, value in one.spec.items() if value not in (None, [])),
        "kept for": str(one.keep_for) if one.keep_for else None,
        "read by": one.read_by or "nobody",
        "messages": f"{cap(one.messages, MOST_COUNTED)} to be delivered, {span(one.seconds)} behind"
        if one.messages
        else "0",
        "waiting": f"{one.waiting:,} of these, for others" if one.waiting else None,
        "parked": f"{one.parked:,}" if one.parked else None,
        "delivered": f"{one.delivered:,}, {one.rate:,.1f} a second"
        + (f", the last one at {readable_time(one.delivered_at)}" if one.delivered_at else ""),
        "error": one.error,
        "again at": None if one.retry_at is None else readable_time(one.retry_at),
        "position": one.position,
    }


def _show_message(one: OutboxMessage, *, whole: bool) -> None:
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
        "traceback": trace_of(one.traceback, whole=whole),
    }
    print_fields(facts)


def _message_row(one: OutboxMessage) -> tuple[str, ...]:
    written = "" if one.written_at is None else readable_time(one.written_at)
    again = "" if one.retry_at is None else readable_time(one.retry_at)
    error = first_line(one.error or "")
    return (str(one.number), one.state, one.kind or "", one.key or "", written, str(one.attempts), again, error)


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value
    return ",".join(value) if isinstance(value, list) else json.dumps(plain(value), ensure_ascii=False, default=str)


_HEADERS = ("outbox", "source", "messages", "behind", "parked", "delivered", "per second", "read by", "state")
command = list_command(outbox.every, _HEADERS, _row, right=_HEADERS[2:7])


@command.command("show", help=outbox.show.about)
@takes(outbox.show)
@whole_option
@json_option()
def show(options: Options, /, *, whole: bool, **given: Any) -> None:
    status, found = with_backend(options, lambda backend: outbox.show.run(backend, given))
    if options.json:
        print_json({"outbox": status, "messages": found})
        return
    print_fields(_facts(status))
    for message in found:
        click.echo()
        _show_message(message, whole=whole)
    for text, next_step in advice(status, found):
        say(f"\n{text}{next_step and f' Run: {next_step}'}")


def _show_page(page: OutboxPage) -> None:
    if not page.messages:
        click.echo("no such messages")
        return
    headers = ("number", "state", "kind", "key", "written", "attempts", "again at", "error")
    print_table(headers, [_message_row(one) for one in page.messages], right=headers[::5], most_lines=MOST_LINES)
    if page.next is not None:
        say(f"There are more: --after {page.next}")


def _check_number(given: Given) -> None:
    number = given["number"]
    if not -(2**63) < number < 2**63:
        raise click.BadParameter(f"{number} is no number of a message.")


def _check_place(given: Given) -> None:
    try:
        read_place(given["to"])
    except ValueInvalid as error:
        raise click.UsageError(f"--to {error}") from error


add_commands(command, outbox.messages, show=_show_page, data=lambda page: page)
add_commands(command, outbox.retry)
add_commands(command, outbox.skip, check=_check_number)
add_commands(command, outbox.pause, outbox.resume)
add_commands(command, outbox.move, check=_check_place)
add_commands(command, outbox.resend, outbox.rebuild, outbox.drop)
