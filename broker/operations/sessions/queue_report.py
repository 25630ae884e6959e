"""What one session is owed as text: a table, CSV or JSON. `broker.cli.sessions` prints it.

Read next: `broker.operations.sessions.owed`.
"""

import base64
from collections.abc import Iterable, Iterator
from typing import Final

from broker.operations.sessions import columns
from broker.operations.sessions.columns import moment
from broker.operations.sessions.inventory import Inventory
from broker.operations.sessions.owed import Owed
from broker.operations.sessions.sizes import size_of
from session.state.session import Session
from storage.history.words import printable

FIELDS: Final = (
    "state", "packet_id", "source", "offset", "topic", "qos", "bytes", "accepted_at", "expires_at",
    "publisher",
)  # fmt: skip
COLUMNS: Final = (
    "STATE", "PACKET_ID", "OFFSET", "TOPIC", "QOS", "BYTES", "ACCEPTED", "EXPIRES", "PUBLISHER",
)  # fmt: skip
NUMBERS: Final = ("PACKET_ID", "OFFSET", "QOS", "BYTES")
# Of a payload in a table: characters of text, or half as many bytes in hexadecimal.
PAYLOAD_SHOWN_MAX: Final = 64
FILTERS_SHOWN_MAX: Final = 3


def as_table(inventory: Inventory, queue: Iterable[Owed], *, with_payload: bool) -> Iterator[str]:
    """Yield a table's lines, `with_payload` with the beginning of each payload."""
    header = (*COLUMNS, "PAYLOAD") if with_payload else COLUMNS
    rows = (_cells(inventory, each, with_payload) for each in queue)
    return columns.table(header, rows, right=NUMBERS)


def as_json(inventory: Inventory, queue: Iterable[Owed], *, with_payload: bool) -> Iterator[str]:
    """Yield the lines of a JSON array; payloads are whole, in Base64."""
    return columns.json_lines(fields(inventory, each, with_payload) for each in queue)


def as_csv(inventory: Inventory, queue: Iterable[Owed], *, with_payload: bool) -> Iterator[str]:
    """Yield lines of CSV with the fields of JSON."""
    header = (*FIELDS, "payload") if with_payload else FIELDS
    return columns.csv_lines(header, (fields(inventory, each, with_payload) for each in queue))


def notes(session: Session) -> Iterator[str]:
    """Yield a line for each thing that a session is or may be owed beside its own queue."""
    shared = [name for name, each in session.subscriptions.items() if each.share_name is not None]
    if shared:
        yield (
            f"shared subscriptions: {_names(shared)}. What waits for them is owed to the group, "
            "and is not listed"
        )
    if session.replays:
        yield (
            f"retained messages are still to be sent for {_names(list(session.replays))}, "
            "before what waits; they are not listed"
        )


def fields(inventory: Inventory, owed: Owed, with_payload: bool) -> dict[str, object]:
    """Return everything about a message under the names of JSON; None is "not" or "not known"."""
    message = owed.message
    found: dict[str, object] = {
        "state": owed.state,
        "packet_id": owed.packet_id or None,
        "source": owed.source,
        "offset": owed.offset or None,
        "topic": None if message is None else message.topic,
        "qos": owed.qos,
        "bytes": None if message is None else size_of(message),
        "accepted_at": None if message is None else moment(inventory, message.accepted_at_ms),
        "expires_at": None if message is None else moment(inventory, message.expires_at_ms),
        "publisher": None if message is None else message.publisher,
    }
    if with_payload:
        found["payload"] = (
            None if message is None else base64.b64encode(message.payload).decode("ascii")
        )
    return found


def payload_text(payload: bytes) -> str:
    """Return the beginning of a payload: text if it is UTF-8, otherwise hexadecimal after 0x."""
    text = _text(payload)
    if text is None:
        half = PAYLOAD_SHOWN_MAX // 2
        return f"0x{payload[:half].hex()}{'...' if len(payload) > half else ''}"
    escaped = printable(text[: PAYLOAD_SHOWN_MAX + 1])
    return escaped if len(escaped) <= PAYLOAD_SHOWN_MAX else f"{escaped[:PAYLOAD_SHOWN_MAX]}..."


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def _cells(inventory: Inventory, owed: Owed, with_payload: bool) -> list[str]:
    values = fields(inventory, owed, False)
    cells = [
        "-" if value is None else str(value) for name, value in values.items() if name != "source"
    ]
    if with_payload:
        cells.append("-" if owed.message is None else payload_text(owed.message.payload))
    return cells


def _names(topic_filters: list[str]) -> str:
    shown = ", ".join(printable(each) for each in topic_filters[:FILTERS_SHOWN_MAX])
    more = len(topic_filters) - FILTERS_SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown
