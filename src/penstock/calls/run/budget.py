"""The limits of the queries of one batch together. Each transaction has limits of its own."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import LimitExceeded


@dataclass(slots=True)
class Budget:
    """The bytes of one batch: a batch is one call, so it may read and return about as much as one call may read.

    Attributes:
        limit: The bytes that it may read, and the bytes that it may return.
        read: The bytes that its queries have read.
        returned: The bytes of their answers.
    """

    limit: int
    read: int = 0
    returned: int = 0

    def check(self) -> None:
        """Refuse a further query if nothing is left.

        Raises:
            LimitExceeded: The queries before it have read or returned too much.
        """
        for done, size in (("read", self.read), ("returned", self.returned)):
            if size > self.limit:
                raise self._exceeded(done)

    def take(self, answer: bytes) -> bytes:
        """Count an answer.

        Raises:
            LimitExceeded: With this one they have returned too much.
        """
        self.returned += len(answer)
        if self.returned > self.limit:
            raise self._exceeded("returned")
        return answer

    def _exceeded(self, done: str) -> LimitExceeded:
        error = LimitExceeded(
            f"The queries of this batch have {done} more than {self.limit} bytes together.",
            fix="Send fewer queries at once.",
            limit=self.limit,
        )
        error.at_the_door = True  # the batch is the caller's
        return error
