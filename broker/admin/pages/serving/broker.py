"""Serves what an administrator has the broker itself do: log more or less, read its files again.

Read next: `broker.admin.acting`, `broker.admin.pages.desk`, which keeps what a reload has done.
"""

from typing import Final

from starlette.responses import Response

from broker.admin.access.roles import Role
from broker.admin.api.values import duration_s
from broker.admin.pages.desk import Reload
from broker.admin.pages.serving.pages import Visit, for_role
from broker.admin.records import LogLevel, Reloaded
from broker.admin.sources.reading import now_text
from broker.admin.web.gate import form_of
from broker.operations.control_socket import ControlError, Unanswered

HERE: Final = "/broker"
LEVELS: Final = ("debug", "info", "warning", "error")
FOR: Final = "10m"


@for_role(Role.ADMIN)
async def broker(visit: Visit) -> Response:
    """Serve the page."""
    return _page(visit, {})


def _page(visit: Visit, fields: dict[str, str], problem: str = "") -> Response:
    return visit.page(
        "broker",
        HERE,
        status=400 if problem else 200,
        problem=problem,
        levels=LEVELS,
        level=fields.get("level", LEVELS[0]),
        time=fields.get("time", FOR),
        reload=visit.desk.reload,
    )


@for_role(Role.ADMIN)
async def log_level(visit: Visit) -> Response:
    """Have the broker log from a level on, for a time or until it reads its files again."""
    fields = form_of(visit.request.scope)
    try:
        return await _set_level(visit, fields.get("level", ""), fields.get("time", ""))
    except Unanswered:
        raise
    except (ValueError, ControlError) as problem:
        return _page(visit, fields, str(problem))


async def _set_level(visit: Visit, level: str, time: str) -> Response:
    if level not in LEVELS:
        raise ValueError(f"from which level on? expected {', '.join(LEVELS)}")
    try:
        for_s = duration_s(time) if time else 0
    except ValueError as problem:
        raise ValueError(f"{time[:40]!r}: {problem}") from None
    services, who = visit.services, visit.who

    async def work() -> LogLevel:
        return await services.acting.set_log_level(level, who.name, for_s=for_s)

    details = {"level": level, "for": time}
    done = await services.change(who, Role.ADMIN, "set log level", details, work)
    until = f"for {time}, then" if time else "until a reload, then"
    notice = f"The broker logs from {done.level} on {until} from {done.configured}."
    return visit.go(HERE, notice)


@for_role(Role.ADMIN)
async def reload(visit: Visit) -> Response:
    """Have the broker read its files again; the page then says what that has changed."""
    services, who = visit.services, visit.who

    async def work() -> Reloaded:
        return await services.acting.reload(who.name)

    done = await services.change(who, Role.ADMIN, "reload configuration", {}, work)
    visit.desk.reload = Reload(done, who.name, now_text())
    return visit.go(HERE, "The broker has read its files again.")
