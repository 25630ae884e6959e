"""The will of a connection, and the record that lets a restart find it.

A connection with a will or a stored session has one row while it is open. Its end deletes the row;
after a crash the rows show which clients were connected. A will that waits for its Will Delay
Interval is in its `due` entry in the same form. Read next: `session.lifetime.wills`, which
publishes wills.
"""

from typing import Final

from mqtt.packets import Will
from session.state.records import RecordReader, blob, text

_VERSION: Final = 2
_STORED: Final = 1
_WILL: Final = 2
_RETAIN: Final = 4
_EXPIRES: Final = 8
_QOS_SHIFT: Final = 4


class ConnectionRecord:
    """The stored state of an open connection, for a start after a crash."""

    __slots__ = (
        "connected_at_ms",
        "expiry_interval_s",
        "identity",
        "incarnation",
        "is_stored",
        "will",
    )

    def __init__(
        self,
        identity: str,
        is_stored: bool,
        connected_at_ms: int,
        expiry_interval_s: int,
        will: Will | None,
        incarnation: int,
    ) -> None:
        self.identity = identity
        self.is_stored = is_stored  # is its session stored?
        self.connected_at_ms = connected_at_ms  # broker time
        self.expiry_interval_s = expiry_interval_s
        self.will = will
        self.incarnation = incarnation  # of its session; 0 = the row is of version 1


def encode_connection(record: ConnectionRecord) -> bytes:
    """Return the row's value."""
    will = record.will
    flags = _STORED if record.is_stored else 0
    parts = [text(record.identity)]
    if will is not None:
        flags |= _WILL | will.qos << _QOS_SHIFT
        if will.retain:
            flags |= _RETAIN
        parts.append(text(will.topic) + blob(will.payload, 4))
        parts.append(will.delay_interval.to_bytes(4, "big") + blob(will.properties, 4))
        if will.message_expiry_interval is not None:
            flags |= _EXPIRES
            parts.append(will.message_expiry_interval.to_bytes(4, "big"))
    head = (
        bytes((_VERSION, flags))
        + record.connected_at_ms.to_bytes(8, "big")
        + record.expiry_interval_s.to_bytes(4, "big")
        + record.incarnation.to_bytes(8, "big")
    )
    return head + b"".join(parts)


def decode_connection(value: bytes) -> ConnectionRecord:
    """Return the record of a row; raises ValueError if it is not valid."""
    reader = RecordReader(value, "connection")
    version, flags = reader.number(1), reader.number(1)
    if version not in (1, _VERSION):
        raise ValueError(f"connection: version {version}, expected 1 or {_VERSION}")
    connected_at_ms, expiry_interval_s = reader.number(8), reader.number(4)
    incarnation = 0 if version == 1 else reader.number(8)
    identity = reader.text()
    will = None
    if flags & _WILL:
        topic, payload = reader.text(), reader.blob(4)
        delay_interval, properties = reader.number(4), reader.blob(4)
        expiry = reader.number(4) if flags & _EXPIRES else None
        will = Will(
            topic,
            payload,
            flags >> _QOS_SHIFT & 3,
            bool(flags & _RETAIN),
            delay_interval=delay_interval,
            message_expiry_interval=expiry,
            properties=properties,
        )
    reader.end()
    return ConnectionRecord(
        identity, bool(flags & _STORED), connected_at_ms, expiry_interval_s, will, incarnation
    )
