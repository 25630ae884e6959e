"""Finds out who asks: by a bearer token, or by the cookie of a browser that has logged in.

A request that brings a cookie and changes something must bring the CSRF token of its session along,
and come from our own pages; a bearer token is not sent by a browser unasked, so it needs neither.
Must never let a request pass as somebody else, and decides nothing about roles. Read next:
`broker.admin.services`, `broker.admin.web.signing_in`.
"""

import hmac
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from broker.admin import problems
from broker.admin.access.private_file import AccessFileError
from broker.admin.access.roles import Who
from broker.admin.problems import Refused, refused
from broker.admin.services import Services
from broker.admin.web.hygiene import BODY
from broker.admin.web.origins import Origins
from storage.time import machine_clocks

WHO: Final = "who"  # where it is in the state of a request
API: Final = "/api/"
LOGIN: Final = "/login"  # its form has a token of its own
READING: Final = frozenset({"GET", "HEAD"})
CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"
FORM_TYPE: Final = "application/x-www-form-urlencoded"
FIELDS_MAX: Final = 100


class Gate:
    """Wraps the application behind `Hygiene`; a request then knows who asks."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        services: Services,
        error_page: Callable[[Request, Refused], Response],
        origins: Origins,
    ) -> None:
        """`error_page` answers a browser."""
        self._app: Final = app
        self._error_page: Final = error_page
        self._services: Final = services
        self._origins: Final = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            scope["state"][WHO] = self._who(scope)
        except (Refused, AccessFileError) as problem:
            if Headers(scope=scope).get("authorization") or scope["path"].startswith(API):
                answer = problems.answer(refused(problem))
            else:
                scope["state"][WHO] = None
                answer = self._error_page(Request(scope, receive), refused(problem))
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _who(self, scope: Scope) -> Who | None:
        headers = Headers(scope=scope)
        credentials = headers.getlist("authorization")
        if credentials:
            return self._bearer(credentials, peer_of(scope))
        if scope["method"] not in READING:
            self._origins.check(headers, scope["scheme"])
        cookie = cookie_of(headers, session_cookie(is_https(scope)))
        if cookie is None:
            return None
        login = self._services.logins.find(cookie, self._services.clock())
        user = None if login is None else self._services.users.find(login.user_name)
        if login is None or user is None or not login.is_of(user):
            self._services.logins.end(cookie)
            return None
        if scope["method"] not in READING and scope["path"] != LOGIN:
            self._check_csrf(scope, headers, login.csrf)
        return Who(user.name, user.role, user.payloads, "login", peer_of(scope), login.csrf)

    def _bearer(self, credentials: list[str], address: str) -> Who:
        scheme, _, text = credentials[0].partition(" ")
        token = None
        if len(credentials) == 1 and scheme.lower() == "bearer":
            token = self._services.tokens.find(text.strip(), machine_clocks.wall_ms())
        if token is None:
            raise Refused(
                401,
                "no such token, or it has expired",
                headers={"WWW-Authenticate": 'Bearer error="invalid_token"'},
            )
        return Who(token.name, token.role, token.payloads, "token", address)

    def _check_csrf(self, scope: Scope, headers: Headers, expected: str) -> None:
        given = headers.get(CSRF_HEADER) or form_of(scope).get(CSRF_FIELD, "")
        if not hmac.compare_digest(given.encode(), expected.encode()):
            raise Refused(
                403, "the CSRF token is missing or of another session: load the page anew"
            )


def who_of(request: HTTPConnection) -> Who | None:
    """Return who asks, None = somebody who is not known."""
    who: Who | None = request.scope["state"][WHO]
    return who


def form_of(scope: Scope) -> dict[str, str]:
    """Return the fields of a form that was sent, the last one of each name; {} = none."""
    content_type = Headers(scope=scope).get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != FORM_TYPE:
        return {}
    try:
        text = scope["state"][BODY].decode()
        found = parse_qs(text, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        return {}
    return {name: values[-1] for name, values in found.items()}


def is_https(scope: Scope) -> bool:
    """Return whether a browser sends its requests by TLS: to us, or to a proxy that says so."""
    return bool(scope["scheme"] == "https")


def session_cookie(has_tls: bool) -> str:
    """Return the name of the cookie of a session; the prefix binds it to this host, with TLS."""
    return "__Host-holdfast" if has_tls else "holdfast"


def cookie_of(headers: Headers, name: str) -> str | None:
    """Return a cookie of a request."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return None if found is None else found.value


def peer_of(scope: Scope) -> str:
    """Return the address of the connection's other end."""
    client = scope.get("client")
    return str(client[0]) if client else ""
