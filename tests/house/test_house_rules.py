"""Rules that are written in several places say the same in all of them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from conformance.moves import moves

from penstock import errors
from penstock.config import Config
from penstock.errors import PenstockError
from penstock.jobs.states import FINISHED, JobEvent, JobState
from penstock.observe.points import POINTS
from penstock.store.push.migrate import load_migrations

_DRAWN = re.compile(r"^(?P<indent>[│ ]*)(?:├── |└── )?(?P<name>[A-Z]\w+)(?P<meaning> .*)?$")
_EVENT = re.compile(r"[a-z]+\.[a-z]+(_[a-z]+)*")


def tree_of_errors() -> Iterator[tuple[str, str, str]]:
    """Each error drawn at the top of errors.py: its name, its parent's, and what is said of it."""
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines()[2:]:
        found = _DRAWN.match(line)
        if not found:
            continue
        depth = 0 if line.startswith("PenstockError") else len(found["indent"]) // 4 + 1
        above[depth:] = [found["name"]]
        yield found["name"], above[depth - 1] if depth else "", (found["meaning"] or "").strip()


def subclasses(root: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield root
    for child in root.__subclasses__():
        yield from subclasses(child)


def own_errors() -> list[type[PenstockError]]:
    return [error for error in subclasses(PenstockError) if error.__module__ == errors.__name__]


# ----- errors


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    drawn = {name: parent for name, parent, _ in tree_of_errors()}
    assert drawn == {
        error.__name__: "" if error is PenstockError else error.__bases__[0].__name__ for error in own_errors()
    }
    assert all(meaning for name, _, meaning in tree_of_errors() if name != "PenstockError")


def test_every_error_has_a_code_of_its_own() -> None:
    codes = {error.__name__: error.__dict__.get("code") for error in own_errors()}
    assert None not in codes.values()
    assert len(set(codes.values())) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", str(code)) for code in codes.values())


# ----- jobs


def test_every_event_of_a_job_leads_somewhere() -> None:
    assert {event for _, event, _ in moves()} == set(JobEvent)
    assert {state for state, _, _ in moves()} | FINISHED == set(JobState)
    assert {to for _, _, to in moves()} == set(JobState)


def test_the_diagram_in_the_docs_is_that_of_the_code(root: Path) -> None:
    lines = ["stateDiagram-v2", "    [*] --> pending: enqueued"]
    lines += [f"    {state.value} --> {to.value}: {event.value}" for state, event, to in moves()]
    lines += [f"    {state.value} --> [*]" for state in JobState if state in FINISHED]
    assert "\n".join(["```mermaid", *lines, "```"]) in (root / "docs" / "jobs.md").read_text("utf-8")


def test_both_databases_allow_the_finished_states() -> None:
    for store in ("sqlite", "postgres"):
        text = "\n".join(sql for _, sql in load_migrations(store))
        (listed,) = re.findall(r"state text not null check \(state in \(([^)]*)\)\)", text)
        assert set(re.findall(r"'(\w+)'", listed)) == {state.value for state in FINISHED}


# ----- named moments


def reached(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"points.reach", "reach"}:
            first = node.args[0]
            assert isinstance(first, ast.Constant), ast.unparse(node)
            yield str(first.value)


def test_every_named_moment_is_reached_and_every_moment_reached_is_named(trees: dict[str, ast.Module]) -> None:
    assert {name for tree in trees.values() for name in reached(tree)} == POINTS


# ----- log events


def test_log_events_are_a_noun_and_a_verb(trees: dict[str, ast.Module]) -> None:
    names = {name for tree in trees.values() for name in emitted(tree)}
    assert len(names) > 10
    assert not [name for name in sorted(names) if not _EVENT.fullmatch(name.replace("{self.name}", "service"))]


def emitted(tree: ast.Module) -> Iterator[str]:
    """Names of events that a module logs; a part that is computed stands in braces."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"event", "log_event"} and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant):
                yield str(first.value)
            elif isinstance(first, ast.JoinedStr):
                yield ast.unparse(first)[2:-1]


# ----- settings


def test_every_setting_is_documented_where_it_is_declared() -> None:
    documented = re.findall(r"^    (\w+): ", inspect.getdoc(Config) or "", re.MULTILINE)
    assert documented == list(Config.__dataclass_fields__)
