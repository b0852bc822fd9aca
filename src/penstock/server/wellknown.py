"""The keys of tokens that the program signs, for all who verify these, and where OpenID Connect looks for them."""

from __future__ import annotations

from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.calls.run.signing import ALGORITHM
from penstock.errors import TryAgain
from penstock.server.http import open_backend, refuse
from penstock.server.opening import Opening
from penstock.server.requests import Refused

_KEYS = "/.well-known/jwks.json"
_HEADERS = {"cache-control": "public, max-age=60", "access-control-allow-origin": "*"}  # nothing in them is secret


def well_known_routes(opening: Opening) -> list[Route]:
    """The documents about the program's own tokens."""

    async def keys(request: Request) -> Response:
        try:
            found = await (await open_backend(opening)).engine.signing.read()
        except (Refused, TryAgain) as error:
            return await refuse(request, error)
        return _send({"keys": [key.public for key in found]})

    async def discovery(_request: Request) -> Response:
        if not (issuer := opening.config.public_url):
            raise HTTPException(404)
        return _send(
            {
                "issuer": issuer,
                "jwks_uri": f"{issuer}{_KEYS}",
                "id_token_signing_alg_values_supported": [ALGORITHM],
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
            }
        )

    return [Route(_KEYS, keys), Route("/.well-known/openid-configuration", discovery)]


def _send(document: object) -> Response:
    return Response(to_json(document), headers=_HEADERS, media_type="application/json")
