"""Identifiers of messages in external stores: unique, ordered by time, the same after a crash.

128 bits: microseconds since 1970 when the message was accepted (64), a number of the node (16), its
offset in the log (48). A message that is not in the log, one with QoS 0 or a retained one, has the
number of its event and the highest of the 48 bits. Written as 20 characters of base62, as other
brokers' stores have them: ours sort among theirs. In DynamoDB the number is written in decimal and
that in base64. Pure.
"""

import base64
import zlib
from typing import Final

from storage.tables import feed_rows

ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
CHARACTERS: Final = 20
UNSTORED: Final = feed_rows.UNSTORED
_VALUES: Final = {letter: value for value, letter in enumerate(ALPHABET)}
_NODE_SHIFT: Final = 48
_TIME_SHIFT: Final = 64
# Pairs of digits: half as many divisions.
_PAIRS: Final = [high + low for high in ALPHABET for low in ALPHABET]
_PAIR: Final = 62 * 62


def node_number(node: str) -> int:
    """Return the 16 bits that stand for a node in identifiers."""
    return zlib.crc32(node.encode()) & 0xFFFF


def message_number(accepted_ms: int, node: int, offset: int) -> int:
    """Return the identifier of a message of the log as a number."""
    return accepted_ms * 1000 << _TIME_SHIFT | node << _NODE_SHIFT | offset


def decimal_id(number: int) -> str:
    """Return an identifier as DynamoDB has it: in decimal, and that in base64 without padding."""
    return base64.b64encode(b"%d" % number).rstrip(b"=").decode()


def number_of(decimal: str) -> int:
    """Return the number of an identifier that `decimal_id` has written, 0 if it is another text."""
    try:
        text = base64.b64decode(decimal + "=" * (-len(decimal) % 4), validate=True)
    except ValueError:
        return 0
    return int(text) if text.isdigit() and len(text) < 40 else 0


def message_id(accepted_ms: int, node: int, offset: int) -> str:
    """Return the identifier of a message of the log."""
    return text_id(message_number(accepted_ms, node, offset))


def unstored_id(accepted_ms: int, node: int, seq: int) -> str:
    """Return the identifier of a message that is not in the log, told of by the event `seq`."""
    return message_id(accepted_ms, node, UNSTORED | seq)


def text_id(number: int) -> str:
    """Return an identifier as 20 characters of base62."""
    pieces: list[str] = []
    for _ in range(CHARACTERS // 2):
        number, pair = divmod(number, _PAIR)
        pieces.append(_PAIRS[pair])
    return "".join(reversed(pieces))


def decode_id(text: str) -> tuple[int, int, int]:
    """Return (microseconds since 1970, number of the node, the rest); raises ValueError."""
    return split_number(number_of_id(text))


def split_number(number: int) -> tuple[int, int, int]:
    """Return (microseconds since 1970, number of the node, the rest) of an identifier."""
    mask = (1 << _NODE_SHIFT) - 1
    return number >> _TIME_SHIFT, number >> _NODE_SHIFT & 0xFFFF, number & mask


def number_of_id(text: str) -> int:
    """Return the number of an identifier in base62; raises ValueError."""
    if len(text) != CHARACTERS or not all(letter in _VALUES for letter in text):
        raise ValueError(f"message id {text!r}: expected {CHARACTERS} characters of base62")
    number = 0
    for letter in text:
        number = number * 62 + _VALUES[letter]
    return number
