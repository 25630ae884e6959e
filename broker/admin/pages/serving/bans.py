"""Serves bans: those that hold, a form for a new one, and the end of one.

Read next: `broker.admin.acting`, `broker.admin.pages.views.bans`.
"""

from typing import Any, Final

from starlette.responses import Response

from broker.admin.access.roles import Role
from broker.admin.api import values
from broker.admin.pages.serving.pages import Visit, for_role
from broker.admin.pages.views import bans as view
from broker.admin.pages.words import names
from broker.admin.problems import Refused
from broker.admin.web.gate import form_of
from broker.operations.control_socket import ControlError, Unanswered

FOR: Final = "1h"


@for_role(Role.OPERATOR)
async def bans(visit: Visit) -> Response:
    """Serve those that hold, and make one."""
    fields = form_of(visit.request.scope)
    problem = ""
    if visit.request.method == "POST":
        try:
            return await _ban(visit, fields)
        except Unanswered:
            raise
        except (ValueError, ControlError) as wrong:
            problem = str(wrong)
    found = await visit.services.acting.bans()
    return visit.page(
        "bans",
        "/connections",
        status=400 if problem else 200,
        problem=problem,
        kinds=view.KINDS,
        kind=fields.get("kind", ""),
        value=fields.get("value") or visit.asked("client"),
        time=fields.get("time", FOR),
        reason=fields.get("reason", ""),
        **view.context(found),
    )


async def _ban(visit: Visit, fields: dict[str, str]) -> Response:
    """Make a ban. Raises `ValueError` for what was typed wrong, and what the broker refuses."""
    kind, value, time = fields.get("kind", ""), fields.get("value", ""), fields.get("time", FOR)
    if kind not in dict(view.KINDS):
        raise ValueError("who is to be banned? expected a client id, a user or an address")
    if not value:
        raise ValueError("whom? expected a client id, a user or an address")
    try:
        for_s = values.duration_s(time)
    except ValueError as problem:
        raise ValueError(f"{time[:40]!r}: {problem}") from None
    reason = fields.get("reason", "")
    services, who = visit.services, visit.who

    async def work() -> Any:
        return await services.acting.ban(kind, value, who.name, for_s=for_s, reason=reason)

    details = {"kind": kind, "value": value, "for": time, "reason": reason}
    await services.change(who, Role.OPERATOR, "ban", details, work)
    return visit.go("/bans", f"{names.plain(value, 80)} is banned for {time}.")


@for_role(Role.OPERATOR)
async def remove(visit: Visit) -> Response:
    """Remove a ban."""
    kind, value = visit.asked("kind"), visit.asked("value")
    if kind not in dict(view.KINDS) or not value:
        raise Refused(400, "the address names no ban")
    services, who = visit.services, visit.who

    async def work() -> Any:
        return await services.acting.unban(kind, value, who.name)

    details = {"kind": kind, "value": value}
    await services.change(who, Role.OPERATOR, "remove ban", details, work)
    return visit.go("/bans", f"{names.plain(value, 80)} is not banned any more.")
