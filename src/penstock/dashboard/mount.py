"""``/dashboard``: pages for people who look after an app, live while they look.

Owns the order of steps of a request: headers, who asks, the page or the act. Leaves the pages to `pages`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.app import Backend
from penstock.dashboard.activity import Activity
from penstock.dashboard.live import Fragments, Live
from penstock.dashboard.mask import mask
from penstock.dashboard.page import Act, Answer, Elsewhere, Page, Role, View
from penstock.dashboard.pages.every import PAGES
from penstock.dashboard.render import Pages
from penstock.dashboard.sessions import Session, Sessions, finish_sign_in, is_own, set_cookie, start_sign_in, throttle
from penstock.errors import PenstockError, RateLimited
from penstock.identity.providers import dashboard_providers, issuer_url
from penstock.server.admin import audit
from penstock.server.http import open_backend
from penstock.server.opening import Opening
from penstock.server.requests import Refused
from penstock.server.subscribe import EventStream

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "same-origin",  # with no-referrer, browsers do not say which site has sent a form
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_SAID, _SAID_SECONDS = "penstock_said", 20
_LONGEST_FORM = 64 * 1024
_MENU = [
    (group, [*pages]) for group, pages in groupby((one for one in PAGES if one.above is None), lambda one: one.group)
]


def dashboard_routes(opening: Opening) -> Sequence[BaseRoute]:
    """The dashboard of an app."""
    dashboard = Dashboard(opening)
    routes = [
        Mount("/static", StaticFiles(packages=[("penstock.dashboard", "static")])),
        Route("/sign-in", dashboard.sign_in, methods=["GET", "POST"]),
        Route("/sign-in/with", dashboard.leave, methods=["GET"]),
        Route("/sign-in/back", dashboard.come_back, methods=["GET"]),
        Route("/sign-out", dashboard.sign_out, methods=["POST"]),
        *(Route(page.path, dashboard.endpoint(page), methods=["GET", "POST"]) for page in PAGES),
        Route("/{path:path}", dashboard.not_found),
    ]
    below = Mount("/dashboard", app=_with_headers(Router(routes, redirect_slashes=False)))
    has_page = bool(opening.app.registry.http.methods("/"))  # the program's own
    # `penstock dev` prints the address without a path, and people follow it
    first = [Route("/", _to_overview)] if opening.config.dev and not has_page else []
    return [*first, Route("/dashboard", _to_overview), below]


async def _to_overview(request: Request) -> Response:
    return RedirectResponse(f"{_base(request)}/dashboard/", 307)


class Dashboard:
    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._sessions = Sessions(opening.config)
        self._pages = Pages(opening.config.masked_names, opening.app)
        self._of: tuple[Backend, Activity, Live] | None = None
        opening.watch()

    def endpoint(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                return await self._answer(request, page)
            except (Refused, PenstockError) as error:
                return self._trouble(request, error)

        return answer

    # ----- endpoints

    async def not_found(self, request: Request) -> Response:
        return self._trouble(request, Refused(404, "NotFound", "There is no such page."))

    async def sign_in(self, request: Request) -> Response:
        """The form for a token; with one, begin a session."""
        error: Refused | PenstockError | None = None
        where = request.query_params.get("next", "")
        if request.method == "POST":
            form = await _form(request)
            try:
                if not is_own(request):
                    return _refuse_origin()
                backend = await open_backend(self._opening)
                await throttle(request, backend)
                key = await self._sessions.sign_in(request, backend, form.get("token", "").strip())
            except (Refused, PenstockError) as refused:
                error = refused
            else:
                response = RedirectResponse(_base(request) + _inside(where), 303)
                set_cookie(request, response, key)
                return response
        return self._sign_in_page(request, where, error)

    async def leave(self, request: Request) -> Response:
        """Go to a provider."""
        where = request.query_params.get("next", "")
        try:
            return await start_sign_in(request, await open_backend(self._opening), where)
        except (Refused, PenstockError) as error:
            return self._sign_in_page(request, where, error)

    async def come_back(self, request: Request) -> Response:
        """Come from a provider, and begin a session."""
        try:
            backend = await open_backend(self._opening)
            identity, where = await finish_sign_in(request, backend)
            key = await self._sessions.begin(identity, backend)
        except (Refused, PenstockError) as error:
            response = self._sign_in_page(request, "", error)
        else:
            # A page and no redirect: to what a redirect of another site leads to, browsers bring no strict cookie.
            values = {"base": _base(request), "title": "Signed in", "where": _base(request) + _inside(where)}
            response = HTMLResponse(self._pages.render("signed_in.html", values))
            set_cookie(request, response, key)
        set_cookie(request, response, "", of_sign_in=True)
        return response

    async def sign_out(self, request: Request) -> Response:
        if not is_own(request):
            return _refuse_origin()
        await self._sessions.sign_out(request, await open_backend(self._opening))
        response = RedirectResponse(f"{_base(request)}/sign-in", 303)
        set_cookie(request, response, "")
        return response

    async def _answer(self, request: Request, page: Page) -> Response:
        backend = await open_backend(self._opening)
        session = await self._sessions.find(request, backend)
        streams = "text/event-stream" in request.headers.get("accept", "")
        if session is None:
            if streams or request.method == "POST":
                return Response("Sign in again.", 401)
            where = urlencode({"next": _path(request).removeprefix(_base(request))})
            return RedirectResponse(f"{_base(request)}/sign-in?{where}", 303)
        _, activity, live = self._parts(backend)
        words = dict(request.query_params) | request.path_params
        view = View(backend, activity, words, session.role, self._pages.secrets, salt=session.salt)
        if request.method == "POST":
            return await self._act(request, page, view, session)
        frame = self._frame(request, page, session)
        if streams:
            shared = {name: value for name, value in frame.items() if name != "who"}
            key = (frame["base"], page.path, tuple(sorted(words.items())), session.role)
            holds = partial(self._sessions.holds, session, backend)
            watch = None if page.watch is None else partial(page.watch, view)

            def render(answer: Any) -> Awaitable[Fragments]:
                return self._pages.fragments(page, replace(view, answer=answer), shared)

            events = live.events(key, render, holds, watch, page.every)
            return EventStream(events, self._opening)
        try:
            loaded = await page.load(view)
        except Elsewhere as error:
            return RedirectResponse(frame["base"] + error.path, 303)
        values = {**frame, **loaded, "said": unquote(request.cookies.get(_SAID, ""))}
        response = HTMLResponse(self._pages.render(page.template, values))
        if values["said"]:
            response.delete_cookie(_SAID, path=_base(request) or "/")
        return response

    async def _act(self, request: Request, page: Page, view: View, session: Session) -> Response:
        """Do what a form asks for, and show the page again."""
        form = await _form(request)
        act = page.acts.get(form.get("act", ""))
        if not is_own(request) or act is None:
            return _refuse_origin()
        if session.role < act.role:
            raise Refused(403, "AccessDenied", f"This needs the right to {act.role.name}.")
        view = replace(view, words={**form, **view.words})
        asks = "" if form.get("sure") == "yes" else act.sure
        if question := asks if isinstance(asks, str) else await asks(view):
            asked = {**request.query_params, **form}
            values = {**self._frame(request, page, session), "form": form, "asked": asked, "sure": question, "said": ""}
            return HTMLResponse(self._pages.render("sure.html", values))
        found, told = await self._perform(act, view, f"{page.title}: {form['act']}", session)
        _, activity, live = self._parts(view.backend)
        await activity.forget()
        live.nudge()
        path = found.path if isinstance(found, Answer) else None
        if isinstance(found, Answer) and path is None:
            frame = self._frame(request, page, session)
            shown = {**frame, **await page.load(view), **found.values, "said": ""}
            return HTMLResponse(self._pages.render(page.template, shown))
        response = RedirectResponse(_path(request) if path is None else _base(request) + path, 303)
        response.set_cookie(_SAID, quote(told[:500]), _SAID_SECONDS, path=_base(request) or "/", httponly=True)
        return response

    # ----- steps

    def _sign_in_page(self, request: Request, where: str, error: Refused | PenstockError | None) -> Response:
        status, headers = 200 if error is None else 403, dict[str, str]()
        if isinstance(error, RateLimited):
            status, headers = error.status, {"retry-after": str(math.ceil(error.retry_after))}
        providers = dashboard_providers(self._opening.app.auth)
        values = {
            "base": _base(request),
            "next": where,
            "told": "" if error is None else str(error),
            "title": "Sign in",
            "providers": [(one.domain, urlsplit(issuer_url(one.domain)).netloc) for one in providers],
        }
        return HTMLResponse(self._pages.render("sign_in.html", values), status, headers)

    async def _perform(self, act: Act, view: View, name: str, session: Session) -> tuple[str | Answer | None, str]:
        """Do an act between the two writes to the audit log; what it returns, and what is told.

        An act that cannot be logged is not done.
        """
        words = {word: value for word, value in view.words.items() if word not in {"act", "sure"}}
        about = mask(words if act.about is None else act.about(view), self._pages.secrets)
        found = None
        async with audit(view.backend.engine, session.who, session.role.name, name, about) as outcome:
            try:
                found = await act.run(view)
                outcome.told = found if isinstance(found, str) else found.told
            except PenstockError as error:
                outcome.told = f"Not done: {error}"
        return found, outcome.told

    def _parts(self, backend: Backend) -> tuple[Backend, Activity, Live]:
        """The parts that are kept for a backend, which a mounted server may open again."""
        if self._of is None or self._of[0] is not backend:
            self._of = backend, Activity(backend), Live()
        return self._of

    def _frame(self, request: Request, page: Page, session: Session) -> dict[str, Any]:
        """The values that the templates of all pages have."""
        return {
            "base": _base(request),
            "page": page,
            "menu": _MENU,
            "title": page.title,
            "who": session.who,
            "may_operate": session.role >= Role.operate,
            "may_edit": session.role >= Role.edit,
        }

    def _trouble(self, request: Request, error: Refused | PenstockError) -> Response:
        status = error.status if isinstance(error, Refused) else 400
        form = _path(request) if request.method == "POST" else None
        values = {"base": _base(request), "title": "Not possible", "told": str(error), "form": form}
        return HTMLResponse(self._pages.render("trouble.html", values), status)


def _base(request: Request) -> str:
    found: str = request.scope["root_path"]
    return found


def _path(request: Request) -> str:
    return f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path


def _inside(where: str) -> str:
    """A path below the dashboard, and nothing that leads elsewhere."""
    return where if where.startswith("/") and not where.startswith(("//", "/\\")) else "/"


async def _form(request: Request) -> Mapping[str, str]:
    """The words of a form; of check boxes with one name the values, with spaces between. Files are not taken."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _LONGEST_FORM:
            raise Refused(413, "TooLarge", "The form is too large.")
    with suppress(ValueError):
        words: dict[str, str] = {}
        for name, text in parse_qsl(body.decode(), keep_blank_values=True):
            words[name] = f"{words[name]} {text}" if name in words else text
        return words
    raise Refused(400, "BadRequest", "The form cannot be read.")


def _refuse_origin() -> Response:
    return Response("This form was not sent by a page of the dashboard.", 403)


def _with_headers(app: ASGIApp) -> ASGIApp:
    """Every answer with the headers that keep other sites out."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                cache = "no-cache" if "/static/" in scope["path"] else "no-store"
                for name, text in {**_HEADERS, "cache-control": cache}.items():
                    headers.setdefault(name, text)
            await send(message)

        await app(scope, receive, sending)

    return answer
