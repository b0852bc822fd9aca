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
        generation: How many changes of it were to be run.
        done: The last of these that a run was for that has ended.
        let_go: Whether the last one needs no run, as the row is gone or its run was canceled.
        live: Whether there is a job that has not ended.
        running: The lease under which it runs.
        claimed: For which change it runs.
        asked: Whether someone has asked for its job to be canceled since the last change.
        job: The id of its job, once it is known.
    """

    generation: int = 0
    done: int = 0
    let_go: bool = False
    live: bool = False
    running: int | None = None
    claimed: int = 0
    asked: bool = False
    job: UUID | None = None

    def changes(self, *, pending: bool) -> bool:
        """It has changed; whether there is a job more."""
        launched = not self.live
        self.generation, self.live, self.let_go = self.generation + 1, True, False
        if launched or pending:
            self.asked = False
        return launched

    def leaves(self, *, pending: bool) -> None:
        """It is gone."""
        if pending:
            self.live, self.let_go, self.asked = False, True, False

    def canceled(self) -> None:
        """Its pending job is canceled."""
        self.live, self.let_go, self.asked = False, True, False

    def revived(self) -> None:
        """Its job that has failed or was canceled is to run again."""
        self.generation += 1
        self.live, self.let_go, self.asked = True, False, False

    def ends(self, settlement: Settlement) -> None:
        """Its run has ended, or is to go on later."""
        self.running = None
        changed = self.generation > self.claimed
        if settlement.state not in FINISHED:
            self.asked = self.asked and not changed
            return
        self.done, self.asked = self.claimed, False
        self.live = changed
        if settlement.event is JobEvent.CANCELED and not changed:
            self.let_go = True
