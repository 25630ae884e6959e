"""One subscription of a session, and its bytes in the store.

The topic filter is in the row's key and not repeated in the value. Must never know other
subscribers: routing is `session.routing.router`. Read next: `session.state.session`.
"""

import struct
from typing import Final

# Version, maximum QoS and flags, retain handling, subscription identifier, since-offset.
_FIELDS: Final = struct.Struct(">BBBIQ")
_NO_LOCAL: Final = 0x04
_RETAIN_AS_PUBLISHED: Final = 0x08
_HOLDS: Final = 0x10
_BYPASSES_POLICY: Final = 0x20  # only in version 2


class Subscription:
    """One topic filter of a session with its options, as granted."""

    __slots__ = (
        "bypasses_policy",
        "holds",
        "identifier",
        "no_local",
        "qos",
        "retain_as_published",
        "retain_handling",
        "share_name",
        "since",
        "stream_filter",
        "topic_filter",
    )

    def __init__(
        self,
        topic_filter: str,
        share_name: str | None,
        stream_filter: str,
        qos: int,
        no_local: bool,
        retain_as_published: bool,
        retain_handling: int,
        identifier: int,
        since: int,
        holds: bool,
        bypasses_policy: bool = False,
    ) -> None:
        self.topic_filter: str = topic_filter  # as subscribed: `$share/NAME/FILTER` in full
        self.share_name: str | None = share_name
        self.stream_filter: str = stream_filter  # the FILTER part: what topics are matched with
        self.qos: int = qos  # granted
        self.no_local: bool = no_local
        self.retain_as_published: bool = retain_as_published
        self.retain_handling: int = retain_handling
        self.identifier: int = identifier  # 0 = none
        self.since: int = since  # only messages with a greater offset are owed
        # Messages of this filter are stored for the session. Stays True after a change to QoS 0
        # while a backlog is owed, so that the change loses no message [MQTT-3.8.4-4].
        self.holds: bool = holds
        # An external store has begun it whose word goes before the policy: its messages are sent
        # without asking that.
        self.bypasses_policy: bool = bypasses_policy

    def encode(self) -> bytes:
        """Return the row's value: version 1, or 2 if it bypasses the policy."""
        version, flags = 1, self.qos
        if self.no_local:
            flags |= _NO_LOCAL
        if self.retain_as_published:
            flags |= _RETAIN_AS_PUBLISHED
        if self.holds:
            flags |= _HOLDS
        if self.bypasses_policy:
            version, flags = 2, flags | _BYPASSES_POLICY
        return _FIELDS.pack(version, flags, self.retain_handling, self.identifier, self.since)


def decode_subscription(
    topic_filter: str, share_name: str | None, stream_filter: str, value: bytes
) -> Subscription:
    """Return the subscription of a row; raises ValueError if it is not valid."""
    if len(value) != _FIELDS.size or value[0] not in (1, 2):
        raise ValueError(
            f"subscription {topic_filter!r}: version {value[:1].hex()} of {len(value)} bytes,"
            f" expected version 1 or 2 of {_FIELDS.size}"
        )
    version, flags, retain_handling, identifier, since = _FIELDS.unpack(value)
    return Subscription(
        topic_filter,
        share_name,
        stream_filter,
        flags & 3,
        bool(flags & _NO_LOCAL),
        bool(flags & _RETAIN_AS_PUBLISHED),
        retain_handling,
        identifier,
        since,
        bool(flags & _HOLDS),
        version == 2 and bool(flags & _BYPASSES_POLICY),
    )
