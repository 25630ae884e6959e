"""The front page: who is away, what waits for them, and what a restart would cost.

Pure: records in, what the template `owed.html` shows out. Read next: `broker.admin.records`.
"""

from datetime import datetime
from typing import Any, Final

from broker.admin.pages.words import amounts, links
from broker.admin.records import Backlog, Page, RestartCheck, SessionRow

ORDERS: Final = ("bytes", "messages", "oldest", "name")
TITLES: Final = {
    "bytes": "Most bytes first",
    "messages": "Most messages first",
    "oldest": "Who waits longest first",
    "name": "By client id",
}
NEVER: Final = 0xFFFFFFFF  # a session expiry interval


def summary(backlog: Backlog) -> str:
    """Return what is owed in a sentence."""
    stored = amounts.plural(backlog.sessions_stored, "session")
    if not backlog.messages:
        return f"Nothing: {stored} stored, and nobody waits for a message."
    whom = amounts.plural(backlog.sessions, "session")
    if backlog.groups.holders:
        whom += f" and {amounts.plural(backlog.groups.holders, 'shared group')}"
    return (
        f"{amounts.plural(backlog.messages, 'message')} for {whom}; {stored} stored. "
        f"Counted {amounts.span(backlog.age_ms / 1000)} ago."
    )


def row(session: SessionRow, most: int) -> dict[str, Any]:
    """Return a line of the list; `most` is what the session is owed that is owed most."""
    messages = session.in_flight + session.waiting
    is_online = session.state == "online"
    return {
        "client_id": session.client_id,
        "is_online": is_online,
        "since": session.connected_at if is_online else session.disconnected_at,
        "messages": messages,
        "share": 100 * messages // most if most and messages else None,
        "bytes": session.bytes,
        "oldest": session.oldest_at,
        "expires": session.expires_at,
        "ends": ends(session),
    }


def ends(session: SessionRow) -> str:
    """Return when a session ends, in words, where that is no time; else an empty text."""
    if session.session_expiry_interval == NEVER:
        return "never"
    if session.state == "online":
        return f"{amounts.span(session.session_expiry_interval)} after it leaves"
    return "" if session.expires_at else amounts.NONE


def context(
    listing: Page[SessionRow] | None,
    backlog: Backlog | None,
    restart: RestartCheck | None,
    *,
    why: str,
    grown: str,
    sort: str,
    match: str,
    cursor: str,
    now: datetime,
) -> dict[str, Any]:
    """Return what the front page shows."""
    rows = [] if listing is None else listing.items
    most = max((each.in_flight + each.waiting for each in rows), default=0)
    here = {"sort": "" if sort == ORDERS[0] else sort, "match": match}
    return {
        "summary": f"How much in all is not known: {why}" if backlog is None
        else summary(backlog),
        "backlog": backlog,
        "oldest": amounts.span(backlog.oldest_ms / 1000)
        if backlog is not None and backlog.messages
        else None,
        "grown": grown,
        "restart": restart,
        "sort": sort,
        "match": match,
        "list_title": TITLES[sort],
        "notes": [] if listing is None else listing.notes,
        "sessions": [row(each, most) for each in rows],
        "empty": _empty(listing, match),
        "shown": "" if listing is None else shown(len(rows), listing.as_of),
        "address": links.url("/", **here, cursor=cursor),
        "links": {
            **{each: links.url("/", sort=each, match=match) for each in ORDERS},
            "first": links.url("/", **here) if cursor else "",
            "next": links.url("/", **here, cursor=listing.next) if listing and listing.next else "",
        },
    }  # fmt: skip


def _empty(listing: Page[SessionRow] | None, match: str) -> str:
    if listing is None:
        return "The sessions are being counted; this page shows them as soon as they are."
    return f"No stored session matches {match!r}." if match else "No session is stored."


def shown(number: int, as_of: str) -> str:
    """Return how many lines a page has, and when that was read."""
    when = amounts.moment(as_of)
    read = "" if when is None else f", read at {when:%H:%M:%S}"
    return f"{amounts.plural(number, 'line')}{read}"
