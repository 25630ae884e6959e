"""Retained messages as text: a list, or one of them in full.

`broker.cli.looking.retained` prints it. Read next: `broker.operations.looking.retained_messages`.
"""

import base64
import json
from collections.abc import Iterator
from typing import Final

from broker.history.text import printable
from broker.operations.looking.listing import Listing
from broker.operations.looking.store_time import StoreTime
from mqtt.message import Message

FIELDS: Final = ("topic", "bytes", "qos", "stored_at", "expires_at", "publisher")


def _expires(moment: str | None) -> str:
    return moment or "never"


RETAINED: Final = Listing(
    [(field.upper(), field) for field in FIELDS], name="topic", cells={"expires_at": _expires}
)
PAYLOAD_SHOWN_MAX: Final = 65_536  # bytes of a payload that a terminal gets; JSON has all


def message_as_page(time: StoreTime, message: Message) -> Iterator[str]:
    """Yield everything about one message; its payload is text, escaped, or else hexadecimal."""
    kind, shown = _payload(message.payload)
    for title, value in fields(time, message).items():
        yield f"{title:<12}  {printable(RETAINED.text(title, value))}"
    yield f"{kind:<12}  {shown}"
    if len(message.payload) > PAYLOAD_SHOWN_MAX:
        yield f"{'':<12}  the first {PAYLOAD_SHOWN_MAX} bytes; -o json prints all of them"


def message_as_json(time: StoreTime, message: Message) -> str:
    """Return a JSON object of one message with its whole payload in Base64."""
    payload = base64.b64encode(message.payload).decode()
    return json.dumps({**fields(time, message), "payload_base64": payload}, indent=2)


def _payload(payload: bytes) -> tuple[str, str]:
    """Return what the payload is taken for, and its beginning as that."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "payload hex", payload[:PAYLOAD_SHOWN_MAX].hex()
    # A character that the cut splits is left out.
    return "payload", printable(text.encode()[:PAYLOAD_SHOWN_MAX].decode(errors="ignore"))


def fields(time: StoreTime, message: Message) -> dict[str, object]:
    """Return everything about a message but its payload, under the names of JSON."""
    return {
        "topic": message.topic,
        "bytes": len(message.payload),
        "qos": message.qos,
        "stored_at": time.text(message.accepted_at_ms),
        "expires_at": time.text(message.expires_at_ms),
        "publisher": message.publisher or None,
    }
