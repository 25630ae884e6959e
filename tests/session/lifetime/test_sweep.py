"""A search that clients come and go during finds whoever is owed something all the same."""

import pytest

from session.lifetime.collection import SWEEP_PERIOD_MS, SWEEP_SLICE
from session.lifetime.sweep import Sweep
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


def generation_up_to(offset: int) -> Generation:
    """Return a generation whose last message has this offset."""
    return Generation(1, "blocks", 1, offset, 1, is_closed=True)


def session_at(position: int) -> Session:
    """Return a session that has read up to an offset."""
    session = Session("c", "", 1)
    session.position = position
    return session


@pytest.mark.parametrize(("position", "begins_again"), [(9, True), (10, False), (11, False)])
def test_only_who_is_owed_something_of_it_lets_a_search_begin_again(
    position: int, begins_again: bool
) -> None:
    sweep = Sweep()
    sweep.begin(generation_up_to(10))
    sweep.after, sweep.groups = b"d", []
    sweep.session_offline(session_at(position))
    assert (sweep.after == b"") is begins_again
    assert (sweep.groups is None) is begins_again
    assert sweep.pin == (b"c" if begins_again else None)


def test_nobody_is_remembered_when_nothing_is_searched_for() -> None:
    sweep = Sweep()
    sweep.session_offline(session_at(0))
    assert sweep.pin is None and sweep.generation is None
    sweep.begin(generation_up_to(10))
    sweep.end()
    sweep.session_offline(session_at(0))
    assert sweep.pin is None


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
