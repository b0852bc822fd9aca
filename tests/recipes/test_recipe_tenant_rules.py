"""Companies in one database: each sees and changes its own rows, whatever its callers send."""

from __future__ import annotations

from datetime import timedelta

import httpx
import jwt
import pytest
from recipes.running import Recipe

from penstock.clock import SystemClock

RECIPE = "tenant_rules"
SECRET = "the secret of the login program, which signs"


def token(**claims: str) -> dict[str, str]:
    expires = SystemClock().now() + timedelta(hours=1)
    told = jwt.encode({"iss": "login", "sub": "someone", "exp": expires, **claims}, SECRET, algorithm="HS256")
    return {"authorization": f"Bearer {told}"}


@pytest.mark.long
@pytest.mark.both_stores
def test_a_company_reaches_no_row_of_another(recipe: Recipe, database_url: str) -> None:
    recipe.environment |= {"DATABASE_URL": database_url, "LOGIN_SECRET": SECRET}
    web = recipe.start("penstock", "serve", "--services", "--port", "{port}")
    bakery, bikes, nobody = token(company="bakery"), token(company="bikes"), token()

    def call(caller: dict[str, str], kind: str, path: str, **arguments: str) -> tuple[str, object]:
        asked = {"path": f"desk:{path}", "args": arguments}
        answer = httpx.post(f"{web.url}/api/{kind}", json=asked, headers=caller).json()
        return answer["status"], answer.get("value", answer.get("errorData", {}))

    _, bread = call(bakery, "mutation", "write", company="bakery", text="bread")
    _, tyre = call(bikes, "mutation", "write", company="bikes", text="tyre")
    assert call(bakery, "query", "tickets") == ("success", ["bread"])
    assert call(bikes, "query", "tickets") == ("success", ["tyre"])
    assert call(nobody, "query", "tickets")[0] == "error"
    for caller, company in ((bakery, "bikes"), (nobody, "bakery"), (nobody, "")):
        assert call(caller, "mutation", "write", company=company, text="foreign")[0] == "error", company
    assert call(bakery, "mutation", "close", ticket=str(tyre))[0] == "error"
    assert call(bikes, "query", "tickets") == ("success", ["tyre"])
    assert call(bakery, "mutation", "close", ticket=str(bread))[0] == "success"
    web.wait_for(lambda: "bikes: tyre" in web.log)
    assert "foreign" not in web.log
    assert web.stop() == 0
