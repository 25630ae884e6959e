"""The tables of a DynamoDB backend: their names, keys and attributes, and calls of the service.

Tables and attributes are those that others have used for years, so that applications find what they
know. Pure. Read next: `broker.backends.dynamodb_actions`, `broker.backends.dynamodb_sink`.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from broker.backends.message_ids import decimal_id

# An attribute as DynamoDB has it: {"S": "text"}, {"N": "1"}, {"B": b""}, {"SS": [...]}.
Value: TypeAlias = dict[str, Any]
Item: TypeAlias = dict[str, Value]

CURSOR_TABLE: Final = "holdfast_cursor"
FEED: Final = "feed"
CLIENT: Final = "client"
SUB: Final = "sub"
MSG: Final = "msg"
TOPIC_MSG_MAP: Final = "topic_msg_map"
TOPIC_MSG: Final = "topic_msg"
RETAIN: Final = "retain"
ACKED: Final = "acked"
# The keys of each table, the partition key first; all are texts.
KEYS: Final[dict[str, tuple[str, ...]]] = {
    CURSOR_TABLE: (FEED,),
    CLIENT: ("clientid",),
    SUB: ("clientid", "topic"),
    MSG: ("msgid",),
    TOPIC_MSG_MAP: ("topic",),
    TOPIC_MSG: ("topic", "msgid"),
    RETAIN: ("topic",),
    ACKED: ("topic", "clientid"),
}
# When an item goes, in seconds since 1970: the TTL attribute of these tables.
EXPIRES_AT: Final = "expires_at"
EXPIRING: Final = (MSG, TOPIC_MSG, RETAIN)
MSG_ID_SET: Final = "MsgId"
# For whom a message of a queue is, and until when, in ms since 1970; without that until the client
# acknowledges it.
CLAIM: Final = "holdfast_claim"
CLAIMED_UNTIL: Final = "holdfast_until"
# Begins what the engine calls a message of a topic with positions: then the number of the id.
ORDERED: Final = "#"
_ORDERED_CHARACTERS: Final = 40
BATCH_READ_MAX: Final = 100  # items, of one call
# Begins the codes that say so, of a call and of a part of a transaction.
CONDITION_FAILED: Final = "ConditionalCheckFailed"


class CallRefused(Exception):
    """The service will never take a call; `at` has the places that it named, perhaps none."""

    def __init__(self, why: str, at: dict[int, str] | None = None, code: str = "") -> None:
        super().__init__(why)
        self.is_condition: Final = code.startswith(CONDITION_FAILED)
        self.why: Final = why
        self.at: Final = at or {}


class Tables(Protocol):
    """The tables, as who reads and writes them sees them."""

    def call(self, method: str, **arguments: Any) -> Any:
        """Call the service. Raises `Unavailable`, or `CallRefused` for what it will never take."""
        ...

    def until_done(
        self, method: str, requests: Any, left_over: str, take: Callable[[Any], None]
    ) -> None:
        """Call until the service has left nothing undone, and give each answer to `take`."""
        ...

    def name_of(self, table: str) -> str:
        """Return the name that a table has in the store."""
        ...


def ordered_id(number: int) -> str:
    """Return what the engine calls a message of a topic with positions: it sorts as a text."""
    return f"{ORDERED}{number:0{_ORDERED_CHARACTERS - 1}}"


def id_of_told(told: str) -> str:
    """Return what the store calls a message that the engine tells of."""
    if told.startswith(ORDERED) and len(told) == _ORDERED_CHARACTERS and told[1:].isdecimal():
        return decimal_id(int(told[1:]))
    return told


def text(value: str) -> Value:
    """Return a text."""
    return {"S": value}


def number(value: int) -> Value:
    """Return a number."""
    return {"N": str(value)}
