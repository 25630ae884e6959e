"""Who gets a message on a topic, as text. `broker.cli.looking.topic` prints it.

It is made while the subscriptions are read, so it may be long. Read next:
`broker.operations.looking.topic_readers`.
"""

import json
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from broker.operations.looking.listing import Asked, Listing, Row
from broker.operations.looking.topic_readers import GroupReader, TopicReaders

READERS: Final = Listing(
    (
        ("KIND", "kind"),
        ("NAME", "name"),
        ("FILTER", "topic_filter"),
        ("QOS", "qos"),
        ("NO_LOCAL", "no_local"),
        ("CONNECTED", "connected"),
        ("MEMBERS", "members"),
        ("GETS_IT", "gets"),
    ),
    name="name",
)
CLEAN_SESSIONS: Final = (
    "clean sessions are only in the memory of the running broker and are not listed"
)


def lines(asked: Asked, readers: TopicReaders) -> Iterator[str]:
    """Yield the lines of what is asked for; all subscriptions are read, however few are shown."""
    rows = _rows(readers)
    if asked.output == "json":
        yield from _json(asked, readers, rows)
        return
    yield from READERS.lines(asked, rows)
    if asked.output == "table":
        yield from _counts(readers, rows)


def _rows(readers: TopicReaders) -> Iterator[Row]:
    """Yield sessions as they are read, and behind them groups."""
    for session in readers.sessions():
        yield {
            "kind": "session",
            "name": session.client_id,
            "topic_filter": session.topic_filter,
            "qos": str(session.qos),
            "no_local": session.no_local,
            "connected": session.is_connected,
            "members": None,
            "gets": session.gets,
        }
    for group in readers.groups.values():
        yield {
            "kind": "group",
            "name": group.share_name,
            "topic_filter": group.topic_filter,
            "qos": _qos(group),
            "no_local": None,
            "connected": group.connected,
            "members": group.members,
            "gets": group.gets,
        }


def _qos(group: GroupReader) -> str:
    if group.qos_min == group.qos_max:
        return str(group.qos_max)
    return f"{group.qos_min}-{group.qos_max}"


def _counts(readers: TopicReaders, rest: Iterator[Row]) -> Iterator[str]:
    """Yield the lines behind the table; what was not shown is read for them."""
    deque(rest, maxlen=0)
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


def _json(asked: Asked, readers: TopicReaders, rows: Iterator[Row]) -> Iterator[str]:
    """Yield the lines of one JSON object; a session or a group is a line."""
    yield f'{{"topic": {json.dumps(readers.topic)}, "readers": ['
    comma = " "
    for row in islice(READERS.matching(asked, rows), asked.limit):
        yield comma + json.dumps(row)
        comma = ","
    deque(rows, maxlen=0)
    counts = {
        "sessions": readers.sessions_count,
        "sessions_connected": readers.sessions_connected,
        "subscriptions": readers.subscriptions_count,
        "groups": len(readers.groups),
        "members_of_groups_left_out": readers.members_left_out,
    }
    yield f'], "counts": {json.dumps(counts)}}}'
