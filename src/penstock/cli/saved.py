"""The check of files that were saved while ``penstock dev`` ran, beside the program that has started again."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from threading import Thread

from penstock.check import baseline
from penstock.check.checker import check
from penstock.check.formats import as_lines
from penstock.check.settings import read_settings
from penstock.cli.check import short_path
from penstock.cli.failure import style
from penstock.cli.output import say

_SAVED = "_PENSTOCK_SAVED"  # in the environment of a process that has replaced itself
_MOST = 10  # findings


def remember_saved(files: Collection[Path]) -> None:
    """Leave the process that replaces this one the files to check."""
    os.environ[_SAVED] = os.pathsep.join(str(file) for file in files if file.suffix == ".py")


def check_saved() -> Thread | None:
    """Print what is found in files that were saved before this process began, from a thread; None if none were."""
    saved = os.environ.pop(_SAVED, "")
    if not saved:
        return None
    thread = Thread(target=_check, args=({Path(file).resolve() for file in saved.split(os.pathsep)},), daemon=True)
    thread.start()
    return thread


def _check(saved: Collection[Path]) -> None:
    try:
        settings, folder = read_settings(Path.cwd())
        report = check([short_path(folder / one) for one in settings.paths], settings.codes())
        findings = [one for one in report.findings if one.path.resolve() in saved]
        if settings.baseline:
            findings = baseline.without_known(folder / settings.baseline, findings, report.lines)
    except ValueError as error:
        say(style(f"penstock check: {error}", dim=True))
        return
    if findings:
        more = f"; the first {_MOST} of {len(findings)}" if len(findings) > _MOST else ""
        shown = as_lines(findings[:_MOST], report.lines)
        say(style(f"{shown}penstock check --explain {findings[0].code} says why{more}.", dim=True))
