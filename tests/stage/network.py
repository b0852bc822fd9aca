"""A second machine, as far as the network is concerned: a network namespace with a cable that can be unplugged."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from stage.needs import program

_RANGE = 2**15  # of pairs of addresses in 198.18.0.0/15, which is for tests of networks


class RefusedError(Exception):
    """`ip` has not done what it was told to do."""


class Machine:
    """A namespace, linked to the one of this process.

    Attributes:
        here: The address of this side.
        there: That of the other one.
        name: Of the namespace.
        cable: How the names of both ends of its cable begin.
    """

    def __init__(self, number: int) -> None:
        self.name, self.cable = f"penstock-{number}", f"pst{number}"
        place = number % _RANGE * 4
        net = f"198.{18 + place // 2**16}.{place // 2**8 % 2**8}."
        self.here, self.there = f"{net}{place % 2**8 + 1}", f"{net}{place % 2**8 + 2}"

    @property
    def command(self) -> list[str]:
        """What runs a program there, if it stands before it."""
        return [program("ip", "iproute2"), "netns", "exec", self.name]

    def plug(self) -> None:
        """Have the network there again."""
        run("link", "set", f"{self.cable}a", "up")

    def unplug(self) -> None:
        """Lose all packets, in both directions, and tell nobody."""
        run("link", "set", f"{self.cable}a", "down")

    def open(self) -> None:
        """Make it."""
        here, there = f"{self.cable}a", f"{self.cable}b"
        run("netns", "add", self.name)
        run("link", "add", here, "type", "veth", "peer", "name", there, "netns", self.name)
        run("address", "add", f"{self.here}/30", "dev", here)
        run("link", "set", here, "up")
        run("-n", self.name, "address", "add", f"{self.there}/30", "dev", there)
        run("-n", self.name, "link", "set", there, "up")

    def close(self) -> None:
        """Leave nothing behind, whatever there is of it: both ends of the cable go together."""
        for thing in (("link", "delete", f"{self.cable}a"), ("netns", "delete", self.name)):
            tried(*thing)


@contextmanager
def machine(number: int | None = None) -> Iterator[Machine]:
    """A second machine for the time of a block, by default that of this process."""
    made = Machine(os.getpid() if number is None else number)
    try:
        made.open()
        yield made
    finally:
        made.close()


def refusal() -> str:
    """Why this process may make no second machine; empty if it may."""
    try:
        with machine():
            return ""
    except RefusedError as error:
        return f"This process may make no network of its own: {error}"


def run(*arguments: str) -> None:
    """Run `ip`."""
    if refusal := tried(*arguments):
        raise RefusedError(refusal)


def tried(*arguments: str) -> str:
    """Run `ip`; why it did not do so, or nothing."""
    done = subprocess.run([program("ip", "iproute2"), *arguments], capture_output=True, text=True, check=False)
    return f"ip {' '.join(arguments)}: {done.stderr.strip()}" if done.returncode else ""
