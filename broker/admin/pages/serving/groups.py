"""Serves the page of one shared group, and drops what waits for it.

Read next: `broker.admin.pages.views.groups`, `broker.admin.pages.serving.actions`.
"""

from typing import Any

from starlette.responses import Response

from broker.admin.access.roles import Role
from broker.admin.pages.serving.actions import chosen, options, reason_of
from broker.admin.pages.serving.pages import Visit, for_role
from broker.admin.pages.views import groups as view
from broker.admin.pages.words import amounts
from broker.admin.problems import Refused
from broker.admin.records import Group, GroupPurged
from broker.admin.sources.reading import now_text


@for_role(Role.VIEWER)
async def group(visit: Visit) -> Response:
    """Serve the page."""
    found = await _named(visit)
    return visit.page(
        "group", "/topics", **view.context(found, as_of=now_text(), may_act=visit.may_act)
    )


@for_role(Role.OPERATOR)
async def purge(visit: Visit) -> Response:
    """Drop what waits for a group; its members may be connected."""
    found, (older_ms, wrong) = await _named(visit), chosen(visit)
    older, topic, who = visit.asked("older"), visit.asked("topic"), visit.who
    if visit.request.method == "POST" and not wrong:
        reason = reason_of(visit)

        async def work() -> GroupPurged:
            return await visit.services.acting.purge_group(
                found.share_name,
                found.topic_filter,
                who.name,
                older_ms=older_ms,
                topic=topic or None,
                reason=reason,
                dry_run=False,
            )

        details = {"share_name": found.share_name, "topic_filter": found.topic_filter}
        details |= {"older": older, "topic": topic, "reason": reason}
        done = await visit.services.change(who, Role.OPERATOR, "purge group", details, work)
        notice = f"{amounts.plural(done.dropped or 0, 'message')} dropped; that is durable."
        return visit.go("/group", notice, name=found.share_name, filter=found.topic_filter)
    return _purge_page(visit, found, wrong)


def _purge_page(visit: Visit, found: Group, wrong: str) -> Response:
    older, topic = visit.asked("older"), visit.asked("topic")
    context: dict[str, Any] = {
        "heading": "Drop what waits for",
        "subject": view.subject(found),
        "problem": wrong,
        "options": options(visit),
        "kept": {"name": found.share_name, "filter": found.topic_filter},
        "path": "/group/purge",
        "would": [] if wrong else view.would_purge(found, older, topic),
        "may_go": not wrong and bool(found.waiting is None or found.waiting or found.returned),
        "asks_reason": True,
        "reason_is_told": False,
        "go_word": "Drop these messages" if older or topic else "Drop what waits",
        "address": view.address("/group/purge", found, older=older, topic=topic),
        "back": view.address("/group", found),
        "back_word": "Back to the group",
    }
    status = 400 if wrong and visit.request.method == "POST" else 200
    return visit.page("confirm", "/topics", status=status, **context)


async def _named(visit: Visit) -> Group:
    """Return the group that the address names. Raises `Refused`, `NotThere`."""
    name, topic_filter = visit.asked("name"), visit.asked("filter")
    if not name or not topic_filter:
        raise Refused(400, "the address names no group")
    return await visit.services.asking.group(name, topic_filter)
