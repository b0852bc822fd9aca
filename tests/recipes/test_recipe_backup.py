"""Backups of a program that runs: the copy has its rows, and the jobs that go with them."""

from __future__ import annotations

import re
import sys

import httpx
import psycopg
import pytest
from recipes.running import Program, Recipe
from stage.postgres import client_program

RECIPE = "backup"
SERVE = ("penstock", "serve", "--port", "{port}")


def order(web: Program, numbers: range) -> None:
    for number in numbers:
        call = {"path": "orders:order", "args": {"number": number}}
        assert httpx.post(f"{web.url}/api/mutation", json=call).json()["status"] == "success"


def check_copy(recipe: Recipe, url: str) -> None:
    """The copy has the orders of before, and packs each of them once."""
    recipe.environment["DATABASE_URL"] = url
    copy = recipe.start(*SERVE, "--services")
    copy.wait_for(lambda: "packed 9." in copy.log)
    order(copy, range(20, 21))
    copy.wait_for(lambda: "packed 20." in copy.log)
    found = httpx.post(f"{copy.url}/api/query", json={"path": "orders:orders", "args": {}}).json()["value"]
    assert found == 11
    assert re.findall(r"packed (\d+)\.", copy.log) == [*map(str, range(10)), "20"]
    assert copy.stop() == 0


@pytest.mark.long
def test_a_file_is_copied_while_the_program_writes(recipe: Recipe, sqlite_url: str) -> None:
    file = sqlite_url.removeprefix("sqlite:///")
    recipe.environment["DATABASE_URL"] = sqlite_url
    web = recipe.start(*SERVE)
    order(web, range(10))
    recipe.run(sys.executable, "backup.py", file, "copy.db")
    order(web, range(10, 20))
    assert web.stop() == 0
    check_copy(recipe, "sqlite:///copy.db")
    recipe.run("penstock", "doctor")


@pytest.mark.long
def test_a_dump_is_restored_into_another_database(recipe: Recipe, postgres_url: str) -> None:
    dump, restore = client_program("pg_dump"), client_program("pg_restore")
    recipe.environment["DATABASE_URL"] = postgres_url
    web = recipe.start(*SERVE)
    order(web, range(10))
    recipe.run(dump, "--format=custom", "--file=shop.dump", postgres_url)
    order(web, range(10, 20))
    assert web.stop() == 0
    name = psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"]
    url = postgres_url.replace(f"/{name}", f"/{name}_copy")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create database {name}_copy")
    recipe.run(restore, "--no-owner", "--exit-on-error", f"--dbname={url}", "shop.dump")
    check_copy(recipe, url)
