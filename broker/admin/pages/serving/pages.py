"""What all pages share: who asks, the page around, and an error as a page.

Whoever has not logged in is led to the form. An expected error is a page with one line; one that
the broker's silence causes loads itself again. Must never let a change pass without
`broker.admin.services.Services.change`. Read next: `broker.admin.pages.serving.front`.
"""

import functools
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from broker.admin.access.roles import Role, Who
from broker.admin.pages import rendering
from broker.admin.pages.desk import Desk
from broker.admin.pages.words import amounts, links
from broker.admin.problems import EXPECTED, Refused, refused
from broker.admin.services import Services, demand
from broker.admin.web.gate import who_of
from storage.time import machine_clocks

FIELDS_MAX: Final = 20
SAID: Final = "said"  # the field of an address with the key of a notice
RELOAD_S: Final = 3  # a page of the broker's silence without JavaScript
SILENT: Final = frozenset({502, 503, 504})
HEADINGS: Final = {
    400: "This cannot be shown",
    403: "This is not for you",
    404: "Not found",
    409: "The broker refuses this",
    429: "Too many tries",
    503: "The broker does not answer",
}

Serve = Callable[["Visit"], Awaitable[Response]]


class Visit:
    """One request of somebody who is known."""

    def __init__(self, request: Request, who: Who) -> None:
        self.request: Final = request
        self.who: Final = who
        self.services: Final[Services] = request.app.state.services
        self.desk: Final[Desk] = request.app.state.desk
        self.fresh: Final = self.desk.fresh
        self._query: Final = _fields(request.scope["query_string"])

    @property
    def may_act(self) -> bool:
        """May they change something?"""
        return self.who.role >= Role.OPERATOR

    @property
    def now(self) -> datetime:
        """The wall-clock time."""
        return amounts.of_ms(machine_clocks.wall_ms())

    def asked(self, name: str) -> str:
        """Return a field of the address, empty if it has none."""
        return self._query.get(name, "")

    def page(self, template: str, here: str, *, status: int = 200, **context: Any) -> HTMLResponse:
        """Return a page; `here` is the place of the bar that it belongs to."""
        around = {
            "user": self.who,
            "role": self.who.role.word,
            "places": rendering.places(self.who),
            "csrf": self.who.csrf,
            "here": here,
            "notice": self.desk.notices.take(self.asked(SAID)),
            "now": self.now,
        }
        return rendering.page(template, {**around, **context}, status=status)

    def go(self, path: str, notice: str, **fields: object) -> RedirectResponse:
        """Return an answer that leads on to a page, which shows the notice once."""
        self.fresh.drop()
        return RedirectResponse(links.url(path, **fields, said=self.desk.notices.put(notice)), 303)


def _fields(query: bytes) -> dict[str, str]:
    try:
        text = query.decode("ascii")
        found = parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError:
        raise Refused(400, "the address is not text") from None
    return {name: values[-1] for name, values in found.items()}


def for_role(role: Role) -> Callable[[Serve], Callable[[Request], Awaitable[Response]]]:
    """Make an endpoint of a function that serves those who have this role."""

    def wrap(serve: Serve) -> Callable[[Request], Awaitable[Response]]:
        @functools.wraps(serve)
        async def endpoint(request: Request) -> Response:
            who = who_of(request)
            if who is None:
                return to_log_in(request)
            try:
                demand(who, role)
                return await serve(Visit(request, who))
            except EXPECTED as problem:
                return trouble(request, who, refused(problem))

        return endpoint

    return wrap


def to_log_in(request: Request) -> Response:
    """Lead to the form, and from there back to where somebody wanted to go."""
    path = request.url.path
    wanted = f"{path}?{request.url.query}" if request.url.query else path
    form = links.url("/login", next=wanted if request.method == "GET" and path != "/" else "")
    if request.headers.get("hx-request"):
        return Response(status_code=401, headers={"HX-Redirect": form, **rendering.HEADERS})
    return RedirectResponse(form, 303, headers=rendering.HEADERS)


def trouble(request: Request, who: Who | None, problem: Refused) -> HTMLResponse:
    """Return an error as a page."""
    services: Services = request.app.state.services
    is_silent = problem.status in SILENT and request.method == "GET"
    since = services.asking.broker.silent_since
    when = None if since is None else amounts.moment(since)
    text = str(problem)
    if is_silent and when is not None:
        text = f"No answer since {amounts.exact(when)}. {text}"
    path = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
    heading = HEADINGS.get(problem.status, "This cannot be done")
    if problem.status in SILENT and when is None:
        heading = "This cannot be answered now"
    answer = rendering.page(
        "trouble",
        {
            "user": who,
            "role": "" if who is None else who.role.word,
            "places": () if who is None else rendering.places(who),
            "csrf": "" if who is None else who.csrf,
            "here": request.url.path,
            "notice": "",
            "now": amounts.of_ms(machine_clocks.wall_ms()),
            "heading": heading,
            "kind": "bad" if problem.status >= 500 else "warn",
            "text": text,
            "comes_back": is_silent,
            "again": path,
            "back": "/",
            "back_word": "To the front page",
        },
        status=problem.status,
    )
    answer.headers.update(problem.headers)
    if is_silent:
        answer.headers["Refresh"] = str(RELOAD_S)
    return answer
