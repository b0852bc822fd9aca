"""Names are followed over the files of a program, whatever it does with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.check.checker import check

APP = "from penstock import App\n\napp = App()\n"
TABLES = "from penstock import Index, Table\n\n\nclass Note(Table):\n    text: str\n\n    by_text = Index('text')\n"
ALL = """\
@app.internal_query
async def notes(ctx: QueryCtx) -> list[Note]:
    return await ctx.db.query(Note).collect()
"""


def codes(folder: Path, **files: str) -> list[str]:
    """The rules that files break, each written as ``folder__name``."""
    for name, text in files.items():
        above, package, _ = name.partition("____init__")
        path = folder.joinpath(*above.split("__"), *["__init__"] * bool(package)).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return [one.code for one in check([folder]).findings]


IMPORTS = (
    "from penstock import QueryCtx\nfrom tables import Note\nfrom program import app",
    "from penstock import *\nfrom tables import *\nfrom program import *",
    "import penstock, tables\nimport program as p\nNote = tables.Note\napp = p.app\nQueryCtx = penstock.QueryCtx",
    "from tables import Note\nfrom program import app\nfrom penstock import QueryCtx as Ctx\nQueryCtx = Ctx",
)


def test_imports(tmp_path: Path) -> None:
    for imports in IMPORTS:
        assert codes(tmp_path, program=APP, tables=TABLES, queries=f"{imports}\n\n\n{ALL}") == ["PEN003"], imports
    wrapped = IMPORTS[0] + f"\nread = app.internal_query\n\n\n{ALL.replace('app.internal_query', 'read')}"
    assert codes(tmp_path, program=APP, tables=TABLES, queries=wrapped) == ["PEN003"], "a decorator of the program"


def test_a_package_that_passes_names_on(tmp_path: Path) -> None:
    found = codes(
        tmp_path,
        src__shop____init__="from .model import Note as Note\nfrom shop.program import app as app\n",
        src__shop__program=APP,
        src__shop__model____init__="from .notes import Note as Note\n",
        src__shop__model__notes=TABLES,
        src__shop__queries=f"from penstock import QueryCtx\n\nfrom . import Note, app\n\n\n{ALL}",
    )
    assert found == ["PEN003"]


@pytest.mark.parametrize(
    "imports", ["from . import Note, app", "from shop import *", "import shop\nfrom shop import Note"]
)
def test_one_file_is_checked_as_with_all_others(tmp_path: Path, imports: str) -> None:
    filtered = ALL.replace(".collect()", ".filter(lambda note: note.text == 'a').take(5)").replace("app", "shop.app")
    files = {
        "src__shop____init__": "from .model import Note as Note\nfrom shop.program import app as app\n",
        "src__shop__program": APP,
        "src__shop__model____init__": "from .notes import Note as Note\nfrom . import wrong\n",
        "src__shop__model__notes": TABLES,
        "src__shop__model__wrong": f"from penstock import QueryCtx\nfrom .notes import Note\n{ALL.replace('@', '# ')}",
        "src__shop__model__broken": "def (",
        "src__shop__queries": f"from penstock import QueryCtx\nimport shop\n{imports}\n\n\n{filtered}",
        "tests__shop__test_queries": "from shop.model import broken\n",  # a folder of the same name is no root
    }
    assert sorted(codes(tmp_path, **files)) == ["PEN002", "PEN003", "PEN999"]
    asked = tmp_path / "src" / "shop" / "queries.py"
    report = check([asked])
    assert [(one.code, "index by_text" in one.message) for one in report.findings] == [("PEN002", True)]
    assert [*report.lines] == [asked]
    assert check([tmp_path / "tests"]).findings == []


def test_names_that_only_look_alike_and_imports_in_circles(tmp_path: Path) -> None:
    ctx = "class Ctx:\n    def insert(self): ...\n\n\n"
    other = f"{ctx}async def f(ctx: Ctx):\n    ctx.insert()\n    ctx.db.query(1).collect()\n"
    assert codes(tmp_path, other=other, time="def time(): return 1\n") == []
    assert codes(tmp_path, a="from b import x\nfrom b import *\n", b="from a import x\nfrom a import *\nx.y()\n") == []
    assert codes(tmp_path, deep=f"x = {'(' * 50}1{')' * 50}\n", long=f"x = {' + '.join('1' * 500)}\n", empty="") == []


SAID = """\
import os
import time
import uuid

from penstock import ActionCtx, App, Id, Index, MutationCtx, QueryCtx, Table, signed_in

app = App()


class Seat(Table):
    hall: str
    price: int
    by_hall = Index("hall", "price")


@app.query(access=signed_in)
async def cheap(ctx: QueryCtx, hall: str, least: int, most: int) -> list[Seat]:
    return await ctx.db.query(Seat).filter(lambda s: s.hall == hall and s.price > least and most >= s.price).take(9)


@app.query(access=signed_in)
async def dear(ctx: QueryCtx, least: int) -> list[Seat]:
    return await ctx.db.query(Seat).filter(lambda s: s.price >= least).take(9)


@app.mutation(access=signed_in)
async def change(ctx: MutationCtx, seat: Seat) -> None:
    await ctx.db.replace(Seat, seat)
    await ctx.db.patch(Id[Seat]("a"), hall="a")
    await ctx.db.insert(Seat(hall=str(uuid.uuid4()), price=int(time.time())))
    os.getenv("HALL")


@app.internal_action
async def run(ctx: ActionCtx, seat: Seat) -> None:
    await ctx.run_mutation(change, seat)


@app.internal_mutation
def blocking(ctx: MutationCtx, seat: Id[Seat]) -> None:
    ctx.db.delete(Seat, seat)
"""


TOLD = (
    "finds the others. Write .with_index(Seat.by_hall, hall=…, price=gt(…) & lte(…)).",
    'Declare by_price = Index("price") in Seat, and read with .with_index(Seat.by_price, price=gte(…)).',
    "Take each column that a caller may set, and an Id[Seat] if the row is there already.",
    "ctx.db.replace is not told which row. Write ctx.db.replace(Table, row_id, row): ",
    "ctx.db.patch is not told the table. Write ctx.db.patch(Table, row_id, …): ",
    "Write uuid.UUID(int=ctx.random.getrandbits(128), version=4).",
    "Write ctx.now().timestamp(): the same in each attempt of one execution.",
    "os.getenv is this process's environment: mutation change may see another value in each attempt.",
    "change is public: callers from outside use it.",
    "Write async def and await ctx.db.delete(…), or take the ctx from penstock.sync.",
)


def test_says_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SAID, "utf-8")
    told = [f"{one.message} {one.fix}" for one in check([tmp_path]).findings]
    for said in TOLD:
        assert sum(said in one for one in told) == 1, (said, told)


def test_an_index_of_a_table_of_another_program_is_made_in_the_database(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from penstock import App, QueryCtx, Table\n"
        "app = App()\n"
        "class Order(Table, source='orders', key='number', managed=False):\n"
        "    number: int\n"
        "    status: str\n"
        "@app.internal_query\n"
        "async def paid(ctx: QueryCtx) -> list[Order]:\n"
        "    return [one for one in await ctx.db.query(Order).collect() if one.status == 'paid']\n"
    )
    (found,) = [one for one in check([tmp_path]).findings if one.code == "PEN002"]
    assert 'by_status = Index("status") in Order, create an index on these columns in the database, and' in found.fix
