"""Is a store told of everything that was there before, once, and never of what is older?"""

from mqtt.packets import Unsubscribe
from session.feed import backfill
from session.state.backend_record import PRESENCE, RETAINED, SUBSCRIPTIONS
from storage.tables import feed_rows
from storage.tables.feed_rows import (
    CONNECTED,
    DISCONNECTED,
    RETAIN_DELETED,
    SESSION_ENDED,
    SUBSCRIBED,
    UNSUBSCRIBED,
    FeedEvent,
)
from storage.tables.message_record import decode_message
from tests.session.feed.backends import EVERYTHING, NAME, confirm, feed, read, take, told
from tests.session.harness import Broker

ALL = SUBSCRIPTIONS | RETAINED | PRESENCE


def peopled(**settings: object) -> Broker:
    """Return a broker that had clients before it got a backend."""
    broker = Broker(**settings)
    stored = broker.connect("stored", expiry=1000)
    stored.subscribe("a/#", qos=1)
    stored.subscribe("$share/g/b", qos=2)
    stored.publish("r/1", b"one", 1, retain=True)
    stored.publish("r/2", b"two", 0, retain=True)
    stored.disconnect()
    return broker


def begin(broker: Broker, parts: int = ALL, name: str = NAME) -> str:
    why = broker.engine.backfill.begin(name, parts)
    broker.settle()
    return why


def drain(broker: Broker, name: str = NAME) -> list[object]:
    """Let the backfill end while the store confirms everything; return what it was told."""
    rows: list[object] = []
    for _ in range(200):
        broker.advance(backfill.WAIT_MS)
        found = read(broker, name)
        confirm(broker, name)
        rows += told(found)
        fill = broker.engine.backfill.fill(name)
        if not found and fill is not None and not fill.parts:
            return rows
    raise AssertionError("the backfill did not end")


OLD = [
    (SUBSCRIBED, "stored", "$share/g/b"),
    (SUBSCRIBED, "stored", "a/#"),
    (feed_rows.RETAINED, "stored", "r/1"),
    (feed_rows.RETAINED, "stored", "r/2"),
]


def test_a_new_backend_is_told_what_was_there_before() -> None:
    broker = peopled()
    broker.settings.feeds = feed()
    broker.restart()
    memory = broker.connect("memory")
    memory.subscribe("m", qos=0)
    broker.advance(1000)
    assert told(take(broker)) == [(CONNECTED, "memory", ""), (SUBSCRIBED, "memory", "m")]
    assert begin(broker) == ""
    assert drain(broker) == [*OLD, (CONNECTED, "memory", ""), (SUBSCRIBED, "memory", "m")]
    fill = broker.engine.backfill.fill(NAME)
    assert fill is not None and fill.rows == 6 and fill.ended_ms
    broker.advance(10_000)
    assert take(broker) == []


def test_rows_say_what_the_first_ones_said() -> None:
    broker = Broker(feeds=feed())
    client = broker.connect("c", expiry=100)
    client.subscribe("a", qos=1)
    client.publish("r", b"kept", 1, retain=True)
    broker.advance(60_000)
    first = {row.kind: row for row in take(broker) if isinstance(row, FeedEvent)}
    assert begin(broker) == ""
    broker.advance(1000)
    again = {row.kind: row for row in take(broker) if isinstance(row, FeedEvent)}
    assert again[CONNECTED].at_ms == first[CONNECTED].at_ms
    assert again[SUBSCRIBED].qos == 1
    one, two = (decode_message(rows[feed_rows.RETAINED].body, 0) for rows in (first, again))
    assert (one.payload, one.qos, one.publisher, one.accepted_at_ms) == (
        (two.payload, two.qos, two.publisher, two.accepted_at_ms)
    )


def test_only_the_backend_that_asked_is_told() -> None:
    broker = Broker(feeds=(*feed(name="first"), *feed(name="second")))
    broker.connect("c", expiry=100).subscribe("a", qos=1)
    broker.advance(1000)
    take(broker, "first")
    take(broker, "second")
    assert begin(broker, name="second") == ""
    assert drain(broker, "second") == [(SUBSCRIBED, "c", "a"), (CONNECTED, "c", "")]
    assert take(broker, "first") == []


def test_a_crash_in_the_middle_leaves_nothing_out() -> None:
    for crash_after in range(8):
        broker = Broker()
        client = broker.connect("c", expiry=10_000)
        for number in range(7):
            client.subscribe(f"a/{number}", qos=1)
        broker.settings.feeds = feed()
        broker.restart()
        broker.advance(1000)
        broker.engine.backfill.slice_rows = 2
        take(broker)
        begin(broker)
        found: list[object] = []
        for _ in range(crash_after):
            broker.advance(backfill.PERIOD_MS)
        found += told(take(broker))
        broker.restart()
        broker.engine.backfill.slice_rows = 2
        found += drain(broker)
        assert found == [(SUBSCRIBED, "c", f"a/{number}") for number in range(7)]


def test_what_changes_meanwhile_is_the_last_that_is_told() -> None:
    broker = Broker(feeds=feed())
    broker.engine.backfill.slice_rows = 1
    client = broker.connect("c", expiry=10_000)
    for name in ("a", "b", "c"):
        client.subscribe(name, qos=1)
    client.publish("r", b"x", 1, retain=True)
    broker.advance(1000)
    take(broker)
    broker.engine.backfill.begin(NAME, ALL)
    client.unsubscribe("a", "c")
    client.publish("r", b"", 1, retain=True)
    subscriptions: dict[str, int] = {}
    rows = drain(broker)
    for kind, _, text in rows:  # type: ignore[misc]
        if kind in (SUBSCRIBED, UNSUBSCRIBED):
            subscriptions[text] = kind
    assert subscriptions == {"a": UNSUBSCRIBED, "b": SUBSCRIBED, "c": UNSUBSCRIBED}
    assert [row[0] for row in rows if row[2] == "r"][-1] == RETAIN_DELETED  # type: ignore[index]


def test_an_open_batch_is_written_before_a_slice_is_read() -> None:
    broker = Broker(feeds=feed())
    client = broker.connect("c", expiry=10_000)
    client.subscribe("a", qos=1)
    broker.advance(1000)
    take(broker)
    with broker.one_tick():
        client.send(Unsubscribe(7, ["a"]))
        broker.engine.backfill.begin(NAME, ALL)
        broker.engine.backfill.run(broker.now)
    rows = drain(broker)
    assert [kind for kind, _, text in rows if text == "a"][-1] == UNSUBSCRIBED  # type: ignore[misc]


def test_who_leaves_meanwhile_is_not_online_at_the_end() -> None:
    broker = Broker(feeds=feed())
    broker.engine.backfill.slice_rows = 1
    clients = [broker.connect(f"c{number}") for number in range(3)]
    clients[2].subscribe("x", "y", "z", qos=1)
    broker.advance(1000)
    take(broker)
    begin(broker, PRESENCE)
    broker.advance(backfill.PERIOD_MS)
    clients[1].disconnect()
    clients[2].disconnect()
    last: dict[str, int] = {}
    for kind, client_id, _ in drain(broker):  # type: ignore[misc]
        if kind in (CONNECTED, DISCONNECTED):
            last[client_id] = kind
        if kind == SUBSCRIBED:
            last[client_id + " session"] = kind
        if kind == SESSION_ENDED:
            last[client_id + " session"] = kind
    assert last["c0"] == CONNECTED
    assert DISCONNECTED in (last["c1"], last["c2"]) and CONNECTED not in (last["c1"], last["c2"])
    assert last["c2 session"] == SESSION_ENDED


def test_it_goes_no_faster_than_the_store() -> None:
    broker = Broker(feeds=feed(kinds=1 << SUBSCRIBED))
    broker.engine.backfill.slice_rows = 2
    broker.engine.backfill.behind_max = 3
    client = broker.connect("c", expiry=10_000)
    for number in range(20):
        client.subscribe(f"a/{number:02}", qos=1)
    broker.advance(1000)
    take(broker)
    begin(broker)
    broker.advance(60_000)
    assert len(read(broker)) == 4
    broker.engine.feeds.begin(NAME, broker.engine.feeds.cursor(NAME))
    assert len(drain(broker)) == 20


def test_retained_messages_wait_by_their_bytes() -> None:
    broker = Broker(feeds=feed(kinds=1 << feed_rows.RETAINED))
    broker.engine.backfill.slice_bytes = 100
    broker.engine.backfill.behind_bytes_max = 1000
    client = broker.connect("c")
    for number in range(40):
        client.publish(f"r/{number:02}", b"x" * 200, 1, retain=True)
    broker.advance(1000)
    take(broker)
    begin(broker)
    broker.advance(60_000)
    assert 4 <= len(read(broker)) <= 8
    broker.engine.feeds.begin(NAME, broker.engine.feeds.cursor(NAME))
    assert len(drain(broker)) == 40


def test_only_one_at_a_time_and_only_what_rules_want() -> None:
    broker = Broker(feeds=feed(kinds=EVERYTHING & ~(1 << feed_rows.RETAINED)))
    assert begin(broker, RETAINED) == "no rule of the backend wants any of that"
    assert broker.engine.backfill.stop(NAME) == "no backfill is under way"
    assert broker.engine.backfill.begin(NAME, ALL) == ""
    assert "under way" in broker.engine.backfill.begin(NAME, ALL)
    assert broker.engine.backfill.stop(NAME) == ""
    broker.settle()
    broker.restart()
    broker.advance(1000)
    assert told(take(broker)) == []
    assert begin(broker) == ""


def test_a_retained_message_that_has_expired_is_left_out() -> None:
    broker = Broker(feeds=feed(kinds=1 << feed_rows.RETAINED))
    client = broker.connect("c")
    client.publish("r", b"x", 1, retain=True, message_expiry_interval=1)
    client.publish("s", b"x", 1, retain=True)
    broker.advance(5000)
    take(broker)
    begin(broker)
    assert drain(broker) == [(feed_rows.RETAINED, "c", "s")]
