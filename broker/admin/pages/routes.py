"""The pages of the dashboard: Starlette routes that the application has at `/`.

A page finds what it needs at `request.app.state`: `services`, `signing_in` and `desk`. Read next:
`broker.admin.pages.serving.pages`, `broker.admin.services`.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from broker.admin import problems
from broker.admin.access.roles import Who
from broker.admin.pages.desk import Desk
from broker.admin.pages.serving import (
    access,
    actions,
    bans,
    broker,
    clients,
    front,
    groups,
    publishing,
    rest,
    tracing,
)
from broker.admin.pages.serving.pages import to_log_in, trouble
from broker.admin.problems import Refused
from broker.admin.web.gate import WHO, form_of

__all__ = ["ROUTES", "Desk", "error_page"]

BOTH: Final = ["GET", "POST"]
ROUTES: Final[list[BaseRoute]] = [
    Route("/", front.owed),
    Route("/growth", front.growth),
    Route("/session", clients.session),
    Route("/session/past", clients.past),
    Route("/session/purge", actions.purge, methods=BOTH),
    Route("/session/delete", actions.delete, methods=BOTH),
    Route("/client/kick", actions.kick, methods=BOTH),
    Route("/connections", clients.connections),
    Route("/bans", bans.bans, methods=BOTH),
    Route("/bans/remove", bans.remove, methods=["POST"]),
    Route("/topics", rest.topics),
    Route("/group", groups.group),
    Route("/group/purge", groups.purge, methods=BOTH),
    Route("/publish", publishing.publish, methods=BOTH),
    Route("/retained", rest.retained),
    Route("/retained/delete", actions.delete_retained, methods=BOTH),
    Route("/storage", rest.storage),
    Route("/storage/reclaim", actions.reclaim, methods=["POST"]),
    Route("/trace", tracing.traces, methods=BOTH),
    Route("/trace/lines", tracing.lines),
    Route("/trace/stop", tracing.stop, methods=["POST"]),
    Route("/past", rest.past),
    Route("/broker", broker.broker),
    Route("/broker/log-level", broker.log_level, methods=["POST"]),
    Route("/broker/reload", broker.reload, methods=["POST"]),
    Route("/access", access.access),
    Route("/access/users", access.add_user, methods=["POST"]),
    Route("/access/user", access.change_user, methods=BOTH),
    Route("/access/user/remove", access.remove_user, methods=BOTH),
    Route("/access/tokens", access.add_token, methods=["POST"]),
    Route("/access/token/remove", access.remove_token, methods=BOTH),
    Route("/password", access.password, methods=BOTH),
    Route("/login", rest.log_in),
    Route("/static/{name:path}", rest.static),
]


def error_page(request: Request, problem: Refused) -> Response:
    """Return what somebody gets who asked for a page, or sent a form, in vain."""
    if "text/html" not in request.headers.get("accept", ""):
        return problems.answer(problem)
    if request.url.path == "/login" and request.method == "POST":
        return rest.log_in_again(request, problem, form_of(request.scope))
    who: Who | None = request.scope["state"].get(WHO)
    if problem.status == 401 and who is None:
        return to_log_in(request)
    return trouble(request, who, problem)
