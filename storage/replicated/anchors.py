"""The places of the log from where a node can read again, kept in its database.

A node needs them when the log has lost records: it goes back to where both still agree. The row may
be older than the database, because an anchor stays true. Pure. Read next:
`storage.replicated.replica`.

The row, sealed: version (1), then for each anchor epoch (8), index (8), digest (16), place (8).
"""

import struct
from collections.abc import Sequence
from typing import Final

from storage.api import Store
from storage.errors import CorruptRecord
from storage.replicated.record import Position
from storage.replicated.roles.terms import Anchor
from storage.tables.tables import META, seal, unseal

ANCHORS_KEY: Final = b"replica anchors"
VERSION: Final = b"\1"
ONE: Final = struct.Struct(">QQ16sQ")


def encode(anchors: Sequence[Anchor]) -> bytes:
    """Return the value of the row."""
    rows = [
        ONE.pack(at.position.epoch, at.position.index, at.position.digest, at.place)
        for at in anchors
    ]
    return seal(b"".join((VERSION, *rows)))


def decode(value: bytes) -> list[Anchor]:
    """Return what `encode` was given. Raises `CorruptRecord`."""
    body = unseal(value, "replica anchors")
    if body[:1] != VERSION or (len(body) - 1) % ONE.size:
        raise CorruptRecord(f"replica anchors: version {body[:1].hex()} of {len(body)} bytes")
    return [
        Anchor(Position(epoch, index, digest), place)
        for epoch, index, digest, place in ONE.iter_unpack(body[1:])
    ]


def load(store: Store) -> list[Anchor]:
    """Return the anchors of a database, oldest first. Raises `DamagedRows`."""
    value = store.get(META, ANCHORS_KEY)
    return [] if value is None else decode(value)


def save(store: Store, anchors: Sequence[Anchor]) -> None:
    """Put these in place of earlier ones; durable with a later sync of the database."""
    store.write([(META, ANCHORS_KEY, encode(anchors))])
