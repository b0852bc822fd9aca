"""FastAPI, SQLAlchemy and Alembic: from a fresh database to a bill, and the recipe's own tests."""

from __future__ import annotations

import json

import httpx
import pytest
from recipes.running import Recipe

RECIPE = "fastapi_sqlalchemy"
LOGIN = {"username": "ada", "password": "secret"}


@pytest.mark.long
@pytest.mark.both_stores
def test_a_team_moves_in(recipe: Recipe, database_url: str) -> None:
    recipe.environment |= {"DATABASE_URL": database_url, "RENTAL_SECRET": "s" * 64}
    with pytest.raises(AssertionError) as refused:
        recipe.run("penstock", "migrate")
    assert "or correct source= or the database's URL" in str(refused.value)
    recipe.run("alembic", "upgrade", "head")
    recipe.run("penstock", "migrate")
    assert "No new upgrade operations detected" in recipe.run("alembic", "check")
    web = recipe.start("uvicorn", "rental.web:web", "--port", "{port}")
    worker = recipe.start("penstock", "worker")
    with httpx.Client(base_url=web.url) as http:
        assert http.post("/users", json=LOGIN).status_code == 201
        assert http.post("/bikes", json={"model": "tandem"}).json() == 1
        assert http.get("/rentals").status_code == 401
        token = http.post("/token", json=LOGIN).json()["access_token"]
        http.headers["authorization"] = f"Bearer {token}"
        rental = http.post("/bikes/1/rentals").json()
        assert http.post(f"/rentals/{rental}/return").status_code == 200
        worker.wait_for(lambda: "To ada: the bill for bike 1." in worker.log)
        asked = {"path": "rental.work:mine", "args": {}, "format": "json"}
        (mine,) = http.post("/backend/api/query", json=asked).json()["value"]
        assert [mine["bike_id"]] == [one["bike_id"] for one in http.get("/rentals").json()] == [1]
        if database_url.startswith("postgresql"):  # SQLite checks no foreign keys by itself
            assert http.post("/bikes/2/rentals").status_code == 500
    jobs = json.loads(recipe.run("penstock", "jobs", "--json"))
    assert jobs["counts"] == {"ready": 0, "scheduled": 0, "retrying": 0, "running": 0, "success": 2}, (
        "no mail without a rental"
    )
    web.stop()
    assert "Finished server process" in web.log
    assert worker.stop() == 0


@pytest.mark.long
@pytest.mark.both_stores
def test_the_tests_of_the_recipe_pass(recipe: Recipe, database_url: str) -> None:
    if database_url.startswith("postgresql"):
        recipe.environment |= {"TEST_SERVER": database_url}
    assert "2 passed" in recipe.run("pytest", "-q", "-W", "error", "-p", "no:cacheprovider")
