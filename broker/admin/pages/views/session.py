"""The page of one client: its session, its connection, what it is owed, why it misses messages.

Pure: records in, what the template `session.html` shows out. Read next: `broker.admin.records`.
"""

from typing import Any, Final

from broker.admin.pages.views import owed
from broker.admin.pages.words import amounts, links, names
from broker.admin.records import ClientDetail, Page, QueueEntry, Session, Timeline, Why

SUBSCRIPTIONS_MAX: Final = 200  # on the page
TITLES: Final = ("Now", "Before, by the history", "What is not known")


def context(
    client_id: str,
    stored: Session | None,
    connection: ClientDetail | None,
    queue: Page[QueueEntry] | None,
    *,
    queue_problem: str,
    topic: str,
    cursor: str,
    with_payload: bool,
    may_act: bool,
    may_see_payloads: bool,
) -> dict[str, Any]:
    """Return what the page of a client shows."""
    is_online = connection is not None or (stored is not None and stored.state == "online")
    payloads = "1" if with_payload else ""

    def here(**fields: object) -> str:
        return links.of_client("/session", client_id, **fields)

    entries = [] if queue is None else queue.items
    first = here(topic=topic, payloads=payloads)
    following = None if queue is None else queue.next
    return {
        "client_id": client_id,
        "stored": stored,
        "connection": connection,
        "is_online": is_online,
        "ends": "" if stored is None else owed.ends(stored),
        **_subscriptions(stored, connection),
        "queue": [_entry(each) for each in entries],
        "queue_notes": [] if queue is None else queue.notes,
        "queue_problem": queue_problem,
        "queue_empty": "No message that it is owed matches." if topic else "It is owed nothing.",
        "queue_shown": "" if queue is None else owed.shown(len(entries), queue.as_of),
        "topic": topic,
        "kept": links.fields_of_client(client_id) | ({"payloads": "1"} if with_payload else {}),
        "with_payload": with_payload,
        "may_act": may_act,
        "may_see_payloads": may_see_payloads,
        "past": links.of_client("/session/past", client_id),
        "address": here(topic=topic, payloads=payloads, cursor=cursor),
        "links": {
            "with_payload": here(topic=topic, payloads="1", cursor=cursor),
            "without_payload": here(topic=topic, cursor=cursor),
            "queue_first": f"{first}#queue" if cursor else "",
            "queue_next": f"{here(topic=topic, payloads=payloads, cursor=following)}#queue"
            if following
            else "",
        },
    }


def _subscriptions(stored: Session | None, connection: ClientDetail | None) -> dict[str, Any]:
    """Return the topic filters: those of the stored session, or of a clean one."""
    if stored is not None:
        every = sorted(stored.subscriptions, key=lambda each: each.topic_filter)
        shown = [
            {"topic_filter": each.topic_filter, "qos": each.qos, "no_local": each.no_local}
            for each in every[:SUBSCRIPTIONS_MAX]
        ]
        return {"subscriptions": shown, "subscriptions_count": len(every)}
    if connection is not None:
        shown = [
            {"topic_filter": each.topic_filter, "qos": each.qos, "no_local": False}
            for each in connection.topic_filters[:SUBSCRIPTIONS_MAX]
        ]
        return {"subscriptions": shown, "subscriptions_count": connection.subscriptions}
    return {"subscriptions": [], "subscriptions_count": 0}


def _entry(entry: QueueEntry) -> dict[str, Any]:
    payload = entry.payload if isinstance(entry.payload, str) else None
    return {
        "topic": entry.topic,
        "state": entry.state,
        "packet_id": entry.packet_id,
        "qos": entry.qos,
        "bytes": entry.bytes,
        "accepted_at": entry.accepted_at,
        "expires_at": entry.expires_at,
        "publisher": entry.publisher,
        "payload": payload,
    }


def past(client_id: str, why: Why | None, timeline: Timeline | None) -> dict[str, Any]:
    """Return what the page of a client's past shows; None = it is being read."""
    parts: list[tuple[str, list[str]]] = []
    if why is not None:
        every = zip(TITLES, (why.now, why.before, why.not_known), strict=True)
        parts = [(title, lines) for title, lines in every if lines]
    return {
        "client_id": client_id,
        "why": parts,
        "is_reading": why is None or timeline is None,
        "timeline": [] if timeline is None else timeline.events,
        "timeline_notes": [] if timeline is None else timeline.notes,
        "address": links.of_client("/session/past", client_id),
        "back": links.of_client("/session", client_id),
    }


def would_purge(
    messages: int, in_flight: int | None, older: str, topic: str, *, is_online: bool = False
) -> list[str]:
    """Return what a purge would do, a sentence each."""
    which = f" older than {older}" if older else ""
    if topic:
        which += f" on topics that match {names.plain(topic)}"
    if not messages:
        return [f"No message{which} waits for it: nothing would be dropped."]
    lines = [f"{amounts.plural(messages, 'message')}{which} would be dropped, for good."]
    if in_flight:
        lines.append(f"{amounts.plural(in_flight, 'message')} in flight stay.")
    if is_online:
        lines.append("Its connection ends first, and it cannot come back until this is done.")
    lines.append("Its session and its subscriptions stay: what is published from now on waits.")
    return lines


def would_delete(waiting: int | None, is_online: bool) -> list[str]:
    """Return what the end of a session would do, a sentence each."""
    lines = ["Its session ends, with its subscriptions."]
    if waiting:
        lines.append(f"{amounts.plural(waiting, 'message')} that wait for it would be gone.")
    if is_online:
        lines.append("Its connection ends first.")
    lines.append("When it comes back, it begins with a new session.")
    return lines


def would_kick(connection: ClientDetail) -> list[str]:
    """Return what the end of a connection would do, a sentence each."""
    lines = [
        "Its connection ends: with MQTT 5 it is told so (0x98, administrative action).",
        "Its session stays, and what waits for it."
        if connection.durable
        else "Its session is a clean one, and ends too, with what was not delivered.",
    ]
    if connection.will_topic is not None:
        lines.append("Its will is published.")
    lines.append("Nothing keeps it from connecting again at once: a ban does.")
    return lines
