"""HTTP actions: functions that answer requests at a path of their own, and the choice among them.

Owns what a path may be, and which action takes a request. Leaves requests and responses to `server/httpactions`.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NoReturn, ParamSpec, TypeVar

from penstock.dataclass import dataclass
from penstock.errors import ContextError, DeclarationError
from penstock.functions.access import Access, Guard
from penstock.functions.function import ActionFunction
from penstock.observe.places import place_of_handler

C = TypeVar("C", contravariant=True)
P = ParamSpec("P")
R = TypeVar("R", covariant=True)
X = TypeVar("X", covariant=True)

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_OWN = ["admin", "api", "dashboard", "docs", "healthz", "http", "metrics", "openapi.json", "readyz", "rest", "version"]
_PATH = re.compile(r"(?P<fixed>/[^\s{}?#%\\\x00-\x1f\x7f]*?)(?:(?<=/)\{(?P<rest>[A-Za-z_]\w*):path\})?")
_DOTS = re.compile(r"/\.\.?(/|$)|//")


@dataclass(frozen=True, slots=True)
class Place:
    """The requests that one HTTP action answers."""

    method: str  # the method
    path: str  # the path as it is declared: ``/hooks``, or ``/files/{rest:path}``
    fixed: str  # the path that a request must have, or begin with
    rest: str  # the name of the parameter that holds the rest of the path; empty if the path is exact

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class HttpAction(ActionFunction[C, P, R, X]):
    """A declared HTTP action. Only requests call it; calling it with a ctx runs the handler as a plain helper.

    Attributes:
        place: The requests that it answers.
        argument: The name of the parameter that takes the request.
        max_body: The most bytes of a request's body; None for the setting ``max_argument_bytes``.
    """

    def __init__(
        self,
        handler: Callable[..., X],
        place: Place,
        *,
        access: Access | Guard | None,
        rate_limit: str | None,
        max_body: int | None,
        timeout: timedelta | None,
    ) -> None:
        super().__init__(handler, public=True, access=access, rate_limit=rate_limit, timeout=timeout)
        self.place, where = place, f"{self.name} ({place_of_handler(handler)})"
        takes = [*inspect.signature(handler).parameters]
        if len(takes) != 2:  # noqa: PLR2004 - the ctx and the request
            raise DeclarationError(f"{where}: an HTTP action takes a ctx and a request.", fix="Write (ctx, request).")
        if access is None:
            raise DeclarationError(
                f"{where} answers requests, and does not say whose.",
                fix=f"Write @app.http({place.method!r}, {place.path!r}, access=public), or access=signed_in.",
            )
        size: object = max_body
        if size is not None and (type(size) is not int or size < 0):
            raise DeclarationError(f"{where}: max_body={max_body!r} is no number of bytes.")
        self.argument = takes[1]
        self.max_body = max_body

    def check_job(self, what: str = "A job", *, guards: bool = True) -> None:  # noqa: ARG002 - refused in any case
        """Refuse all jobs: they have no request."""
        raise DeclarationError(f"{what}: {self.name} is an HTTP action, and only requests call it.", fix=_INSTEAD)

    @functools.cached_property
    def signature(self) -> NoReturn:
        """Refuse all calls but requests, as no other has one."""
        raise ContextError(f"{self.name} is an HTTP action, and only requests call it.", fix=_INSTEAD)


_KEYS = frozenset({"/.well-known/jwks.json", "/.well-known/openid-configuration"})
_INSTEAD = "Declare an action that does the work, and call it from both."


def place_of(method: str, path: str) -> Place:
    """Read the method and the path of a declaration.

    Raises:
        DeclarationError: There is no such method, or the path cannot be, or is penstock's own.
    """
    what = f"@app.http({method!r}, {path!r})"
    if method not in METHODS:
        more = " GET answers HEAD, too." if method == "HEAD" else ""
        raise DeclarationError(f"{what}: an HTTP action has no such method.", fix=f"Write {', '.join(METHODS)}.{more}")
    given: object = path
    found = _PATH.fullmatch(given) if isinstance(given, str) else None
    if found is None or _DOTS.search(found["fixed"]):
        raise DeclarationError(
            f"{what}: this is no path.",
            fix='Write it decoded, from the first slash: "/hooks", or "/files/{rest:path}" for all below /files/.',
        )
    first = found["fixed"].split("/")[1]
    if first in _OWN:
        raise DeclarationError(f"{what}: paths below /{first} belong to penstock.", fix="Choose another path.")
    return Place(method, path, found["fixed"], found["rest"] or "")


class HttpActions:
    """The HTTP actions of an app. Exact paths come before prefixes, and longer prefixes before shorter ones."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[str, HttpAction[Any, ..., Any, Any]]] = {}  # by path and method
        self._prefixes: dict[str, dict[str, HttpAction[Any, ..., Any, Any]]] = {}  # the longest first

    def add(self, action: HttpAction[Any, ..., Any, Any]) -> None:
        """Add an action; `DeclarationError` if another one answers the same requests."""
        place = action.place
        of_path = (self._prefixes if place.rest else self._exact).setdefault(place.fixed, {})
        known = of_path.setdefault(place.method, action)
        if known is not action:
            raise DeclarationError(
                f"@app.http: {known.name} and {action.name} both answer {place}.",
                fix="Give one of them another path; if it is one function, its module was imported under two names.",
            )
        self._prefixes = dict(sorted(self._prefixes.items(), key=lambda one: -len(one[0])))

    def find(self, method: str, path: str) -> HttpAction[Any, ..., Any, Any] | None:
        """The action that answers requests with this method and path, as it stands there: no slash is added."""
        actions = [of_path for of_path in self._of(path) if method in of_path]
        if not actions and method == "HEAD":
            return self.find("GET", path)
        return actions[0][method] if actions else None

    def methods(self, path: str) -> list[str]:
        found = {method for of_path in self._of(path) for method in of_path}
        return sorted(found | {"HEAD"} if "GET" in found else found)

    def _of(self, path: str) -> Iterator[dict[str, HttpAction[Any, ..., Any, Any]]]:
        if path in self._exact:
            yield self._exact[path]
        for prefix, of_path in self._prefixes.items():
            if path.startswith(prefix) and (prefix != "/" or path not in _KEYS):  # a page does not hide the keys
                yield of_path

    def __iter__(self) -> Iterator[HttpAction[Any, ..., Any, Any]]:
        for of_path in (*self._exact.values(), *self._prefixes.values()):
            yield from of_path.values()
