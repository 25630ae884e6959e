"""Log in and log out of a browser: POST /login, POST /logout; the form itself is a page.

Read next: `broker.admin.access.logins`, `broker.admin.verifying`.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from broker.admin.access.logins import FORM_S, OLDEST_S
from broker.admin.access.roles import Who
from broker.admin.access.users import User
from broker.admin.problems import EXPECTED, Refused, refused
from broker.admin.services import Services
from broker.admin.web.gate import (
    LOGIN,
    cookie_of,
    form_of,
    is_https,
    peer_of,
    session_cookie,
    who_of,
)

FORM_COOKIE: Final = "holdfast-form"
FIRST_PAGE: Final = "/"


class SigningIn:
    """Answers both requests."""

    def __init__(
        self, services: Services, error_page: Callable[[Request, Refused], Response]
    ) -> None:
        self._error_page: Final = error_page
        self._services: Final = services

    def routes(self) -> list[Route]:
        """Return the routes; what they do not answer (GET) is for the pages."""
        return [
            Route(LOGIN, self.log_in, methods=["POST"]),
            Route("/logout", self.log_out, methods=["POST"]),
        ]

    def new_form(self) -> tuple[str, str]:
        """Return the cookie of a log-in form, for `give`, and its hidden field `csrf`."""
        return self._services.logins.new_form(self._services.clock())

    def give(self, request: Request, response: Response, cookie: str) -> None:
        """Set the cookie of the form that is in this response."""
        self._set(request, response, FORM_COOKIE, cookie, int(FORM_S))

    async def log_in(self, request: Request) -> Response:
        """Begin a session, with the fields `name`, `password` and `csrf`; go to that of `next`."""
        try:
            user = await self._log_in(request)
        except EXPECTED as problem:
            return self._error_page(request, refused(problem))
        wanted = safe_path(form_of(request.scope).get("next", ""))
        response = RedirectResponse(wanted, 303)
        self.let_in(request, response, user)
        response.delete_cookie(FORM_COOKIE, path="/")
        return response

    async def _log_in(self, request: Request) -> User:
        services, address = self._services, peer_of(request.scope)
        fields = form_of(request.scope)
        name, password = fields.get("name", ""), fields.get("password", "")
        form = cookie_of(request.headers, FORM_COOKIE)
        if form is None or not services.logins.is_form(
            form, fields.get("csrf", ""), services.clock()
        ):
            raise Refused(403, "the form is too old: load it anew")
        user = await services.verifying.verify(name, password, address)
        who = Who(user.name, user.role, user.payloads, "login", address)
        await asyncio.to_thread(services.log.noted, _by(who), "log in", "done")
        services.verifying.succeeded(name)
        before = cookie_of(request.headers, session_cookie(is_https(request.scope)))
        if before is not None:
            services.logins.end(before)
        return user

    def let_in(self, request: Request, response: Response, user: User) -> None:
        """Begin a session for a user who has shown the right password; its cookie is set."""
        cookie, _ = self._services.logins.begin(user, self._services.clock())
        self._set(request, response, session_cookie(is_https(request.scope)), cookie, int(OLDEST_S))

    async def log_out(self, request: Request) -> Response:
        """End the session, and go to the form."""
        cookie = cookie_of(request.headers, session_cookie(is_https(request.scope)))
        who = who_of(request)
        if cookie is not None and who is not None:
            self._services.logins.end(cookie)
            await asyncio.to_thread(self._services.log.noted, _by(who), "log out", "done")
        response = RedirectResponse(LOGIN, 303)
        response.delete_cookie(session_cookie(is_https(request.scope)), path="/")
        return response

    def _set(
        self, request: Request, response: Response, name: str, value: str, seconds: int
    ) -> None:
        response.set_cookie(
            name,
            value,
            max_age=seconds,
            path="/",
            secure=is_https(request.scope),
            httponly=True,
            samesite="strict",
        )


def safe_path(path: str) -> str:
    """Return an address within the dashboard; for every other one that of the front page."""
    is_ours = path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable()
    return path if is_ours else FIRST_PAGE


def _by(who: Who) -> dict[str, str]:
    return {"name": who.name, "role": who.role.word, "how": who.how, "from": who.address}
