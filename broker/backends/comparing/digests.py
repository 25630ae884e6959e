"""Digests of what a store should have: the broker makes one of what it has told, a reader of the
store one of what it finds there.

64 bits of BLAKE2b. Sums of them, modulo 2^64, do not depend on an order. Pure. Read next:
`broker.backends.comparing.listing`.
"""

import hashlib
from typing import Final

CHECKSUM_MASK: Final = (1 << 64) - 1
NAME_BYTES: Final = 12  # of a name that may be 64 KiB long itself
STAMP_SHIFT: Final = 48  # of a message id: without the offset there remain time and node


def digest(*parts: bytes) -> int:
    """Return the digest of parts; it depends on where each of them ends."""
    return int.from_bytes(_hash(8, parts), "big")


def name_of(kind: str, *parts: bytes) -> bytes:
    """Return what stands for the name of an entry, whatever its size."""
    return _hash(NAME_BYTES, (kind.encode(), *parts))


def _hash(size: int, parts: tuple[bytes, ...]) -> bytes:
    found = hashlib.blake2b(digest_size=size)
    for part in parts:
        found.update(len(part).to_bytes(4, "big"))
        found.update(part)
    return found.digest()


def message_digest(
    number: int,
    topic: bytes,
    publisher: bytes,
    qos: int,
    payload: bytes,
    *,
    retain: bool,
    accepted_s: int,
) -> int:
    """Return the digest of a message; `number` is its id."""
    head = b"%d %d %d %d" % (number, qos, retain, accepted_s)
    return digest(head, topic, publisher, payload)


def index_digest(number: int, topic: bytes) -> int:
    """Return the digest of a message's place in the list of its topic."""
    return digest(b"%d" % number, topic)


def retained_digest(number: int, topic: bytes, publisher: bytes, qos: int, payload: bytes) -> int:
    """Return the digest of a retained message.

    Of its id, time and node: it has another one after a backfill.
    """
    return digest(b"%d %d" % (number >> STAMP_SHIFT, qos), topic, publisher, payload)


def subscription_digest(client_id: bytes, topic_filter: bytes, qos: int) -> int:
    """Return the digest of a subscription."""
    return digest(b"%d" % qos, client_id, topic_filter)


def presence_digest(client_id: bytes, online_at_s: int) -> int:
    """Return the digest of a client that is connected."""
    return digest(b"%d" % online_at_s, client_id)
