"""``manage.py penstock …``: the command line of penstock, with the app and the database of Django's settings."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from penstock.cli.main import run


class Command(BaseCommand):  # type: ignore[misc]  # Django ships no types
    """Hands all arguments on."""

    help = "Run a command of penstock, such as worker, jobs or migrate."

    def run_from_argv(self, argv: list[str]) -> None:
        """Run it before Django's parser sees the options."""
        sys.exit(_run(argv[2:]))

    def add_arguments(self, parser: CommandParser) -> None:
        """Take all arguments, for `call_command`."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *, arguments: list[str], **_options: Any) -> None:
        """Run it; raises `CommandError` if it fails."""
        if code := _run(arguments):
            raise CommandError(f"penstock {' '.join(arguments)} failed.", returncode=code)


def _run(arguments: list[str]) -> int:
    return run(["--app", settings.PENSTOCK_APP, *arguments])
