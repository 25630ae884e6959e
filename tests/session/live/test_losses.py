"""Who watches is told of each message that a session does not get."""

from session.live.losses import Losses
from tests.session.backlogs import numbers, publish
from tests.session.harness import Broker

Told = list[tuple[str, str, str, int]]


def watched(**settings: object) -> tuple[Broker, Told]:
    """Return a broker, and what it tells of losses."""
    broker = Broker(**settings)
    told: Told = []
    broker.engine.watch_losses(lambda *loss: told.append(loss))
    return broker, told


def test_nobody_is_told_unless_somebody_watches() -> None:
    assert Losses().tell is None


def test_what_is_trimmed_while_a_client_is_away_is_told_and_then_no_more() -> None:
    broker, told = watched(max_offline_messages=3)
    broker.durable("s", "t").drop()
    publish(broker, *numbers(9))
    broker.advance(s=11)
    assert told == [("s", "t", "session_limit", 1)] * 6
    broker.engine.watch_losses(None)
    publish(broker, *numbers(2))
    broker.advance(s=11)
    assert broker.counters.dropped["session_limit"] == 8 and len(told) == 6


def test_what_a_resumed_session_does_not_get_is_told() -> None:
    broker, told = watched(max_offline_messages=3)
    broker.durable("s", "t").drop()
    publish(broker, *numbers(5))
    assert broker.durable("s").receive_all() == [b"2", b"3", b"4"]
    assert told == [("s", "t", "session_limit", 1)] * 2


def test_what_a_connected_client_does_not_get_is_told_with_its_topic() -> None:
    broker, told = watched(pending_messages_max=2)
    client = broker.durable("c", "t")
    client.stop_taking()
    publish(broker, *numbers(5))
    broker.connect("other").publish("t", b"zero", 0)
    assert told == [("c", "t", "slow_consumer", 1)]
