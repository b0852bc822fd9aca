"""A program that uploads and deletes files, and kills itself at a chosen step: `python -m programs.uploading`."""

from __future__ import annotations

import asyncio
import os
import random  # noqa: TID251 - seeded
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

from stage.stories import tell_in

from penstock import App, Backend
from penstock.observe import points
from penstock.services.filesweep import FileSweep

STEPS = ("part", "file.stored", "commit.before", "commit.after", "file.deleted", "never")


app = App()
write, _, act = tell_in(app)


class Undone(Exception):
    """A mutation is rolled back."""


class Uploading:
    """Some steps with files, told to a ledger that outlives the process."""

    def __init__(self, backend: Backend, ledger: str, step: str, seed: int) -> None:
        self.backend = backend
        self.dice = random.Random(seed)
        self.known: list[str] = []
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._step = step
        self._until = self.dice.randint(1, 40)
        if step in points.POINTS:
            points.arm(step, self.come_closer)

    async def come_closer(self, **_: Any) -> None:
        """Die, once this was called often enough."""
        self._until -= 1
        if not self._until:
            os.kill(os.getpid(), signal.SIGKILL)

    def tell(self, word: str, file: str) -> None:
        os.write(self._ledger, f"{word} {file}\n".encode())

    async def parts(self) -> AsyncIterator[bytes]:
        for _ in range(self.dice.randint(0, 4)):
            if self._step == "part":
                await self.come_closer()
            yield self.dice.randbytes(self.dice.randint(0, 60_000))

    async def upload(self) -> None:
        file = await self.backend.run_action(act, lambda ctx: ctx.storage.store(self.parts()))
        self.tell("stored", file)
        self.known.append(file)

    async def delete(self) -> None:
        file = self.known.pop(self.dice.randrange(len(self.known)))
        self.tell("deleting", file)
        await self.backend.run_mutation(write, lambda ctx: ctx.storage.delete(file))
        self.tell("deleted", file)

    async def roll_back(self) -> None:
        async def story(ctx: Any) -> None:
            await ctx.storage.delete(self.dice.choice(self.known))
            raise Undone

        try:
            await self.backend.run_mutation(write, story)
        except Undone:
            pass
        else:
            raise AssertionError("it was not rolled back")

    async def run(self, count: int) -> None:
        files = FileSweep(self.backend.runner)
        for number in range(count):
            await self.upload()
            if number % 4 == 3:
                await self.delete()
            if number % 5 == 4 and self.known:
                await self.roll_back()
            if number % 6 == 5:
                await files.delete_owed()


async def main(database: str, folder: str, ledger: str, step: str, seed: str, count: str) -> None:
    async with app.open(database, files=folder) as backend:
        await Uploading(backend, ledger, step, int(seed)).run(int(count))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
