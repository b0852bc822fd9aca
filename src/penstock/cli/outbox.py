"""``penstock outbox``: lists outboxes and the messages that they cannot deliver, and changes both."""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from typing import Any

import click

from penstock.api.outbox.outboxes import STATES
from penstock.api.outbox.rebuilding import chosen_rows, reset_of
from penstock.api.outbox.views import (
    MOST_COUNTED,
    OutboxMessage,
    OutboxStatus,
    advice,
    look_at_one,
    outbox_of,
    read_place,
)
from penstock.app import Backend
from penstock.changes.position import Position
from penstock.cli.confirm import confirm
from penstock.cli.opening import with_backend
from penstock.cli.options import Options, json_option, listing, pass_options, whole_option
from penstock.cli.output import (
    MOST_LINES,
    plain,
    print_fields,
    print_json,
    print_list,
    print_table,
    readable_time,
    say,
    trace_of,
)
from penstock.cli.verbs import add_verb
from penstock.cli.visible import first_line
from penstock.errors import DataError, ValueInvalid
from penstock.observe.readable import capped, counted, span


@listing("outbox")
def command(options: Options) -> None:
    """Show all outboxes and their backlog.

    Counts up to 100,000 messages per outbox.
    """
    found = with_backend(options, lambda backend: backend.app.outboxes.list(backend))
    headers = ("outbox", "source", "messages", "behind", "parked", "delivered", "per second", "read by", "state")
    print_list("outboxes", found, headers, _row, as_json=options.json, right=headers[2:7])


@command.command("show")
@click.argument("outbox")
@whole_option
@json_option()
def show(options: Options, outbox: str, whole: bool) -> None:
    """Show the state of OUTBOX, and the message that blocks it, with its traceback."""

    async def look(backend: Backend) -> tuple[OutboxStatus, list[OutboxMessage]]:
        return await look_at_one(backend.engine.store, outbox, backend.job_calls.now(), backend.app.outboxes.find)

    status, found = with_backend(options, look)
    if options.json:
        print_json({"outbox": status, "messages": found})
        return
    print_fields(_facts(status))
    for message in found:
        click.echo()
        _show_message(message, whole=whole)
    for text, next_step in advice(status, found):
        say(f"\n{text}{next_step and f' Run: {next_step}'}")


@command.command("messages")
@click.argument("outbox")
@click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True, help="Only messages in this state; may be repeated."
)
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many messages to list."
)
@click.option("--after", type=int, metavar="NUMBER", help="Continue after this number, from the last list.")
@json_option()
def messages(options: Options, outbox: str, states: tuple[Any, ...], limit: int, after: int | None) -> None:
    """Show messages of OUTBOX that failed, are parked, or wait for a failed one.

    Omits messages that were not attempted yet.
    """
    shown = states or STATES
    page = with_backend(
        options, lambda backend: backend.app.outboxes.messages(backend, outbox, states=shown, limit=limit, after=after)
    )
    if options.json:
        print_json(page)
        return
    if not page.messages:
        click.echo("no such messages")
        return
    headers = ("number", "state", "kind", "key", "written", "attempts", "again at", "error")
    print_table(headers, [_message_row(one) for one in page.messages], right=headers[::5], most_lines=MOST_LINES)
    if page.next is not None:
        say(f"There are more: --after {page.next}")


# ----- output


def _row(one: OutboxStatus) -> tuple[str, ...]:
    behind = span(one.seconds) if one.messages else "-"
    numbers = (capped(one.messages, MOST_COUNTED), behind, f"{one.parked:,}", f"{one.delivered:,}", f"{one.rate:,.1f}")
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
        "handler": f"{one.handler}, {'an' if one.kind == 'action' else 'a'} {one.kind}, version {one.version}",
        "declared": ", ".join(f"{name}={_word(value)}" for name, value in one.spec.items() if value not in (None, [])),
        "kept for": str(one.keep_for) if one.keep_for else None,
        "read by": one.read_by or "nobody",
        "messages": f"{capped(one.messages, MOST_COUNTED)} to be delivered, {span(one.seconds)} behind"
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


_yes = click.option("--yes", "-y", is_flag=True, help="Do not ask first.")


@command.command("retry")
@click.argument("outbox")
@click.argument("numbers", type=int, nargs=-1)
@pass_options
def retry(options: Options, outbox: str, numbers: tuple[int, ...]) -> None:
    """Retry failed messages of OUTBOX now: those with these NUMBERS, or all.

    Their attempts count from one. Parked messages are delivered next, but not while the next message waits for its
    retry. A row older than the outbox has a negative number: write -- before it.
    """
    wanted = list(numbers) or None
    count = with_backend(options, lambda backend: backend.app.outboxes.retry(backend, outbox, wanted))
    if numbers and not count:
        raise DataError(f"Outbox {outbox} has no such message that has failed.", fix="See penstock outbox messages.")
    say(f"{counted(count, 'message')} of {outbox} will be retried." if count else f"{outbox} has none that failed.")


@command.command("skip")
@click.argument("outbox")
@click.argument("number", type=int)
@click.option("--reason", required=True, help="The reason, for the log.")
@_yes
@pass_options
def skip(options: Options, outbox: str, number: int, reason: str, yes: bool) -> None:
    """Skip a failed message of OUTBOX. Its handler never gets it."""

    async def do(backend: Backend) -> None:
        name = (await outbox_of(backend.engine.store, outbox)).plan.name
        await _expect_failed(backend, name, number)
        confirm(f"Skip message {number} of {name} for good?", sure=yes)
        await backend.app.outboxes.skip(backend, name, number, reason)

    with_backend(options, do)
    say(f"Message {number} of {outbox} is skipped.")


_verb = partial(add_verb, command, "outboxes", "outbox")
_PAUSED = "{} is paused. The change feed keeps new messages, and grows."
_verb("pause", "Pause OUTBOX on all machines. New messages are kept.", _PAUSED)
_verb("resume", "Resume a paused OUTBOX.", "{} is resumed.")


@command.command("move")
@click.argument("outbox")
@click.option("--to", required=True, metavar="PLACE", help="beginning, end, a time, or a position.")
@_yes
@pass_options
def move(options: Options, outbox: str, to: str, yes: bool) -> None:
    """Move the cursor of OUTBOX, to deliver kept messages again or to skip some.

    PLACE is beginning (the oldest kept message), end (after all messages), a time with an offset such as
    2030-05-01T09:00Z (messages written since), or a position from penstock outbox show.
    """
    place = _place(to)

    async def do(backend: Backend) -> OutboxStatus:
        name = (await outbox_of(backend.engine.store, outbox)).plan.name
        before = await _status(backend, name)
        end = "\nNone of these will be delivered." if to == "end" else "\nMessages are skipped, or delivered again."
        confirm(f"Move {name} to {to}?", f"{name} has {_left(before)} to deliver.{end}", sure=yes)
        return await backend.app.outboxes.move(backend, name, place)

    moved = with_backend(options, do)
    say(f"{moved.name} is moved, and has {_left(moved)} to deliver.")


@command.command("resend")
@click.argument("outbox")
@click.option("--where", required=True, metavar="TEXT", help="A condition, such as 'day >= 7 and shop == \"a\"'.")
@_yes
@pass_options
def resend(options: Options, outbox: str, where: str, yes: bool) -> None:
    """Send rows of OUTBOX's table again, as they are now and in order, after its backlog."""

    async def do(backend: Backend) -> int:
        name = (await outbox_of(backend.engine.store, outbox)).plan.name
        chosen_rows(backend.app.outboxes.find(name), name, where)  # refuse an impossible request before asking anybody
        confirm(f"Send rows of {name} again?", f"Its handler gets each row that matches: {where}", sure=yes)
        return await backend.app.outboxes.resend(backend, name, where)

    count = with_backend(options, do)
    say(f"{counted(count, 'row')} will be sent again by {outbox}.")


@command.command("rebuild")
@click.argument("outbox")
@_yes
@pass_options
def rebuild(options: Options, outbox: str, yes: bool) -> None:
    """Rebuild what the handler of OUTBOX has written, from the current rows.

    Runs its reset and starts it with all rows again, in one transaction.
    """

    async def do(backend: Backend) -> None:
        name = (await outbox_of(backend.engine.store, outbox)).plan.name
        reset_of(backend.app.outboxes.find(name), name)  # refuse an impossible request before asking anybody
        confirm(
            f"Rebuild {name}?",
            f"The effects of {name} are cleared, and incomplete until all rows are delivered.",
            sure=yes,
        )
        await backend.app.outboxes.rebuild(backend, name)

    with_backend(options, do)
    say(f"{outbox} starts again with all rows. penstock outbox show {outbox} shows its progress.")


@command.command("drop")
@click.argument("outbox")
@_yes
@pass_options
def drop(options: Options, outbox: str, yes: bool) -> None:
    """Remove OUTBOX: its cursor, its parked messages, and its capture."""

    async def do(backend: Backend) -> bool:
        name = (await outbox_of(backend.engine.store, outbox)).plan.name
        before = await _status(backend, name)
        read_by = f"\nIt is read by {before.read_by} now." if before.read_by else ""
        aside = f" {counted(before.parked, 'message')} parked will be forgotten." if before.parked else ""
        never = ", and never will" if before.messages or before.older_rows is not None else ""
        confirm(f"Drop {name}?", f"{name} has {_left(before)} to deliver{never}.{aside}{read_by}", sure=yes)
        await backend.app.outboxes.drop(backend, name)
        return before.declared

    declared = with_backend(options, do)
    say(f"{outbox} is dropped." + (" This program declares it, and creates it again at its start." if declared else ""))


# ----- steps


async def _status(backend: Backend, name: str) -> OutboxStatus:
    return next(one for one in await backend.app.outboxes.list(backend) if one.name == name)


async def _expect_failed(backend: Backend, name: str, number: int) -> None:
    """Refuse a message that has not failed, before anybody is asked."""
    if not -(2**63) < number < 2**63:
        raise click.BadParameter(f"{number} is no number of a message.")
    next_one = await backend.app.outboxes.messages(backend, name, states=("failing",), limit=1)
    aside = await backend.app.outboxes.messages(backend, name, states=("halted", "parked"), limit=1, after=number - 1)
    if number not in {one.number for one in (*next_one.messages, *aside.messages)}:
        raise DataError(f"Outbox {name} has no message {number} that has failed.", fix="See penstock outbox messages.")


def _left(one: OutboxStatus) -> str:
    messages = [counted(one.messages, "message")] if one.messages else []
    rows = ["older rows"] if one.older_rows is not None else []
    return " and ".join([*messages, *rows]) or "no messages"


def _place(to: str) -> str | datetime:
    try:
        place = read_place(to)
    except ValueInvalid as error:
        raise click.UsageError(f"--to {error}") from error
    if isinstance(place, str) and place not in {"beginning", "end"}:
        Position.parse(place)  # refuse a wrong place before asking anybody
    return place
