"""What waits for a session is dropped when an operator asks, and nothing else is."""

from typing import Final

import pytest

from mqtt import reasons
from session.lifetime.trimming import DROP_PAGE
from session.purging import PURGES_MAX, TOPICS_MAX, Purge
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


def begin(
    broker: Broker,
    client_id: str = "s",
    *,
    older_ms: int = 0,
    topic: str | None = None,
    kick: bool = False,
) -> Purge:
    """Have an operator ask for a purge."""
    purge = broker.engine.administer(broker.now).purge(
        client_id, "olga", "full", older_ms=older_ms, topic=topic, kick=kick
    )
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


def test_what_is_in_flight_keeps_its_subscription_identifier_when_its_topic_is_purged() -> None:
    broker = Broker(max_inflight=1)
    client = broker.durable("s")
    client.subscribe("t", qos=1, identifier=7)
    publish(broker, b"1", b"2", b"3")
    (message,) = client.messages()
    assert message.subscription_identifiers == (7,)
    client.drop()
    assert finish(broker, begin(broker, topic="t")).dropped == 2
    back = broker.durable("s")
    (again,) = back.messages()
    assert (again.payload, again.dup, again.subscription_identifiers) == (b"1", True, (7,))
    back.acknowledge(again)
    assert not back.receive_all()


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


@pytest.mark.parametrize("topic", [None, "t"])
@pytest.mark.parametrize("version", [4, 5])
def test_a_client_that_is_kicked_for_a_purge_is_kept_out_until_it_is_over(
    topic: str | None, version: int
) -> None:
    broker = Broker(max_inflight=2)
    client = broker.durable("s", "t")
    publish(broker, *numbers(2 * DROP_PAGE))
    assert len(client.messages()) == 2  # unacknowledged: the rest waits
    purge = begin(broker, topic=topic, kick=True)
    broker.settle()
    client.expect_closed(reasons.ADMINISTRATIVE_ACTION)
    assert not purge.is_over
    busy = broker.refused("s", version=version)
    assert busy == (reasons.SERVER_BUSY if version == 5 else 3)
    assert not finish(broker, purge).why and purge.dropped == 2 * DROP_PAGE - 2
    publish(broker, b"later")
    back = broker.durable("s")
    assert back.connack is not None and back.connack.session_present
    assert back.receive_all() == [*numbers(2), b"later"]


def test_a_client_that_is_away_is_kept_out_as_well() -> None:
    broker = away()
    publish(broker, *numbers(3 * DROP_PAGE))
    first, second = begin(broker, kick=True), begin(broker, kick=True)
    finish(broker, first)
    assert not second.is_over and broker.refused("s") == reasons.SERVER_BUSY
    finish(broker, second)
    assert broker.durable("s").receive_all() == []


def test_nobody_is_kept_out_after_a_crash_or_a_purge_that_ends_early() -> None:
    broker = away("+")
    for number in range(TOPICS_MAX + 1):
        broker.publish(f"t{number}")
        assert finish(broker, begin(broker, topic=f"t{number}", kick=True)).dropped == (
            number < TOPICS_MAX
        )
    publish(broker, b"stays")
    begin(broker, kick=True)
    broker.restart()
    assert broker.durable("s").receive_all() == [b"x", b"stays"]


def test_a_session_that_ends_with_its_connection_is_not_kicked_for_a_purge() -> None:
    broker = Broker()
    client = broker.connect("c")
    administration = broker.engine.administer(broker.now)
    assert administration.purge("c", "olga", kick=True) is None
    client.ping()


def test_nobody_is_kicked_for_a_purge_that_has_no_room() -> None:
    broker = away()
    publish(broker, b"1")
    for _ in range(PURGES_MAX):
        begin(broker)
    client = broker.durable("other", "t")
    with pytest.raises(Recoverable, match="purges wait already"):
        begin(broker, "other", kick=True)
    client.ping()


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


def finish(broker: Broker, purge: Purge) -> Purge:
    """Let a purge come to its end."""
    for _ in range(100):
        if purge.is_over:
            return purge
        one_step(broker)
    raise AssertionError("it never ends")


def by_topic(broker: Broker, count: int, topics: str = "ab") -> None:
    """Publish numbered messages on topics in turn."""
    client = broker.connect("publisher")
    for number, payload in enumerate(numbers(count)):
        client.publish(topics[number % len(topics)], payload, 1)
    client.disconnect()


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("settings", [{}, {"max_inflight": 1}, {"max_age_s": 3600}])
def test_messages_of_other_topics_stay_owed_in_their_order(
    restarts: bool, settings: dict[str, object]
) -> None:
    broker = away("+", "a", **settings)
    by_topic(broker, DEEP)
    purge = begin(broker, topic="a")
    by_topic(broker, 2)
    finish(broker, purge)
    assert not purge.why and purge.dropped == (DEEP + 1) // 2
    assert broker.counters.dropped["purged"] == purge.dropped
    if restarts:
        broker.restart()
    client = broker.durable("s")
    assert client.receive_all() == [*numbers(DEEP)[1::2], *numbers(2)]
    by_topic(broker, 2)
    assert client.receive_all() == numbers(2)
    client.drop()
    broker.restart()
    assert broker.durable("s").receive_all() == []


def test_a_crash_amid_a_purge_by_topic_keeps_what_was_not_dropped() -> None:
    broker = away("+")
    by_topic(broker, 2 * DROP_PAGE)
    purge = begin(broker, topic="a")
    one_step(broker)
    assert purge.dropped == DROP_PAGE // 2 and not purge.is_over
    broker.restart()
    all_of_it = numbers(2 * DROP_PAGE)
    expected = [*all_of_it[1:DROP_PAGE:2], *all_of_it[DROP_PAGE:]]
    assert broker.durable("s").receive_all() == expected


def test_a_purge_that_is_asked_for_again_drops_only_what_is_new() -> None:
    broker = away("+")
    by_topic(broker, 4)
    assert finish(broker, begin(broker, topic="a")).dropped == 2
    broker.advance(s=60)
    by_topic(broker, 4)
    assert finish(broker, begin(broker, topic="a", older_ms=60_000)).dropped == 0
    assert finish(broker, begin(broker, topic="a")).dropped == 2
    assert finish(broker, begin(broker, topic="#")).dropped == 4
    broker.restart()
    assert broker.durable("s").receive_all() == []


def test_young_messages_of_a_topic_are_kept() -> None:
    broker = away("+")
    by_topic(broker, 2)
    broker.advance(s=60)
    by_topic(broker, 2)
    assert finish(broker, begin(broker, topic="a", older_ms=60_000)).dropped == 1
    assert broker.durable("s").receive_all() == [numbers(2)[1], *numbers(2)]


def test_a_purge_of_everything_takes_what_a_topic_has_left() -> None:
    broker = away("+")
    by_topic(broker, 6)
    assert finish(broker, begin(broker, topic="a")).dropped == 3
    assert finish(broker, begin(broker)).dropped == 3
    assert broker.counters.dropped["purged"] == 6
    (row,) = [value for key, value in broker.rows(SESSIONS) if key == b"s"]
    assert row[4] == 2  # the version: nothing is remembered


def test_its_own_messages_that_it_does_not_want_are_not_counted() -> None:
    broker = Broker()
    client = broker.connect("s", expiry=60)
    client.subscribe("+", qos=1, no_local=True)
    broker.connect("helper").publish("a", b"x", 1)
    client.disconnect()
    client = broker.connect("s", expiry=60)
    client.publish("a", b"own", 1)
    client.receive_all()
    client.drop()
    broker.publish("a", b"waits")
    assert finish(broker, begin(broker, topic="a")).dropped == 1


def test_only_so_many_topics_are_remembered() -> None:
    broker = away("+")
    topics = [f"t{number}" for number in range(TOPICS_MAX + 1)]
    for topic in topics:
        broker.publish(topic, topic.encode())
    for topic in topics[:-1]:
        assert finish(broker, begin(broker, topic=topic)).dropped == 1
    purge = finish(broker, begin(broker, topic=topics[-1]))
    assert purge.why.startswith("16 purges by topic are remembered already") and not purge.dropped
    broker.publish("t0", b"new")
    assert finish(broker, begin(broker, topic="t0")).dropped == 1
    client = broker.durable("s")
    assert client.receive_all() == [topics[-1].encode()]
    client.drop()
    broker.publish("t0", b"new")
    assert finish(broker, begin(broker, topic="t0")).dropped == 1


def test_a_client_that_comes_back_ends_a_purge_by_topic() -> None:
    broker = away("+")
    by_topic(broker, 2 * DROP_PAGE)
    purge = begin(broker, topic="a")
    one_step(broker)
    client = broker.durable("s")
    one_step(broker)
    assert purge.is_over and purge.why == "its client has come back"
    assert len(client.receive_all()) == 2 * DROP_PAGE - purge.dropped


def test_the_history_names_the_topic() -> None:
    broker = away("+", history_detail="full")
    by_topic(broker, 4)
    finish(broker, begin(broker, topic="a"))
    broker.advance(ms=broker.settings.progress_delay_ms)
    (event,) = told(broker, "session_purged")
    assert (event["count"], event["position"]) == (2, 0)
    assert event["detail"] == "topic a, olga: full"
    assert columns(told(broker, "msg_dropped"), "msg", "reason") == [(1, 1032), (3, 1032)]


def test_messages_that_cannot_be_read_are_told_when_it_is_their_turn() -> None:
    broker = away("+", layout="filters")
    by_topic(broker, 4)
    broker.is_audited = False
    key = (1).to_bytes(8, "big")
    broker.store.write([("msg.1", key, b"torn")])
    purge = finish(broker, begin(broker, topic="a"))
    assert purge.dropped == 1 and broker.counters.dropped["damaged"] == 0
    assert broker.durable("s").receive_all() == numbers(4)[1::2]
    assert broker.counters.dropped["damaged"] == 1
