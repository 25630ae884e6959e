"""Serves the front page: what is owed, and to whom. Read next: `broker.admin.pages.views.owed`."""

from typing import Any

from starlette.responses import JSONResponse, Response

from broker.admin.access.roles import Role
from broker.admin.pages import rendering
from broker.admin.pages.serving.pages import Visit, for_role
from broker.admin.pages.views import owed as view
from broker.admin.pages.words import globs
from broker.admin.problems import Refused
from broker.admin.records import Page, SessionRow
from broker.admin.sources.orders import BeingSorted
from broker.operations.control_socket import ControlError

LIMIT = 50  # sessions on a page


@for_role(Role.VIEWER)
async def owed(visit: Visit) -> Response:
    """Serve the page."""
    sort = visit.asked("sort") or view.ORDERS[0]
    if sort not in view.ORDERS:
        raise Refused(400, f"sort = {sort[:40]!r}: expected one of {', '.join(view.ORDERS)}")
    match, cursor = visit.asked("match"), visit.asked("cursor")
    asking = visit.services.asking

    async def listing() -> Page[SessionRow] | None:
        try:
            return await asking.sessions(
                sort=sort, match=globs.wanted(match), cursor=cursor or None, limit=LIMIT
            )
        except BeingSorted:
            return None  # the page says so, and asks again

    context = view.context(
        await visit.fresh.get(("sessions", sort, match, cursor), listing),
        visit.desk.backlog,
        await _restart(visit),
        why=visit.desk.why,
        grown=visit.desk.growth.sentence(),
        sort=sort,
        match=match,
        cursor=cursor,
        now=visit.now,
    )
    return visit.page("owed", "/", **context)


async def _restart(visit: Visit) -> Any:
    """Return what a restart would cost, None while the broker does not answer."""
    try:
        return await visit.fresh.get("restart", visit.services.asking.restart_check)
    except ControlError:
        return None


@for_role(Role.VIEWER)
async def growth(visit: Visit) -> Response:
    """Serve what the chart draws."""
    return JSONResponse(visit.desk.growth.columns(), headers=rendering.HEADERS)
