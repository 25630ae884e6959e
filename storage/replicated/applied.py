"""How a node's database takes batches of the replicated log, and says how far it has come.

Writes are not synced here and families change at once, so after a crash a database may have
families from further on than its rows. Therefore every operation can be applied again: a family
that exists is not created, one that is gone is not dropped, and one that rows need is made, because
only a drop that comes later can have taken it. Applying all from the stored position on leads to
the same state. Pure. Read next: `storage.replicated.overlay`, `storage.replicated.batch_codec`.

The row, big-endian and sealed: version (1), epoch (8), index (8), digest (16), place (8).
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from storage.api import Batch, Store
from storage.errors import CorruptRecord
from storage.replicated.batch_codec import CREATE, Operation
from storage.replicated.record import Position
from storage.tables.tables import META, seal, unseal

POSITION_KEY: Final = b"replica"
VERSION: Final = 1
BODY: Final = struct.Struct(">BQQ16sQ")


class Reached(NamedTuple):
    """What a database has: all records up to `position`; the log goes on at `place`."""

    position: Position
    place: int


def encode_reached(position: Position, place: int) -> bytes:
    """Return the value of the row that says how far a database has come."""
    body = BODY.pack(VERSION, position.epoch, position.index, position.digest, place)
    return seal(body)


def decode_reached(value: bytes) -> Reached:
    """Return what `encode_reached` was given. Raises `CorruptRecord`."""
    body = unseal(value, "replica")
    if len(body) != BODY.size or body[0] != VERSION:
        raise CorruptRecord(
            f"replica: version {body[:1].hex()} of {len(body)} bytes, "
            f"expected {VERSION} of {BODY.size}"
        )
    _, epoch, index, digest, place = BODY.unpack(body)
    return Reached(Position(epoch, index, digest), place)


def load_reached(store: Store) -> Reached:
    """Return how far a database has come; a new one is at the beginning of an empty log.

    Raises `DamagedRows`.
    """
    value = store.get(META, POSITION_KEY)
    return Reached(Position(), 0) if value is None else decode_reached(value)


def apply(
    base: Store, families: set[str], operations: Iterable[Operation], reached: Reached | None
) -> None:
    """Apply a batch by one write, with the row that says how far the database has come then.

    `families` are those of `base`, and are kept up to date. Without `reached` the row stays as it
    is: a crash then has this batch applied again. Whatever is raised, the batch may be applied
    again.
    """
    rows: Batch = []
    for operation in operations:
        if len(operation) == 2:
            what, family = operation
            if what == CREATE:
                _create(base, families, family)
                continue
            rows = [row for row in rows if row[0] != family]
            if family in families:
                base.drop_family(family)
                families.remove(family)
        else:
            _create(base, families, operation[0])
            rows.append(operation)
    if reached is not None:
        rows.append((META, POSITION_KEY, encode_reached(*reached)))
    if rows:
        base.write(rows)


def _create(base: Store, families: set[str], family: str) -> None:
    if family not in families:
        base.create_family(family)
        families.add(family)
