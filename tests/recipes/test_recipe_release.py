"""Two releases side by side: a column is renamed while both serve, and no call fails."""

from __future__ import annotations

import httpx
import pytest
from recipes.running import Program, Recipe

pytest.importorskip("alembic", reason="it comes with the extra `migrations`")

RECIPE = "release"
SERVE = ("penstock", "serve", "--services", "--port", "{port}")


def call(web: Program, kind: str, path: str, **arguments: str) -> object:
    answer = httpx.post(f"{web.url}/api/{kind}", json={"path": f"shop:{path}", "args": arguments}).json()
    assert answer["status"] == "success", (answer, web.log)
    return answer["value"]


@pytest.mark.long
@pytest.mark.both_stores
def test_a_column_is_renamed_while_both_releases_serve(recipe: Recipe, database_url: str) -> None:
    recipe.environment["DATABASE_URL"] = database_url
    one, two = recipe.within("one"), recipe.within("two")
    one.run("penstock", "migrate")
    before = one.start(*SERVE)
    call(before, "mutation", "book", name="Ada")

    two.run("penstock", "migration", "run")
    call(before, "mutation", "book", name="Bob")
    two.run("penstock", "migrate")
    call(before, "mutation", "book", name="Cyd")
    after = two.start(*SERVE)
    for web, name in ((before, "Dan"), (after, "Eve")):
        call(web, "mutation", "book", name=name)
    expected = ["Ada", "Bob", "Cyd", "Dan", "Eve"]
    for web in (before, after):
        assert call(web, "query", "names") == expected
    after.wait_for(lambda: all(f"confirms {name}." in before.log + after.log for name in expected))

    assert before.stop() == 0
    two.run("penstock", "migration", "run", "--contract")
    call(after, "mutation", "book", name="Fay")
    assert call(after, "query", "names") == [*expected, "Fay"]
    after.wait_for(lambda: "release two confirms Fay." in after.log)
    assert after.stop() == 0
    for web in (before, after):
        assert "Traceback" not in web.log
