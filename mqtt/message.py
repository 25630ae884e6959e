"""An application message, as the broker stores and delivers it.

Must never hold anything of one delivery (packet ids, granted QoS, DUP): all receivers share one
`Message`. Read next: `storage.tables.message_record` (its bytes on disk) and
`session.delivery.delivery` (its delivery).
"""

from typing import Final

NEVER: Final = 0  # the `expires_at_ms` of a message that does not expire


class Message:
    """One accepted application message."""

    __slots__ = (
        "accepted_at_ms",
        "expires_at_ms",
        "number",
        "offset",
        "payload",
        "properties",
        "publisher",
        "qos",
        "retain",
        "topic",
        "username",
    )

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: bytes,
        publisher: str,
        accepted_at_ms: int,
        expires_at_ms: int,
        offset: int = 0,
        username: str = "",
    ) -> None:
        self.topic: str = topic
        self.payload: bytes = payload
        self.qos: int = qos  # as published: 0, 1, 2
        self.retain: bool = retain  # the RETAIN flag as published
        # The v5 properties to forward, encoded as received and in their order, without Message
        # Expiry Interval, Topic Alias and Subscription Identifier. b"" from a v3.1.1 publisher.
        self.properties: bytes = properties
        self.publisher: str = publisher  # client_id
        self.username: str = username  # of the publisher, if an external store wants it
        self.accepted_at_ms: int = accepted_at_ms  # broker time
        self.expires_at_ms: int = expires_at_ms  # broker time, NEVER = 0
        self.offset: int = offset  # position in the log, 0 = not stored
        self.number: int = 0  # its id in the history if it is not stored, 0 = none
