"""What the exporter has done to the rows of the history, and what is recorded about that."""

from storage.history import events
from storage.history.packed_rows import count_missing, peek, split_history_key
from storage.tables.tables import HISTORY, load_boot, unseal
from tests.session.harness import Broker
from tests.session.told import columns, told


def busy(detail: str) -> Broker:
    """Return a broker that has recorded some events."""
    broker = Broker(history_detail=detail)
    broker.connect("s", expiry=60).subscribe("t", qos=1)
    for _ in range(5):
        broker.connect("p").publish("t", qos=1)
    broker.advance(1000)
    return broker


def rows_of(broker: Broker) -> list[tuple[int, int, int]]:
    """Return (first seq, events, bytes) of each row in the store."""
    found = []
    for key, value in broker.rows(HISTORY):
        _, first_seq = split_history_key(key)
        found.append((first_seq, peek(unseal(value, "row"))[2], len(value)))
    return found


def test_rows_are_counted_until_they_are_trimmed() -> None:
    broker = busy("full")
    outbox = broker.engine.outbox
    rows = rows_of(broker)
    assert outbox.boot == 1
    assert outbox.level == events.FULL
    assert outbox.size_bytes == sum(size for _, _, size in rows)
    assert outbox.events == sum(count for _, count, _ in rows)
    gone, kept = rows[:3], rows[3:]
    outbox.trim(1, [first for first, _, _ in gone], sum(size for _, _, size in gone))
    broker.advance(1000)
    assert [row for row in rows_of(broker) if row in rows] == kept
    assert outbox.size_bytes == sum(size for _, _, size in rows_of(broker))
    size = outbox.size_bytes
    outbox.trim(7, [1], 100)  # of another boot: not counted here
    assert outbox.size_bytes == size


def test_how_far_the_history_goes_is_known_when_all_its_rows_are_gone() -> None:
    broker = busy("full")
    outbox = broker.engine.outbox
    rows = rows_of(broker)
    newest = sum(count for _, count, _ in rows)
    outbox.trim(1, [first for first, _, _ in rows], sum(size for _, _, size in rows))
    broker.advance(1000)
    assert rows_of(broker) == []
    assert load_boot(broker.store) == (1, newest)


def test_rows_that_are_thrown_away_are_a_gap_in_the_same_batch() -> None:
    broker = busy("full")
    outbox = broker.engine.outbox
    gone = rows_of(broker)[:2]
    events_gone = sum(count for _, count, _ in gone)
    outbox.discard(
        1, [row[0] for row in gone], sum(row[2] for row in gone), count=events_gone, told=0
    )
    broker.advance(1000)
    assert outbox.suppressed == events_gone
    gap = told(broker, "history_gap")
    assert columns(gap, "reason", "count", "detail") == [(1051, events_gone, "full")]
    assert all(row not in rows_of(broker) for row in gone)


def test_less_is_recorded_and_everything_again_and_both_are_told() -> None:
    broker = busy("full")
    outbox = broker.engine.outbox
    outbox.lower(events.BOOKS_LEVEL, 100)
    before = len(told(broker, "msg_accepted"))
    broker.connect("q").publish("t", qos=1)
    broker.advance(1000)
    assert outbox.level == events.BOOKS_LEVEL
    assert len(told(broker, "msg_accepted")) == before
    outbox.restore()
    broker.connect("r").publish("t", qos=1)
    broker.advance(1000)
    assert outbox.level == events.FULL
    assert len(told(broker, "msg_accepted")) == before + 1
    began, ended = told(broker, "history_gap")
    assert columns([began], "reason", "detail") == [(1053, "books")]
    assert columns([ended], "reason", "detail") == [(1050, "full")]
    assert ended["count"] == outbox.suppressed > 0


def test_a_gap_that_is_thrown_away_is_told_again_and_counted_once() -> None:
    broker = busy("full")
    outbox = broker.engine.outbox
    first, second, third = rows_of(broker)[:3]
    outbox.discard(1, [first[0]], first[2], count=first[1], told=0)
    broker.advance(1000)
    told_row = rows_of(broker)[-1]
    body = unseal(broker.rows(HISTORY)[-1][1], "row")
    assert count_missing(body) == (told_row[1], first[1])
    outbox.discard(1, [told_row[0]], told_row[2], count=told_row[1], told=first[1])
    broker.advance(1000)
    (gap,) = told(broker, "history_gap")
    assert gap["count"] == first[1] + told_row[1] == outbox.suppressed
    assert second in rows_of(broker) and third in rows_of(broker)


def test_a_copy_of_the_database_is_an_event() -> None:
    broker = busy("sessions")
    broker.engine.outbox.copied(17)
    broker.advance(1000)
    (copied,) = told(broker, "checkpoint")
    assert columns([copied], "actor", "detail") == [("admin", "17 ms")]
    assert copied["position"] == broker.engine._log.end
    broker = busy("off")
    broker.engine.outbox.copied(17)
    broker.advance(1000)
    assert broker.rows(HISTORY) == []
