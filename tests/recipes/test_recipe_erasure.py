"""Erasing a person: soon no table of the database holds the address, of rows, jobs, tasks or outboxes."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import httpx
import psycopg
import pytest
from recipes.running import Recipe

RECIPE = "erasure"
EMAIL = "ada.lovelace@example.com"


def places(url: str) -> list[str]:
    """The tables of a database that hold the address, or an unfinished job."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            names = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
            return [name for name in names if EMAIL in str(connection.execute(f'select * from "{name}"').fetchall())]
    with psycopg.connect(url) as connection:
        own = "select relid::regclass::text from pg_stat_user_tables where schemaname in ('public', 'penstock')"
        names = [name for (name,) in connection.execute(own)]
        return [name for name in names if EMAIL in str(connection.execute(f"select t::text from {name} t").fetchall())]


@pytest.mark.long
@pytest.mark.both_stores
def test_nothing_of_a_person_stays(recipe: Recipe, database_url: str) -> None:
    recipe.environment["DATABASE_URL"] = database_url
    feed = set() if database_url.startswith("sqlite") else {"penstock.change"}
    web = recipe.start("penstock", "serve", "--services", "--port", "{port}")
    call = {"path": "people:sign_up", "args": {"email": EMAIL}}
    assert httpx.post(f"{web.url}/api/mutation", json=call).json()["status"] == "success"
    web.wait_for(lambda: f"To {EMAIL}: welcome" in web.log and "newsletter: insert" in web.log)
    assert "person" in " ".join(places(database_url))
    assert "true" in recipe.run("penstock", "run", "erase", f"email={EMAIL}").lower()
    web.wait_for(lambda: "newsletter: delete" in web.log)
    # PostgreSQL's feed is emptied within an hour of being read, or by hand.
    web.wait_for(lambda: {place.partition("_")[0] for place in places(database_url)} <= feed)
    recipe.run("penstock", "changes", "empty")
    assert places(database_url) == []
    assert "a month" not in web.log
    assert web.stop() == 0
