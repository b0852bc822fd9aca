"""``/openapi.json`` and ``/docs``: the public functions, for programs and for people.

Both are made at the first request, and are the same for all callers. The page needs nothing else.
"""

from __future__ import annotations

from functools import cache
from html import escape

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.codegen.description import TYPES, Description, FunctionDescription, describe
from penstock.codegen.openapi import openapi
from penstock.codegen.typescript import TypeWriter
from penstock.server.http import HEADERS, send_json
from penstock.server.opening import Opening

_POLICY = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Functions</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem }}
h2, h3 {{ font-weight: 600; margin: 2rem 0 .5rem }}
pre {{ white-space: pre-wrap; padding: .75rem; border: 1px solid #8884; border-radius: 6px }}
small {{ font-weight: 400; opacity: .7 }}
</style>
<h1>Functions</h1>
<p>Call them with POST, and their arguments as body. As OpenAPI: <a href="openapi.json">openapi.json</a>.</p>
{parts}
</html>
"""


def docs_routes(opening: Opening) -> list[Route]:
    """The routes of both; they are as public as the functions."""

    @cache
    def description() -> Description:
        registry = opening.app.registry
        return describe((function for function in registry if function.public), http=registry.http)

    @cache
    def document(root: str) -> bytes:
        return to_json(openapi(description(), root))

    @cache
    def page() -> str:
        return docs_page(description())

    async def serve_document(request: Request) -> Response:
        return send_json(document(request.scope.get("root_path") or "/"))

    async def serve_page(_request: Request) -> Response:
        return Response(page(), headers=HEADERS | _POLICY, media_type="text/html")

    return [Route("/openapi.json", serve_document), Route("/docs", serve_page)]


def docs_page(description: Description) -> str:
    """The page of the functions, with their types in TypeScript's words."""
    writer = TypeWriter(description)
    parts = []
    for module, functions in description.modules().items():
        parts += [f"<h2>{escape(module)}</h2>", *(_function(function, writer) for function in functions)]
    parts.append("<h2>Types</h2>")
    for name, schema in description.types.items():
        written = f"{writer.type({'$ref': TYPES + name})} = {writer.structure(schema)}"
        parts.append(f"<pre>{escape(written)}</pre>")
    return _PAGE.format(parts="\n".join(parts))


def _function(function: FunctionDescription, writer: TypeWriter) -> str:
    path = f"/rest/{function.module.replace('.', '/')}/{function.name}"
    written = f"{writer.type(function.arguments)}\n→ {writer.type(function.returns)}"
    heading = f"{escape(function.name)} <small>{function.kind}, <code>{escape(path)}</code></small>"
    access = f"<p>Access: <code>{escape(function.access)}</code></p>\n" if function.access else ""
    about = f"<p>{escape(function.about)}</p>\n" if function.about else ""
    return f"<h3>{heading}</h3>\n{about}{access}<pre>{escape(written)}</pre>"
