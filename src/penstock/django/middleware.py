"""Answers to penstock's errors in Django's views. Leaves the statuses to `server/answers`."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from penstock.errors import PenstockError
from penstock.server.answers import framework_answer


class ErrorAnswers:
    """Middleware: errors of penstock become answers with their statuses, with `DEBUG` also with their texts."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Go on to the view."""
        return self._get_response(request)

    def process_exception(self, _request: HttpRequest, error: Exception) -> HttpResponse | None:
        """The answer; None for the errors of others."""
        if not isinstance(error, PenstockError):
            return None
        answered = framework_answer(error, dev=settings.DEBUG)
        return HttpResponse(answered.body, "application/json", answered.status, headers=answered.headers)
