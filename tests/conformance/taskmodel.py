"""What a store should remember of a row of a reactive task, in plain Python. `taskmachine` compares."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from penstock.jobs.job import Settlement
from penstock.jobs.states import FINISHED, JobEvent


@dataclass
class ModelRow:
    """A row as the model knows it.

    Attributes:
        resets: Whether its attempts are counted from one again once it has changed.
        generation: How many changes of it were to be run.
        done: The last of these that a run was for that has ended.
        let_go: Whether the last one needs no run, as the row is gone or its run was canceled.
        live: Whether there is a job that has not ended.
        running: The lease under which it runs.
        claimed: For which change it runs.
        asked: Whether someone has asked for its job to be canceled since the last change.
        attempt: Attempts of its run that have begun.
        change: What was the last change that was to be run.
        gone: How it has gone, if it has.
        job: The id of its job, once it is known.
    """

    resets: bool = True
    generation: int = 0
    done: int = 0
    let_go: bool = False
    live: bool = False
    running: int | None = None
    claimed: int = 0
    asked: bool = False
    attempt: int = 0
    change: str = "enter"
    gone: str | None = None
    job: UUID | None = None

    def changes(self, change: str, *, pending: bool, anew: bool = False) -> bool:
        """It has changed; whether there is a job more."""
        launched, entered = not self.live, self.live and self.running is None and self.change == "enter"
        self.change = "enter" if entered and change == "change" else change  # nobody has heard of it yet
        self.generation, self.live, self.let_go = self.generation + 1, True, False
        if launched or pending:
            self.asked = False
        if launched or anew or (pending and self.resets):
            self.attempt = 0
        return launched

    def leaves(self, gone: str, *, pending: bool) -> None:
        """It is gone."""
        self.gone = gone
        if pending:
            self.live, self.let_go, self.asked = False, True, False

    def canceled(self) -> None:
        """Its pending job is canceled."""
        self.live, self.let_go, self.asked = False, True, False

    def revived(self) -> None:
        """Its job that has failed or was canceled is to run again."""
        self.generation += 1
        self.live, self.let_go, self.asked, self.attempt, self.change = True, False, False, 0, "manual"

    def claims(self, lease: int, generation: int) -> None:
        """Its job has started."""
        self.running, self.claimed, self.attempt = lease, generation, self.attempt + 1

    def ends(self, settlement: Settlement) -> None:
        """Its run has ended, or is to go on later."""
        self.running = None
        changed = self.generation > self.claimed
        if settlement.state not in FINISHED:
            self.asked = self.asked and not changed
            self.attempt = 0 if changed and self.resets else settlement.attempt
            return
        self.done, self.asked, self.attempt = self.claimed, False, 0
        self.live = changed
        if settlement.event is JobEvent.CANCELED and not changed:
            self.let_go = True
