"""Does a damaged row cost what it holds and no more: for its client, for others, in every pass?"""

from typing import Any

import pytest

from mqtt import reasons
from mqtt.packets import Pubcomp, Pubrel
from session.counters import Counters
from session.live.backlog_trim import Trimmer
from session.live.damage import Damage
from session.state.session import Session
from storage.errors import DamagedRows
from storage.log.message_log import Stream
from tests.session.harness import Broker, will
from tests.session.messages import in_flight, publish


def damaged(broker: Broker, family: str, *, at: int | None = None) -> None:
    """Damage one row of a family, or all of them."""
    keys = [key for key, _ in broker.rows(family)]
    broker.is_audited = False  # it reads every row
    broker.store.damage(family, keys if at is None else [keys[at]])


def blocks(broker: Broker, count: int) -> None:
    """Store messages, each in a block of its own."""
    for number in range(count):
        broker.publish("t", b"%d" % number)


@pytest.mark.parametrize("family", ["sessions", "subscriptions", "incoming"])
def test_a_session_that_cannot_be_read_is_refused_and_all_others_go_on(family: str) -> None:
    broker = Broker()
    broker.durable("z", "t").drop()
    client = broker.durable("a", "t", qos=2)
    client.start_publish("t", b"begun", 2)
    client.drop()
    rows = broker.rows(family)
    damaged(broker, family, at=0)
    broker.restart()
    for clean_start in (False, True):
        assert broker.refused("a", expiry=10, clean_start=clean_start) == reasons.SERVER_UNAVAILABLE
    assert broker.refused("a", version=4, durable=True) == 3
    assert broker.durable("z").receive_all() == [b"begun"]
    assert broker.counters.damaged_rows["session"] == 1
    broker.store._damaged.clear()
    assert rows[0] in broker.rows(family), "it can still be rescued"


@pytest.mark.parametrize("limit", [{"max_offline_messages": 4}, {"max_offline_bytes": 8}])
@pytest.mark.parametrize(
    ("policy", "left"), [("drop_new", (0, 2, 3)), ("drop_oldest", (2, 3, 4, 5))]
)
@pytest.mark.parametrize("is_away", [False, True])
def test_a_damaged_message_takes_its_own_place_in_a_limit_and_no_other(
    limit: dict[str, int], policy: str, left: tuple[int, ...], is_away: bool
) -> None:
    broker = Broker(layout="filters", on_limit=policy, **limit)
    broker.durable("c", "t").drop()
    blocks(broker, 6)
    damaged(broker, "msg.1", at=1)
    broker.restart()
    if is_away:
        broker.advance(s=30)  # the backlog is cut before its client comes back
    found = [int(payload) for payload in broker.durable("c").receive_all()]
    if "max_offline_bytes" in limit:  # what cannot be read takes no bytes
        left = {"drop_new": (0, 2, 3, 4), "drop_oldest": (2, 3, 4, 5)}[policy]
    assert found == list(left)


@pytest.mark.parametrize("limit", [{"max_offline_messages": 3}, {"max_offline_bytes": 6}])
@pytest.mark.parametrize(("policy", "left"), [("drop_new", [0, 1, 2]), ("drop_oldest", [1, 2, 3])])
@pytest.mark.parametrize("is_away", [False, True])
def test_a_damaged_message_of_other_sessions_takes_no_place_in_a_limit(
    limit: dict[str, int], policy: str, left: list[int], is_away: bool
) -> None:
    broker = Broker(layout="timeline", on_limit=policy, **limit)
    broker.durable("c", "t").drop()
    broker.durable("other", "x").drop()
    for number in range(4):
        broker.publish("x", b"damaged")
        broker.publish("t", b"%d" % number)
    keys = [key for key, _ in broker.rows("msg.1")]
    broker.is_audited = False
    broker.store.damage("msg.1", keys[::2])
    broker.restart()
    if is_away:
        broker.advance(s=30)  # the backlog is cut before its client comes back
    assert [int(payload) for payload in broker.durable("c").receive_all()] == left


@pytest.mark.parametrize("limit", [{"max_offline_messages": 2}, {"max_offline_bytes": 4}])
@pytest.mark.parametrize(("policy", "left"), [("drop_new", [1]), ("drop_oldest", [2, 3])])
def test_a_message_that_is_damaged_after_the_backlog_was_counted_keeps_its_place(
    limit: dict[str, int], policy: str, left: list[int]
) -> None:
    broker = Broker(layout="timeline", on_limit=policy, **limit)
    broker.durable("c", "t").drop()
    blocks(broker, 4)
    trimmer = Trimmer(broker.engine._log, broker.engine.settings)
    plan = trimmer.begin([Stream(1, "t", 0)], Session("c", "", 0))
    assert plan.advance()
    trim = plan.trim()
    assert trim is not None
    trim.pass_over([1])
    assert [number for number in (1, 2, 3) if not trim.drops(number + 1)] == left


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
def test_a_damaged_message_costs_that_message(layout: str) -> None:
    broker = Broker(layout=layout)
    broker.durable("c", "t").drop()
    blocks(broker, 6)
    damaged(broker, "msg.1", at=2)
    broker.restart()
    client = broker.durable("c")
    assert client.receive_all() == [b"0", b"1", b"3", b"4", b"5"]
    assert broker.counters.dropped["damaged"] == 1
    assert broker.counters.damaged_rows["message"] == 1
    broker.publish("t", b"live")
    assert client.receive_all() == [b"live"]


@pytest.mark.parametrize("layout", ["blocks", "filters"])
@pytest.mark.parametrize("at", [0, 2, 5, None])
def test_damage_to_an_index_costs_nothing(layout: str, at: int | None) -> None:
    broker = Broker(layout=layout)
    broker.durable("other", "u").drop()
    broker.durable("c", "t").drop()
    blocks(broker, 6)
    broker.publish("u", b"not for c")
    indexed = [key for key, _ in broker.rows("idx.1") if key[:8] == (2).to_bytes(8, "big")]
    broker.is_audited = False
    broker.store.damage("idx.1", indexed if at is None else [indexed[at]])
    broker.restart()
    assert broker.durable("c").receive_all() == [b"%d" % number for number in range(6)]
    assert broker.counters.dropped["damaged"] == 0


def test_the_newest_messages_may_be_damaged_at_a_start() -> None:
    """The end of the log is then known only from what can be read: no offset is used twice."""
    broker = Broker()
    broker.durable("c", "t").drop()
    blocks(broker, 3)
    damaged(broker, "msg.1", at=2)
    broker.restart()
    broker.publish("t", b"later")
    broker.restart()
    assert broker.durable("c").receive_all() == [b"0", b"1", b"later"]
    assert broker.counters.dropped["damaged"] == 1


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
def test_the_newest_messages_may_be_damaged_while_the_broker_runs(layout: str) -> None:
    """A session that looks for the end of the log must not be taken behind what comes later."""
    broker = Broker(layout=layout)
    broker.durable("c", "t").drop()
    blocks(broker, 3)
    damaged(broker, "msg.1", at=2)
    client = broker.durable("c")
    assert client.receive_all() == [b"0", b"1"]
    client.drop()
    broker.publish("t", b"later")
    assert broker.durable("c").receive_all() == [b"later"]
    assert broker.counters.dropped["damaged"] == 1


def test_an_index_and_messages_may_be_damaged_together() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    blocks(broker, 1)
    damaged(broker, "msg.1")
    damaged(broker, "idx.1")
    broker.publish("t", b"later")
    assert broker.durable("c").receive_all() == [b"later"]
    assert broker.counters.dropped["damaged"] == 1


def test_a_message_in_flight_that_cannot_be_read_frees_its_packet_id() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    blocks(broker, 2)
    client.drop()
    damaged(broker, "msg.1", at=0)
    broker.restart()
    client = broker.durable("c")
    assert client.receive_all() == [b"1"]
    assert broker.counters.dropped["damaged"] == 1
    client.ping()


@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"])
def test_a_qos_2_message_in_flight_that_cannot_be_read_ends_with_pubrel(topic_filter: str) -> None:
    """The client may hold the packet id."""
    broker = Broker()
    client = broker.durable("c", topic_filter, qos=2)
    publish(broker, [b"x"], qos=2)
    packet_id = client.message().packet_id
    client.drop()
    damaged(broker, "msg.1", at=0)
    broker.restart()
    client = broker.durable("c")
    client.expect(Pubrel(packet_id))
    assert broker.counters.dropped["damaged"] == 1
    client.send(Pubcomp(packet_id))
    client.ping()
    assert in_flight(client) == 0


def test_a_damaged_message_of_a_group_is_passed_over() -> None:
    broker = Broker()
    broker.durable("c", "$share/g/t").drop()
    blocks(broker, 4)
    damaged(broker, "msg.1", at=1)
    broker.restart()
    assert broker.durable("c").receive_all() == [b"0", b"2", b"3"]
    assert broker.counters.dropped["damaged"] == 1


def test_a_damaged_retained_message_is_absent_until_it_is_replaced() -> None:
    broker = Broker()
    for topic in ("a", "b", "c"):
        broker.publish(topic, topic.encode(), retain=True)
    damaged(broker, "retained", at=1)
    broker.restart()
    assert broker.clean("wild", "#", qos=1).receive_all() == [b"a", b"c"]
    assert broker.clean("exact", "b").payloads() == []
    assert broker.counters.damaged_rows["retained"] == 1
    broker.publish("b", b"new", retain=True)
    assert broker.clean("again", "#", qos=1).receive_all() == [b"a", b"new", b"c"]


def test_a_damaged_retained_message_can_be_replaced_and_cleared() -> None:
    broker = Broker()
    broker.publish("b", b"old", retain=True)
    for payload, count in ((b"new", 1), (b"", 0)):
        damaged(broker, "retained")
        broker.publish("b", payload, retain=True)
        assert len(broker.rows("retained")) == count
        assert broker.engine.stats()["retained_messages"] == count


def test_the_will_of_a_damaged_session_waits_and_the_session_can_still_be_rescued() -> None:
    broker = Broker()
    broker.durable("watcher", "w")
    broker.durable("a", "t", expiry=60, will=will("w", b"gone", delay=10))
    damaged(broker, "sessions", at=0)
    broker.restart()
    broker.advance(s=5)
    assert broker.durable("watcher").receive_all() == []
    broker.advance(s=10)
    assert broker.durable("watcher").receive_all() == [b"gone"]
    broker.store._damaged.clear()
    broker.restart()
    broker.advance(s=10)
    assert broker.rows("sessions")[0][0] == b"a"
    broker.advance(s=60)
    assert broker.rows("sessions")[0][0] == b"watcher", "it is known when its client was lost"


def test_a_will_that_cannot_be_read_is_cancelled_by_a_resume_all_the_same() -> None:
    broker = Broker()
    broker.durable("watcher", "w")
    broker.durable("a", "t", will=will("w", b"gone", delay=10)).drop()
    damaged(broker, "due")
    broker.durable("a")
    broker.store._damaged.clear()
    broker.advance(s=60)
    assert broker.durable("watcher").receive_all() == []


def test_a_sweep_keeps_everything_while_a_session_cannot_be_read() -> None:
    broker = Broker()
    for name in ("a", "b"):
        broker.durable(name, "t").drop()
    blocks(broker, 3)
    broker.engine.rotate(broker.now)
    broker.settle()
    assert broker.durable("b").receive_all() == [b"0", b"1", b"2"]
    damaged(broker, "sessions", at=0)
    broker.advance(s=30)
    assert len(broker.rows("msg.1")) == 3


def test_a_backlog_is_trimmed_past_its_damage() -> None:
    broker = Broker(on_limit="drop_oldest", max_offline_messages=3)
    broker.durable("c", "t").drop()
    blocks(broker, 8)
    damaged(broker, "msg.1", at=1)
    broker.advance(s=60)
    assert broker.durable("c").receive_all() == [b"5", b"6", b"7"]


@pytest.mark.parametrize("family", ["due", "connections", "books"])
def test_a_start_goes_on_past_rows_of_these(family: str) -> None:
    broker = Broker()
    broker.durable("a", "t", expiry=10).drop()
    broker.durable("b", "t", expiry=100)
    damaged(broker, family)
    broker.restart()
    broker.advance(s=60)
    assert broker.durable("b", expiry=100).receive_all() == []
    assert broker.durable("c").receive_all() == []


@pytest.mark.parametrize("family", ["meta", "filters"])
def test_a_start_is_refused_without_rows_that_everything_depends_on(family: str) -> None:
    broker = Broker()
    broker.durable("a", "t").drop()
    damaged(broker, family)
    with pytest.raises(DamagedRows, match=f"family {family}"):
        broker.restart()


def test_a_place_is_counted_and_told_once_and_a_session_for_each_client() -> None:
    told: list[Any] = []
    counters = Counters()
    damage = Damage(counters)
    damage.tell = lambda *what: told.append(what)
    problem = DamagedRows("family msg.1: block 7")
    for client_id in ("a", "b", "a"):
        damage.note("message", problem, client_id, "offset 3")
        damage.note("session", problem, client_id)
    assert counters.damaged_rows["message"] == 1
    assert counters.damaged_rows["session"] == 2
    assert told == [
        ("message", "family msg.1: block 7", "a", "offset 3"),
        ("session", "family msg.1: block 7", "a", ""),
        ("session", "family msg.1: block 7", "b", ""),
    ]
