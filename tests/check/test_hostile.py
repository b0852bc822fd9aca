"""Whatever a file holds, the checker reads it to its end."""

from __future__ import annotations

import io
import tempfile
import tokenize
from functools import cache
from pathlib import Path

import alembic
import click
import fastapi
import flask
import starlette
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.needs import examples

from penstock.check.checker import check

FILES = sorted((Path(__file__).parent / "labelled").rglob("*.py"))


@cache
def tokens_of(file: Path) -> list[tokenize.TokenInfo]:
    readline = io.StringIO(file.read_text("utf-8")).readline
    return [one for one in tokenize.generate_tokens(readline) if one.string.strip()]


@given(st.data())
@settings(max_examples=examples(100))
def test_edits_never_crash_the_checker(data: st.DataObject) -> None:
    file = data.draw(st.sampled_from([one for one in FILES if tokens_of(one)]))
    tokens, lines = tokens_of(file), file.read_text("utf-8").splitlines(keepends=True)
    some = st.lists(st.sampled_from(tokens), max_size=8)
    for place in sorted(data.draw(some), key=lambda one: one.start, reverse=True):
        texts = [one.string for one in tokens if one.type == place.type]
        (line, begin), (last, end) = place.start, place.end
        if line == last:
            text = lines[line - 1]
            lines[line - 1] = text[:begin] + data.draw(st.sampled_from(["", *texts])) + text[end:]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, file.name).write_text("".join(lines), "utf-8")
        check([Path(folder)])


def test_programs_of_other_frameworks_break_no_rule() -> None:
    folders = [Path(one.__path__[0]) for one in (alembic, click, fastapi, flask, starlette)]
    report = check(folders)
    assert report.findings == []
    assert len(report.lines) > len(folders)


def test_names_that_stand_for_themselves_and_deep_programs(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "from penstock import App, MutationCtx, QueryCtx, Retry, signed_in\nfrom datetime import timedelta\n"
        "X = X\nY = Z | Y\nZ = Y\nf = f(1)\n"
        "@f\nasync def g(ctx: X, other: Y, last: 'Y') -> Z: ...\n"
        "app = App()\nJson = dict[str, 'Json'] | list['Json'] | str\nT = timedelta(hours=T)\n"
        "app.workpool('a', max_parallelism=1, default_retry=Retry(max_attempts=10**9, base=2))\n"
        "app.workpool('a', max_parallelism=1, default_retry=Retry(max_attempts=1000000))\n"
        "app.workpool('a', max_parallelism=1, default_retry=Retry.fixed(T))\n"
        "app.workpool('a', max_parallelism=1, default_retry=Retry.fixed(timedelta(days=1e99, x='')))\n"
        "@app.query(access=signed_in)\nasync def j(ctx: QueryCtx, value: Json) -> Json: ...\n"
        "from penstock import Table\nclass A(B, Table): ...\nclass B(A): ...\n"
        "async def i(ctx: MutationCtx):\n    await ctx.db.patch(A, 1, x=1)\n"
        "async def h(ctx: QueryCtx):\n    ctx.db.get(1)" + ".a()" * 300 + "\n    if a: b" + "\n    elif a: b" * 300,
        "utf-8",
    )
    assert {one.code for one in check([tmp_path]).findings} <= {"PEN001", "PEN013", "PEN018"}
