"""Does a comparison see what the database keeps of a feed, and change nothing?"""

from session.feed import kept
from storage.tables.feed_rows import SUBSCRIBED
from tests.session.feed.backends import NAME, feed, take
from tests.session.harness import Broker

MINUTE_MS = 60_000


def read_messages(broker: Broker, after: int, upto: int, *filters: str) -> list[int]:
    found: list[int] = []
    while after < upto:
        messages, after, lost = broker.engine.kept.messages(NAME, filters, after, upto, 1 << 20)
        found += [message.offset for message in messages]
        assert not lost
    return found


def test_messages_that_match_come_in_pages_up_to_an_offset() -> None:
    broker = Broker(feeds=feed("a/#", "b", keep_ms=900_000))
    client = broker.connect("c")
    for number in range(400):
        client.publish(("a/1", "b", "a/2")[number % 3], b"x", 1)
    take(broker)
    before = broker.engine.feeds.cursor(NAME)
    assert read_messages(broker, 0, 300, "a/#", "b") == list(range(1, 301))
    assert read_messages(broker, 10, 20, "b") == [11, 14, 17, 20]
    assert read_messages(broker, 0, 400, "unknown") == []
    assert broker.engine.feeds.cursor(NAME) == before
    assert take(broker) == []


def test_a_page_ends_with_much_payload() -> None:
    broker = Broker(feeds=feed("#"))
    client = broker.connect("c")
    for _ in range(5):
        client.publish("a", b"x" * 1000, 1)
    messages, reached, _ = broker.engine.kept.messages(NAME, ("#",), 0, 5, 1500)
    assert (len(messages), reached) == (2, 2)


def test_events_come_in_pages_up_to_a_number() -> None:
    broker = Broker(feeds=feed("#"))
    client = broker.connect("c")
    for number in range(30):
        client.subscribe(f"f/{number}", f"g/{number}")
        broker.advance(1000)  # a row of its own
    end = broker.engine.feeds.end()[1]
    found, after, pages = [], 0, 0
    while after < end - 1:
        events, after = broker.engine.kept.events(after, end - 1)
        found += events
        pages += 1
    assert [event.seq for event in found] == list(range(1, end))
    assert sum(event.kind == SUBSCRIBED for event in found) == 59
    assert pages >= 30 // kept.PAGE_FEED_ROWS
    assert broker.engine.kept.events(end, end + 5) == ([], end + 5)


def test_the_first_cursor_is_the_floor_or_the_time_asked_for() -> None:
    broker = Broker(feeds=feed("#", keep_ms=900_000))
    client = broker.connect("c", keep_alive=0)
    for _ in range(5):
        client.publish("a", b"x", 1)
        take(broker)
        broker.advance(3 * MINUTE_MS)
    floor = broker.engine.feeds.floor(NAME)
    assert broker.engine.kept.first(NAME, 0) == floor
    first = broker.engine.kept.first(NAME, broker.now - 4 * MINUTE_MS)
    assert floor[0] < first[0] < 5 and first[1] == floor[1]
    message = broker.engine.kept.message(first[0])
    assert message is not None and message.accepted_at_ms < broker.now - 4 * MINUTE_MS
    assert broker.engine.kept.message(0) is None
    assert broker.engine.kept.message(99) is None
