"""``/openapi.json`` and ``/docs``: what a server tells of its functions, and what it keeps to itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpx
from fastapi.openapi.models import OpenAPI
from starlette.applications import Starlette
from starlette.routing import Mount

if TYPE_CHECKING:
    from doors.http_fixtures import Door

pytest_plugins = ("doors.http_fixtures",)


async def test_the_public_functions_are_described(near_door: Door) -> None:
    async with near_door() as api:
        described = await api.http.get("/openapi.json")
        document = described.json()
        assert described.headers["content-type"] == "application/json"
        assert len(OpenAPI.model_validate(document).paths or ()) == sum(
            one.public for one in api.asgi.opening.app.registry
        )
        assert "/rest/doors/http_fixtures/add" in document["paths"]
        assert "/rest/doors/http_fixtures/hidden" not in document["paths"]
        assert document["servers"] == [{"url": "/"}]
        (path,) = (path for path in document["paths"] if path.endswith("same_number"))
        assert (await api.post(path, {"number": 7})).json() == 7
        mounted = httpx.ASGITransport(Starlette(routes=[Mount("/inner", api.asgi)]))
        async with httpx.AsyncClient(base_url="http://x/inner", transport=mounted) as http:
            assert (await http.get("/openapi.json")).json()["servers"] == [{"url": "/inner"}]
        page = await api.http.get("/docs")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "Doc&lt;&quot;book&quot;&gt; = { _id: Id&lt;&quot;book&quot;&gt;;" in page.text
        assert ">add <" in page.text
        assert ">hidden <" not in page.text
        assert page.text.count("<p>Access: ") == 1
        assert "<p>Access: <code>public &amp; (signed_in | public)</code></p>" in page.text
        (path,) = (path for path in document["paths"] if path.endswith("/count"))
        said = document["paths"][path]["post"]["description"]
        assert said == "A query. Access: public & (signed_in | public)."
        assert not re.search(r"<script|src=|href=\"(?!openapi.json)", page.text)
