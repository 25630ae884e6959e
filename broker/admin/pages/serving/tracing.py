"""Serves traces: begins one, shows what it tells, ends it.

A trace gives each line to one reader, once. So only those that were begun here are read here, and
their lines are kept for whoever looks again. Read next: `broker.admin.pages.desk`.
"""

from typing import Any, Final

from starlette.responses import Response

from broker.admin.access.roles import Role
from broker.admin.api import values
from broker.admin.pages.serving.pages import Visit, for_role
from broker.admin.pages.views import trace as view
from broker.admin.pages.words import links
from broker.admin.problems import Refused
from broker.admin.services import demand_payloads
from broker.admin.sources.lanes import NotThere
from broker.admin.web.gate import form_of

FOR: Final = "10m"
PAYLOAD_BYTES: Final = 256


@for_role(Role.OPERATOR)
async def traces(visit: Visit) -> Response:
    """Serve those that are on, and begin one."""
    fields = form_of(visit.request.scope)
    problem = ""
    if visit.request.method == "POST":
        try:
            return await _begin(visit, fields)
        except ValueError as wrong:
            problem = str(wrong)
    found = await visit.services.acting.traces()
    return visit.page(
        "trace",
        "/trace",
        status=400 if problem else 200,
        problem=problem,
        kinds=view.KINDS,
        kind=fields.get("kind", ""),
        value=fields.get("value") or visit.asked("client"),
        time=fields.get("time", FOR),
        may_see_payloads=visit.who.payloads,
        traces=view.traces(found, visit.desk.traces),
        address="/trace",
    )


async def _begin(visit: Visit, fields: dict[str, str]) -> Response:
    """Begin a trace and lead to what it tells. Raises `ValueError` for what was typed wrong."""
    kind, value, time = fields.get("kind", ""), fields.get("value", ""), fields.get("time", FOR)
    if kind not in dict(view.KINDS):
        raise ValueError("what is to be followed? expected a client, a topic filter or an address")
    if not value:
        raise ValueError("whom? expected a client id, a topic filter or an address")
    try:
        for_s = values.duration_s(time)
    except ValueError as problem:
        raise ValueError(f"{time[:40]!r}: {problem}") from None
    payload_bytes = PAYLOAD_BYTES if fields.get("payloads") else 0
    if payload_bytes:
        demand_payloads(visit.who)
    services, who = visit.services, visit.who

    async def work() -> int:
        begun = await services.acting.trace(
            kind, value, who.name, for_s=for_s, payload_bytes=payload_bytes
        )
        return begun.trace

    details = {"kind": kind, "value": value, "for": time, "payload_bytes": payload_bytes}
    number = await services.change(who, Role.OPERATOR, "begin trace", details, work)
    visit.desk.follow(number, f"{dict(view.KINDS)[kind]}: {value}", payload_bytes > 0)
    return visit.go("/trace/lines", "The trace has begun.", trace=number)


@for_role(Role.OPERATOR)
async def lines(visit: Visit) -> Response:
    """Serve what a trace has told, the newest first."""
    number = _number(visit)
    followed = visit.desk.traces.get(number)
    if followed is None:
        raise NotThere(f"no trace {number} was begun here")
    if followed.has_payloads:
        demand_payloads(visit.who)
    if not followed.over:
        try:
            told = await visit.services.acting.trace_lines(number, payloads=followed.has_payloads)
            followed.take(told.lines, told.left_out, told.over)
        except NotThere as problem:
            followed.over = str(problem)
    return visit.page(
        "trace_lines",
        "/trace",
        what=followed.what,
        lines=[view.line(each) for each in reversed(followed.lines)],
        left_out=followed.left_out,
        over=followed.over,
        address=links.url("/trace/lines", trace=number),
        stop=links.url("/trace/stop", trace=number),
    )


@for_role(Role.OPERATOR)
async def stop(visit: Visit) -> Response:
    """End a trace."""
    number, services, who = _number(visit), visit.services, visit.who

    async def work() -> Any:
        return await services.acting.end_trace(number, who.name)

    await services.change(who, Role.OPERATOR, "end trace", {"trace": number}, work)
    return visit.go("/trace", "The trace has ended.")


def _number(visit: Visit) -> int:
    text = visit.asked("trace")
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise Refused(400, f"trace = {text[:40]!r}: expected its number")
    return int(text)
