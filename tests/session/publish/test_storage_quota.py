"""Limits of what offline sessions may pin, per session and in total, and what gives at them."""

from itertools import product

import pytest

from mqtt.packets import Puback, Publish, Pubrec
from session.publish import storage_quota
from tests.session.backlogs import numbers, publish, with_a_gap
from tests.session.harness import Broker


def test_reject_refuses_the_publisher_once_a_session_is_full() -> None:
    broker = Broker(max_offline_messages=2, on_limit="reject")
    broker.durable("s", "t").drop()
    assert publish(broker, *numbers(4)) == [b"0", b"1"]
    broker.advance(s=10)
    assert publish(broker, b"9") == []
    assert broker.durable("s").receive_all() == [b"0", b"1"]
    assert broker.counters.dropped["storage_refused"] == 3


@pytest.mark.parametrize(("messages", "size", "kept"), [(4, 0, 4), (0, 4, 1)])
def test_reject_counts_what_arrives_in_one_piece(messages: int, size: int, kept: int) -> None:
    broker = Broker(on_limit="reject", max_offline_messages=messages, max_offline_bytes=size)
    broker.durable("s", "t").drop()
    publisher = broker.connect("p")
    publisher.send(*(Publish("t", b"abc", 1, packet_id=1 + number) for number in range(20)))
    answers = [packet.reason_code for packet in publisher.take() if isinstance(packet, Puback)]
    assert answers == [0] * kept + [0x97] * (20 - kept)
    assert broker.durable("s").receive_all() == [b"abc"] * kept


def test_reject_limits_no_burst_when_nobody_is_offline() -> None:
    broker = Broker(on_limit="reject", max_offline_messages=4)
    reader = broker.durable("s", "t")
    publisher = broker.connect("p")
    publisher.send(*(Publish("t", b"abc", 1, packet_id=1 + number) for number in range(20)))
    answers = [packet.reason_code for packet in publisher.take() if isinstance(packet, Puback)]
    assert answers == [0] * 20
    assert reader.receive_all() == [b"abc"] * 20


def test_reject_counts_bytes_as_well() -> None:
    broker = Broker(max_offline_bytes=5, on_limit="reject")
    broker.durable("s", "t").drop()
    accepted = publish(broker, *numbers(6))  # a message counts 2; the one that fills it goes in
    assert accepted == numbers(3)
    assert broker.durable("s").receive_all() == accepted


def test_reject_lets_connected_sessions_have_as_much_as_they_can_take() -> None:
    broker = Broker(max_offline_messages=2, on_limit="reject")
    session = broker.durable("s", "t")
    assert publish(broker, *numbers(20)) == numbers(20)
    assert session.receive_all() == numbers(20)


def test_reject_sees_a_session_that_leaves_a_backlog_behind() -> None:
    broker = Broker(max_offline_messages=5, on_limit="reject", max_inflight=1)
    broker.durable("up to date", "t").drop()
    publish(broker, b"0")  # four more are within its limit
    behind = broker.durable("behind", "t")
    behind.stop_taking()
    broker.durable("up to date").receive_all()
    assert publish(broker, *numbers(8)) == numbers(8)
    behind.drop()
    assert publish(broker, b"one more") == []
    assert broker.durable("behind").receive_all() == numbers(8)
    broker.advance(s=1)
    assert publish(broker, b"9") == [b"9"]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("seconds", [0, 2])
def test_reject_sees_a_session_that_leaves_in_the_tick_of_the_messages(
    seconds: int, is_known: bool
) -> None:
    broker = Broker(max_offline_messages=5, on_limit="reject", max_inflight=1)
    if is_known:  # else nothing was counted for its filter before
        broker.durable("up to date", "t").drop()
        publish(broker, b"0")
    behind = broker.durable("behind", "t")
    behind.stop_taking()
    if is_known:
        broker.durable("up to date").receive_all()
    publish(broker, *numbers(8))
    broker.advance(s=seconds)
    publisher = broker.connect("p")
    with broker.one_tick():
        behind.drop()
        for packet_id in range(1, 21):
            publisher.send(Publish("t", b"more", 1, packet_id=packet_id))
    codes = [each.reason_code for each in publisher.take() if isinstance(each, Puback)]
    assert codes == [0x97] * 20


def test_reject_ends_when_a_full_backlog_is_gone_by_its_age() -> None:
    broker = Broker(max_offline_messages=3, on_limit="reject", max_age_s=60, generation_age_s=10)
    broker.durable("s", "t").drop()
    assert publish(broker, *numbers(6)) == numbers(3)
    for _ in range(20):
        broker.advance(s=10)
    assert broker.counters.dropped["max_age"] == 3
    assert publish(broker, *numbers(6)) == numbers(3)


def test_reject_survives_a_restart() -> None:
    broker = Broker(max_offline_messages=2, on_limit="reject")
    broker.durable("s", "t").drop()
    assert publish(broker, b"1") == [b"1"]
    broker.restart()
    assert publish(broker, b"2", b"3") == [b"2"]


def test_reject_counts_a_deep_backlog_only_when_it_could_have_become_full() -> None:
    broker = Broker(max_offline_messages=1000, on_limit="reject")
    for number in range(20):
        broker.durable(f"s{number}", "t").drop()
    publish(broker, *numbers(500))
    publisher = broker.connect("p")
    broker.is_audited = False  # it reads, too
    calls = broker.store.io_calls
    for payload in numbers(100):
        publisher.publish("t", payload, 1)
    assert broker.store.io_calls - calls < 1000


@pytest.mark.parametrize("layout", ["blocks", "timeline"])
def test_reject_looks_at_many_filters_in_slices(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that matches 8,192 filters stopped the loop for a second each time."""
    monkeypatch.setattr(storage_quota, "LOOKS_MAX", 32)
    monkeypatch.setattr(storage_quota, "LOOKS_PAGE", 4)
    filters = ["/".join(levels) for levels in product(*(("+", level) for level in "abcdefg"))]
    broker = Broker(max_offline_messages=12, on_limit="reject", layout=layout)
    broker.durable("s", *filters).drop()
    broker.is_audited = False
    publisher = broker.connect("p")
    calls = []
    answers = []
    for number in range(20):
        before = broker.store.io_calls
        answer = publisher.publish("a/b/c/d/e/f/g", b"%d" % number, 1)
        calls.append(broker.store.io_calls - before)
        assert isinstance(answer, Puback)
        answers.append(answer.reason_code)
    assert max(calls) < 100
    assert answers == [0] * 12 + [0x97] * 8
    broker.advance(s=1)
    before = broker.store.io_calls
    publisher.publish("a/b/c/d/e/f/g", b"", 1)
    assert broker.store.io_calls - before < 100
    assert broker.durable("s").receive_all() == numbers(12)


@pytest.mark.parametrize("layout", ["blocks", "timeline"])
def test_reject_looks_at_many_sessions_in_slices(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_quota, "LOOKS_MAX", 32)
    monkeypatch.setattr(storage_quota, "LOOKS_PAGE", 4)
    broker = Broker(max_offline_messages=4, on_limit="reject", layout=layout)
    broker.durable("deep", "t").drop()
    publish(broker, *numbers(3))
    for number in range(80):
        broker.durable(f"a{number}", "t").drop()
    broker.restart()
    broker.is_audited = False
    publisher = broker.connect("p")
    calls = []
    answers = []
    for number in range(10):
        before = broker.store.io_calls
        answer = publisher.publish("t", b"%d" % number, 1)
        calls.append(broker.store.io_calls - before)
        assert isinstance(answer, Puback)
        answers.append(answer.reason_code)
    assert max(calls) < 100
    accepted = answers.index(0x97)
    assert 1 <= accepted <= 4 and answers == [0] * accepted + [0x97] * (10 - accepted)


@pytest.mark.parametrize("layout", ["blocks", "timeline"])
def test_reject_counts_deep_backlogs_in_slices(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_quota, "LOOKS_MAX", 32)
    monkeypatch.setattr(storage_quota, "COUNT_PAGE", 10)
    broker = Broker(max_offline_bytes=2 * 101, on_limit="reject", layout=layout)
    broker.durable("s", "t").drop()
    publish(broker, *[b"x"] * 100)
    broker.restart()
    answers = publish(broker, *numbers(12))
    assert 1 < len(answers) < 12
    assert publish(broker, b"y") == []


@pytest.mark.parametrize("layout", ["blocks", "timeline"])
def test_reject_counts_what_came_in_the_tick_in_which_a_session_leaves(layout: str) -> None:
    broker = Broker(max_offline_messages=5, on_limit="reject", max_inflight=1, layout=layout)
    behind = broker.durable("behind", "t")
    behind.stop_taking()
    publisher = broker.connect("p")
    with broker.one_tick():
        publisher.send(*(Publish("t", b"%d" % n, 1, packet_id=1 + n) for n in range(6)))
        behind.drop()
        publisher.send(Publish("t", b"6", 1, packet_id=7))
    assert publish(broker, b"one more") == []
    assert broker.durable("behind").receive_all() == numbers(7)


def test_reject_stays_when_a_session_with_less_to_get_leaves() -> None:
    broker = Broker(max_offline_messages=4, on_limit="reject", max_inflight=1)
    broker.durable("deep", "t").drop()
    assert publish(broker, *numbers(3)) == numbers(3)
    behind = broker.durable("behind", "t")
    behind.stop_taking()
    assert publish(broker, *numbers(3)) == [b"0"]
    behind.drop()
    assert publish(broker, b"one more") == []


def test_reject_takes_messages_again_once_the_session_has_drained() -> None:
    broker = Broker(max_offline_messages=1, on_limit="reject")
    broker.durable("s", "t").drop()
    assert publish(broker, b"1") == [b"1"]
    broker.advance(s=1)
    assert publish(broker, b"2") == []
    session = broker.durable("s")
    assert session.receive_all() == [b"1"]
    broker.advance(s=1)
    assert publish(broker, b"3") == [b"3"]


def test_reject_does_not_look_at_sessions_of_other_filters() -> None:
    broker = Broker(max_offline_messages=1, on_limit="reject")
    broker.durable("full", "t").drop()
    broker.durable("empty", "u").drop()
    publish(broker, b"1")
    broker.advance(s=1)
    assert publish(broker, b"2", topic="u") == [b"2"]


def test_reject_answers_qos_2_with_pubrec_and_remembers_nothing() -> None:
    broker = Broker(max_offline_messages=1, on_limit="reject")
    broker.durable("s", "t").drop()
    publish(broker, b"1")
    broker.advance(s=1)
    publisher = broker.connect("p")
    assert publisher.start_publish("t", b"2", 2, packet_id=7) == Pubrec(7, 0x97)
    assert broker.durable("s").receive_all() == [b"1"]
    broker.advance(s=1)
    assert publisher.start_publish("t", b"2", 2, packet_id=7) == Pubrec(7)


def test_reject_closes_a_v4_publisher_without_an_answer() -> None:
    broker = Broker(max_offline_messages=1, on_limit="reject")
    broker.durable("s", "t").drop()
    publish(broker, b"1")
    broker.advance(s=1)
    publisher = broker.connect("p", version=4)
    publisher.start_publish("t", b"2", 1)
    publisher.expect_closed()
    assert broker.durable("s").receive_all() == [b"1"]


def test_a_full_store_rejects_new_messages() -> None:
    broker = Broker(total_bytes_max=150, on_limit="reject")
    broker.durable("s", "t").drop()
    accepted = publish(broker, *numbers(20))
    assert 0 < len(accepted) < 20
    assert broker.durable("s").receive_all() == accepted


def test_a_full_store_drops_new_messages_and_still_delivers_live_ones() -> None:
    broker = Broker(total_bytes_max=150, on_limit="drop_new")
    broker.durable("s", "t").drop()
    passing = broker.clean("c", "t", qos=1)
    assert publish(broker, *numbers(20)) == numbers(20)
    assert passing.receive_all() == numbers(20)
    kept = broker.durable("s").receive_all()
    assert 0 < len(kept) < 20 and kept == numbers(20)[: len(kept)]
    assert broker.counters.dropped["total_limit"] == 20 - len(kept)


def test_a_full_store_drops_its_oldest_generation() -> None:
    broker = Broker(total_bytes_max=400, generation_size_bytes=200, on_limit="drop_oldest")
    broker.durable("s", "t").drop()
    for payload in numbers(30):
        publish(broker, payload)
        broker.advance(s=3)
    kept = broker.durable("s").receive_all()
    assert 0 < len(kept) < 30 and kept == numbers(30)[-len(kept) :]
    assert broker.engine.stats()["log_bytes"] < 800
    assert broker.counters.dropped["max_age"] >= 30 - len(kept)


def test_a_total_below_the_size_of_a_generation_still_frees_space() -> None:
    broker = Broker(total_bytes_max=400, on_limit="drop_oldest")
    broker.durable("s", "t").drop()
    for payload in numbers(40):
        publish(broker, payload)
        broker.advance(s=3)
    assert broker.counters.generations_dropped > 0
    assert broker.engine.stats()["log_bytes"] < 800


def test_messages_older_than_the_maximum_age_are_not_delivered() -> None:
    broker = Broker(max_age_s=60)
    broker.durable("s", "t").drop()
    publish(broker, b"old")
    broker.advance(s=40)
    publish(broker, b"young")
    broker.advance(s=30)
    assert broker.durable("s").receive_all() == [b"young"]
    assert broker.counters.dropped["max_age"] == 1


def test_the_maximum_age_drops_whole_generations() -> None:
    broker = Broker(max_age_s=60, generation_age_s=10)
    broker.durable("s", "t").drop()
    publish(broker, b"old")
    broker.advance(s=11)
    broker.advance(s=61)
    assert broker.counters.generations_dropped == 1
    publish(broker, b"young")
    assert broker.durable("s").receive_all() == [b"young"]


def test_the_maximum_age_drops_no_generation_with_a_younger_message() -> None:
    broker = Broker(max_age_s=60, generation_age_s=50)
    broker.durable("s", "t").drop()
    publish(broker, b"old")
    broker.advance(s=45)
    publish(broker, b"young")  # in the same generation, which ends 5 s later
    broker.advance(s=30)
    assert broker.counters.generations_added == 1
    assert broker.counters.generations_dropped == 0
    assert broker.durable("s").receive_all() == [b"young"]


def test_a_message_in_flight_whose_generation_was_dropped_is_given_up() -> None:
    broker = Broker(max_age_s=60, generation_age_s=10)
    session = broker.durable("s", "t")
    publish(broker, b"old")
    assert session.message().packet_id == 1
    session.drop()
    broker.advance(s=11)
    broker.advance(s=61)
    session = broker.durable("s")
    session.expect_nothing()
    publish(broker, b"young")
    assert session.messages() == [Publish("t", b"young", 1, packet_id=2)]


def test_a_retained_message_over_the_number_is_refused_but_a_known_topic_is_not() -> None:
    broker = Broker(retained_messages_max=1)
    publisher = broker.connect("p")
    assert publisher.publish("a", b"1", 1, retain=True) == Puback(1)
    assert publisher.publish("b", b"1", 1, retain=True) == Puback(2, 0x97)
    assert publisher.publish("a", b"2", 1, retain=True) == Puback(3)
    publisher.publish("a", b"", 1, retain=True)
    assert publisher.publish("b", b"1", 1, retain=True) == Puback(5)


def test_a_v4_message_over_the_retained_limit_is_delivered_but_not_kept() -> None:
    broker = Broker(retained_messages_max=1)
    reader = broker.durable("reader", "b")
    broker.publish("a", b"1", retain=True)
    publisher = broker.connect("p", version=4)
    assert publisher.publish("b", b"2", 1, retain=True) == Puback(1)
    assert reader.receive_all() == [b"2"]
    assert [key for key, _ in broker.rows("retained")] == [b"a"]
    assert broker.counters.dropped["storage_refused"] == 1


def test_backlogs_of_more_filters_than_are_remembered_are_counted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage_quota, "BUDGETS_MAX", 2)
    broker = Broker(max_offline_messages=2, on_limit="reject")
    broker.durable("s", "t/#", "t/1", "t/2", "t/3").drop()
    accepted = [
        payload
        for payload in numbers(6)
        for topic in [f"t/{int(payload) % 3 + 1}"]
        if publish(broker, payload, topic=topic)
    ]
    assert accepted == [b"0", b"1"]


def test_reject_does_not_count_what_another_policy_has_dropped() -> None:
    broker = with_a_gap("s")  # which waits for 4
    broker.settings.on_limit = "reject"
    broker.settings.max_offline_messages = 6
    broker.restart()
    assert publish(broker, *numbers(5)) == numbers(2)


def test_reject_takes_the_session_for_the_deepest_that_is_owed_most() -> None:
    broker = with_a_gap("s", generation_age_s=10_000)
    broker.durable("later", "t").drop()
    broker.settings.on_limit = "reject"
    broker.settings.max_offline_messages = 7
    broker.restart()
    assert publish(broker, *numbers(9)) == numbers(3)
