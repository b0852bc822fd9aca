"""``penstock check`` as its user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.cells import cell_len

from penstock.check.checker import check
from penstock.check.formats import as_text
from penstock.cli.check import command
from penstock.cli.watch import check_saved, remember_saved

PROGRAM = """\
from datetime import UTC, datetime

from penstock import App, MutationCtx, QueryCtx, Table, signed_in

app = App()


class Plan(Table):
    name: str
    made_at: datetime


@app.query(access=signed_in)
async def plans(ctx: QueryCtx) -> list[Plan]:
    return await ctx.db.query(Plan).collect()


@app.mutation(access=signed_in)
async def add(ctx: MutationCtx, name: str) -> None:
    ctx.db.insert(Plan(name=name, made_at=datetime.now(UTC)))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app.py").write_text(PROGRAM, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str) -> Result:
    return CliRunner().invoke(command, args)


def codes(*args: str) -> list[str]:
    return [one["code"] for one in json.loads(run(*args, "--json").stdout)]


def mended(text: str) -> str:
    """What ``--fix`` makes of a program."""
    return text.replace("datetime.now(UTC)", "ctx.now()").replace("    ctx.db.insert", "    await ctx.db.insert")


def test_shows_the_line_a_mark_and_what_to_write(folder: Path) -> None:
    found = run()
    assert found.exit_code == 1
    assert "PEN003 collect() reads all rows of Plan" in found.stdout
    assert (
        "  --> app.py:15:18\n   |\n15 |     return await ctx.db.query(Plan).collect()\n   |                  ^^^"
        in found.stdout
    )
    assert "3 findings.\npenstock check --fix fixes up to 2." in found.stderr


def test_fits_a_terminal_and_marks_what_is_wrong(folder: Path) -> None:
    line = '\tawait ctx.db.insert(Plan(name="žluťoučký 🐎 kůň" + name, made_at=datetime.now(UTC))); print("a")'
    text = PROGRAM.replace("    ctx.db.insert(Plan(name=name, made_at=datetime.now(UTC)))", line)
    (folder / "app.py").write_text(text, "utf-8")
    report = check([Path("app.py")])
    for width in (40, 80, 120):
        rows = as_text(report.findings, report.lines, width).splitlines()
        assert max(cell_len(row) for row in rows) <= width
        assert cells_above(rows, "PEN014") == "datetime.now"
        assert cells_above(rows, "PEN003").startswith("ctx.db.query(Plan")


def cells_above(rows: list[str], code: str) -> str:
    """What stands in the line of source above the mark of a finding."""
    begin = next(number for number, row in enumerate(rows) if row.startswith(code))
    source, mark = next((one, two) for one, two in pairwise(rows[begin:]) if set(two) == set(" |^"))
    at = mark.index("^")
    before = next(number for number in range(len(source)) if cell_len(source[:number]) == at)
    return source[before : before + mark.count("^")]


def test_writes_one_line_for_each_finding_and_sarif(folder: Path) -> None:
    lines = run("--format", "lines").stdout.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["app.py:15:18:", "app.py:20:5:", "app.py:20:43:"]
    assert run("--format", "github").stdout.startswith("::error file=app.py,line=15,col=18,endLine=15,title=PEN003::")
    sarif = json.loads(run("--format", "sarif").stdout)
    found = sarif["runs"][0]["results"][0]
    assert sarif["version"] == "2.1.0"
    assert found["ruleId"] in {one["id"] for one in sarif["runs"][0]["tool"]["driver"]["rules"]}
    assert found["locations"][0]["physicalLocation"]["region"]["startLine"] == 15


def test_mends_what_is_safe(folder: Path) -> None:
    shown = run("--diff")
    assert "+    await ctx.db.insert(Plan(name=name, made_at=ctx.now()))" in shown.stdout
    assert (folder / "app.py").read_text("utf-8") == PROGRAM
    assert "Mended 2." in run("--fix").stderr
    assert (folder / "app.py").read_text("utf-8") == mended(PROGRAM)
    assert codes() == ["PEN003"]


def test_mends_methods_by_the_name_of_their_ctx(folder: Path) -> None:
    methods = (
        "class Plans:\n"
        "    def __init__(self, ctx: MutationCtx) -> None:\n        self.ctx = ctx\n\n"
        "    async def kept(self) -> str:\n        return str(datetime.now(UTC))\n\n"
        "    async def given(self, ctx: MutationCtx) -> str:\n        return str(datetime.now(UTC))\n"
    )
    (folder / "app.py").write_text(f"{PROGRAM}\n\n{methods}", "utf-8")
    run("--fix")
    text = (folder / "app.py").read_text("utf-8")
    assert ("str(self.ctx.now())" in text, "str(ctx.now())" in text) == (True, True)


def test_mends_lines_in_other_scripts_and_other_line_ends(folder: Path) -> None:
    file = folder / "app.py"
    text = PROGRAM.replace("Plan(name=name", 'Plan(name="Žluťoučký 🐎" or name').replace("\n", "\r\n")
    file.write_bytes(text.encode())
    run("--fix")
    assert file.read_bytes().decode() == mended(text)
    text = f"\f\n{PROGRAM}".replace("Plan(name=name", 'Plan(name="two\u2028lines" or name')
    file.write_text(text, "utf-8")
    assert "16 |     return await ctx.db.query(Plan).collect()" in run("--select", "PEN003").stdout
    run("--fix")
    assert file.read_text("utf-8") == mended(text)


def test_selects_and_ignores_rules(folder: Path) -> None:
    assert codes("--select", "PEN014") == ["PEN014"]
    assert codes("--ignore", "PEN014", "--ignore", "PEN001") == ["PEN003"]
    assert codes("--select", "pen014, PEN003") == ["PEN003", "PEN014"]
    (folder / "pyproject.toml").write_text('[tool.penstock.check]\nignore = ["PEN003"]\n', "utf-8")
    assert codes() == ["PEN001", "PEN014"]


def test_a_comment_ignores_a_rule_with_a_reason(folder: Path) -> None:
    file = folder / "app.py"
    ignored = ".collect()  # penstock: ignore[PEN003] there are four plans"
    file.write_text(PROGRAM.replace(".collect()", ignored), "utf-8")
    assert codes() == ["PEN001", "PEN014"]
    file.write_text(PROGRAM.replace(".collect()", ignored.partition(" there")[0]), "utf-8")
    assert codes("--select", "PEN003", "--select", "PEN000") == ["PEN003", "PEN000"]
    file.write_text(PROGRAM.replace(".collect()", f".take(5){ignored.removeprefix('.collect()')}"), "utf-8")
    assert "Nothing here breaks PEN003." in run("--select", "PEN003", "--select", "PEN000").stdout


def test_a_comment_that_ignores_nothing_says_why(folder: Path) -> None:
    found = "    return await ctx.db.query(Plan).collect()"
    (folder / "app.py").write_text(
        PROGRAM.replace(
            found, f"    # penstock: ignore[PEN003] four plans\n{found}  # penstock: ignore[PEN03] four plans"
        ),
        "utf-8",
    )
    told = [one for one in run("--format", "lines").stdout.splitlines() if "PEN000" in one]
    unused = "Remove the comment, or write it at the end of the line that breaks the rule."
    assert told == [
        f"app.py:15:5: PEN000 Nothing here breaks PEN003. {unused}",
        "app.py:16:48: PEN000 There is no rule PEN03. The rules are PEN000 to PEN026.",
    ]


def test_a_comment_stands_on_any_line_of_what_it_ignores(folder: Path) -> None:
    wanted = ".filter(lambda plan: plan.name == '')"
    comment = "# penstock: ignore[PEN002, PEN003] four plans"
    collect = f"(\n        ctx.db.query(Plan)\n        {wanted}\n        .collect()  {comment}\n    )"
    text = PROGRAM.replace("ctx.db.query(Plan).collect()", collect)
    comment = "  # penstock: ignore[PEN006] a test"
    for name, first, last in (("f0", comment, ""), ("f1", "", ""), ("f2", "", comment)):
        text += f"\n\n@app.query{first}\nasync def {name}(\n    ctx: QueryCtx,\n) -> int:{last}\n    return 1\n"
    (folder / "app.py").write_text(text, "utf-8")
    found = [(one["code"], one["message"][:2]) for one in json.loads(run("--json").stdout)]
    assert [one for one in found if one[0] in {"PEN000", "PEN002", "PEN003", "PEN006"}] == [("PEN006", "f1")]


def test_a_text_is_no_comment(folder: Path) -> None:
    comment = "# penstock: ignore[PEN014] why"
    text = (
        f'NOTE = """\n{comment}\n"""; PARTS = (\n    "a"  {comment}\n    "{comment}"\n)\n\\\n{comment}\n\\\nLAST = 1\n'
    )
    (folder / "app.py").write_text(text, "utf-8")
    assert [(one["code"], one["line"]) for one in json.loads(run("--json").stdout)] == [("PEN000", 4), ("PEN000", 8)]


def test_saved_files_alone_are_told_when_the_program_starts_again(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> str:
        thread = check_saved()
        assert thread is not None
        thread.join()
        return capsys.readouterr().err

    monkeypatch.delenv("_PENSTOCK_SAVED", raising=False)
    (folder / "other.py").write_text(PROGRAM.replace("Plan", "Offer"), "utf-8")
    remember_saved([folder / "app.py", folder / "pyproject.toml"])
    *lines, last = told().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["app.py"] * 3
    assert last == f"penstock check --explain {lines[0].split()[1]} says why."
    assert check_saved() is None
    remember_saved([folder / "app.py"])
    (folder / "pyproject.toml").write_text('[tool.penstock.check]\nignore = ["PEN777"]\n', "utf-8")
    assert "There is no rule PEN777" in told()


def test_a_baseline_tells_of_what_is_new(folder: Path) -> None:
    assert run("--write-baseline", "known.json").exit_code == 0
    moved = PROGRAM.replace("app = App()", "# moved\n\napp = App()")
    (folder / "app.py").write_text(moved, "utf-8")
    assert run("--baseline", "known.json").exit_code == 0
    again = "\n\n@app.query(access=signed_in)\nasync def again(ctx: QueryCtx) -> list[Plan]:\n"
    (folder / "app.py").write_text(f"{moved}{again}    return await ctx.db.query(Plan).collect()\n", "utf-8")
    assert codes("--baseline", "known.json") == ["PEN003"]


CANNOT_BE: tuple[tuple[list[str], str, str], ...] = (
    (["--select", "PEN9"], "", "There is no rule PEN9. The rules are PEN000 to PEN026."),
    (["--explain", "PEN9"], "", "There is no rule PEN9. The rules are PEN000 to PEN026."),
    (["--write-baseline", "no/known.json"], "", "known.json cannot be written: No such file or directory."),
    ([], "paths", "pyproject.toml cannot be read: Expected '='"),
    (["--baseline", "none.json"], "", "none.json cannot be read. Write it with --write-baseline."),
    ([], "selct = []", "[tool.penstock.check] has no setting selct. It has baseline, ignore, paths, select."),
    ([], 'paths = ["shop"]', "paths names shop, and there is no such file or folder."),
    ([], 'select = "PEN003"', 'select is a list of texts, such as ["PEN003"].'),
)


def test_refuses_what_cannot_be(folder: Path) -> None:
    for args, settings, said in CANNOT_BE:
        (folder / "pyproject.toml").write_text(f"[tool.penstock.check]\n{settings}\n", "utf-8")
        found = run(*args)
        assert found.exit_code == 2, said
        assert said in found.stderr


def test_names_a_file_that_cannot_be_read_but_none_that_an_editor_hides(folder: Path) -> None:
    (folder / "broken.py").write_text("def f(:\n", "utf-8")
    (folder / "latin.py").write_bytes(b"x = '\xe9'\n")
    found = [line for line in run("--format", "lines").stdout.splitlines() if "PEN999" in line]
    assert [line.partition(" ")[0] for line in found] == ["broken.py:1:7:", "latin.py:1:1:"]
    shown = run("--fix").stdout
    assert "1 | def f(:\n  |       ^\n" in shown
    assert "the file is not UTF-8.\n --> latin.py:1:1\n  = Correct it: no rule is checked in it.\n" in shown
    told = run("broken.py").stderr
    assert told == "Checked 1 file: 1 finding.\npenstock check --explain PEN999 says why.\n"
    (folder / "broken.py").unlink()
    (folder / "latin.py").unlink()
    (folder / "gone.py").symlink_to(folder / "nothing")
    (folder / ".#app.py").symlink_to("user@host.1:2")  # as Emacs marks a file that it changes
    found = [line for line in run("--format", "lines").stdout.splitlines() if "PEN999" in line]
    assert [line.partition(" ")[2] for line in found] == [
        "PEN999 This file cannot be read: No such file or directory. Correct it: no rule is checked in it."
    ]


def test_a_folder_without_a_program_is_not_called_right(folder: Path) -> None:
    (folder / "docs").mkdir()
    found = run("docs")
    assert (found.exit_code, found.stderr) == (0, f"There are no Python files in {folder / 'docs'}.\n")
    assert run("--explain", "pen003").stdout.startswith("# PEN003: collect reads all rows")
    assert run("--explain", "PEN999").stdout.startswith("# PEN999: a file cannot be read")


def test_imports_neither_the_program_nor_the_rest_of_penstock(folder: Path) -> None:
    (folder / "app.py").write_text(f"{PROGRAM}\nraise SystemExit('imported')\n", "utf-8")
    rest = "{'penstock.app', 'penstock.store', 'sqlite3', 'pydantic'}"
    told = f"import sys, penstock.cli.check; print(sorted({rest} & {{*sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"
    assert codes() == ["PEN003", "PEN001", "PEN014"]
