"""The reference pages say what the code says.

The parts between ``<!-- generated: name -->`` and ``<!-- end -->`` are made here. To write them anew::

    PENSTOCK_WRITE_DOCS=1 python -m pytest tests/docs/test_docs_reference.py
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import click
import pytest

from penstock import client, errors
from penstock.cli.main import commands
from penstock.config import Config
from penstock.errors import PenstockError
from penstock.observe.meters import METERS

_GENERATED = re.compile(r"<!-- generated: (?P<name>\w+) -->\n(?P<text>.*?)<!-- end -->", re.DOTALL)
_SETTING = re.compile(r"^(?P<name>\w+): (?P<meaning>.*?)(?=^\w+: |\Z)", re.MULTILINE | re.DOTALL)
_ROW = re.compile(
    r"^\| `(?P<name>[a-z_.]+)` \| (?P<level>[a-z ]+) \| (?P<facts>[^|]*) \| (?P<meaning>[^|]+) \|$", re.MULTILINE
)
_NUMBER = re.compile(r"(?:INTEGER|FLOAT) RANGE")
_MIB = 1024 * 1024
_WIDTH = 100
_SHARED = 3  # options that as many commands of a group have are shown once


# ----- what is generated


def settings() -> str:
    """A row for each setting: its name, its default, and its meaning as `Config` documents it."""
    listed = (inspect.getdoc(Config) or "").partition("Attributes:\n")[2]
    meanings = {
        found["name"]: " ".join(found["meaning"].split()) for found in _SETTING.finditer(inspect.cleandoc(listed))
    }
    rows = [f"| `{one.name}` | {default(one.default)} | {cell(meanings[one.name])} |" for one in fields(Config)]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])


def default(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"`{value}`" if value else "none"
    if isinstance(value, int) and value >= _MIB:
        return f"{value // _MIB} MiB"
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}"


def metrics() -> str:
    """A row for each metric, named as Prometheus shows it."""
    rows = [
        f"| `{name}{'_total' * (meter.kind == 'counter')}` | {meter.kind} | "
        f"{', '.join(f'`{label}`' for label in meter.labels) or 'none'} | {cell(meter.meaning)} |"
        for name, meter in METERS.items()
    ]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows])


def errors_of_the_tree() -> str:
    """A row for each error, in the order of the tree, with a dot for each branch above it; then the client's own."""
    own = [getattr(client, name) for name in sorted(client.__all__)]
    kinds = [(kind, depth) for kind, depth in tree(PenstockError) if kind.__module__ == errors.__name__]
    kinds += [
        (kind, 1)
        for kind in own
        if isinstance(kind, type) and kind.__module__.startswith("penstock.client") and issubclass(kind, PenstockError)
    ]
    rows = [
        f"| {'·' * depth}`{kind.__name__}` | `{kind.code}` | "
        f"{cell((inspect.getdoc(kind) or '').partition(chr(10) * 2)[0])} |"
        for kind, depth in kinds
    ]
    return "\n".join(["| error | code | meaning |", "|---|---|---|", *rows])


def tree(kind: type[PenstockError], depth: int = 0) -> Iterator[tuple[type[PenstockError], int]]:
    yield kind, depth
    for below in kind.__subclasses__():
        yield from tree(below, depth + 1)


def cli() -> str:
    """The help of each command. What commands of one group share stands in the group's own part."""
    outer = click.Context(
        commands, info_name="penstock", terminal_width=_WIDTH, max_content_width=_WIDTH, **commands.context_settings
    )
    parts = [(outer, help_in(outer))]
    for name in commands.list_commands(outer):
        command = commands.get_command(outer, name)
        assert command is not None
        parts += group_or_command(click.Context(command, info_name=name, parent=outer))
    return "\n\n".join(f"## {usage_of(context)}\n\n```text\n{text}\n```" for context, text in parts)


def usage_of(context: click.Context) -> str:
    """The command with its arguments."""
    pieces = context.command.collect_usage_pieces(context)
    return " ".join((context.command_path, *(piece for piece in pieces if piece != "[OPTIONS]")))


def group_or_command(context: click.Context) -> Iterator[tuple[click.Context, str]]:
    below = list(context.command.commands.items()) if isinstance(context.command, click.Group) else []
    inner = [click.Context(command, info_name=name, parent=context) for name, command in below]
    own = options_of(context)
    told = Counter(record for one in inner for record in options_of(one))
    shared = [record for record, count in told.items() if count >= _SHARED and record not in own]
    yield context, help_in(context, of_several=shared)
    yield from ((one, help_in(one, above=[*own, *shared])) for one in inner)


def options_of(context: click.Context) -> list[tuple[str, str]]:
    """The options of a command, but --help, each with its text."""
    options = (one for one in context.command.get_params(context) if isinstance(one, click.Option))
    found = (one.get_help_record(context) for one in options if "--help" not in one.opts)
    return [(_NUMBER.sub("N", record[0]), record[1]) for record in found if record]


def help_in(
    context: click.Context, above: Sequence[tuple[str, str]] = (), of_several: Sequence[tuple[str, str]] = ()
) -> str:
    formatter, options = context.make_formatter(), options_of(context)
    context.command.format_help_text(context, formatter)
    own = [record for record in options if record not in above]
    for title, records in (("Options", own), ("Options of several commands", of_several)):
        if records:
            with formatter.section(title):
                formatter.write_dl(records)
    if known := [re.findall(r"--[\w-]+", record[0])[0] for record in options if record in above]:
        names = "all" if len(known) == len(above) else " ".join(known)
        formatter.write(f"\n{textwrap.fill(f'As above: {names}', _WIDTH, break_on_hyphens=False)}\n")
    if isinstance(context.command, click.Group) and context.parent is None:
        context.command.format_commands(context, formatter)
    return "\n".join(line.rstrip() for line in formatter.getvalue().strip("\n").splitlines())


def cell(text: str) -> str:
    return " ".join(text.replace("``", "`").split()).replace("|", "\\|")


GENERATORS: dict[str, Callable[[], str]] = {
    "settings": settings,
    "metrics": metrics,
    "errors": errors_of_the_tree,
    "cli": cli,
}
PARTS = [
    ("reference/settings.md", "settings"),
    ("reference/metrics.md", "metrics"),
    ("reference/errors.md", "errors"),
    ("reference/cli.md", "cli"),
]


@pytest.mark.parametrize(("page", "name"), PARTS)
def test_a_generated_part_is_that_of_the_code(root: Path, page: str, name: str) -> None:
    path = root / "docs" / page
    text, made = path.read_text("utf-8"), GENERATORS[name]()
    parts = {found["name"]: found for found in _GENERATED.finditer(text)}
    if os.environ.get("PENSTOCK_WRITE_DOCS"):
        start, end = parts[name].span("text")
        path.write_text(f"{text[:start]}{made}\n{text[end:]}", "utf-8")
        return
    assert parts[name]["text"] == f"{made}\n", (
        "PENSTOCK_WRITE_DOCS=1 python -m pytest tests/docs/test_docs_reference.py"
    )


# ----- events


@dataclass
class Emitted:
    """What the code says of one log event."""

    levels: set[str] = field(default_factory=set)
    facts: set[str] = field(default_factory=set)
    more: bool = False


def events_of_the_code(root: Path) -> dict[str, Emitted]:
    found: dict[str, Emitted] = {}
    texts = [path.read_text("utf-8") for path in sorted((root / "src").rglob("*.py"))]
    trees = [ast.parse(text) for text in texts if "event(" in text or "Service)" in text]
    services = [one for tree in trees for one in service_names(tree)]
    leased = {ast.unparse(call): method for tree in trees for call, method in calls_of_leased_services(tree)}
    for call in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if not (isinstance(call.func, ast.Name) and call.func.id in {"event", "log_event"} and call.args):
            continue
        method = leased.get(ast.unparse(call))
        names = [name for name, has_lease, own in services if method is None or (has_lease and method not in own)]
        for name in event_names(call.args[0], names):
            emitted = found.setdefault(name, Emitted())
            emitted.levels |= levels_of(call.args[1]) if len(call.args) > 1 else {"info"}
            emitted.facts |= {one.arg for one in call.keywords if one.arg and one.arg != "exc_info"}
            emitted.more |= any(one.arg is None for one in call.keywords)
    return found


def service_names(tree: ast.Module) -> Iterator[tuple[str, bool, set[str]]]:
    """The services of a module: the name that begins some events, whether it has a lease, and its own methods.

    Not those that call the method of the base.
    """
    for node in ast.walk(tree):
        bases = {ast.unparse(base) for base in node.bases} if isinstance(node, ast.ClassDef) else set()
        if isinstance(node, ast.ClassDef) and bases & {"Service", "LeasedService"}:
            methods = [one for one in node.body if isinstance(one, ast.AsyncFunctionDef | ast.FunctionDef)]
            own = {one.name for one in methods if f"super().{one.name}(" not in ast.unparse(one)}
            for statement in node.body:
                if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "name":
                    yield ast.literal_eval(statement.value), "LeasedService" in bases, own


def calls_of_leased_services(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    """The calls that only services under a lease make, each with its method."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "LeasedService":
            for method in node.body:
                if isinstance(method, ast.AsyncFunctionDef | ast.FunctionDef):
                    yield from ((one, method.name) for one in ast.walk(method) if isinstance(one, ast.Call))


def event_names(node: ast.expr, services: list[str]) -> list[str]:
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    text = ast.unparse(node)[2:-1]
    assert "{self.name}" in text, text
    return [text.replace("{self.name}", name) for name in services]


def levels_of(node: ast.expr) -> set[str]:
    return {name.lower() for name in re.findall(r"logging\.([A-Z]+)", ast.unparse(node))}


def events_of_the_page(root: Path) -> dict[str, Emitted]:
    text = (root / "docs" / "reference" / "events.md").read_text("utf-8")
    return {
        row["name"]: Emitted(set(row["level"].split(" or ")), set(re.findall(r"`(\w+)`", row["facts"])))
        for row in _ROW.finditer(text)
    }


def test_every_event_is_told_with_its_level_and_its_facts(root: Path) -> None:
    code, page = events_of_the_code(root), events_of_the_page(root)
    assert sorted(page) == sorted(code)
    assert {name: one.levels for name, one in page.items()} == {name: one.levels for name, one in code.items()}
    for name, emitted in code.items():
        told = page[name].facts
        assert emitted.facts <= told, name
        assert emitted.more or told == emitted.facts, name
