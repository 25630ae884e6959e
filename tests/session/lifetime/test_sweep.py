"""A search that clients come and go during finds whoever is owed something all the same."""

import pytest

from session.lifetime import sweep as sweep_module
from session.lifetime.collection import SWEEP_PERIOD_MS, SWEEP_SLICE
from session.lifetime.sweep import Candidate, Sweep
from session.state.in_flight import REFERENCE_SHIFT
from session.state.session import Session
from storage.log.message_log import Generation
from tests.session.harness import Broker, Client


def crowd(broker: Broker, *, with_backlog: str) -> Client:
    """Fill more than one slice of a sweep; the last session by name is offline with a backlog."""
    for number in range(SWEEP_SLICE + 10):
        broker.durable(f"c{number:03}", "elsewhere")
    broker.durable("z", with_backlog).drop()
    broker.publish(with_backlog, b"1")
    broker.publish(with_backlog, b"2")
    broker.engine.rotate(broker.now)
    broker.settle()
    broker.publish(with_backlog, b"3")
    return broker.clients[0]


def one_slice(broker: Broker) -> None:
    """Let the sweep look at its next slice and no further."""
    broker.engine.handle_timeout(broker.now)
    broker.settle()


def test_a_session_that_resumes_during_a_sweep_keeps_its_generation() -> None:
    broker = Broker()
    crowd(broker, with_backlog="t")
    broker.now += SWEEP_PERIOD_MS
    one_slice(broker)
    late = broker.durable("z", receive_maximum=1)
    broker.advance(s=10)
    assert late.receive_all() == [b"1", b"2", b"3"]


def test_a_session_that_comes_and_goes_during_a_sweep_keeps_its_generation() -> None:
    broker = Broker(linger=True)
    crowd(broker, with_backlog="t")
    broker.now += SWEEP_PERIOD_MS
    one_slice(broker)
    broker.durable("z", receive_maximum=1).disconnect()  # its socket is still open
    broker.advance(s=10)
    assert broker.durable("z").receive_all() == [b"1", b"2", b"3"]


def test_a_generation_goes_when_nothing_of_it_is_owed() -> None:
    broker = Broker()
    crowd(broker, with_backlog="t")
    assert broker.durable("z").receive_all() == [b"1", b"2", b"3"]
    broker.advance(s=10)
    assert [g.number for g in broker.engine._log.list_generations()] == [2]
    assert sorted(f for f in broker.store.families() if f.startswith("msg.")) == ["msg.2"]


def candidate(first: int, last: int, number: int = 1) -> Candidate:
    """Return a closed generation that nobody may need."""
    return Candidate(Generation(number, "blocks", first, last, 1, is_closed=True), last)


def session_at(position: int, *in_flight: int, name: str = "c") -> Session:
    """Return a session that has read up to an offset, with these offsets in flight."""
    session = Session(name, "", 1)
    session.position = position
    for packet_id, offset in enumerate(in_flight, 1):
        session.in_flight[packet_id] = offset << REFERENCE_SHIFT | 1
    return session


@pytest.mark.parametrize(
    ("session", "waits"),
    [
        (session_at(9), True),
        (session_at(10), False),
        (session_at(11), False),
        (session_at(99, 10), True),
        (session_at(99, 11, 4), True),
        (session_at(99, 11), False),
    ],
)
def test_only_who_may_need_a_candidate_is_looked_at_again(session: Session, waits: bool) -> None:
    sweep = Sweep()
    sweep.begin([candidate(1, 10)])
    sweep.session_offline(session)
    assert list(sweep.waiting) == ([b"c"] if waits else [])


def test_nobody_is_remembered_when_nothing_is_searched_for() -> None:
    sweep = Sweep()
    sweep.session_offline(session_at(0))
    assert not sweep.waiting
    sweep.begin([candidate(1, 10)])
    sweep.end()
    sweep.session_offline(session_at(0))
    assert not sweep.waiting


def test_a_message_in_flight_needs_its_own_generation_only() -> None:
    sweep = Sweep()
    sweep.begin([candidate(1, 10), candidate(11, 20, 2), candidate(21, 30, 3)])
    sweep.pin_in_flight(session_at(99, 5, 25), b"c")
    assert [each.number for each in sweep.candidates] == [2]
    assert sweep.pins == {1: b"c", 3: b"c"}


def test_who_needed_a_generation_last_is_looked_at_first() -> None:
    sweep = Sweep()
    sweep.begin([candidate(1, 10), candidate(11, 20, 2)])
    for each in list(sweep.candidates):
        sweep.pin(each, b"c%d" % each.number)
    assert not sweep.candidates
    sweep.begin([candidate(1, 10), candidate(11, 20, 2), candidate(21, 30, 3)])
    assert list(sweep.waiting) == [b"c1", b"c2"]
    sweep.generation_dropped(1)
    sweep.begin([candidate(11, 20, 2)])
    assert list(sweep.waiting) == [b"c2"]


def test_a_search_that_too_many_leave_during_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "WAITING_MAX", 2)
    sweep = Sweep()
    sweep.begin([candidate(1, 10)])
    for name in ("a", "b"):
        sweep.session_offline(session_at(0, name=name))
    assert sweep.candidates
    sweep.session_offline(session_at(0, name="c"))
    assert not sweep.candidates and not sweep.waiting


def test_what_a_client_has_in_flight_that_comes_and_goes_during_a_sweep_is_kept() -> None:
    """It read all it was owed, so only what it has not acknowledged keeps the generation."""
    broker = Broker()
    for number in range(SWEEP_SLICE + 10):
        broker.durable(f"c{number:03}", "elsewhere").drop()
    broker.durable("b", "t").drop()  # in the first slice
    broker.publish("t", b"1")
    broker.engine.rotate(broker.now)
    broker.settle()
    broker.now += SWEEP_PERIOD_MS
    one_slice(broker)  # begins
    late = broker.durable("b")
    assert late.payloads() == [b"1"]
    while broker.engine._collection._sweep.after < b"c":
        assert broker.engine._collection._sweep.candidates
        one_slice(broker)
    late.drop()
    broker.advance(s=10)
    assert [g.number for g in broker.engine._log.list_generations()] == [1, 2]
    assert broker.durable("b").receive_all() == [b"1"]
    assert len(broker.engine._log.list_generations()) == 2
    broker.advance(s=10)
    assert [g.number for g in broker.engine._log.list_generations()] == [2]


def test_a_group_that_ends_during_a_sweep_keeps_nothing() -> None:
    broker = Broker()
    crowd(broker, with_backlog="t")
    assert broker.durable("z").receive_all() == [b"1", b"2", b"3"]
    broker.durable("g", "$share/g/u").drop()
    broker.publish("u", b"owed")
    broker.engine.rotate(broker.now)
    broker.settle()
    broker.now += SWEEP_PERIOD_MS
    one_slice(broker)
    broker.connect("g", clean_start=True)
    broker.advance(ms=5 * SWEEP_PERIOD_MS)
    assert [g.number for g in broker.engine._log.list_generations()] == [3]


def test_sessions_that_came_and_went_during_a_sweep_are_looked_at_in_slices() -> None:
    broker = Broker(max_inflight=1, expiry_slice=10)
    crowd(broker, with_backlog="u")
    names = [f"z{number:03}" for number in range(45)]
    for name in names:
        broker.durable(name, "u").drop()
    broker.publish("u", b"4")
    broker.engine.rotate(broker.now)
    broker.settle()
    broker.is_audited = False
    broker.now += SWEEP_PERIOD_MS
    one_slice(broker)
    sweep = broker.engine._sessions._sweep
    for name in names:
        broker.durable(name).drop()
        assert broker.durable(name).receive_all() == [b"4"]
    while sweep.connections:
        one_slice(broker)
    assert len(sweep.waiting) == 45
    slices = 0
    while sweep.waiting:
        one_slice(broker)
        slices += 1
    assert slices == 3  # of 10 sessions, and as many look-ups in an index


def test_a_generation_that_is_too_old_goes_though_a_sweep_is_under_way() -> None:
    broker = Broker(max_age_s=60)
    crowd(broker, with_backlog="t")
    broker.advance(s=50)
    broker.now += 11_000
    broker.durable("y", "t").drop()
    sweep = broker.engine._sessions._sweep
    generations = broker.engine._log.list_generations()
    sweep.begin([Candidate(generations[0], generations[0].last_offset)])
    one_slice(broker)
    assert [g.number for g in broker.engine._log.list_generations()] == [2]
    assert not sweep.candidates
    assert broker.counters.dropped["max_age"] == 2
    broker.publish("t", b"4")
    assert broker.durable("z").receive_all() == [b"4"]
