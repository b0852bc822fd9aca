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


class Releases:
    """Both releases, as they serve after the first four steps of the page."""

    def __init__(self, recipe: Recipe, database_url: str) -> None:
        recipe.environment["DATABASE_URL"] = database_url
        self.one, self.two = recipe.within("one"), recipe.within("two")
        self.one.run("penstock", "migrate")
        self.before = self.one.start(*SERVE)
        call(self.before, "mutation", "book", name="Ada")
        self.two.run("penstock", "migration", "run")
        call(self.before, "mutation", "book", name="Bob")
        self.two.run("penstock", "migrate")
        call(self.before, "mutation", "book", name="Cyd")
        self.after = self.two.start(*SERVE)
        for web, name in ((self.before, "Dan"), (self.after, "Eve")):
            call(web, "mutation", "book", name=name)
        self.names = ["Ada", "Bob", "Cyd", "Dan", "Eve"]
        for web in (self.before, self.after):
            assert call(web, "query", "names") == self.names

    def confirmed(self) -> bool:
        return all(f"confirms {name}." in self.before.log + self.after.log for name in self.names)


@pytest.mark.long
@pytest.mark.both_stores
def test_a_column_is_renamed_while_both_releases_serve(recipe: Recipe, database_url: str) -> None:
    both = Releases(recipe, database_url)
    both.after.wait_for(both.confirmed)
    assert both.before.stop() == 0
    both.two.run("penstock", "migration", "run", "--contract")
    call(both.after, "mutation", "book", name="Fay")
    assert call(both.after, "query", "names") == [*both.names, "Fay"]
    both.after.wait_for(lambda: "release two confirms Fay." in both.after.log)
    assert both.after.stop() == 0
    for web in (both.before, both.after):
        assert "Traceback" not in web.log


@pytest.mark.long
@pytest.mark.both_stores
def test_a_release_is_taken_back_before_its_last_step(recipe: Recipe, database_url: str) -> None:
    both = Releases(recipe, database_url)
    assert both.after.stop() == 0
    both.two.run("penstock", "migration", "down", "0001_rename_customer")
    call(both.before, "mutation", "book", name="Fay")
    assert both.before.stop() == 0
    back = both.one.start(*SERVE)
    assert call(back, "query", "names") == [*both.names, "Fay"]
    both.two.run("penstock", "migration", "run")
    both.two.run("penstock", "migrate")
    again = both.two.start(*SERVE)
    assert call(again, "query", "names") == [*both.names, "Fay"]
    assert [back.stop(), again.stop()] == [0, 0]
    for web in (both.before, both.after, back, again):
        assert "Traceback" not in web.log
