"""The proof: what is left in the database, against the CSV and against the provider's own record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bookings import REMIND_BEFORE
from day import Day
from rich import box
from rich.console import Console
from rich.table import Table

_REASONS = {
    "refused: phone": "is no phone number",
    "refused: name": "customer",
    "refused: over": "is over",
    "refused: time without zone": "timezone",
    "refused: request used": "was used for another booking",
}
_SHOWN = 3


@dataclass(frozen=True)
class Evidence:
    """What is left of a day.

    Attributes:
        bookings: Its bookings, read over HTTP.
        messages: Their messages, each with the phone number of its booking.
        reminders: For each booking that has one, the state of its reminder's job, by request.
        accepted: What the provider accepted, by message.
        known: All messages that the database holds as accepted.
        lost: Attempts that the crash took with it.
        left: How many jobs are ready or running.
    """

    bookings: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    reminders: dict[str, str]
    accepted: dict[str, dict[str, Any]]
    known: set[str]
    lost: int
    left: int


async def gather_evidence(day: Day) -> Evidence:
    """Read what is left, once the day is over."""
    bookings = await _pages(day, "bookings:from_source", source=day.source)
    messages: list[dict[str, Any]] = []
    reminders: dict[str, str] = {}
    for booking in bookings:
        found = await day.client.query("bookings:messages", booking_id=booking["_id"])
        messages += [{**message, "phone": booking["phone"]} for message in found]
        job = await day.jobs.job(booking["reminder"]) if booking["reminder"] else None
        if job is not None:
            reminders[booking["request"]] = job.state.value
    own = {message["_id"] for message in messages}
    counts = await day.jobs.job_counts()
    return Evidence(
        bookings,
        messages,
        reminders,
        accepted=(await day.provider.get("/accepted")).json(),
        known={message["_id"] for message in await _pages(day, "bookings:messages_in", state="accepted")},
        lost=sum(job.args.get("message_id") in own for job in await day.jobs.jobs("failed", 1000)),
        left=counts.get("ready", 0) + counts.get("running", 0),
    )


async def _pages(day: Day, query: str, **arguments: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    cursor, is_done = None, False
    while not is_done:
        page = await day.client.query(query, cursor=cursor, **arguments)
        rows += page["page"]
        cursor, is_done = page["continueCursor"], page["isDone"]
    return rows


# ----- what must be so


@dataclass(frozen=True)
class Claim:
    """Things that must be there, and those that are: the same ones, as often."""

    what: str
    expected: list[Hashable]
    found: list[Hashable]

    @property
    def is_true(self) -> bool:
        """Whether it is so."""
        return Counter(self.expected) == Counter(self.found)

    @property
    def difference(self) -> str:
        """Some of what is wrong."""
        missing, unexpected = Counter(self.expected), Counter(self.found)
        parts = (("missing", missing - unexpected), ("unexpected", unexpected - missing))
        return "; ".join(f"{word}: {', '.join(map(str, list(things)[:_SHOWN]))}" for word, things in parts if things)


def prove(day: Day, evidence: Evidence) -> list[Claim]:
    """Compare what is left with the CSV, and the database with the provider."""
    return [*_claims_on_bookings(day, evidence), *_claims_on_messages(evidence), *_claims_on_jobs(day, evidence)]


def _claims_on_bookings(day: Day, evidence: Evidence) -> Iterable[Claim]:
    valid = {row.request: row for row in day.rows if row.is_valid}
    cancelled, unreachable = _requests(day, "cancelled later"), _requests(day, "number out of service")
    repeated = _requests(day, "repeated request")

    def in_status(status: str) -> list[Hashable]:
        return [booking["request"] for booking in evidence.bookings if booking["status"] == status]

    yield Claim(
        "valid rows are booked, once each and as sent",
        [(row.request, row.customer, datetime.fromisoformat(row.starts_at)) for row in valid.values()],
        [(row["request"], row["customer"], datetime.fromisoformat(row["starts_at"])) for row in evidence.bookings],
    )
    yield Claim(
        "invalid rows are refused, each with its reason",
        [row for row in day.rows if not row.is_valid],
        [row if _REASONS.get(row.note, "?") in why else why for row, why in day.refusals],
    )
    yield Claim(
        "repeated requests are answered with the first booking",
        repeated,
        [request for request in repeated if len(day.ids.get(str(request), ())) == 1],
    )
    yield Claim("cancelled bookings are cancelled", cancelled, in_status("cancelled"))
    yield Claim(
        "all other bookings are confirmed", list(valid.keys() - {*cancelled, *unreachable}), in_status("confirmed")
    )
    yield Claim("except those with a number out of service", unreachable, in_status("booked"))


def _claims_on_messages(evidence: Evidence) -> Iterable[Claim]:
    def in_states(*states: str) -> list[dict[str, Any]]:
        return [message for message in evidence.messages if message["state"] in states]

    own = {message["_id"] for message in evidence.messages}
    texts = Counter((sms["phone"], sms["text"]) for sms in evidence.accepted.values())
    yield Claim(
        "each booking has its message, cancelled ones a second",
        [booking["_id"] for booking in evidence.bookings for _ in range(1 + (booking["status"] == "cancelled"))],
        [message["booking"] for message in evidence.messages],
    )
    yield Claim("messages still on their way", [], [message["_id"] for message in in_states("sending", "retrying")])
    yield Claim(
        "messages the provider accepted are accepted here",
        [(key, sms["phone"], sms["text"], sms["receipt"]) for key, sms in evidence.accepted.items() if key in own],
        [(sms["_id"], sms["phone"], sms["text"], sms["receipt"]) for sms in in_states("accepted")],
    )
    yield Claim("messages that only the provider knows of", [], list(evidence.accepted.keys() - evidence.known))
    yield Claim("messages that the provider accepted twice", [], [sms for sms, count in texts.items() if count > 1])


def _claims_on_jobs(day: Day, evidence: Evidence) -> Iterable[Claim]:
    cancelled = set(_requests(day, "cancelled later"))
    far = {booking["request"] for booking in evidence.bookings if _is_far(booking)}

    def reminders(state: str) -> list[Hashable]:
        return [request for request, found in evidence.reminders.items() if found == state]

    yield Claim("reminders wait for their day", list(far - cancelled), reminders("pending"))
    yield Claim("reminders of cancelled bookings are canceled", list(far & cancelled), reminders("canceled"))
    yield Claim("jobs left ready or running", [], list(range(evidence.left)))


def _requests(day: Day, note: str) -> list[Hashable]:
    return [row.request for row in day.rows if row.note == note]


def _is_far(booking: dict[str, Any]) -> bool:
    booked_at = datetime.fromtimestamp(booking["_creationTime"] / 1000, UTC)
    return datetime.fromisoformat(booking["starts_at"]) - booked_at > REMIND_BEFORE


# ----- what is shown


def show_proof(console: Console, day: Day, evidence: Evidence, claims: list[Claim]) -> None:
    """Show some refusals, all claims, and what had to be overcome."""
    console.print("\n[bold]Refused at the door[/], for example:\n")
    for row, why in {row.note: (row, why) for row, why in day.refusals}.values():
        console.print(f"  {row.request}: {why}", markup=False)
    console.print("\n[bold]The proof[/], from the database, the CSV, and the provider's own record:")
    console.print(_table(claims))
    for claim in claims:
        if not claim.is_true:
            console.print(f"{claim.what}: {claim.difference}", style="red", markup=False)
    answers = Counter(day.state["provider"]["answers"])
    failed = sum(answers[name] for name in ("overloaded", "broken", "out of order"))
    console.print(
        f"On the way the provider failed {failed} times. {answers['answer lost']} answers were lost after it had "
        f"accepted the message. {answers['repeated']} messages came again, and it recognised them. The crash "
        f"interrupted {evidence.lost} attempts, and callers repeated {day.counts['called again']} calls."
    )


def _table(claims: list[Claim]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("claim")
    for name in ("expected", "found"):
        table.add_column(name, justify="right")
    table.add_column("")
    for claim in claims:
        verdict = "[green]ok[/]" if claim.is_true else "[bold red]WRONG[/]"
        table.add_row(claim.what, f"{len(claim.expected):,}", f"{len(claim.found):,}", verdict)
    return table
