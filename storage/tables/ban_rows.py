"""The rows of bans: who may not connect, until when, who said so, and why.

The key is what is banned, so a ban that is made again replaces the one before. Does not know what a
ban means. Read next: `session.scheduling.bans` and docs/formats.md.
"""

import struct
from typing import Final

from storage.errors import CorruptRecord
from storage.tables.tables import seal, unseal

# What is banned: the first byte of the key, which the client identifier and so on follow.
CLIENT_ID: Final = b"c"
USER: Final = b"u"
ADDRESS: Final = b"a"  # an address, or a network in the form 10.0.0.0/8
KINDS: Final = (CLIENT_ID, USER, ADDRESS)

_VERSION: Final = 1
_BAN: Final = struct.Struct(">BQQH")  # version, when it was made, when it ends, size of the name


def ban_key(kind: bytes, value: str) -> bytes:
    """Return the key of a ban."""
    return kind + value.encode()


def split_ban_key(key: bytes) -> tuple[bytes, str]:
    """Return (kind, what is banned). Raises `CorruptRecord`."""
    if key[:1] not in KINDS or len(key) < 2:
        raise CorruptRecord(f"ban: key of {len(key)} bytes, expected c, u or a and a name")
    try:
        return key[:1], key[1:].decode()
    except UnicodeDecodeError as error:
        raise CorruptRecord(f"ban: {error}") from None


def encode_ban(made_ms: int, until_ms: int, by: str, reason: str) -> bytes:
    """Return the value of a ban; the times are broker time."""
    name = by.encode()
    return seal(_BAN.pack(_VERSION, made_ms, until_ms, len(name)) + name + reason.encode())


def decode_ban(value: bytes) -> tuple[int, int, str, str]:
    """Return (made, until, by, reason) of a row. Raises `CorruptRecord`."""
    body = unseal(value, "ban")
    if len(body) < _BAN.size or body[0] != _VERSION:
        raise CorruptRecord(f"ban: version {body[:1].hex()} of {len(body)} bytes, expected 1")
    _, made_ms, until_ms, size = _BAN.unpack_from(body)
    name, reason = body[_BAN.size : _BAN.size + size], body[_BAN.size + size :]
    if len(name) < size:
        raise CorruptRecord(f"ban: a name of {len(name)} bytes, expected {size}")
    try:
        return made_ms, until_ms, name.decode(), reason.decode()
    except UnicodeDecodeError as error:
        raise CorruptRecord(f"ban: {error}") from None
