"""The page of topics: who gets what is published, retained messages, shared groups.

Pure: records in, what the templates `topics.html` and `retained.html` show out. Read next:
`broker.admin.records`.
"""

import base64
from typing import Any

from broker.admin.pages.rendering import payload
from broker.admin.pages.views import groups as groups_view
from broker.admin.pages.views.owed import shown
from broker.admin.pages.words import amounts, links
from broker.admin.records import Group, Page, Retained, RetainedMessage, TopicReaders

PAYLOAD_MAX = 20_000  # characters of a payload on its page
USER_PROPERTIES_MAX = 100  # on its page


def context(
    readers: TopicReaders | None,
    retained: Page[Retained] | None,
    groups: Page[Group] | None,
    *,
    topic: str,
    topic_problem: str,
    topic_filter: str,
    filter_problem: str,
    cursor: str,
    groups_cursor: str,
    may_act: bool,
) -> dict[str, Any]:
    """Return what the page of topics shows."""
    here = {"topic": topic, "filter": topic_filter}
    retained = retained or Page([], None, "", [])
    groups = groups or Page([], None, "", [])
    nothing = (
        f"No retained message is on a topic that matches {topic_filter!r}."
        if topic_filter
        else "No message is retained."
    )
    return {
        "topic": topic,
        "topic_problem": topic_problem,
        "readers": None if readers is None else _readers(readers),
        "filter": topic_filter,
        "filter_problem": filter_problem,
        "retained": [_retained(each) for each in retained.items],
        "retained_notes": retained.notes,
        "retained_empty": nothing,
        "retained_shown": shown(len(retained.items), retained.as_of),
        "groups": [
            {"group": each, "href": groups_view.address("/group", each)} for each in groups.items
        ],
        "publish": links.url("/publish", topic=topic) if may_act else "",
        "groups_shown": shown(len(groups.items), groups.as_of),
        "groups_notes": groups.notes,
        "links": {
            "retained_first": f"{links.url('/topics', **here)}#retained" if cursor else "",
            "retained_next": f"{links.url('/topics', **here, cursor=retained.next)}#retained"
            if retained.next
            else "",
            "groups_first": f"{links.url('/topics', **here)}#groups" if groups_cursor else "",
            "groups_next": f"{links.url('/topics', **here, groups=groups.next)}#groups"
            if groups.next
            else "",
        },
    }


def _readers(readers: TopicReaders) -> dict[str, Any]:
    sessions, groups = readers.sessions_count, readers.groups_count
    who = f"{amounts.plural(sessions, 'stored session')}, {readers.sessions_connected:,} connected"
    more = []
    if readers.subscriptions_count > len(readers.sessions):
        more.append(f"{readers.subscriptions_count - len(readers.sessions):,} more subscriptions")
    if groups > len(readers.groups):
        more.append(f"{groups - len(readers.groups):,} more groups")
    return {
        "summary": f"{who}; {amounts.plural(groups, 'shared group')}."
        if sessions or groups
        else "No stored session gets it.",
        "sessions": readers.sessions,
        "groups": readers.groups,
        "more": f"and {' and '.join(more)}" if more else "",
        "notes": readers.notes,
    }


def _retained(message: Retained) -> dict[str, Any]:
    is_short = links.is_short(message.topic)
    return {
        "topic": message.topic,
        "href": links.url("/retained", topic=message.topic) if is_short else "",
        "bytes": message.bytes,
        "qos": message.qos,
        "stored_at": message.stored_at,
        "expires_at": message.expires_at,
        "publisher": message.publisher,
    }


def retained(message: Retained, *, may_delete: bool) -> dict[str, Any]:
    """Return what the page of one retained message shows."""
    kind, text = "", None
    facts: list[tuple[str, str]] = []
    user: list[tuple[str, str]] = []
    problem = ""
    if isinstance(message, RetainedMessage):
        data = base64.b64decode(message.payload)
        kind, text = payload(data, PAYLOAD_MAX)
        if message.payload_is_cut:
            kind = f"{kind}, the first {amounts.size(len(data))}"
        facts, user = _facts(message), message.user_properties
        problem = message.properties_problem or ""
    return {
        "message": message,
        "kind": kind,
        "payload": text,
        "facts": facts,
        "user_properties": user[:USER_PROPERTIES_MAX],
        "more_properties": max(0, len(user) - USER_PROPERTIES_MAX),
        "properties_problem": problem,
        "may_delete": may_delete,
        "who": links.url("/topics", topic=message.topic),
        "delete": links.url("/retained/delete", topic=message.topic) if may_delete else "",
    }


def _facts(message: RetainedMessage) -> list[tuple[str, str]]:
    """Return what its publisher has said besides, as word and text."""
    said = [
        ("Content type", message.content_type),
        ("Payload format", message.payload_format),
        ("Response topic", message.response_topic),
    ]
    found = [(word, text) for word, text in said if text is not None]
    if message.correlation_data_base64 is not None:
        data = base64.b64decode(message.correlation_data_base64)
        found.append(("Correlation data", data.hex(" ") if data else "(empty)"))
    return found
