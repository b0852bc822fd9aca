"""A message on its way through the relay."""

from __future__ import annotations

from penstock.changes.change import CapturedChange
from penstock.changes.position import Position
from penstock.dataclass import dataclass
from penstock.outbox.trouble import Noted, Trouble
from penstock.store.nouns.changes import Batch
from penstock.store.nouns.outboxes import Aside, AsideState, Identity


@dataclass(slots=True)
class Item:
    """A message that is to be delivered."""

    change: CapturedChange
    key: str  # messages of one key are delivered in order
    batch: Batch | None = None  # the read of the feed that it came with, if it did
    number: int = 0  # how many changes of that read are done with once it is
    backfill: str | None = None  # of an older row: the rest of the backfill once it is delivered
    aside: Aside | None = None  # its row in the table of set-aside messages, if it has one
    lost: Noted | None = None  # of one that tells of lost changes: how many in a row, and since when
    silent: bool = False  # whether it was set aside only to tell of a row that was delivered

    @property
    def identity(self) -> Identity:
        """Its identity among messages: an older row that is deleted leaves its number to the next one."""
        return (self.change.seq, None) if self.change.seq > 0 else (0, self.change.key)

    @property
    def size(self) -> int:
        """Its approximate size in bytes."""
        return len(self.change.before or "") + len(self.change.after or "")

    @property
    def after(self) -> Position | None:
        """The position of the reader behind it; None if it moves no reader."""
        return None if self.batch is None else self.batch.at(self.number)

    @property
    def log_key(self) -> str | None:
        return None if self.change.key is None or self.key == row_key(self.change) else self.key

    @property
    def is_retry(self) -> bool:
        """Whether it has failed and was set aside."""
        return self.aside is not None and self.aside.state == "halted"

    def set_aside(self, state: AsideState, trouble: Trouble | None = None) -> Aside:
        """Its row in the table of set-aside messages."""
        return Aside(self.change, self.key, state, trouble)


def row_key(change: CapturedChange) -> str:
    """The key of a message in no partition: it waits for messages of its row alone."""
    return f"\x01{change.key or change.seq}"
