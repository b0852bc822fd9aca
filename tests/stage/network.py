"""A second machine, as far as the network is concerned: a network namespace with a cable that can be unplugged."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_PLACES = (os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin")
_RANGE = 2**15  # of pairs of addresses in 198.18.0.0/15, which is for tests of networks


class Machine:
    """A namespace, linked to the one of this process.

    Attributes:
        here: The address of this side.
        there: That of the other one.
    """

    def __init__(self, number: int) -> None:
        self._name, self._cable = f"penstock-{number}", f"pst{number}"
        place = number % _RANGE * 4
        net = f"198.{18 + place // 2**16}.{place // 2**8 % 2**8}."
        self.here, self.there = f"{net}{place % 2**8 + 1}", f"{net}{place % 2**8 + 2}"

    @property
    def command(self) -> list[str]:
        """What runs a program there, if it stands before it."""
        return [_ip(), "netns", "exec", self._name]

    def plug(self) -> None:
        """Have the network there again."""
        run("link", "set", f"{self._cable}a", "up")

    def unplug(self) -> None:
        """Lose all packets, in both directions, and tell nobody."""
        run("link", "set", f"{self._cable}a", "down")

    def open(self) -> None:
        """Make it."""
        here, there = f"{self._cable}a", f"{self._cable}b"
        run("netns", "add", self._name)
        run("link", "add", here, "type", "veth", "peer", "name", there, "netns", self._name)
        run("address", "add", f"{self.here}/30", "dev", here)
        run("link", "set", here, "up")
        run("-n", self._name, "address", "add", f"{self.there}/30", "dev", there)
        run("-n", self._name, "link", "set", there, "up")

    def close(self) -> None:
        """Leave nothing behind: both ends of the cable go together, the name of the machine at once."""
        for thing in (("link", "delete", f"{self._cable}a"), ("netns", "delete", self._name)):
            run(*thing)


@contextmanager
def machine() -> Iterator[Machine]:
    """A second machine for the time of a block."""
    made = Machine(os.getpid())
    try:
        made.open()
        yield made
    finally:
        made.close()


def missing() -> str:
    """Why there can be no second machine; empty if there can."""
    if _ip() == "ip" and not shutil.which("ip"):
        return "There is no program ip, with which networks are made; it comes with iproute2."
    trial = f"penstock-trial-{os.getpid()}"
    made = subprocess.run([_ip(), "netns", "add", trial], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"This process may make no network of its own: {made.stderr.strip()}"
    run("netns", "delete", trial)
    return ""


def run(*arguments: str) -> None:
    """Run `ip`."""
    done = subprocess.run([_ip(), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


def _ip() -> str:
    return shutil.which("ip", path=os.pathsep.join(_PLACES)) or "ip"
