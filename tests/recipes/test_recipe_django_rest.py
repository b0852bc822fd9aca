"""Django, its REST framework and its admin, served by gunicorn, with a worker that Django starts."""

from __future__ import annotations

import json
import re

import httpx
import pytest
from recipes.running import Recipe
from sqlalchemy import make_url

RECIPE = "django_rest"


def page(http: httpx.Client, path: str) -> tuple[str, dict[str, str]]:
    """A page of the admin, and the token that its form sends back."""
    shown = http.get(path)
    assert shown.status_code == 200, shown.text
    found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', shown.text)
    assert found
    return shown.text, {"csrfmiddlewaretoken": found[1]}


@pytest.mark.long
@pytest.mark.both_stores
def test_the_api_the_admin_and_a_worker_share_a_table(recipe: Recipe, database_url: str) -> None:
    url = make_url(database_url)
    if url.drivername == "postgresql":
        place = {"PGUSER": url.username, "PGHOST": url.host or url.query.get("host"), "PGPORT": url.port}
        recipe.environment |= {name: str(value) for name, value in place.items() if value}
        recipe.environment["DATABASE"] = str(url.database)
    recipe.environment |= {"DJANGO_SUPERUSER_PASSWORD": "secret", "DATABASE_URL": "sqlite:///of_another_program.db"}
    assert "No changes detected" in recipe.run("python", "manage.py", "makemigrations", "--check")
    recipe.run("python", "manage.py", "migrate")
    for name in ("ada", "eve"):
        recipe.run("python", "manage.py", "createsuperuser", "--noinput", f"--username={name}", "--email=a@b.example")
    web = recipe.start("gunicorn", "--workers", "2", "--bind", "127.0.0.1:{port}", "clinic.wsgi")
    worker = recipe.start("python", "manage.py", "penstock", "worker")

    with httpx.Client(base_url=web.url, auth=("ada", "secret")) as api:
        assert api.post("/api/visits/", auth=("ada", "guess")).status_code == 401
        assert api.post("/api/visits/", json={"email": "nobody"}).json() == {"email": ["Enter a valid email address."]}
        visits = [api.post("/api/visits/", json={"email": f"{n}@example.com"}).json()["id"] for n in range(2)]
        assert api.post(f"/api/visits/{visits[0]}/payment/").json() == {"id": visits[0], "paid": True}
        again = api.post(f"/api/visits/{visits[0]}/payment/")
        assert (again.status_code, again.json()["data"]) == (409, "It is paid already.")
        assert api.post(f"/api/visits/{visits[1]}/payment/", auth=("eve", "secret")).status_code == 404
        assert api.post("/api/visits/none/payment/").status_code == 422
    worker.wait_for(lambda: "To 0@example.com: thank you!" in worker.log)

    with httpx.Client(base_url=web.url, follow_redirects=True) as http:
        _text, token = page(http, "/admin/login/")
        welcome = http.post("/admin/login/", data={**token, "username": "ada", "password": "secret", "next": "/admin/"})
        assert "https://clinic.example/dashboard" in welcome.text
        _text, token = page(http, "/admin/clinic/visit/")
        edited = {"form-TOTAL_FORMS": "2", "form-INITIAL_FORMS": "2", "_save": "Save"}
        edited |= {f"form-{n}-id": str(visit) for n, visit in enumerate(reversed(visits))}
        http.post("/admin/clinic/visit/", data={**token, **edited, "form-0-paid": "on", "form-1-paid": "on"})
        worker.wait_for(lambda: "To 1@example.com: thank you!" in worker.log)
        chosen = {"action": "confirm_again", "_selected_action": [str(visit) for visit in visits]}
        assert http.post("/admin/clinic/visit/", data={**token, **chosen}).status_code == 200
    listed = ("python", "manage.py", "penstock", "jobs", "--state", "success", "--json")
    worker.wait_for(lambda: json.loads(recipe.run(*listed))["counts"]["success"] == 6)
    web.stop()
    assert worker.stop() == 0
