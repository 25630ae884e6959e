"""Shared groups as text: a list, or one in full. `broker.cli.looking.group` prints it.

Read next: `broker.operations.looking.shared_groups`.
"""

import json
from collections.abc import Iterator
from typing import Final

from broker.operations.looking.listing import Listing
from broker.operations.looking.shared_groups import Member, SharedGroup
from broker.operations.sessions.columns import table
from storage.history.words import printable

COLUMNS: Final = (
    ("NAME", "share_name"),
    ("FILTER", "topic_filter"),
    ("MEMBERS", "members"),
    ("CONNECTED", "connected"),
    ("WAITING", "waiting"),
    ("RETURNED", "returned"),
    ("IN_FLIGHT", "in_flight"),
    ("BYTES", "bytes"),
)


def _waiting(count: int | None) -> str:
    return "?" if count is None else str(count)


GROUPS: Final = Listing(
    COLUMNS,
    name="share_name",
    fields=("share_name", "topic_filter", "position", *(field for _, field in COLUMNS[2:])),
    cells={"waiting": _waiting},
)
MEMBER_COLUMNS: Final = ("CLIENT_ID", "QOS", "CONNECTED", "IN_FLIGHT")
# The broker keeps no rows of these.
NOT_LISTED: Final = (
    "clean sessions, and groups that have no other members, are only in the memory of the running"
    " broker and are not listed"
)


def group_as_page(group: SharedGroup) -> Iterator[str]:
    """Yield everything about one group, a line each, and a table of its members."""
    names = ("share_name", "topic_filter", "position")
    found = fields(group)
    for name in names:
        yield f"{name:<12}  {printable(str(found[name]))}"
    for title, field in COLUMNS[2:]:
        yield f"{title.lower():<12}  {GROUPS.text(field, found[field])}"
    if group.members:
        yield ""
        yield from table(MEMBER_COLUMNS, map(_member_cells, group.members))
    if len(group.members) < group.members_count:
        yield f"and {group.members_count - len(group.members)} more members"


def _member_cells(member: Member) -> tuple[str, ...]:
    return (
        printable(member.client_id),
        str(member.qos),
        "yes" if member.is_connected else "no",
        str(member.in_flight),
    )


def group_as_json(group: SharedGroup) -> str:
    """Return a JSON object of one group."""
    return json.dumps(fields(group), indent=2)


def fields(group: SharedGroup) -> dict[str, object]:
    """Return everything about a group under the names of JSON."""
    return {
        "share_name": group.share_name,
        "topic_filter": group.topic_filter,
        "position": group.position,
        "members": group.members_count,
        "connected": group.connected,
        "waiting": group.waiting,
        "returned": group.owed,
        "in_flight": group.in_flight,
        "bytes": group.size_bytes,
        "first_members": [
            {
                "client_id": member.client_id,
                "qos": member.qos,
                "connected": member.is_connected,
                "in_flight": member.in_flight,
            }
            for member in group.members
        ],
    }
