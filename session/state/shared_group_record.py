"""The durable state of one shared subscription: a cursor of its own, like a session's.

Every matching message at or below `position` was delivered to a member or is in `owed`. `owed` has
the offsets that were returned because the session of their member ended before it acknowledged
them, and those in flight to members whose sessions are not stored: after a crash they must be
delivered to other members. Messages in flight to stored sessions are in their records.
Read next: `session.delivery.shared.groups`.
"""

import struct
from typing import Final

from session.state.records import RecordReader

_VERSION: Final = 1
# version, position, since, stored members, owed count
_GROUP: Final = struct.Struct(">BQQII")


class GroupRecord:
    """The stored state of a shared subscription."""

    __slots__ = ("owed", "position", "since", "stored_members")

    def __init__(self, position: int, since: int, stored_members: int, owed: list[int]) -> None:
        self.position = position
        self.since = since  # only messages with a greater offset are owed
        self.stored_members = stored_members  # stored sessions that have the subscription
        self.owed = owed


def encode_group(record: GroupRecord) -> bytes:
    """Return the row's value."""
    count = len(record.owed)
    head = _GROUP.pack(_VERSION, record.position, record.since, record.stored_members, count)
    return head + struct.pack(f">{count}Q", *record.owed)


def decode_group(value: bytes) -> GroupRecord:
    """Return the record of a row; raises ValueError if it is not valid."""
    if len(value) < _GROUP.size or value[0] != _VERSION:
        raise ValueError(
            f"group: version {value[:1].hex()} of {len(value)} bytes, expected {_VERSION}"
        )
    _, position, since, stored_members, count = _GROUP.unpack_from(value)
    reader = RecordReader(value, "group", _GROUP.size)
    owed = list(struct.unpack(f">{count}Q", reader.take(8 * count)))
    reader.end()
    return GroupRecord(position, since, stored_members, owed)
