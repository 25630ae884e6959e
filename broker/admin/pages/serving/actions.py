"""Serves what changes something: first a page that says what would happen, then the deed.

A GET shows, a POST does; both of the same address, so that what is done is what was shown. Each
deed goes through `broker.admin.services.Services.change`, which writes the admin log. Read next:
`broker.admin.pages.views.session`.
"""

from typing import Any, Final

from starlette.responses import Response

from broker.admin.access.roles import Role
from broker.admin.api import values
from broker.admin.pages.serving.clients import known, named, wrong_filter
from broker.admin.pages.serving.pages import Visit, for_role
from broker.admin.pages.views import session as view
from broker.admin.pages.words import amounts, links, names
from broker.admin.problems import Refused
from broker.admin.records import Purged
from broker.admin.sources.lanes import NotThere
from broker.admin.web.gate import form_of
from mqtt.topics import topic_problem

OPTIONS: Final = {
    "older": ("Only what is older than", "2d, 12h, 30m, 45s"),
    "topic": ("Only topics that match", "plant/+/alarm"),
}


@for_role(Role.OPERATOR)
async def purge(visit: Visit) -> Response:
    """Drop what waits for a session."""
    client_id = await named(visit)
    older, topic = visit.asked("older"), visit.asked("topic")
    kick = visit.asked("kick") == "yes"
    asking, who = visit.services.asking, visit.who
    older_ms, wrong = chosen(visit)
    if wrong:
        return _purge_page(visit, client_id, None, wrong)
    if visit.request.method == "POST":
        reason = reason_of(visit)

        async def work() -> Purged:
            return await asking.purge(
                client_id,
                who.name,
                older_ms=older_ms,
                topic=topic or None,
                kick=kick,
                reason=reason,
                dry_run=False,
            )

        details = {"client_id": client_id, "older": older, "topic": topic, "reason": reason}
        if kick:
            details["kick"] = "yes"
        done = await visit.services.change(who, Role.OPERATOR, "purge session", details, work)
        notice = f"{amounts.plural(done.dropped, 'message')} dropped; that is durable."
        return visit.go("/session", notice, **links.fields_of_client(client_id))
    _, connection = await known(visit, client_id)
    found = await asking.purge(
        client_id, who.name, older_ms=older_ms, topic=topic or None, dry_run=True
    )
    return _purge_page(visit, client_id, found, "", is_online=connection is not None)


def _purge_page(
    visit: Visit,
    client_id: str,
    found: Purged | None,
    problem: str,
    *,
    is_online: bool = False,
) -> Response:
    older, topic = visit.asked("older"), visit.asked("topic")
    dropped = 0 if found is None else found.dropped
    would = []
    if found is not None:
        would = view.would_purge(dropped, found.in_flight, older, topic, is_online=is_online)
    return _page(
        visit,
        "/session/purge",
        client_id,
        heading="Drop what waits for",
        problem=problem,
        would=would,
        may_go=bool(dropped),
        go_word=f"Drop {amounts.plural(dropped, 'message')}",
        reason_is_told=False,
        options=options(visit),
        fields={"older": older, "topic": topic, "kick": "yes" if is_online else ""},
    )


def chosen(visit: Visit) -> tuple[int, str]:
    """Return how old what goes must be, ms; and what is wrong with it, "" = nothing."""
    older = visit.asked("older")
    try:
        older_ms = 1000 * values.duration_s(older) if older else 0
    except ValueError as problem:
        return 0, f"{older[:80]!r}: {problem}"
    return older_ms, wrong_filter(visit.asked("topic"))


def options(visit: Visit) -> list[dict[str, str]]:
    """Return the fields with which one chooses what goes."""
    return [
        {"name": name, "label": label, "hint": hint, "value": visit.asked(name)}
        for name, (label, hint) in OPTIONS.items()
    ]


@for_role(Role.OPERATOR)
async def delete(visit: Visit) -> Response:
    """End a session, with all that waits for it."""
    client_id = await named(visit)
    asking, who = visit.services.asking, visit.who
    if visit.request.method == "POST":
        reason = reason_of(visit)

        async def work() -> Any:
            return await asking.delete(client_id, who.name, reason=reason, dry_run=False)

        details = {"client_id": client_id, "reason": reason}
        await visit.services.change(who, Role.OPERATOR, "delete session", details, work)
        return visit.go("/", f"The session of {names.plain(client_id, 80)} is deleted.")
    stored, connection = await known(visit, client_id)
    if stored is None:
        raise NotThere(f"no client {client_id!r} has a stored session")
    return _page(
        visit,
        "/session/delete",
        client_id,
        heading="Delete the session of",
        would=view.would_delete(stored.waiting, connection is not None),
        may_go=True,
        go_word="Delete the session",
        reason_is_told=connection is not None,
    )


@for_role(Role.OPERATOR)
async def kick(visit: Visit) -> Response:
    """End a connection."""
    client_id = await named(visit)
    asking, who = visit.services.asking, visit.who
    if visit.request.method == "POST":
        reason = reason_of(visit)

        async def work() -> Any:
            return await asking.kick(client_id, who.name, reason=reason)

        details = {"client_id": client_id, "reason": reason}
        await visit.services.change(who, Role.OPERATOR, "kick client", details, work)
        notice = f"The connection of {names.plain(client_id, 80)} has ended."
        stored, _ = await known(visit, client_id)
        if stored is None:
            return visit.go("/connections", notice)
        return visit.go("/session", notice, **links.fields_of_client(client_id))
    connection = await asking.client(client_id)
    return _page(
        visit,
        "/client/kick",
        client_id,
        heading="End the connection of",
        would=view.would_kick(connection),
        may_go=True,
        go_word="End the connection",
        reason_is_told=True,
    )


@for_role(Role.OPERATOR)
async def delete_retained(visit: Visit) -> Response:
    """Delete the retained message of a topic."""
    topic, who = visit.asked("topic"), visit.who
    if not topic or topic_problem(topic) is not None:
        raise Refused(400, "the address names no topic")
    acting = visit.services.acting
    if visit.request.method == "POST":
        reason = reason_of(visit)

        async def work() -> Any:
            return await acting.delete_retained(who.name, topic=topic, reason=reason, dry_run=False)

        details = {"topic": topic, "reason": reason}
        await visit.services.change(who, Role.OPERATOR, "delete retained", details, work)
        notice = f"The retained message on {names.plain(topic, 80)} is deleted."
        return visit.go("/topics", notice)
    found = await acting.delete_retained(who.name, topic=topic, dry_run=True)
    if not found.deleted:
        raise NotThere(f"no retained message on {topic!r}")
    return visit.page(
        "confirm",
        "/topics",
        heading="Delete the retained message on",
        subject=topic,
        problem="",
        options=[],
        kept={},
        path="/retained/delete",
        would=[
            "The topic has no retained message then: who subscribes later gets none.",
            "Who has it already keeps it, and is told nothing.",
        ],
        may_go=True,
        asks_reason=True,
        reason_is_told=False,
        go_word="Delete it",
        address=links.url("/retained/delete", topic=topic),
        back=links.url("/retained", topic=topic),
        back_word="Back to the message",
    )


@for_role(Role.OPERATOR)
async def reclaim(visit: Visit) -> Response:
    """Give back what nobody needs."""
    asking, who = visit.services.asking, visit.who

    async def work() -> Any:
        return await asking.reclaim(who.name)

    await visit.services.change(who, Role.OPERATOR, "reclaim storage", {}, work)
    notice = "The open generation is closed. It goes when nobody needs a message of it."
    return visit.go("/storage", notice)


def reason_of(visit: Visit) -> str:
    """Return the reason that a form gives. Raises `Refused`."""
    reason = form_of(visit.request.scope).get("reason", "")
    try:
        values.REASON.parse(reason)
    except ValueError as problem:
        raise Refused(400, f"the reason: {problem}") from None
    return reason


def _page(
    visit: Visit,
    path: str,
    client_id: str,
    *,
    fields: dict[str, str] | None = None,
    **context: Any,
) -> Response:
    """Return the page that asks before something is done."""
    whom = links.fields_of_client(client_id)
    standard: dict[str, Any] = {
        "problem": "",
        "options": [],
        "asks_reason": True,
        "path": path,
        "kept": whom,
        "subject": client_id,
        "address": links.url(path, **whom, **(fields or {})),
        "back": links.of_client("/session", client_id),
        "back_word": "Back to the client",
    }
    return visit.page("confirm", "/", **{**standard, **context})
