"""penstock in Flask: its errors as answers. Views use `app.sync`, which each process opens once.

Imports Flask, which penstock does not depend on. Leaves the statuses to `server/answers`.
"""

from __future__ import annotations

from flask import Flask, Response

from penstock.errors import PenstockError
from penstock.server.answers import framework_answer


def install(web: Flask) -> None:
    """Answer penstock's errors with their statuses. In debug mode callers see the text of each error.

    Args:
        web: Flask's app.
    """

    @web.errorhandler(PenstockError)
    def answer(error: PenstockError) -> Response:
        answered = framework_answer(error, dev=web.debug)
        return Response(answered.body, answered.status, answered.headers, content_type="application/json")
