"""A backend as the shell sees it: reads all rows, confirms them, and tells tests what they were.

Read next: `session.feed.outlet`.
"""

from typing import Final

from mqtt.message import Message
from session.settings import Feed, Fetching
from storage.tables import feed_rows
from storage.tables.feed_rows import FeedEvent
from tests.session.harness import Broker

NAME: Final = "fleet"
EVERYTHING: Final = sum(1 << kind for kind in feed_rows.KINDS)


def feed(
    *filters: str,
    kinds: int = EVERYTHING,
    name: str = NAME,
    keep_ms: int = 60_000,
    fetches: tuple[Fetching, ...] = (),
    qos0: tuple[str, ...] = (),
    usernames: bool = False,
) -> tuple[Feed, ...]:
    """Return what a backend wants; of the filters in `qos0` also messages with QoS 0."""
    wanted = (*filters, *qos0)
    return (Feed(name, wanted, kinds, keep_ms, fetches, qos0=qos0, usernames=usernames),)


def read(broker: Broker, name: str = NAME, count: int = 100) -> list[Message | FeedEvent]:
    """Read everything that a backend may get now, without confirming it."""
    found: list[Message | FeedEvent] = []
    while (page := broker.engine.feeds.read(name, count, 1 << 20)) is not None:
        found += page.rows
    return found


def confirm(broker: Broker, name: str = NAME) -> None:
    """Let the store confirm all that was read."""
    feeds = broker.engine.feeds
    feeds.confirm(name, feeds.backends[name].read)
    broker.settle()


def take(broker: Broker, name: str = NAME) -> list[Message | FeedEvent]:
    """Read and confirm everything."""
    found = read(broker, name)
    confirm(broker, name)
    return found


def told(rows: list[Message | FeedEvent]) -> list[object]:
    """Return rows in a short form: payloads of messages, (kind, client, text) of events."""
    return [
        (row.kind, row.client_id, row.text) if isinstance(row, FeedEvent) else row.payload
        for row in rows
    ]
