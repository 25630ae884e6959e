"""Which messages of a backlog over the limits of its session are delivered."""

import pytest

from mqtt.packets import Publish, Unsubscribe
from session.live import backlog_trim
from session.settings import OnLimit
from tests.session.backlogs import numbers, publish
from tests.session.harness import Broker


@pytest.mark.parametrize(
    ("on_limit", "kept"), [("drop_oldest", [b"3", b"4", b"5"]), ("drop_new", [b"0", b"1", b"2"])]
)
def test_a_backlog_over_the_number_is_trimmed_at_resume(
    on_limit: OnLimit, kept: list[bytes]
) -> None:
    broker = Broker(max_offline_messages=3, on_limit=on_limit)
    broker.durable("s", "t").drop()
    assert publish(broker, *numbers(6)) == numbers(6)
    session = broker.durable("s")
    assert session.receive_all() == kept
    assert broker.counters.dropped["session_limit"] == 3
    publish(broker, b"later")
    assert session.receive_all() == [b"later"]


@pytest.mark.parametrize(
    ("on_limit", "kept"), [("drop_oldest", [b"4", b"5"]), ("drop_new", [b"0", b"1"])]
)
def test_a_backlog_over_the_bytes_is_trimmed_at_resume(
    on_limit: OnLimit, kept: list[bytes]
) -> None:
    broker = Broker(max_offline_bytes=5, on_limit=on_limit)  # a message counts 2: topic and payload
    broker.durable("s", "t").drop()
    publish(broker, *numbers(6))
    assert broker.durable("s").receive_all() == kept


def test_a_backlog_within_the_limits_is_delivered_whole() -> None:
    broker = Broker(max_offline_messages=3, max_offline_bytes=100)
    broker.durable("s", "t").drop()
    publish(broker, *numbers(3))
    assert broker.durable("s").receive_all() == numbers(3)


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
@pytest.mark.parametrize("on_limit", ["drop_oldest", "drop_new"])
@pytest.mark.parametrize(
    "limits",
    [
        {"max_offline_messages": 100},
        {"max_offline_bytes": 500},
        {"max_offline_messages": 90, "max_offline_bytes": 500},
        {"max_offline_messages": 100, "max_offline_bytes": 400},
    ],
)
def test_a_deep_backlog_is_counted_in_slices_and_messages_meanwhile_are_not_judged(
    layout: str, on_limit: str, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog_trim, "COUNT_PAGE", 7)
    monkeypatch.setattr(backlog_trim, "PLAN_PAGES", 2)
    broker = Broker(layout=layout, on_limit=on_limit, **limits)
    broker.durable("s", "t").drop()
    backlog = [b"%04d" % number for number in range(300)]  # 5 bytes each
    publish(broker, *backlog)
    publisher = broker.connect("p")
    with broker.one_tick():
        client = broker.request("s", expiry=100)
        for number in range(60):  # more ticks than it takes to count
            publisher.send(Publish("t", b"new%03d" % number, 1, packet_id=number + 1))
            broker.engine.end_tick(broker.now)
    kept = 100 if "max_offline_bytes" not in limits else limits["max_offline_bytes"] // 5
    kept = min(kept, limits.get("max_offline_messages", 1000))
    received = client.receive_all()
    new = [payload for payload in received if payload.startswith(b"new")]
    assert new == [b"new%03d" % number for number in range(60)]
    assert received[:kept] == (backlog[-kept:] if on_limit == "drop_oldest" else backlog[:kept])
    assert len(received) == kept + 60


def test_every_session_has_its_own_limit() -> None:
    broker = Broker(max_offline_messages=2)
    broker.durable("few", "a").drop()
    broker.durable("many", "#").drop()
    publish(broker, b"1", b"2", topic="a")
    publish(broker, b"3", topic="b")
    assert broker.durable("few").receive_all() == [b"1", b"2"]
    assert broker.durable("many").receive_all() == [b"2", b"3"]


def test_trimming_survives_another_disconnect_halfway() -> None:
    broker = Broker(max_offline_messages=3)
    broker.durable("s", "t").drop()
    publish(broker, *numbers(6))
    halfway = broker.durable("s", receive_maximum=1)
    assert halfway.payloads() == [b"3"]
    halfway.drop()
    assert broker.durable("s").receive_all() == [b"3", b"4", b"5"]


def test_the_own_messages_that_no_local_hides_do_not_use_up_the_plan() -> None:
    broker = Broker(max_offline_messages=2, max_inflight=1)
    session = broker.connect("s", expiry=100)
    session.subscribe("t", qos=1, no_local=True)
    publish(broker, b"fills the window")
    session.stop_taking()
    for payload in (b"own 1", b"own 2"):
        session.publish("t", payload, 1)
    publish(broker, b"1", b"2")
    session.drop()
    assert broker.connect("s", expiry=100).receive_all() == [b"fills the window", b"1", b"2"]


@pytest.mark.parametrize("limit", [{"max_offline_messages": 5}, {"max_offline_bytes": 10}])
def test_a_filter_that_goes_takes_its_share_of_the_limit_along(limit: dict[str, int]) -> None:
    """Messages of another filter are within the limit without it: none of them is dropped."""
    broker = Broker(on_limit="drop_oldest", max_inflight=1, **limit)
    session = broker.durable("s", "a", "b")
    session.drop()
    publish(broker, *numbers(9), topic="a")
    publish(broker, *numbers(5), topic="b")
    with broker.one_tick():  # before anything is counted or dropped
        session = broker.request("s", expiry=100)
        session.send(Unsubscribe(1, ["a"]))
    assert session.receive_all() == numbers(5)
    assert broker.counters.dropped["session_limit"] == 0
