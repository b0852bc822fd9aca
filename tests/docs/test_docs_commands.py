"""Commands and links on the pages lead somewhere: ``$ penstock …`` can be parsed, targets and files exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import click

from penstock.cli.main import commands

_LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"`(?P<line>(?:penstock|make) [^`]+)`")
_SAID = re.compile(r"\bpenstock (?P<words>[a-z]+(?:-[a-z]+)?(?: [a-z]+)?)\b")
_PROSE = {"before", "can", "cannot", "knows", "makes", "needs", "server", "where", "without", "what", "does"}
_SHELLS = {"console", "sh", "bash"}


class BlockLike(Protocol):
    """What the tests need to know of a block."""

    language: str
    lines: list[str]


def shell_lines(blocks: list[BlockLike]) -> Iterator[str]:
    """The commands that are typed in shell blocks, lines that continue joined."""
    for block in blocks:
        if block.language in _SHELLS:
            text = "\n".join(block.lines).replace("\\\n", " ")
            yield from (line[2:].strip() for line in text.splitlines() if line.startswith("$ "))


def parse(line: str) -> None:
    """Let click parse a command line, and run nothing."""
    words = shlex.split(line, comments=True)
    context = commands.make_context("penstock", words[1:])
    command: click.Command | None = commands
    while isinstance(command, click.Group):
        words = [*context._protected_args, *context.args]
        if not words and getattr(command, "invoke_without_command", False):
            return
        name, command, words = command.resolve_command(context, words)
        assert command is not None
        context = command.make_context(name, words, parent=context)


def test_every_penstock_command_can_be_parsed(blocks: dict[Path, list[BlockLike]]) -> None:
    lines = [line for found in blocks.values() for line in shell_lines(found) if line.startswith("penstock ")]
    assert len(lines) > 10
    for line in lines:
        parse(line)


def test_every_command_that_a_message_or_a_page_names_exists(pages: list[Path], root: Path) -> None:
    texts = [(file, text) for file in sorted((root / "src").rglob("*.py")) for text in messages(file)]
    texts += [(page, code) for page in pages for code in _NAMED.findall(_CODE.sub("", page.read_text("utf-8")))]
    named = [(found["words"].split(), file.name) for file, text in texts for found in _SAID.finditer(text)]
    assert len(named) > 60
    for words, where in named:
        if words[0] not in _PROSE:
            assert not is_unknown(words), f"{where}: penstock {' '.join(words)}"


def messages(file: Path) -> Iterator[str]:
    """The texts of a file that are no docstrings."""
    text = file.read_text("utf-8")
    nodes = list(ast.walk(ast.parse(text))) if "penstock " in text else []
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def is_unknown(words: list[str]) -> bool:
    """Whether there is no such command; the second word may go on with the sentence."""
    command = commands.get_command(click.Context(commands), words[0])
    if not isinstance(command, click.Group) or len(words) == 1:
        return command is None
    return words[1] not in {*command.commands, *_PROSE}


def make_targets(root: Path) -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text("utf-8"), re.MULTILINE))


def test_every_make_target_exists(blocks: dict[Path, list[BlockLike]], pages: list[Path], root: Path) -> None:
    lines = [line for found in blocks.values() for line in shell_lines(found) if line.startswith("make ")]
    assert lines
    lines += [code for page in pages for code in _NAMED.findall(page.read_text("utf-8")) if code.startswith("make ")]
    assert {line.split()[1] for line in lines} <= make_targets(root)


def test_every_link_leads_somewhere(pages: list[Path]) -> None:
    for page in pages:
        for found in _LINK.finditer(_CODE.sub("", page.read_text("utf-8"))):
            target, _, anchor = found["target"].partition("#")
            if "://" in target:
                continue
            other = (page.parent / target).resolve() if target else page
            assert other.exists(), f"{page.name}: {found['target']}"
            assert not anchor or anchor in anchors(other), f"{page.name}: {found['target']}"


def anchors(page: Path) -> set[str]:
    titles = (found["title"] for found in _HEADING.finditer(_CODE.sub("", page.read_text("utf-8"))))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_test_that_the_threat_model_names_exists(root: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", (root / "docs/threat-model.md").read_text("utf-8")))
    there = {
        name
        for file in (root / "tests").rglob("*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", file.read_text("utf-8"), re.MULTILINE)
    }
    assert len(named) > 20
    assert named - there == set()
