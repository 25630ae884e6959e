"""What waits for a shared subscription is dropped when an operator asks, and nothing else is."""

from typing import Final

import pytest

from session.errands.group_purging import KEPT_MAX, PURGES_MAX, GroupPurge
from session.lifetime.trimming import DROP_PAGE
from storage.errors import Recoverable
from tests.session.harness import Broker, Client
from tests.session.shared_subscriptions import numbers, received
from tests.session.told import told

DEEP: Final = 2 * DROP_PAGE + 5


def begin(
    broker: Broker, *, older_ms: int = 0, topic: str | None = None, topic_filter: str = "t"
) -> GroupPurge:
    """Have an operator ask for a purge of `$share/g/t`."""
    purge = broker.engine.administer(broker.now).purge_group(
        "g", topic_filter, "olga", "full", older_ms=older_ms, topic=topic
    )
    assert purge is not None
    return purge


def publish(broker: Broker, *payloads: bytes, topic: str = "t") -> None:
    """Publish each payload on one connection."""
    client = broker.connect("publisher")
    for payload in payloads:
        client.publish(topic, payload, 1)
    client.disconnect()


def one_step(broker: Broker) -> None:
    """Let one step happen and no further one."""
    broker.engine.handle_timeout(broker.now)
    broker.settle()


def finish(broker: Broker, purge: GroupPurge) -> None:
    """Let a purge come to its end."""
    for _ in range(100):
        if purge.is_over:
            return
        one_step(broker)
    raise AssertionError("it never ends")


def away(**settings: object) -> Broker:
    """Return a broker with the group `$share/g/t` whose member is away."""
    broker = Broker(**settings)
    broker.durable("member", "$share/g/t").drop()
    return broker


def test_all_that_waits_is_dropped_in_slices_and_what_comes_later_is_kept() -> None:
    broker = away()
    broker.durable("other", "t").drop()
    publish(broker, *numbers(DEEP))
    purge = begin(broker)
    publish(broker, b"later")
    one_step(broker)
    assert not purge.is_over and purge.dropped == DROP_PAGE
    finish(broker, purge)
    assert not purge.why and purge.dropped == DEEP
    assert broker.counters.dropped["purged"] == DEEP
    broker.restart()
    assert broker.durable("member").receive_all() == [b"later"]
    assert len(broker.durable("other").receive_all()) == DEEP + 1


def test_a_crash_amid_a_purge_keeps_what_was_not_dropped() -> None:
    broker = away()
    publish(broker, *numbers(DEEP))
    begin(broker)
    one_step(broker)
    broker.restart()
    broker.advance(s=1)
    assert broker.durable("member").receive_all() == numbers(DEEP)[DROP_PAGE:]


def test_what_members_have_in_flight_stays_and_they_get_what_comes() -> None:
    broker = Broker(max_inflight=1)
    member = broker.durable("member", "$share/g/t")
    publish(broker, *numbers(9))
    (first,) = member.messages()
    purge = begin(broker)
    finish(broker, purge)
    assert purge.dropped == 8
    publish(broker, b"later")
    member.acknowledge(first)
    assert member.receive_all() == [b"later"]


def test_a_member_that_comes_amid_a_purge_gets_each_message_once_or_none_of_it() -> None:
    broker = away()
    publish(broker, *numbers(DEEP))
    purge = begin(broker)
    one_step(broker)
    member = broker.durable("member")
    got = len(member.messages())
    finish(broker, purge)
    assert got and purge.dropped + got <= DEEP
    member.drop()
    again = broker.durable("member")
    publish(broker, b"later")
    found = again.receive_all()
    assert found[-1] == b"later" and len(found) == got + 1
    assert purge.dropped + got == DEEP


def test_messages_that_came_back_from_ended_sessions_are_dropped_too() -> None:
    broker = away()
    leaver = broker.durable("leaver", "$share/g/t")
    publish(broker, b"1", b"2")
    assert leaver.payloads() == [b"1", b"2"]
    leaver.disconnect(session_expiry_interval=0)
    publish(broker, b"3")
    purge = begin(broker)
    finish(broker, purge)
    assert purge.dropped == 3
    broker.restart()
    assert broker.durable("member").receive_all() == []


def test_young_messages_are_kept() -> None:
    broker = away()
    leaver = broker.durable("leaver", "$share/g/t")
    publish(broker, b"old")
    broker.advance(s=60)
    publish(broker, b"young")
    leaver.disconnect(session_expiry_interval=0)
    publish(broker, b"young, too")
    purge = begin(broker, older_ms=60_000)
    finish(broker, purge)
    assert purge.dropped == 1
    assert broker.durable("member").receive_all() == [b"young", b"young, too"]


@pytest.mark.parametrize("restarts", [True, False])
def test_messages_of_other_topics_stay_in_their_order(restarts: bool) -> None:
    broker = Broker()
    broker.durable("member", "$share/g/+").drop()
    for number in range(6):
        publish(broker, b"%d" % number, topic="ab"[number % 2])
    purge = begin(broker, topic="a", topic_filter="+")
    publish(broker, b"later", topic="a")
    finish(broker, purge)
    assert (purge.dropped, purge.kept) == (3, 3)
    if restarts:
        broker.restart()
    again = begin(broker, topic="x/#", topic_filter="+")
    finish(broker, again)
    assert broker.durable("member").receive_all() == [b"1", b"3", b"5", b"later"]


def test_very_many_messages_of_other_topics_end_a_purge() -> None:
    broker = Broker()
    broker.durable("member", "$share/g/+").drop()
    publish(broker, *numbers(KEPT_MAX + 1), topic="b")
    publish(broker, b"stays", topic="a")
    purge = begin(broker, topic="a", topic_filter="+")
    finish(broker, purge)
    assert purge.why == "1000 messages of other topics wait between: the rest stays"
    assert purge.dropped == 0
    found = broker.durable("member").receive_all()
    assert found == [*numbers(KEPT_MAX + 1), b"stays"]


def in_memory(broker: Broker) -> Client:
    """Return the member of a group that is in memory, without room for more."""
    member = broker.clean("member", "$share/g/t", qos=1)
    publish(broker, b"in flight")
    return member


def test_a_group_in_memory_is_purged_too() -> None:
    broker = Broker(max_inflight=1)
    member = in_memory(broker)
    publish(broker, b"old")
    broker.advance(s=1)
    publish(broker, b"young")
    purge = begin(broker, older_ms=1000)
    finish(broker, purge)
    assert purge.dropped == 1
    assert received(member) == [b"in flight", b"young"]


def test_a_group_that_ends_ends_its_purge() -> None:
    broker = away()
    publish(broker, *numbers(DEEP))
    purge = begin(broker)
    one_step(broker)
    member = broker.durable("member")
    member.unsubscribe("$share/g/t")
    one_step(broker)
    assert purge.is_over and purge.why == "the shared subscription has ended"


def test_there_must_be_such_a_group() -> None:
    broker = away()
    administration = broker.engine.administer(broker.now)
    assert administration.purge_group("g", "other", "olga") is None
    assert administration.purge_group("other", "t", "olga") is None


def test_a_group_for_which_nothing_waits_has_nothing_to_purge() -> None:
    broker = Broker()
    broker.durable("member", "$share/g/t")
    purge = begin(broker)
    one_step(broker)
    assert purge.is_over and not purge.dropped
    broker.advance(ms=broker.settings.progress_delay_ms)
    assert told(broker, "operator_action") == []


def test_the_history_names_the_operator_and_counts() -> None:
    broker = away(history_detail="full")
    publish(broker, b"1", b"2")
    finish(broker, begin(broker))
    broker.advance(ms=broker.settings.progress_delay_ms)
    (action,) = told(broker, "operator_action")
    assert (action["count"], action["actor"]) == (2, "admin")
    assert action["detail"] == "group purge $share/g/t, olga: full"
    dropped = told(broker, "msg_dropped")
    assert [(each["msg"], each["reason"], each["share"]) for each in dropped] == [
        (1, 1032, "g"),
        (2, 1032, "g"),
    ]


def test_only_so_many_wait_and_a_broker_that_ends_leaves_the_rest() -> None:
    broker = away()
    publish(broker, *numbers(DEEP))
    purges = [begin(broker) for _ in range(PURGES_MAX)]
    with pytest.raises(Recoverable, match="purges wait already"):
        begin(broker)
    one_step(broker)
    broker.engine.drain(broker.now)
    broker.settle()
    assert [purge.why for purge in purges] == ["the broker ends"] * PURGES_MAX
    assert purges[0].dropped == DROP_PAGE
