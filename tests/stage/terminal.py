"""A command on a terminal of its own, as a person has it: what it shows is read, and keys are pressed."""

from __future__ import annotations

import codecs
import os
import pty
from contextlib import suppress
from pathlib import Path
from typing import Self

from stage.forks import Fork

ENTER, INTERRUPT, END_OF_FILE = "\r", "\x03", "\x04"


class Terminal:
    """A command of the command line on a terminal. Use it in ``with``.

    Args:
        folder: Where it is called.
        arguments: The command.
        errors: Where stderr goes instead of the terminal.

    Attributes:
        shown: All that stood on the terminal so far, as a person has read it.
    """

    def __init__(self, folder: Path, *arguments: str, errors: int | None = None) -> None:
        self.shown = ""
        self._text = ""
        self._decode = codecs.getincrementaldecoder("utf-8")().decode  # what is read may end within a character
        self._ours, theirs = pty.openpty()
        self._process = Fork(
            "penstock",
            arguments,
            folder=folder,
            environment={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TERM": "xterm", "NO_COLOR": "1"},
            files=(theirs, theirs, theirs if errors is None else errors),
            terminal=True,
        )
        os.close(theirs)

    def wait_for(self, text: str) -> None:
        """Read until something is shown."""
        while text not in self.shown:
            assert self._read(), f"{text!r} is not shown:\n{self.shown}"

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def end(self) -> int:
        """Read to the end; the exit code as a shell has it."""
        while self._read():
            continue
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def _read(self) -> bool:
        """Read what is shown next; whether there was anything."""
        read = b""
        with suppress(OSError):  # so Linux says that nobody has the other end any more
            read = os.read(self._ours, 4096)
        self._text += self._decode(read, final=not read)
        self.shown = self._text.replace("\r\n", "\n")
        return bool(read)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)
