"""``penstock outbox retry``, ``skip``, ``pause``, ``resume``, ``move``, ``resend``, ``rebuild``, ``drop``."""

from __future__ import annotations

from datetime import datetime

import click

from penstock.api.outbox.overview import outbox_of
from penstock.api.outbox.rebuilding import chosen_rows, reset_of
from penstock.api.outbox.views import OutboxStatus, read_place
from penstock.app import App, Backend
from penstock.changes.position import Position
from penstock.cli.asking import confirm
from penstock.cli.opening import open_app, with_backend
from penstock.cli.options import Options, pass_options
from penstock.cli.output import counted, say
from penstock.errors import DataError, ValueInvalid

_yes = click.option("--yes", "-y", is_flag=True, help="Do not ask first.")


@click.command("retry")
@click.argument("outbox")
@click.argument("numbers", type=int, nargs=-1)
@pass_options
def retry(options: Options, outbox: str, numbers: tuple[int, ...]) -> None:
    """Retry failed messages of OUTBOX now: those with these NUMBERS, or all.

    Their attempts count from one. Parked messages are delivered next, but not while the next message waits for its
    retry. A row older than the outbox has a negative number: write -- before it.
    """
    app = open_app(options)

    async def do(backend: Backend) -> int:
        return await app.outboxes.retry(backend, outbox, list(numbers) or None)

    count = with_backend(app, options, do)
    if numbers and not count:
        raise DataError(f"Outbox {outbox} has no such message that has failed.", fix="See penstock outbox messages.")
    say(f"{counted(count, 'message')} of {outbox} will be retried." if count else f"{outbox} has none that failed.")


@click.command("skip")
@click.argument("outbox")
@click.argument("number", type=int)
@click.option("--reason", required=True, help="The reason, for the log.")
@_yes
@pass_options
def skip(options: Options, outbox: str, number: int, reason: str, yes: bool) -> None:
    """Skip a failed message of OUTBOX. Its handler never gets it."""
    app = open_app(options)

    async def do(backend: Backend) -> None:
        name = (await outbox_of(backend.engine.store, outbox)).plan.name
        await _expect_failed(app, backend, name, number)
        confirm(f"Skip message {number} of {name} for good?", sure=yes)
        await app.outboxes.skip(backend, name, number, reason)

    with_backend(app, options, do)
    say(f"Message {number} of {outbox} is skipped.")


@click.command("pause")
@click.argument("outbox")
@pass_options
def pause(options: Options, outbox: str) -> None:
    """Pause OUTBOX on all machines. New messages are kept."""
    app = open_app(options)
    with_backend(app, options, lambda backend: app.outboxes.pause(backend, outbox))
    say(f"{outbox} is paused. The change feed keeps new messages, and grows.")


@click.command("resume")
@click.argument("outbox")
@pass_options
def resume(options: Options, outbox: str) -> None:
    """Resume a paused OUTBOX."""
    app = open_app(options)
    with_backend(app, options, lambda backend: app.outboxes.resume(backend, outbox))
    say(f"{outbox} is resumed.")


@click.command("move")
@click.argument("outbox")
@click.option("--to", required=True, metavar="PLACE", help="beginning, end, a time, or a position.")
@_yes
@pass_options
def move(options: Options, outbox: str, to: str, yes: bool) -> None:
    """Move the cursor of OUTBOX, to deliver kept messages again or to skip some.

    PLACE is beginning (the oldest kept message), end (after all messages), a time with an offset such as
    2030-05-01T09:00Z (messages written since), or a position from penstock outbox show.
    """
    app, place = open_app(options), _place(to)

    async def do(backend: Backend) -> OutboxStatus:
        name = (await outbox_of(backend.engine.store, outbox)).plan.name
        before = await _status(app, backend, name)
        end = "\nNone of these will be delivered." if to == "end" else "\nMessages are skipped, or delivered again."
        confirm(f"Move {name} to {to}?", f"{name} has {_left(before)} to deliver.{end}", sure=yes)
        return await app.outboxes.move(backend, name, place)

    moved = with_backend(app, options, do)
    say(f"{moved.name} is moved, and has {_left(moved)} to deliver.")


@click.command("rebuild")
@click.argument("outbox")
@_yes
@pass_options
def rebuild(options: Options, outbox: str, yes: bool) -> None:
    """Rebuild what the handler of OUTBOX has written, from the current rows.

    Runs its reset and starts it with all rows again, in one transaction.
    """
    app = open_app(options)

    async def do(backend: Backend) -> None:
        name = (await outbox_of(backend.engine.store, outbox)).plan.name
        reset_of(app.outboxes.find(name), name)  # what cannot be is refused before anybody is asked
        confirm(
            f"Rebuild {name}?",
            f"The effects of {name} are cleared, and incomplete until all rows are delivered.",
            sure=yes,
        )
        await app.outboxes.rebuild(backend, name)

    with_backend(app, options, do)
    say(f"{outbox} starts again with all rows. penstock outbox show {outbox} shows its progress.")


@click.command("resend")
@click.argument("outbox")
@click.option("--where", required=True, metavar="TEXT", help="A condition, such as 'day >= 7 and shop == \"a\"'.")
@_yes
@pass_options
def resend(options: Options, outbox: str, where: str, yes: bool) -> None:
    """Send rows of OUTBOX's table again, as they are now and in order, after its backlog."""
    app = open_app(options)

    async def do(backend: Backend) -> int:
        name = (await outbox_of(backend.engine.store, outbox)).plan.name
        chosen_rows(app.outboxes.find(name), name, where)  # what cannot be is refused before anybody is asked
        confirm(f"Send rows of {name} again?", f"Its handler gets each row that matches: {where}", sure=yes)
        return await app.outboxes.resend(backend, name, where)

    count = with_backend(app, options, do)
    say(f"{counted(count, 'row')} will be sent again by {outbox}.")


@click.command("drop")
@click.argument("outbox")
@_yes
@pass_options
def drop(options: Options, outbox: str, yes: bool) -> None:
    """Remove OUTBOX: its cursor, its parked messages, and its capture."""
    app = open_app(options)

    async def do(backend: Backend) -> bool:
        name = (await outbox_of(backend.engine.store, outbox)).plan.name
        before = await _status(app, backend, name)
        read_by = f"\nIt is read by {before.read_by} now." if before.read_by else ""
        aside = f" {counted(before.parked, 'message')} parked will be forgotten." if before.parked else ""
        never = ", and never will" if before.messages or before.older_rows is not None else ""
        confirm(f"Drop {name}?", f"{name} has {_left(before)} to deliver{never}.{aside}{read_by}", sure=yes)
        await app.outboxes.drop(backend, name)
        return before.declared

    declared = with_backend(app, options, do)
    say(f"{outbox} is dropped." + (" This program declares it, and creates it again at its start." if declared else ""))


# ----- steps


async def _status(app: App, backend: Backend, name: str) -> OutboxStatus:
    return next(one for one in await app.outboxes.list(backend) if one.name == name)


async def _expect_failed(app: App, backend: Backend, name: str, number: int) -> None:
    """Refuse a message that has not failed, before anybody is asked."""
    if not -(2**63) < number < 2**63:
        raise click.BadParameter(f"{number} is no number of a message.")
    next_one = await app.outboxes.messages(backend, name, states=("failing",), limit=1)
    aside = await app.outboxes.messages(backend, name, states=("halted", "parked"), limit=1, after=number - 1)
    if number not in {one.number for one in (*next_one.messages, *aside.messages)}:
        raise DataError(f"Outbox {name} has no message {number} that has failed.", fix="See penstock outbox messages.")


def _left(one: OutboxStatus) -> str:
    messages = [counted(one.messages, "message")] if one.messages else []
    rows = ["older rows"] if one.older_rows is not None else []
    return " and ".join([*messages, *rows]) or "no messages"


def _place(to: str) -> str | datetime:
    """Where to, as `app.outboxes.move` takes it."""
    try:
        place = read_place(to)
    except ValueInvalid as error:
        raise click.UsageError(f"--to {error}") from error
    if isinstance(place, str) and place not in {"beginning", "end"}:
        Position.parse(place)  # what is none is refused before anybody is asked
    return place
