"""Does the history say what each store was told: every message once, by its minute and range?"""

from typing import Final

from session.feed.dead_letters import DeadLetter
from session.feed.told_counts import GAPS_MAX, GRACE_MS
from session.settings import Feed
from storage.history.events import (
    BACKLOG_FULL,
    CONFIRMED,
    DEAD_LETTERED,
    LOST_THERE,
    NAMES_HASHED,
    NOT_KEPT,
    REFUSED,
    TOLD_AGAIN,
    UNREADABLE,
)
from storage.tables.feed_rows import FeedEvent
from tests.session.feed.backends import NAME, confirm, feed, read, take
from tests.session.harness import START_MS, Broker, Client
from tests.session.told import Told, columns, told

MINUTE: Final = 60_000
FIRST_MINUTE: Final = START_MS - START_MS % MINUTE
MESSAGES_ONLY: Final = 0
WORDS: Final = ("reason", "bin", "msg", "msg_last", "count")


def start(*filters: str, **settings: object) -> tuple[Broker, Client]:
    """Return a broker with a backend for messages alone, at the beginning of a minute."""
    settings.setdefault("feeds", feed(*(filters or ("#",)), kinds=MESSAGES_ONLY))
    broker = Broker(**settings)
    broker.advance(ms=FIRST_MINUTE + MINUTE - broker.now)
    return broker, broker.connect("c")


def publish(client: Client, *offsets: int, topic: str = "t") -> None:
    """Publish messages at QoS 1; `offsets` are those that they will have, for the reader."""
    for offset in offsets:
        client.publish(topic, b"%d" % offset, 1)


def events(broker: Broker, *names: str) -> list[Told]:
    """Return what the history says once it had the time to be written."""
    broker.advance(ms=broker.settings.progress_delay_ms)
    return told(broker, *names)


def said(broker: Broker, name: str = "backend_told") -> list[tuple[object, ...]]:
    """Return events as (reason, minute since the first one, first, last, count)."""
    found = columns(events(broker, name), *WORDS)
    base = FIRST_MINUTE + MINUTE
    return [
        (reason, (int(str(at)) // 1000 - base) // MINUTE, first, last, count)
        for reason, at, first, last, count in found
    ]


def after_the_minute(broker: Broker) -> None:
    """Let the minute end, and the time that rows may come late."""
    broker.advance(ms=MINUTE + GRACE_MS + 2500)


def test_a_minute_is_one_event_with_its_range_and_checksums() -> None:
    broker, client = start()
    publish(client, 1, 2)
    take(broker)
    publish(client, 3)
    take(broker)
    assert said(broker) == []
    after_the_minute(broker)
    assert said(broker) == [(CONFIRMED, 0, 1, 3, 3)]
    (event,) = events(broker, "backend_told")
    assert (event["backend"], event["check1"], event["check2"]) == (NAME, 6, 14)
    assert event["session"] is None and event["conn"] is None and event["share"] is None


def test_the_next_minute_closes_the_one_before() -> None:
    broker, client = start()
    publish(client, 1)
    broker.advance(ms=MINUTE)
    publish(client, 2, 3)
    take(broker)
    assert said(broker) == [(CONFIRMED, 0, 1, 1, 1)]
    after_the_minute(broker)
    assert said(broker) == [(CONFIRMED, 0, 1, 1, 1), (CONFIRMED, 1, 2, 3, 2)]


def test_ranges_pass_over_what_others_want() -> None:
    broker, client = start("a/#")
    client.subscribe("#", qos=1)
    broker.durable("d", "#").drop()
    publish(client, 1, topic="b")
    publish(client, 2, topic="a/b")
    publish(client, 3, topic="b")
    take(broker)
    broker.advance(ms=MINUTE)
    publish(client, 4, topic="a/c")
    publish(client, 5, topic="b")
    take(broker)
    after_the_minute(broker)
    assert said(broker) == [(CONFIRMED, 0, 1, 3, 1), (CONFIRMED, 1, 4, 5, 1)]


def test_a_minute_stays_open_while_some_of_it_is_under_way() -> None:
    broker, client = start()
    publish(client, 1, 2)
    read(broker, count=1)
    broker.engine.feeds.confirm(NAME, (1, 0))
    after_the_minute(broker)
    assert said(broker) == []
    confirm(broker)
    broker.advance(ms=2500)
    assert said(broker) == [(CONFIRMED, 0, 1, 2, 2)]


def test_a_crash_neither_loses_nor_doubles_counts() -> None:
    broker, client = start()
    publish(client, 1, 2)
    take(broker)
    broker.restart()
    assert said(broker) == [(CONFIRMED, 0, 1, 2, 2)]
    client = broker.connect("c")
    publish(client, 3)
    take(broker)
    broker.restart(after_ms=1)
    broker.restart(after_ms=1)
    after_the_minute(broker)
    assert said(broker) == [(CONFIRMED, 0, 1, 2, 2), (CONFIRMED, 0, 3, 3, 1)]


def test_a_crash_that_takes_the_cursor_back_takes_the_counts_back() -> None:
    broker, client = start()
    publish(client, 1)
    broker.hold_commits()
    take(broker)
    broker.restart(keep=0)
    assert len(take(broker)) == 1
    after_the_minute(broker)
    assert said(broker) == [(CONFIRMED, 0, 1, 1, 1)]


def test_what_a_store_had_applied_when_the_broker_died_counts() -> None:
    broker, client = start("a")
    broker.durable("d", "#").drop()
    publish(client, 1, topic="a")
    publish(client, 2, topic="b")
    publish(client, 3, topic="a")
    read(broker)
    broker.restart()
    broker.engine.feeds.confirm(NAME, (3, 0), [DeadLetter((3, 0), "1", "no", b"")])
    broker.engine.feeds.begin(NAME, (3, 0))
    broker.settle()
    assert read(broker) == []
    after_the_minute(broker)
    assert said(broker) == [(CONFIRMED, 0, 1, 3, 1), (DEAD_LETTERED, 0, 1, 3, 1)]


def test_a_store_that_is_ahead_of_what_it_said_counts() -> None:
    broker, client = start()
    publish(client, 1, 2)
    broker.engine.feeds.begin(NAME, (2, 0))
    assert read(broker) == []
    after_the_minute(broker)
    assert said(broker) == [(CONFIRMED, 0, 1, 2, 2)]


def test_what_is_told_again_counts_apart() -> None:
    broker, client = start()
    publish(client, 1, 2)
    take(broker)
    broker.engine.feeds.begin(NAME, (1, 0))
    publish(client, 3)
    assert len(take(broker)) == 2
    after_the_minute(broker)
    assert said(broker) == [(CONFIRMED, 0, 1, 3, 3), (TOLD_AGAIN, 1, 2, 2, 1)]


def test_refused_rows_count_as_what_became_of_them() -> None:
    broker, client = start()
    publish(client, 1, 2, 3)
    read(broker)
    feeds = broker.engine.feeds
    feeds.confirm(NAME, feeds.backends[NAME].read, [DeadLetter((2, 0), "1", "no", b"")], [(3, 0)])
    broker.settle()
    after_the_minute(broker)
    assert said(broker) == [
        (CONFIRMED, 0, 1, 3, 1),
        (DEAD_LETTERED, 0, 1, 3, 1),
        (REFUSED, 0, 1, 3, 1),
    ]


def test_a_refused_event_is_not_its_message() -> None:
    broker = Broker(feeds=feed("#"))
    broker.advance(ms=FIRST_MINUTE + MINUTE - broker.now)
    client = broker.connect("c")
    publish(client, 1)
    client.subscribe("x")
    client.disconnect()
    broker.advance(ms=1000)
    assert isinstance(read(broker)[-1], FeedEvent)
    feeds = broker.engine.feeds
    at = feeds.backends[NAME].read
    assert at[0] == 1
    feeds.confirm(NAME, at, [DeadLetter(at, "1", "no", b"")])
    broker.settle()
    after_the_minute(broker)
    assert said(broker) == [(CONFIRMED, 0, 1, 1, 1)]


def test_what_the_log_dropped_is_a_gap_and_counts_nowhere() -> None:
    broker, client = start(
        feeds=feed("#", kinds=MESSAGES_ONLY),
        generation_size_bytes=1 << 10,
        total_bytes_max=3000,
        store="all",
    )
    for number in range(12):
        client.publish("t", b"%d" % number + bytes(500), 1)
        broker.advance(3000)
    kept = len(take(broker)) - len(said(broker, "backend_gap"))
    after_the_minute(broker)
    gaps = said(broker, "backend_gap")
    assert gaps and {gap[0] for gap in gaps} == {NOT_KEPT}
    lost = {n for gap in gaps for n in range(int(str(gap[2])), int(str(gap[3])) + 1)}
    assert sum(int(str(row[4])) for row in said(broker)) == 12 - len(lost) <= kept


def test_what_waited_too_long_is_a_gap_also_if_it_was_on_its_way() -> None:
    feeds = (Feed(NAME, ("#",), MESSAGES_ONLY, 60_000, (), 2000, "drop_oldest"),)
    broker, client = start(feeds=feeds)
    client.publish("t", b"1", 1)
    read(broker)
    for _ in range(8):
        client.publish("t", bytes(500), 1)
        broker.advance(ms=100)
    broker.engine.feeds.confirm(NAME, (1, 0))  # the store had it
    take(broker)
    after_the_minute(broker)
    gaps = said(broker, "backend_gap")
    assert {gap[0] for gap in gaps} == {BACKLOG_FULL}
    lost = {n for gap in gaps for n in range(int(str(gap[2])), int(str(gap[3])) + 1)}
    assert 1 in lost
    assert sum(int(str(row[4])) for row in said(broker)) == 9 - len(lost)


def test_gaps_that_touch_are_one_and_of_many_the_last_ones_are_joined() -> None:
    broker, _ = start()
    counts, record = broker.engine.feeds._counts, broker.engine.feeds.backends[NAME].record
    with broker.one_tick():
        counts.gap(NAME, record.told, NOT_KEPT, 1, 5)
        counts.gap(NAME, record.told, NOT_KEPT, 6, 9)
    assert record.told.gaps == [(1, 9)]
    with broker.one_tick():
        for first in range(20, 20 + 10 * GAPS_MAX, 10):
            counts.gap(NAME, record.told, NOT_KEPT, first, first)
    assert len(record.told.gaps) == GAPS_MAX
    last = 10 + 10 * GAPS_MAX
    assert record.told.gaps[-1] == (last - 10, last)
    named = {(gap[2], gap[3]) for gap in said(broker, "backend_gap")}
    assert {(1, 5), (6, 9), (last - 9, last)} <= named


def test_what_cannot_be_read_is_named() -> None:
    broker, client = start()
    publish(client, 1, 2, 3)
    broker.is_audited = False
    broker.store.damage("msg.1", [key for key, _ in broker.rows("msg.1")][1:2])
    take(broker)
    after_the_minute(broker)
    assert {gap[0] for gap in said(broker, "backend_gap")} == {UNREADABLE}


def test_what_a_store_has_lost_for_good_is_named() -> None:
    broker, client = start()
    publish(client, 1, 2, 3)
    take(broker)
    broker.engine.feeds.note_lost_there(NAME, 1, 2)
    assert said(broker, "backend_gap") == [(LOST_THERE, 0, 1, 2, 0)]
    after_the_minute(broker)
    assert said(broker) == [(CONFIRMED, 0, 1, 3, 3)]


def test_each_boot_says_what_its_filters_are() -> None:
    broker, client = start("a/#", "b")
    publish(client, 1, topic="b")
    take(broker)
    broker.settings.feeds = feed("a/#", "c", kinds=MESSAGES_ONLY)
    broker.restart()
    opened = columns(events(broker, "backend_opened"), "boot", "backend", "position", "count")
    assert opened == [(1, NAME, 0, 2), (2, NAME, 1, 2)]
    follows = columns(events(broker, "backend_follows"), "boot", "backend", "tfilter", "position")
    assert follows == [
        (1, NAME, "a/#", 0),
        (1, NAME, "b", 0),
        (2, NAME, "a/#", 0),
        (2, NAME, "c", 1),
    ]
    # What was told by the old filters is told before the new ones are.
    names = [each["ev"] for each in events(broker, "backend_told", "backend_opened")]
    assert names == ["backend_opened", "backend_told", "backend_opened"]


def test_a_backend_that_is_not_configured_any_more_ends() -> None:
    broker, client = start()
    publish(client, 1)
    take(broker)
    publish(client, 2)
    broker.settings.feeds = ()
    broker.restart()
    assert said(broker) == [(CONFIRMED, 0, 1, 1, 1)]
    (end,) = events(broker, "backend_forgotten")
    assert (end["backend"], end["position"]) == (NAME, 1)


def test_filters_are_hashed_with_the_other_names_but_backends_are_not() -> None:
    broker, _ = start(history_hash_names=True, history_hash_key="k")
    (opened,) = events(broker, "backend_opened")
    (follows,) = events(broker, "backend_follows")
    assert opened["reason"] == NAMES_HASHED and len(str(follows["tfilter"])) == 32
    assert opened["backend"] == follows["backend"] == NAME


def test_an_orderly_end_leaves_nothing_open() -> None:
    broker, client = start()
    publish(client, 1)
    take(broker)
    broker.engine.drain(broker.now)
    broker.settle()
    broker.engine.finish(broker.now)
    broker.settle()
    assert said(broker) == [(CONFIRMED, 0, 1, 1, 1)]
    assert told(broker)[-1]["ev"] == "shutdown"


def test_without_backends_the_history_says_nothing_of_them() -> None:
    broker = Broker()
    broker.connect("c").publish("t", b"1", 1)
    after_the_minute(broker)
    assert not [each for each in told(broker) if str(each["ev"]).startswith("backend")]


def test_with_the_history_off_nothing_is_recorded_and_nothing_breaks() -> None:
    broker, client = start(history_detail="off")
    publish(client, 1)
    take(broker)
    after_the_minute(broker)
    broker.restart()
    assert told(broker) == []


def test_a_refused_message_behind_an_event_counts_as_refused_and_the_event_does_not() -> None:
    """The place of a message in a batch has the last event before the batch, not before itself."""
    broker, client = start(feeds=feed(kinds=0, qos0=("#",)))
    client.publish("t", b"event 1", 0)
    publish(client, 1, 2)
    client.publish("t", b"event 2", 0)
    broker.advance(1000)
    assert len(read(broker)) == 4
    letters = [DeadLetter(at, "1", "refused", b"") for at in ((1, 0), (2, 2))]
    feeds = broker.engine.feeds
    feeds.confirm(NAME, feeds.backends[NAME].read, letters)
    after_the_minute(broker)
    assert said(broker) == [(CONFIRMED, 0, 1, 2, 1), (DEAD_LETTERED, 0, 1, 2, 1)]
