"""The numbers of connected sessions."""

from tests.session.harness import Broker
from tests.session.messages import numbers, publish


def test_what_connected_sessions_hold_is_counted() -> None:
    broker = Broker(max_inflight=2, pending_messages_max=3)
    broker.durable("behind", "t")
    broker.clean("waits", "t", qos=1)
    broker.durable("idle")
    broker.durable("away", "u").drop()
    publish(broker, numbers(6))
    stats = broker.engine.stats()
    assert stats["sessions_online"] == 3
    assert stats["sessions_stored_online"] == 2
    assert stats["sessions_offline"] == 1
    assert stats["sessions_lagging"] == 1
    assert stats["inflight_messages"] == 4
    assert stats["pending_messages"] == 4


def test_messages_bound_ahead_wait_and_are_not_in_flight() -> None:
    broker = Broker(ahead_after=0, max_inflight=2)
    broker.durable("c", "t")
    publish(broker, numbers(6))
    stats = broker.engine.stats()
    assert stats["inflight_messages"] == 2 and stats["pending_messages"] == 4
