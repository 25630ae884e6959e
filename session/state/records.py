"""The bytes of a session record, a connection record and a group record.

Fixed fields are packed with one struct call, because records are written once per dirty session
and tick; variable fields are length-prefixed. Every layout starts with a version byte; a changed
layout is a new version here and a new golden file, never an edit. `storage.tables.tables` adds
checksums. Decoding raises ValueError for anything that encoding would not write.
"""

import struct
from typing import Final

from session.state.in_flight import (
    FROM_GROUP,
    FROM_LOG,
    PERHAPS_SENT,
    QOS_MASK,
    REFERENCE_SHIFT,
    SOURCE_MASK,
    STORED_MASK,
)
from session.state.session import PurgedTopics, Replay, Session

_VERSION: Final = 2
# The same with packet ids bound ahead behind it: their count, references and ids.
_AHEAD_VERSION: Final = 3
# The same, and behind that what an operator has dropped by topic: their count, and each one's last
# offset, messages, bytes and topic filter.
_PURGED_VERSION: Final = 4
_PURGED: Final = struct.Struct(">QIQ")
# The same, and behind that the gaps: their count, each one's first and last offset, and the limits,
# messages and bytes, at which the last one was made.
_GAPS_VERSION: Final = 5
_GAP: Final = struct.Struct(">QQ")
# version, protocol version, created, connected, disconnected, expiry interval, expiry due,
# will due, position, next packet id, next mailbox number, in-flight count, replay count
_SESSION_1: Final = struct.Struct(">BBQQQIQQQHQHH")
# the same, and the incarnation
_SESSION: Final = struct.Struct(">BBQQQIQQQHQHHQ")
_META_ID_SHIFT: Final = 16


class RecordReader:
    """Reads the fields of a record one after another, and checks that each is complete."""

    __slots__ = ("_at", "_data", "_what")

    def __init__(self, data: bytes, what: str, at: int = 0) -> None:
        self._data = data
        self._what = what
        self._at = at

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        end = self._at + size
        if end > len(self._data):
            raise ValueError(f"{self._what}: ends at {len(self._data)} bytes, expected {end}")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def number(self, size: int) -> int:
        """Return the next big-endian integer of `size` bytes."""
        return int.from_bytes(self.take(size), "big")

    def blob(self, size_bytes: int = 2) -> bytes:
        """Return the next length-prefixed field."""
        return self.take(self.number(size_bytes))

    def text(self) -> str:
        """Return the next length-prefixed UTF-8 field."""
        return self.blob().decode()

    def end(self) -> None:
        """Raise ValueError if bytes are left over."""
        if self._at != len(self._data):
            raise ValueError(
                f"{self._what}: {len(self._data) - self._at} bytes left over at {self._at}"
            )


def blob(data: bytes, size_bytes: int = 2) -> bytes:
    """Return `data` with its length in front."""
    return len(data).to_bytes(size_bytes, "big") + data


def text(value: str) -> bytes:
    """Return a UTF-8 string with its length in front."""
    return blob(value.encode())


def encode_session(session: Session) -> bytes:
    """Return the record of a stored session, without subscriptions and inbound packet ids."""
    in_flight = session.in_flight
    ahead: dict[int, int] = {}
    if session.perhaps_sent():
        ahead = {i: e for i, e in in_flight.items() if e & PERHAPS_SENT}
        in_flight = {i: e for i, e in in_flight.items() if not e & PERHAPS_SENT}
    if session.reserved:
        ahead.update(session.reserved)
    purged = None if session.purged is None else session.purged_behind()
    gaps = session.gaps_behind() if session.gaps else ()
    version = _AHEAD_VERSION if ahead else _VERSION
    if purged:
        version = _PURGED_VERSION
    count = len(in_flight)
    fixed = _SESSION.pack(
        _GAPS_VERSION if gaps else version,
        session.protocol_version,
        session.created_at_ms,
        session.connected_at_ms,
        session.disconnected_at_ms,
        session.expiry_interval_s,
        session.expiry_due_ms,
        session.will_due_ms,
        session.position,
        session.next_packet_id,
        session.next_mailbox,
        count,
        len(session.replays),
        session.incarnation,
    )
    parts = [fixed, text(session.identity)]
    if count:
        parts += _encode_entries(in_flight)
    if session.leases:
        for packet_id, entry in in_flight.items():
            if entry & SOURCE_MASK == FROM_GROUP:
                share_name, topic_filter = session.leases[packet_id]
                parts.append(text(share_name) + text(topic_filter))
    for replay in session.replays.values():
        parts.append(
            text(replay.topic_filter)
            + bytes((replay.qos,))
            + replay.identifier.to_bytes(4, "big")
            + blob(replay.start, 4)
        )
    if ahead or purged or gaps:
        parts.append(len(ahead).to_bytes(2, "big"))
        parts += _encode_entries(ahead)
    if purged or gaps:
        parts += _encode_purged(purged or [])
    if gaps:
        parts.append(len(gaps).to_bytes(2, "big"))
        parts += [_GAP.pack(*gap) for gap in gaps]
        parts.append(_GAP.pack(*session.gaps_at))
    return b"".join(parts)


def _encode_purged(purged: list[PurgedTopics]) -> list[bytes]:
    """Return what was dropped by topic, with its count in front."""
    parts = [len(purged).to_bytes(2, "big")]
    for each in purged:
        parts.append(_PURGED.pack(each.upto, each.count, each.size_bytes))
        parts.append(text(each.topic_filter))
    return parts


def _encode_entries(entries: dict[int, int]) -> list[bytes]:
    """Return the references and the packet ids with their flags."""
    count = len(entries)
    return [
        struct.pack(f">{count}Q", *[entry >> REFERENCE_SHIFT for entry in entries.values()]),
        struct.pack(
            f">{count}I",
            *[i << _META_ID_SHIFT | entry & STORED_MASK for i, entry in entries.items()],
        ),
    ]


def decode_session(client_id: str, value: bytes) -> Session:
    """Return the session of a record, without subscriptions and inbound packet ids.

    A record of version 1 has no incarnation: it stays 0 until `session.lifetime.repository` sets
    one. Packet ids that were bound ahead are in flight: the broker has crashed since, and nobody
    knows which of them were sent.
    """
    what = f"session {client_id!r}"
    layout = _SESSION_1 if value[:1] == b"\x01" else _SESSION
    if len(value) < layout.size or not 1 <= value[0] <= _GAPS_VERSION:
        raise ValueError(
            f"{what}: version {value[:1].hex()} of {len(value)} bytes,"
            f" expected 1 to {_GAPS_VERSION}"
        )
    fields = layout.unpack_from(value)
    reader = RecordReader(value, what, layout.size)
    session = Session(client_id, reader.text(), fields[2])
    session.is_stored = True
    session.protocol_version = fields[1]
    session.connected_at_ms = fields[3]
    session.disconnected_at_ms = fields[4]
    session.expiry_interval_s = fields[5]
    session.expiry_due_ms = fields[6]
    session.will_due_ms = fields[7]
    session.position = fields[8]
    session.next_packet_id = fields[9]
    session.next_mailbox = fields[10]
    if layout is _SESSION:
        session.incarnation = fields[13]
    count, replays = fields[11], fields[12]
    _decode_entries(reader, count, what, session, 0)
    for packet_id, entry in session.in_flight.items():
        if entry & SOURCE_MASK == FROM_GROUP:
            session.leases[packet_id] = (reader.text(), reader.text())
    for _ in range(replays):
        topic_filter = reader.text()
        qos, identifier = reader.number(1), reader.number(4)
        session.replays[topic_filter] = Replay(topic_filter, qos, identifier, reader.blob(4))
    if value[0] >= _AHEAD_VERSION:
        _decode_entries(reader, reader.number(2), what, session, PERHAPS_SENT)
    if value[0] >= _PURGED_VERSION:
        session.purged = _decode_purged(reader)
    if value[0] == _GAPS_VERSION:
        _decode_gaps(reader, what, session)
    reader.end()
    return session


def _decode_purged(reader: RecordReader) -> list[PurgedTopics] | None:
    """Return what was dropped by topic, None = nothing."""
    purged = []
    for _ in range(reader.number(2)):
        upto, count, size = _PURGED.unpack(reader.take(_PURGED.size))
        purged.append(PurgedTopics(reader.text(), upto, count, size))
    return purged or None


def _decode_gaps(reader: RecordReader, what: str, session: Session) -> None:
    gaps: list[tuple[int, int]] = []
    before = -1
    for _ in range(reader.number(2)):
        first, last = _GAP.unpack(reader.take(_GAP.size))
        if not before + 1 < first <= last:
            raise ValueError(f"{what}: a gap from {first} to {last}, behind one up to {before}")
        gaps.append((first, last))
        before = last
    if not gaps:
        raise ValueError(f"{what}: no gaps, expected some in version {_GAPS_VERSION}")
    session.gaps = tuple(gaps)
    count, size = _GAP.unpack(reader.take(_GAP.size))
    session.gaps_at = count, size


def _decode_entries(
    reader: RecordReader, count: int, what: str, session: Session, flag: int
) -> None:
    """Add packet ids with the same flag to those in flight."""
    references = struct.unpack(f">{count}Q", reader.take(8 * count))
    metas = struct.unpack(f">{count}I", reader.take(4 * count))
    for reference, meta in zip(references, metas, strict=True):
        packet_id = meta >> _META_ID_SHIFT
        if packet_id == 0 or packet_id in session.in_flight:
            raise ValueError(f"{what}: packet id {packet_id} in flight twice or zero")
        entry = meta & STORED_MASK
        if flag:
            if entry & ~QOS_MASK != FROM_LOG:
                raise ValueError(f"{what}: packet id {packet_id} is bound ahead as {entry:#x}")
            session.has_doubts = True
            session.position = max(session.position, reference)
        session.in_flight[packet_id] = reference << REFERENCE_SHIFT | entry | flag
