"""Deadlines of many connections at once; what a single one means is in test_tick.py."""

from mqtt import reasons
from session.scheduling.keep_alive import SLICE_MAX
from tests.session.harness import Broker


def test_many_that_fall_silent_together_are_ended_in_slices() -> None:
    broker = Broker()
    count = 2 * SLICE_MAX + 10
    clients = [broker.connect(f"c{number}", keep_alive=10) for number in range(count)]
    broker.now += 15_000
    seen = []
    while not all(client.is_closed for client in clients):
        assert not seen or broker.engine._silence.next_deadline() == 1
        broker.engine.handle_timeout(broker.now)
        broker.settle()
        seen.append(sum(client.is_closed for client in clients))
    assert seen == [SLICE_MAX, 2 * SLICE_MAX, count]
    clients[0].expect_closed(reasons.KEEP_ALIVE_TIMEOUT)


def test_many_that_are_due_and_not_silent_are_put_back() -> None:
    broker = Broker()
    clients = [broker.connect(f"c{number}", keep_alive=10) for number in range(SLICE_MAX + 10)]
    broker.now += 14_000
    for client in clients:
        client.ping()
    broker.advance(s=2)
    assert not any(client.is_closed for client in clients)
    broker.advance(s=14)
    assert all(client.is_closed for client in clients)
