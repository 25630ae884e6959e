"""Who gets a message on a topic, as text: a table or JSON. `broker.cli.looking.topic` prints it.

Both are made while the subscriptions are read, so they may be long. Read next:
`broker.operations.looking.topic_readers`.
"""

import json
from collections.abc import Iterator
from typing import Final

from broker.history.text import printable
from broker.operations.looking.topic_readers import GroupReader, TopicReaders
from broker.operations.sessions.columns import table

COLUMNS: Final = ("KIND", "NAME", "FILTER", "QOS", "NO_LOCAL", "CONNECTED", "GETS_IT")
CLEAN_SESSIONS: Final = (
    "clean sessions are only in the memory of the running broker and are not listed"
)


def as_table(readers: TopicReaders) -> Iterator[str]:
    """Yield a table's lines, and behind it lines with the counts."""
    yield from table(COLUMNS, _cells(readers))
    yield ""
    groups = readers.groups.values()
    members = sum(group.members for group in groups)
    connected = sum(group.connected for group in groups)
    yield (
        f"sessions: {readers.sessions_count}, connected: {readers.sessions_connected},"
        f" their subscriptions: {readers.subscriptions_count}"
    )
    yield f"shared groups: {len(groups)}, their members: {members}, connected: {connected}"
    if readers.members_left_out:
        yield f"members of further groups: {readers.members_left_out}"
    yield CLEAN_SESSIONS


def _cells(readers: TopicReaders) -> Iterator[tuple[str, ...]]:
    for session in readers.sessions():
        yield (
            "session",
            printable(session.client_id),
            printable(session.topic_filter),
            str(session.qos),
            "yes" if session.no_local else "no",
            "yes" if session.is_connected else "no",
            session.gets,
        )
    for group in readers.groups.values():
        yield (
            "group",
            printable(group.share_name),
            printable(group.topic_filter),
            _qos(group),
            "-",
            f"{group.connected} of {group.members}",
            group.gets,
        )


def _qos(group: GroupReader) -> str:
    if group.qos_min == group.qos_max:
        return str(group.qos_max)
    return f"{group.qos_min}-{group.qos_max}"


def as_json(readers: TopicReaders) -> Iterator[str]:
    """Yield the lines of one JSON object; a session or a group is a line."""
    yield f'{{"topic": {json.dumps(readers.topic)}, "sessions": ['
    comma = " "
    for session in readers.sessions():
        row: dict[str, object] = {
            "client_id": session.client_id,
            "topic_filter": session.topic_filter,
            "qos": session.qos,
            "no_local": session.no_local,
            "connected": session.is_connected,
            "gets": session.gets,
        }
        yield comma + json.dumps(row)
        comma = ","
    yield '], "groups": ['
    comma = " "
    for group in readers.groups.values():
        row = {
            "share_name": group.share_name,
            "topic_filter": group.topic_filter,
            "qos_min": group.qos_min,
            "qos_max": group.qos_max,
            "members": group.members,
            "connected": group.connected,
            "gets": group.gets,
        }
        yield comma + json.dumps(row)
        comma = ","
    counts = {
        "sessions": readers.sessions_count,
        "sessions_connected": readers.sessions_connected,
        "subscriptions": readers.subscriptions_count,
        "groups": len(readers.groups),
        "members_of_groups_left_out": readers.members_left_out,
    }
    yield f'], "counts": {json.dumps(counts)}}}'
