"""Flask below each kind of worker that gunicorn has, before and after a fork."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from recipes.running import Recipe

RECIPE = "flask_gunicorn"
SERVED = ("gunicorn", "--bind", "127.0.0.1:{port}", "--workers", "2", "notes:web")


@pytest.mark.long
@pytest.mark.both_stores
@pytest.mark.parametrize("kind", [["sync"], ["gthread", "--threads", "8"], ["gthread", "--threads", "8", "--preload"]])
def test_views_run_functions_and_a_worker_the_jobs(recipe: Recipe, database_url: str, kind: list[str]) -> None:
    recipe.environment["DATABASE_URL"] = database_url
    web = recipe.start(*SERVED, "--worker-class", *kind)
    worker = recipe.start("penstock", "worker")
    with ThreadPoolExecutor(10) as threads:
        texts = [f"{'word ' * number}end" for number in range(30)]
        written = list(threads.map(lambda text: httpx.post(f"{web.url}/notes", data={"text": text}), texts))
    assert {answer.status_code for answer in written} == {201}
    expected = {answer.json(): number + 1 for number, answer in enumerate(written)}

    def counted() -> bool:
        return {note["id"]: note["words"] for note in httpx.get(f"{web.url}/notes").json()} == expected

    worker.wait_for(counted)
    assert (web.stop(), worker.stop()) == (0, 0)


def test_gevent_is_refused_with_the_way_out(recipe: Recipe, sqlite_url: str) -> None:
    recipe.environment["DATABASE_URL"] = sqlite_url
    web = recipe.start(*SERVED, "--worker-class", "gevent")
    answer = httpx.get(f"{web.url}/notes")
    assert (answer.status_code, answer.json()["code"]) == (500, "InternalServerError")
    assert "app.sync needs threads of the system, and gevent has replaced them in this process." in web.log
    assert "gunicorn --worker-class gthread --threads 8" in web.log
    assert web.stop() == 0
