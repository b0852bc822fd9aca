"""Asking before something is done that cannot be undone, or is done to many.

Owns that an answer is a person's: where there is no terminal nobody is asked, and nothing is done without ``--yes``.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from penstock.cli.output import say
from penstock.errors import ConfigError


def confirm(question: str, consequence: str = "", *, sure: bool) -> None:
    """State the consequence, then ask, unless ``--yes`` was said. Without a terminal, raise ConfigError."""
    if consequence:
        say(consequence)
    if sure:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"{question} There is no terminal to ask on.", fix="Confirm with --yes.")
    with _interruptible():
        try:
            click.confirm(question, abort=True, err=True)
        except click.Abort as error:
            if error.__context__ is not None:  # the input has ended, and the line of the question is still open
                say("")
            raise


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process at once: an event loop, or Python before the read, would only note it."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
