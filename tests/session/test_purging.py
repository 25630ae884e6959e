"""What waits for a session is dropped when an operator asks, and nothing else is."""

from typing import Final

import pytest

from session.lifetime.trimming import DROP_PAGE
from session.purging import PURGES_MAX, Purge
from storage.errors import DamagedRows, Recoverable
from storage.tables.tables import SESSIONS
from tests.session.backlogs import numbers, publish
from tests.session.harness import Broker
from tests.session.told import columns, told

DEEP: Final = 3 * DROP_PAGE + 5


def away(*topic_filters: str, **settings: object) -> Broker:
    """Return a broker whose client `s` is away."""
    broker = Broker(**settings)
    broker.durable("s", *(topic_filters or ("t",))).drop()
    return broker


def begin(broker: Broker, client_id: str = "s", *, older_ms: int = 0) -> Purge:
    """Have an operator ask for a purge."""
    purge = broker.engine.administer(broker.now).purge(client_id, "olga", "full", older_ms=older_ms)
    assert purge is not None
    return purge


def one_step(broker: Broker) -> None:
    """Let one step happen and no further one."""
    broker.engine.handle_timeout(broker.now)
    broker.settle()


def test_all_that_waits_is_dropped_and_what_comes_later_is_kept() -> None:
    broker = away("t", "+")
    broker.durable("other", "t").drop()
    publish(broker, *numbers(DEEP))
    purge = begin(broker)
    publish(broker, b"later")
    for _ in range(3):
        one_step(broker)
        assert not purge.is_over
    one_step(broker)
    assert purge.is_over and not purge.why and purge.dropped == DEEP
    assert broker.counters.dropped["purged"] == DEEP
    broker.restart()
    assert broker.durable("s").receive_all() == [b"later"]
    assert len(broker.durable("other").receive_all()) == DEEP + 1


def test_the_space_of_what_was_purged_is_free_when_nobody_else_needs_it() -> None:
    broker = away()
    publish(broker, *numbers(9))
    broker.engine.rotate(broker.now)
    broker.settle()
    assert len(broker.engine._log.list_generations()) == 2
    begin(broker)
    broker.advance(s=60)
    assert len(broker.engine._log.list_generations()) == 1


def test_young_messages_are_kept() -> None:
    broker = away()
    publish(broker, b"old", b"older than a minute")
    broker.advance(s=60)
    publish(broker, b"young")
    purge = begin(broker, older_ms=60_000)
    one_step(broker)
    one_step(broker)
    assert purge.is_over and purge.dropped == 2
    purge = begin(broker, older_ms=60_000)
    one_step(broker)
    assert purge.is_over and not purge.dropped
    assert broker.durable("s").receive_all() == [b"young"]


def test_what_is_in_flight_stays() -> None:
    broker = Broker(max_inflight=1)
    client = broker.durable("s", "t", qos=2)
    publish(broker, b"1", b"2", b"3")
    (message,) = client.messages()
    client.drop()
    purge = begin(broker)
    one_step(broker)
    assert (purge.dropped, purge.is_over) == (2, True)
    back = broker.durable("s")
    (again,) = back.messages()
    assert (again.payload, again.packet_id, again.dup) == (b"1", message.packet_id, True)
    back.acknowledge(again)
    publish(broker, b"4")
    assert back.receive_all() == [b"4"]


@pytest.mark.parametrize("stays", [True, False])
def test_a_client_that_comes_back_ends_a_purge(stays: bool) -> None:
    broker = away()
    publish(broker, *numbers(2 * DROP_PAGE))
    purge = begin(broker)
    one_step(broker)
    client = broker.durable("s")
    if not stays:
        client.drop()
    one_step(broker)
    assert purge.is_over and purge.dropped == DROP_PAGE
    assert purge.why == ("its client has come back" if stays else "its client was here meanwhile")
    if not stays:
        client = broker.durable("s")
    assert client.receive_all()[-1] == numbers(2 * DROP_PAGE)[-1]


def test_a_crash_amid_a_purge_keeps_what_was_not_dropped() -> None:
    broker = away()
    publish(broker, *numbers(2 * DROP_PAGE))
    begin(broker)
    one_step(broker)
    broker.restart()
    broker.advance(s=1)
    assert broker.durable("s").receive_all() == numbers(2 * DROP_PAGE)[DROP_PAGE:]


def test_the_history_names_the_operator_and_counts() -> None:
    broker = away(history_detail="full")
    publish(broker, b"1", b"2")
    begin(broker)
    one_step(broker)
    broker.advance(ms=broker.settings.progress_delay_ms)
    (event,) = told(broker, "session_purged")
    assert (event["client_id"], event["count"], event["position"]) == ("s", 2, 2)
    assert (event["actor"], event["detail"]) == ("admin", "olga: full")
    assert columns(told(broker, "msg_dropped"), "msg", "reason") == [(1, 1032), (2, 1032)]


def test_a_session_without_subscriptions_has_nothing_to_purge() -> None:
    broker = Broker()
    broker.durable("s").drop()
    purge = begin(broker)
    one_step(broker)
    assert purge.is_over and not purge.dropped and not told(broker, "session_purged")


def test_only_so_many_wait() -> None:
    broker = away()
    purges = [begin(broker) for _ in range(PURGES_MAX)]
    with pytest.raises(Recoverable, match="purges wait already"):
        begin(broker)
    for _ in purges:
        one_step(broker)
    assert all(purge.is_over for purge in purges)
    assert broker.engine.administer(broker.now).purge("nobody", "olga") is None


def test_a_damaged_record_ends_a_purge() -> None:
    broker = away()
    publish(broker, b"1")
    purge = begin(broker)
    ((key, value),) = broker.rows(SESSIONS)
    broker.store.write([(SESSIONS, key, value[:-1] + bytes([value[-1] ^ 1]))])
    broker.engine.handle_timeout(broker.now)
    with pytest.raises(DamagedRows):
        begin(broker)
    broker.store.write([(SESSIONS, key, value)])
    broker.settle()
    assert purge.is_over and purge.why == "its client was here meanwhile"
    assert broker.durable("s").receive_all() == [b"1"]


def test_a_broker_that_ends_leaves_the_rest_of_a_purge() -> None:
    broker = away()
    publish(broker, *numbers(2 * DROP_PAGE))
    purge = begin(broker)
    one_step(broker)
    broker.engine.drain(broker.now)
    broker.settle()
    assert purge.is_over and purge.why == "the broker ends" and purge.dropped == DROP_PAGE
    with pytest.raises(Recoverable, match="shutting down"):
        begin(broker)
    broker.engine.finish(broker.now)
    broker.settle()
    broker.advance(ms=broker.settings.progress_delay_ms)
    names = [event["ev"] for event in told(broker)]
    assert names[-1] == "shutdown" and "session_purged" in names
    broker.restart()
    assert len(broker.durable("s").receive_all()) == DROP_PAGE
