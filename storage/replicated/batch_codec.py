"""The bytes of a batch: changes of rows, and families that are created and dropped, in order.

Families are part of the batch because every node must make and drop them at the same place. A batch
larger than one record may be is cut into parts. Pure. Read next: `storage.replicated.record`.

Layout, big-endian, for each operation: what (1), length of the family (1), the family; for a put
and a delete also length of the key (4), the key; for a put length of the value (4), the value.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from storage.api import Change

PUT: Final = 0
DELETE: Final = 1
CREATE: Final = 2
DROP: Final = 3
HEAD: Final = struct.Struct(">BB")
LENGTH: Final = struct.Struct(">I")

# A change of a row, or (CREATE | DROP, family).
FamilyChange: TypeAlias = tuple[int, str]
Operation: TypeAlias = Change | FamilyChange


class BadBatch(ValueError):
    """These bytes are no batch."""


def encode(operations: Iterable[Operation]) -> bytes:
    """Return a batch as bytes."""
    pieces: list[bytes] = []
    length = LENGTH.pack
    # A batch changes many rows of few families, so what is before a key is made once for each.
    puts: dict[str, bytes] = {}
    deletes: dict[str, bytes] = {}
    for operation in operations:
        if len(operation) == 2:
            pieces.append(_head(*operation))
            continue
        family, key, value = operation
        if value is None:
            head = deletes.get(family)
            if head is None:
                head = deletes[family] = _head(DELETE, family)
            pieces += (head, length(len(key)), key)
        else:
            head = puts.get(family)
            if head is None:
                head = puts[family] = _head(PUT, family)
            pieces += (head, length(len(key)), key, length(len(value)), value)
    return b"".join(pieces)


def _head(what: int, family: str) -> bytes:
    name = family.encode()
    return HEAD.pack(what, len(name)) + name


def decode(data: bytes) -> Iterator[Operation]:
    """Yield the operations of a batch. Raises `BadBatch`."""
    at = 0
    try:
        while at < len(data):
            what, length = HEAD.unpack_from(data, at)
            name, at = _taken(data, at + HEAD.size, length)
            family = name.decode()
            if what in (CREATE, DROP):
                yield what, family
                continue
            if what not in (PUT, DELETE):
                raise BadBatch(f"operation {what} at byte {at}")
            key, at = _taken(data, at + LENGTH.size, LENGTH.unpack_from(data, at)[0])
            value = None
            if what == PUT:
                value, at = _taken(data, at + LENGTH.size, LENGTH.unpack_from(data, at)[0])
            yield family, key, value
    except (struct.error, UnicodeDecodeError) as error:
        raise BadBatch(f"at byte {at}: {error}") from None


def _taken(data: bytes, start: int, length: int) -> tuple[bytes, int]:
    end = start + length
    if end > len(data):
        raise BadBatch(f"ends at byte {len(data)}, expected {end}")
    return data[start:end], end


def parts(data: bytes, size: int) -> Sequence[bytes]:
    """Return `data` in pieces of at most `size` bytes, at least one piece."""
    return [data[at : at + size] for at in range(0, len(data), size)] or [b""]
