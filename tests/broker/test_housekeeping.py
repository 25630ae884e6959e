"""What time makes due: generations that come and go, expiry, wills, in bounded slices."""

from broker.housekeeping import SWEEP_PERIOD_MS, SWEEP_SLICE
from tests.broker.harness import Broker, Client


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
