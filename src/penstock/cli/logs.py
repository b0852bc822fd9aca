"""Logs of the command line: where they go, from which level on, and as text or JSON.

Owns the set-up of the standard library's logging for a process that penstock starts. Leaves what is logged to those
who log it.
"""

from __future__ import annotations

import logging
import os
import sys

from penstock.cli.visible import visible, visible_line
from penstock.observe.logs import JsonFormatter

_COLOURS = {"DEBUG": "2", "INFO": "36", "WARNING": "33", "ERROR": "31", "CRITICAL": "31"}
_LIBRARIES = ("asyncio", "httpcore", "httpx", "uvicorn", "uvicorn.error", "watchfiles")


class TextFormatter(logging.Formatter):
    """One readable line: the time, the level and what happened; in colour on a terminal."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__(datefmt="%H:%M:%S" if colour else "%Y-%m-%d %H:%M:%S")
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line, and its traceback below it."""
        level = f"{record.levelname.lower():7}"
        if self._colour:
            level = f"\x1b[{_COLOURS.get(record.levelname, '0')}m{level}\x1b[0m"
        line = f"{self.formatTime(record, self.datefmt)} {level} {visible_line(record.getMessage())}"
        return f"{line}\n{visible(self.formatException(record.exc_info))}" if record.exc_info else line


def set_up_logs(level: str, form: str) -> None:
    """Send all logs to stderr: penstock's and the program's from a level on, those of libraries from warning on."""
    handler = logging.StreamHandler()
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(colour=colour))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for quiet in _LIBRARIES:
        logging.getLogger(quiet).setLevel(logging.WARNING)
