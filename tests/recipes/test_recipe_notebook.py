"""A script, and a notebook, whose cells share a running event loop."""

from __future__ import annotations

import pytest
from recipes.running import Recipe

RECIPE = "notebook"
# Jupyter compiles each cell so that it may await at its top level, and runs it on the loop of the kernel.
KERNEL = """
import ast, asyncio, inspect, json

cells = ["".join(cell["source"]) for cell in json.load(open("stock.ipynb"))["cells"]]


async def main():
    names = {}
    for number, cell in enumerate([*cells[:2], "app.sync.run_query(items)", *cells[2:]]):
        *begin, last = ast.parse(cell).body
        value = isinstance(last, ast.Expr)
        tree = ast.Module(begin if value else [*begin, last], [])
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        try:
            done = eval(compile(tree, f"cell {number}", "exec", flags=flags), names)
            if inspect.isawaitable(done):
                await done
            if value:
                found = eval(compile(ast.Expression(last.value), f"cell {number}", "eval", flags=flags), names)
                print(await found if inspect.isawaitable(found) else found)
        except Exception as error:
            print(type(error).__name__, error)


asyncio.run(main())
"""


@pytest.mark.long
@pytest.mark.both_stores
def test_a_script_waits_for_its_job_and_a_notebook_awaits(recipe: Recipe, database_url: str) -> None:
    recipe.environment["DATABASE_URL"] = database_url
    assert "3 sold of 1 items" in recipe.run("python", "nightly.py")
    assert "6 sold of 2 items" in recipe.run("python", "nightly.py"), "each run ends by itself"
    (recipe.folder / "kernel.py").write_text(KERNEL)
    said = recipe.run("python", "kernel.py")
    assert "('ink', 2)" in said
    assert (
        "ContextError app.sync was used on an event loop, which it would block. Use app.open() and await there." in said
    )
    assert "8 sold of 3 items" in said
