"""Is every stored session told after a start, once, without holding anybody up?"""

from session.lifetime.census import CENSUS_PERIOD_MS, CENSUS_SLICE
from session.lifetime.repository import INCARNATION_SHIFT
from session.state.records import decode_session
from storage.tables.tables import seal, unseal
from tests.session.harness import NEVER, Broker
from tests.session.told import columns, told


def with_sessions(count: int, **settings: object) -> Broker:
    """Return a broker that was started again on so many offline sessions."""
    broker = Broker(**settings)
    for number in range(count):
        broker.durable(f"c{number:03}", "t").drop()
    broker.crash(keep=broker.store.unsynced)
    return broker


def restored(broker: Broker) -> list[object]:
    """Return whose sessions were told so far in the last boot."""
    events = told(broker, "session_restored")
    return [event["client_id"] for event in events if event["boot"] == 2]


def test_a_census_tells_every_session_as_it_is() -> None:
    broker = Broker()
    broker.durable("a", "t", qos=2).drop()
    broker.durable("b", "t", "u", expiry=60)
    broker.publish("t", b"1", 2)
    broker.restart()
    broker.advance(s=1)
    events = [event for event in told(broker, "session_restored") if event["boot"] == 2]
    assert columns(events, "client_id", "expiry_s", "subs", "inflight", "position", "conn") == [
        ("a", NEVER, 1, 0, 0, 0),
        ("b", 60, 2, 1, 1, 0),
    ]
    recovered = [event for event in told(broker, "recovered") if event["boot"] == 2]
    assert columns(recovered, "count", "position", "detail") == [(2, 1, "2 restored, 0 damaged")]


def test_a_start_does_not_wait_for_the_census_and_a_tick_does_a_slice_of_it() -> None:
    broker = with_sessions(CENSUS_SLICE + 2)
    with broker.one_tick():
        broker.start()
    assert len(broker.rows("sessions")) == CENSUS_SLICE + 2
    broker.engine.handle_timeout(broker.now)
    broker.engine.end_tick(broker.now)
    broker.engine.handle_timeout(broker.now)  # not due yet
    broker.engine.end_tick(broker.now)
    broker.advance(ms=1)
    assert len(restored(broker)) <= CENSUS_SLICE
    broker.advance(ms=2 * CENSUS_PERIOD_MS + 200)
    assert restored(broker) == [f"c{number:03}" for number in range(CENSUS_SLICE + 2)]


def test_who_connects_before_the_census_comes_to_him_is_passed_over() -> None:
    broker = with_sessions(3)
    with broker.one_tick():
        broker.start()
    broker.durable("c001")
    broker.durable("new", "t").drop()
    broker.advance(s=1)
    assert restored(broker) == ["c000", "c002"]
    assert columns(told(broker, "recovered"), "count")[-1] == (3,)


def test_who_has_ended_before_the_census_comes_to_him_is_passed_over() -> None:
    broker = with_sessions(3)
    with broker.one_tick():
        broker.start()
    broker.connect("c001", clean_start=True).disconnect()
    broker.advance(s=1)
    assert restored(broker) == ["c000", "c002"]


def test_a_session_of_an_earlier_version_gets_its_name_in_the_census() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    body = unseal(dict(broker.rows("sessions"))[b"c"], "session")
    broker.store.write([("sessions", b"c", seal(b"\x01" + body[1:68] + body[76:]))])
    broker.crash(keep=broker.store.unsynced)
    broker.start()
    broker.advance(s=1)
    (event,) = told(broker, "session_restored")
    assert event["session"] == 2 << INCARNATION_SHIFT | 1
    body = unseal(dict(broker.rows("sessions"))[b"c"], "session")
    assert decode_session("c", body).incarnation == event["session"]


def test_a_damaged_session_is_counted_and_the_others_are_told() -> None:
    broker = with_sessions(3)
    broker.store.write([("sessions", b"c001", b"damaged")])
    broker.is_audited = False
    broker.start()
    broker.advance(s=1)
    assert restored(broker) == ["c000", "c002"]
    assert told(broker, "recovered")[-1]["detail"] == "2 restored, 1 damaged"
    assert broker.counters.internal_errors == 0


def test_a_broker_that_ends_begins_no_further_slice() -> None:
    broker = with_sessions(CENSUS_SLICE + 2)
    with broker.one_tick():
        broker.start()
    broker.engine.drain(broker.now)
    broker.settle()
    broker.advance(s=1)
    assert not restored(broker)


def test_where_the_history_is_off_nobody_is_counted() -> None:
    broker = with_sessions(3, history_detail="off")
    with broker.one_tick():
        broker.start()
    assert broker.engine._housekeeping._census.due_ms is None
    broker.advance(s=1)
    assert not broker.rows("history")
