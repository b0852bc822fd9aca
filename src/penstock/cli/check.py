"""``penstock check``: what a program could do better, by rules. It reads the program and never runs it."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

import click

from penstock.check import baseline
from penstock.check.checker import Report, check
from penstock.check.finding import Finding
from penstock.check.fixing import Fixer, difference
from penstock.check.formats import FORMATS, Lines, as_text
from penstock.check.settings import Settings, no_rule, read_settings
from penstock.distribution import install
from penstock.observe.readable import amount

_MOST_PASSES = 5  # a fix may lead to another one


@click.command("check")
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--select", multiple=True, metavar="CODE", help="Look for these rules only: PEN001,PEN003.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Leave out these rules.")
@click.option("--format", "form", type=click.Choice(sorted(FORMATS)), default="text", help="How findings are written.")
@click.option("--json", "form", flag_value="json", help="The same as --format json.")
@click.option("--fix", is_flag=True, help="Fix what can be fixed safely.")
@click.option("--diff", is_flag=True, help="Show what --fix would change, and change nothing.")
@click.option("--baseline", "known", type=click.Path(path_type=Path), help="Leave out the findings in this file.")
@click.option("--write-baseline", type=click.Path(path_type=Path), help="Write all findings into this file.")
@click.option("--explain", metavar="CODE", help="Print the page of a rule.")
@click.option("--lsp", is_flag=True, help="Answer an editor: a language server on the standard streams.")
def command(
    paths: tuple[Path, ...],
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    form: str,
    known: Path | None,
    write_baseline: Path | None,
    explain: str | None,
    *,
    fix: bool,
    diff: bool,
    lsp: bool,
) -> None:
    """Check the files at PATHS, and below them, against penstock's rules.

    Exits with 0 if there is nothing to say, with 1 if there is, and with 2 if it could not check.
    """
    if explain:
        click.echo(page(explain))
        return
    if lsp:
        _serve()
        return
    try:
        settings, folder = _settings(select, ignore, known)
        places = [short_path(one) for one in paths or [folder / one for one in settings.paths]]
        report = check(places, settings.codes())
        if fix or diff:
            report = _fix(report, places, settings, writes=fix)
        findings = report.findings
        if write_baseline:
            baseline.write(write_baseline, findings, report.lines)
            click.echo(f"{write_baseline} has {amount(len(findings), 'finding')}.", err=True)
            return
        if settings.baseline:
            findings = baseline.without_known(folder / settings.baseline, findings, report.lines)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if not diff:
        click.echo(
            _render(findings, report.lines) if form == "text" else FORMATS[form](findings, report.lines), nl=False
        )
    click.echo(_sum(findings, len(report.lines), places), err=True)
    sys.exit(1 if findings else 0)


def _render(findings: Sequence[Finding], lines: Lines) -> str:
    """The text for people: on a terminal in its width, and in colour."""
    if not sys.stdout.isatty():
        return as_text(findings, lines)
    has_colour = "NO_COLOR" not in os.environ
    columns = shutil.get_terminal_size().columns
    return as_text(findings, lines, columns, _paint) if has_colour else as_text(findings, lines, columns)


def _paint(text: str, part: str) -> str:
    return click.style(text, fg="cyan" if part == "edge" else "red", bold=part == "code")


def _serve() -> None:
    try:
        editor = importlib.import_module("penstock.check.editor")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"pygls", "lsprotocol"}:
            raise
        raise click.UsageError(f"The editor mode needs pygls. Run: {install('lsp')}") from error
    editor.serve()


def _settings(select: Sequence[str], ignore: Sequence[str], known: Path | None) -> tuple[Settings, Path]:
    settings, folder = read_settings(Path.cwd())
    given = {"select": _codes(select), "ignore": _codes(ignore), "baseline": str(known.resolve()) if known else ""}
    return replace(settings, **{name: value for name, value in given.items() if value}), folder  # type: ignore[arg-type]


def _codes(given: Sequence[str]) -> tuple[str, ...]:
    return tuple(code.strip().upper() for one in given for code in one.split(","))


def short_path(path: Path) -> Path:
    """The path as seen from here, if it lies below."""
    whole = path.resolve()
    return whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else path


def _fix(report: Report, places: list[Path], settings: Settings, *, writes: bool) -> Report:
    mended, passes = 0, _MOST_PASSES if writes else 1
    for _pass in range(passes):
        fixer = Fixer(places, report)
        for path, after in fixer.texts.items():
            before = path.read_bytes().decode()  # with its own ends of lines
            if not writes:
                click.echo(difference(path, before, after), nl=False)
            elif before != after:
                path.write_bytes(after.encode())
        if not fixer.held or not writes:
            break
        mended += len(fixer.held)
        report = check(places, settings.codes())
    if writes:
        click.echo(f"Mended {mended}.", err=True)
        report = replace(report, findings=[replace(one, edits=()) for one in report.findings])
    return report


def _sum(findings: Sequence[Finding], files: int, places: Sequence[Path]) -> str:
    if not files:
        return f"There are no Python files in {', '.join(str(one.resolve()) for one in places)}."
    if not findings:
        return f"Checked {amount(files, 'file')}: nothing to say."
    fixable = sum(bool(one.edits) for one in findings)
    told = f"penstock check --fix fixes up to {fixable}. " if fixable else ""
    checked = f"Checked {amount(files, 'file')}: {amount(len(findings), 'finding')}."
    return f"{checked}\n{told}penstock check --explain {findings[0].code} says why."


def page(code: str) -> str:
    """The page of a rule: why, a bad and a good example, and when it does not apply."""
    file = resources.files("penstock.check") / "pages" / f"{code.upper()}.md"
    if not file.is_file():
        raise click.UsageError(no_rule(code))
    return file.read_text("utf-8")
