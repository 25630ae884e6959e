"""Backlogs over their limits are trimmed while their sessions are away; nothing else changes."""

from random import Random
from typing import Final

import pytest

from mqtt.packets import Puback, Publish
from session.delivery.backlog import SCAN_MAX
from session.lifetime import trimming
from session.lifetime.collection import SWEEP_PERIOD_MS
from session.lifetime.trimming import STEP_MS
from session.state.records import decode_session
from session.state.session import Session
from storage.log.gaps import GAPS_MAX
from storage.tables.tables import unseal
from tests.session.backlogs import closed, numbers, publish, with_a_gap
from tests.session.harness import Broker
from tests.session.told import columns, told

PASS_MS: Final = 10_000


def stored(broker: Broker, client_id: str) -> Session:
    """Return the session in the store."""
    value = broker.store.get("sessions", client_id.encode())
    assert value is not None
    return decode_session(client_id, unseal(value, "session"))


def away(*topic_filters: str, **settings: object) -> Broker:
    """Return a broker whose client `s` is away."""
    broker = Broker(**settings)
    broker.durable("s", *(topic_filters or ("t",))).drop()
    return broker


def one_step(broker: Broker) -> None:
    """Let the next step happen and no further one."""
    broker.now += STEP_MS
    broker.engine.handle_timeout(broker.now)
    broker.settle()


def test_a_backlog_over_the_limit_is_trimmed_while_its_session_is_away() -> None:
    broker = away(max_offline_messages=3)
    publish(broker, *numbers(9))
    assert stored(broker, "s").position == 0
    broker.advance(s=11)
    assert stored(broker, "s").position == 6
    assert broker.counters.dropped["session_limit"] == 6
    broker.restart()
    assert broker.durable("s").receive_all() == [b"6", b"7", b"8"]
    assert broker.counters.dropped["session_limit"] == 0


def test_what_is_trimmed_frees_its_generation() -> None:
    broker = away(max_offline_messages=3)
    for payload in numbers(9):
        publish(broker, payload)
        broker.engine.rotate(broker.now)
        broker.settle()
    broker.advance(s=11)
    broker.advance(ms=5 * SWEEP_PERIOD_MS)
    assert [g.number for g in broker.engine._log.list_generations()] == [7, 8, 9, 10]
    assert "msg.6" not in broker.store.families()
    assert broker.durable("s").receive_all() == [b"6", b"7", b"8"]


def test_a_history_tells_each_message_like_one_that_is_dropped_when_the_session_is_back() -> None:
    kept = ("ev", "session", "msg", "reason", "count", "msg_last", "client_id", "tenant")
    rows = []
    for waits in (True, False):
        broker = away(max_offline_messages=3, history_detail="full")
        publish(broker, *numbers(6))
        if waits:
            broker.advance(s=11)
            broker.advance(s=1)  # until the history is written
            assert [row["conn"] for row in told(broker, "msg_dropped")] == [0] * 3
        assert broker.durable("s").receive_all() == [b"3", b"4", b"5"]
        broker.advance(s=1)
        rows.append(columns(told(broker, "msg_dropped"), *kept))
        assert broker.counters.dropped["session_limit"] == 3
    assert rows[0] == rows[1]


def test_a_client_that_no_local_hides_messages_from_has_none_of_them_dropped() -> None:
    broker = Broker(max_offline_messages=2, max_inflight=1)
    session = broker.connect("s", expiry=100)
    session.subscribe("t", qos=1, no_local=True)
    publish(broker, b"fills the window")
    session.stop_taking()
    for payload in numbers(5):
        session.publish("t", payload, 1)
    publish(broker, b"1", b"2")
    session.drop()
    broker.advance(s=11)
    assert stored(broker, "s").position == 6
    assert broker.counters.dropped["session_limit"] == 0
    client = broker.connect("s", expiry=100)
    assert client.receive_all() == [b"fills the window", b"1", b"2"]


def test_a_session_that_left_behind_a_backlog_is_trimmed_though_nothing_comes_any_more() -> None:
    broker = Broker(max_offline_messages=2, pending_messages_max=1)
    session = broker.durable("s", "t")
    session.stop_taking()
    publish(broker, *numbers(9))
    broker.advance(s=21)
    session.drop()
    broker.advance(s=11)
    assert broker.counters.dropped["session_limit"] >= 6
    assert broker.durable("s").receive_all()[-2:] == [b"7", b"8"]


def test_a_backlog_just_over_the_limit_is_left_until_the_disk_is_low() -> None:
    broker = away(max_offline_messages=40)
    backlog = numbers(45)
    publish(broker, *backlog)
    broker.advance(s=11)
    assert stored(broker, "s").position == 0
    broker.engine.note_disk_space(is_low=True)
    broker.advance(s=11)
    assert stored(broker, "s").position == 5
    assert broker.durable("s").receive_all() == backlog[5:]


def test_a_low_disk_is_reason_to_begin_at_once() -> None:
    broker = away(max_offline_messages=3)
    broker.advance(ms=100)  # the first pass
    publish(broker, *numbers(9))
    broker.advance(s=3)
    assert stored(broker, "s").position == 0
    broker.engine.note_disk_space(is_low=True)
    broker.advance(s=1)
    assert stored(broker, "s").position == 6
    calls = broker.store.io_calls
    broker.is_audited = False
    broker.advance(s=3)
    assert broker.store.io_calls - calls < 20


def test_a_disk_that_is_low_from_the_start_is_reason_to_begin_at_once() -> None:
    broker = away(max_offline_messages=3)
    publish(broker, *numbers(9))
    broker.restart()
    broker.engine.note_disk_space(is_low=True)
    broker.advance(s=1)
    assert stored(broker, "s").position == 6


def trimmed_until_its_generation_goes(**settings: object) -> Broker:
    """Return a broker that trimmed 200 messages of 500 and then dropped their generation."""
    broker = away(max_offline_messages=50, expiry_slice=100, max_age_s=11, **settings)
    deep(broker, 500)
    broker.engine.rotate(broker.now)
    broker.settle()
    broker.now += PASS_MS
    while not stored(broker, "s").position:
        one_step(broker)
    broker.now += 2000
    broker.advance(s=3)
    assert stored(broker, "s").position == 500
    # All of the generation, and what this session lacks of it.
    assert broker.counters.dropped["max_age"] == 500 + 300
    return broker


@pytest.mark.parametrize("layout", ["blocks", "filters"])
def test_what_its_generation_takes_along_while_it_is_trimmed_is_told_as_one_range(
    layout: str,
) -> None:
    broker = trimmed_until_its_generation_goes(layout=layout, history_detail="full")
    story = columns(told(broker, "msg_dropped"), "reason", "conn", "msg", "msg_last", "count")
    assert story == [
        *[(1023, 0, number, None, 1) for number in range(1, 201)],
        (1027, 0, 201, 500, 300),
    ]


def test_a_range_is_no_message_of_a_sample() -> None:
    broker = trimmed_until_its_generation_goes(history_detail="sampled:1/3")
    story = columns(told(broker, "msg_dropped"), "reason", "msg", "msg_last")
    assert story == [(1023, number, None) for number in range(3, 201, 3)]


@pytest.mark.parametrize("on_limit", ["drop_new", "reject"])
def test_only_the_oldest_messages_are_trimmed(on_limit: str) -> None:
    broker = away(max_offline_messages=3, on_limit=on_limit)
    accepted = publish(broker, *numbers(9))
    broker.advance(s=30)
    assert stored(broker, "s").position == 0
    assert stored(broker, "s").gaps == (), "no generation is closed, so there is nothing to free"
    assert broker.durable("s").receive_all() == accepted[:3]


def test_a_session_that_is_connected_is_not_trimmed() -> None:
    broker = Broker(max_offline_messages=1, max_inflight=1, pending_messages_max=1)
    session = broker.durable("s", "t")
    publish(broker, *numbers(9))
    broker.advance(s=30)
    assert session.receive_all() == numbers(9)


def test_messages_in_flight_stay_when_the_rest_is_trimmed() -> None:
    broker = Broker(max_offline_messages=1, max_inflight=2)
    session = broker.durable("s", "t")
    publish(broker, *numbers(9))
    session.drop()
    broker.advance(s=11)
    assert broker.durable("s").receive_all() == [b"0", b"1", b"8"]


def deep(broker: Broker, count: int) -> list[bytes]:
    """Publish many messages in one tick; return their payloads."""
    publisher = broker.connect("p", version=4)
    payloads = [b"%05d" % number for number in range(count)]
    with broker.one_tick():
        for number, payload in enumerate(payloads):
            publisher.send(Publish("t", payload, 1, packet_id=number % 60_000 + 1))
    publisher.disconnect()
    return payloads


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
@pytest.mark.parametrize("interruption", ["comes and goes", "stays", "ends", "crash"])
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_a_session_that_comes_back_while_it_is_trimmed_gets_what_it_would_have_got(
    layout: str, interruption: str, steps: int
) -> None:
    broker = away(layout=layout, max_offline_messages=50, expiry_slice=100)
    payloads = deep(broker, 500)
    broker.now += PASS_MS
    for _ in range(steps):
        one_step(broker)
    assert stored(broker, "s").position < 450
    if interruption == "crash":
        broker.restart(keep=0)
    elif interruption == "ends":
        broker.connect("s", clean_start=True).drop()
        broker.advance(s=30)
        return
    elif interruption == "comes and goes":
        broker.durable("s", receive_maximum=1).drop()
        broker.advance(s=30)
    assert broker.durable("s").receive_all() == payloads[-50:]


def test_a_deep_backlog_is_trimmed_in_slices() -> None:
    broker = away(max_offline_messages=10, max_offline_bytes=1 << 20)
    payloads = deep(broker, 3 * SCAN_MAX)
    broker.now += PASS_MS
    broker.is_audited = False
    most = steps = 0
    while stored(broker, "s").position < len(payloads) - 10:
        before, calls = stored(broker, "s").position, broker.store.io_calls
        one_step(broker)
        most = max(most, stored(broker, "s").position - before)
        assert broker.store.io_calls - calls < 200
        steps += 1
        assert steps < 100
    assert most == trimming.DROP_PAGE
    assert broker.durable("s").receive_all() == payloads[-10:]


def test_a_crowd_of_sessions_is_looked_at_in_slices() -> None:
    broker = Broker(max_offline_messages=3)
    for number in range(200):
        broker.durable(f"s{number:03}", "t").drop()
    publish(broker, *numbers(9))
    broker.is_audited = False
    broker.now += PASS_MS
    one_step(broker)
    assert stored(broker, "s199").position == 0
    broker.advance(s=20)
    assert {stored(broker, f"s{number:03}").position for number in range(200)} == {6}


def test_no_pass_begins_while_nothing_comes() -> None:
    broker = away(max_offline_messages=100)
    publish(broker, *numbers(3))
    broker.advance(s=60)
    calls = broker.store.io_calls
    broker.is_audited = False
    broker.advance(s=3)
    assert broker.store.io_calls - calls < 10


def test_a_damaged_session_is_left_alone() -> None:
    broker = away(max_offline_messages=3)
    publish(broker, *numbers(9))
    row = broker.store.get("sessions", b"s")
    assert row is not None
    broker.store.write([("sessions", b"s", row[:-1] + b"?")])
    broker.is_audited = False
    broker.durable("t", "t").drop()
    publish(broker, *numbers(9))
    broker.advance(s=30)
    assert broker.store.get("sessions", b"s") == row[:-1] + b"?"
    assert stored(broker, "t").position == 15


def test_a_full_disk_only_delays_it() -> None:
    broker = away(max_offline_messages=3)
    publish(broker, *numbers(9))
    broker.store.full = True
    broker.advance(s=30)
    broker.store.full = False
    broker.advance(s=30)
    assert broker.durable("s").receive_all() == [b"6", b"7", b"8"]
    assert broker.counters.dropped["session_limit"] == 6


@pytest.mark.parametrize("seed", range(40))
def test_the_same_messages_are_delivered_with_it_and_without(seed: int) -> None:
    """Two brokers live through the same; in one time passes, so that backlogs are trimmed."""
    random = Random(seed)
    limits: dict[str, object] = {
        "on_limit": ("drop_oldest", "drop_new")[seed & 1],
        "max_offline_messages": random.choice((0, 1, 4, 10)),
        "max_offline_bytes": random.choice((0, 12, 40)),
        "layout": random.choice(("blocks", "filters", "timeline")),
        "max_inflight": random.choice((1, 5)),
    }
    sizes = [random.randrange(1, 20) for _ in range(30)]
    rounds = [
        (random.choice(("a", "b")), count, random.random() < 0.7)
        for count in (random.randrange(9) for _ in range(8))
    ]
    outcomes = []
    for is_trimmed in (True, False):
        broker = Broker(**limits)
        broker.durable("s", "a").drop()
        broker.durable("all", "+", qos=2).drop()
        at = 0
        for topic, count, waits in rounds:
            for _ in range(count):
                publisher = broker.connect("p")
                answer = publisher.publish(topic, b"%d." % at + b"x" * sizes[at % 30], 1)
                assert isinstance(answer, Puback) and answer.reason_code == 0
                publisher.disconnect()
                at += 1
            if is_trimmed and waits:
                broker.engine.rotate(broker.now)
                broker.advance(s=30)
        received = [broker.durable(name).receive_all() for name in ("s", "all")]
        outcomes.append((received, broker.counters.dropped))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("when", ["counted", "being cut", "comes back"])
def test_a_generation_that_goes_takes_no_message_of_a_later_one_along(when: str) -> None:
    broker = Broker(
        max_offline_messages=100,
        max_age_s=1000,
        generation_age_s=500,
        expiry_slice=1 if when == "counted" else 50,
    )
    broker.durable("s", "t").drop()
    for number in range(2000):
        broker.publish("t", b"old%d" % number)
    broker.engine.rotate(broker.now)
    for number in range(90):
        broker.publish("t", b"new%d" % number)
    trimming = broker.engine._housekeeping.trimming
    while True:
        broker.engine.handle_timeout(broker.now)
        broker.settle()
        job = trimming._job
        if when == "comes back":
            break
        if job is not None and (when == "counted" or job.cursor is not None):
            break
        broker.now += 20
    if when == "comes back":
        with broker.one_tick():
            broker.request("s", expiry=100)
            connection = broker.engine._sessions.live["s"]
            while connection.trim is None:
                broker.engine.end_tick(broker.now)
    collection = broker.engine._collection
    oldest = broker.engine._log.list_generations()[0]
    with pytest.MonkeyPatch.context() as patch:
        collection._sweep.end()  # one may be under way
        patch.setattr(collection, "_is_dropped_by_policy", lambda generation, now: True)
        collection._check_generations(broker.now)
    broker.settle()
    assert broker.engine._log.list_generations()[0].number > oldest.number
    broker.advance(60_000)
    if when == "comes back":
        found = broker.clients[-1].receive_all()
    else:
        found = broker.durable("s").receive_all()
    assert [each for each in found if each.startswith(b"new")] == [b"new%d" % n for n in range(90)]


# Limits that keep the oldest messages


def keeping(*topic_filters: str, **settings: object) -> Broker:
    """Return a broker that keeps the oldest messages of its client `s`, which is away."""
    return away(*topic_filters, on_limit="drop_new", **settings)


def log_numbers(broker: Broker) -> list[int]:
    return [each.number for each in broker.engine._log.list_generations()]


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
def test_what_is_behind_the_limit_is_a_gap_and_frees_its_generations(layout: str) -> None:
    broker = keeping(max_offline_messages=3, layout=layout)
    for payload in numbers(9):
        closed(broker, payload)
    broker.advance(ms=5 * SWEEP_PERIOD_MS)
    assert stored(broker, "s").gaps == ((4, 9),) and stored(broker, "s").gaps_at == (3, 0)
    assert broker.counters.dropped["session_limit"] == 6
    assert log_numbers(broker) == [1, 2, 3, 10]
    broker.restart(keep=0)
    closed(broker, b"9")
    assert stored(broker, "s").gaps == ((4, 10),)
    assert broker.durable("s").receive_all() == [b"0", b"1", b"2"]
    assert broker.counters.dropped["session_limit"] == 1


def test_another_session_keeps_what_is_in_a_gap() -> None:
    broker = keeping(max_offline_messages=2)
    broker.durable("other", "u").drop()
    for payload in numbers(4):
        closed(broker, payload)
    broker.publish("u", b"needed")
    closed(broker, b"4")
    closed(broker, b"5")
    broker.advance(ms=5 * SWEEP_PERIOD_MS)
    assert stored(broker, "s").gaps == ((3, 7),)
    assert log_numbers(broker) == [1, 2, 5, 7]
    assert broker.durable("other").receive_all() == [b"needed"]
    assert broker.durable("s").receive_all() == [b"0", b"1"]


@pytest.mark.parametrize("layout", ["blocks", "timeline"])
def test_a_gap_needs_nothing_either_while_its_session_is_connected_and_behind(layout: str) -> None:
    broker = keeping(max_offline_messages=2, layout=layout)
    other = broker.durable("other", "t")
    other.stop_taking()
    for payload in numbers(4):
        closed(broker, payload)
    session = broker.connect("s", expiry=1000, receive_maximum=1)
    session.message()
    other.go_on_taking()
    assert other.receive_all() == numbers(4)
    broker.advance(s=12)
    assert session.connection.is_lagging and log_numbers(broker) == [1, 2, 5]
    session.drop()
    assert broker.durable("s").receive_all() == [b"0", b"1"]


@pytest.mark.parametrize("keep", [0, None])
def test_packet_ids_are_bound_ahead_on_both_sides_of_a_gap_and_none_in_it(keep: int | None) -> None:
    broker = with_a_gap("s", ahead_after=0)
    broker.settings.max_offline_messages = 10  # nothing more is over it
    session = broker.connect("s", expiry=1000, receive_maximum=1)
    assert session.message().payload == b"0"
    session.ping()
    assert [held.item.message.offset for held in session.connection.ahead] == [2, 7, 8]
    assert session.connection.session.gaps == ((3, 6),)
    broker.restart(keep=keep)
    assert broker.durable("s").receive_all() == [b"0", b"1", b"6", b"7"]


def test_a_session_that_has_come_back_is_owed_what_comes_then() -> None:
    broker = keeping(max_offline_messages=2, max_inflight=1)
    closed(broker, *numbers(5))
    session = broker.connect("s", expiry=1000, receive_maximum=1)
    assert session.message().payload == b"0"
    assert stored(broker, "s").gaps_at == (0, 0), "durable before it gets anything"
    publish(broker, b"new")
    session.drop()
    broker.restart(keep=0)
    closed(broker, b"over")
    assert broker.durable("s").receive_all() == [b"0", b"1", b"new"]
    assert broker.counters.dropped["session_limit"] == 1


def test_each_time_that_it_leaves_early_makes_a_gap_of_its_own_up_to_a_limit() -> None:
    broker = keeping(max_offline_messages=30)
    expected = numbers(30)
    closed(broker, *expected, b"over")
    for number in range(GAPS_MAX + 3):
        session = broker.connect("s", expiry=1000, receive_maximum=1)
        packet = session.message()
        assert packet.payload == expected[number]
        session.send(Puback(packet.packet_id))
        session.message()
        session.drop()
        room = 1 if number else 2  # one more is in flight from now on
        more = [b"more%d.%d" % (number, each) for each in range(room)]
        expected += more
        closed(broker, *more, b"over")
        assert len(stored(broker, "s").gaps) == min(GAPS_MAX, number + 2)
    # Where there is none, a message over the limit waits: it is dropped if there is no room then.
    received = broker.durable("s").receive_all()
    kept = 30 + GAPS_MAX - (GAPS_MAX + 3) + 1
    assert received[:kept] == expected[GAPS_MAX + 3 :][:kept]
    assert len(received) == 31 and received.count(b"over") == 2


def test_a_purge_makes_room_again() -> None:
    broker = keeping(max_offline_messages=2)
    closed(broker, *numbers(5))
    assert stored(broker, "s").gaps == ((3, 5),)
    broker.advance(s=100)
    asked = broker.engine.administer(broker.now).purge("s", "an operator", older_ms=50_000)
    assert asked
    broker.advance(s=1)
    assert stored(broker, "s").gaps == ()
    closed(broker, b"5", b"6", b"7")
    assert broker.durable("s").receive_all() == [b"5", b"6"]


def test_other_limits_make_room_again() -> None:
    broker = keeping(max_offline_messages=2)
    closed(broker, *numbers(5))
    settings = broker.engine.settings
    settings.max_offline_messages = 4
    closed(broker, *(b"b%d" % number for number in range(3)))
    assert stored(broker, "s").gaps == ((3, 5), (8, 8))
    settings.max_offline_messages = 3
    closed(broker, b"c")
    assert stored(broker, "s").gaps == ((3, 5), (7, 9))
    assert broker.durable("s").receive_all() == [b"0", b"1", b"b0"]


def test_what_the_maximum_age_takes_makes_room_again() -> None:
    broker = keeping(max_offline_messages=2, max_age_s=100, generation_age_s=1000)
    closed(broker, *numbers(5))
    assert stored(broker, "s").gaps == ((3, 5),)
    broker.advance(s=100)
    closed(broker, b"5", b"6", b"7")
    assert stored(broker, "s").gaps == ((8, 8),)
    assert broker.durable("s").receive_all() == [b"5", b"6"]


def test_behind_a_limit_in_bytes_nothing_is_kept_however_small() -> None:
    broker = keeping(max_offline_bytes=20)
    closed(broker, b"x" * 9, b"x" * 10, b"small")
    closed(broker, b"y")
    assert stored(broker, "s").gaps == ((2, 4),)
    publish(broker, b"z")
    assert broker.durable("s").receive_all() == [b"x" * 9]
    assert broker.counters.dropped["session_limit"] == 4


def test_nothing_is_kept_by_a_session_whose_limit_is_below_its_first_message() -> None:
    broker = keeping(max_offline_bytes=3)
    closed(broker, b"large", b"s")
    assert stored(broker, "s").gaps == ((1, 2),)
    assert log_numbers(broker) == [2]
    closed(broker, b"s")
    assert stored(broker, "s").gaps == ((1, 3),)
    publish(broker, b"s")
    assert broker.durable("s").receive_all() == []
    assert broker.counters.dropped["session_limit"] == 4


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
def test_a_full_session_costs_a_look_at_its_record_until_a_generation_is_closed(
    layout: str,
) -> None:
    broker = keeping(layout=layout, max_offline_messages=3)
    closed(broker, *numbers(9))
    record = broker.store.get("sessions", b"s")
    publish(broker, *numbers(9))
    trimmed = broker.engine._housekeeping.trimming.trimmed
    broker.advance(s=60)
    assert broker.store.get("sessions", b"s") == record
    assert broker.engine._housekeeping.trimming.trimmed == trimmed


def test_a_low_disk_is_reason_to_look_at_the_open_generation() -> None:
    broker = keeping(max_offline_messages=3)
    publish(broker, *numbers(9))
    broker.advance(s=11)
    assert stored(broker, "s").gaps == ()
    broker.engine.note_disk_space(is_low=True)
    broker.advance(s=11)
    assert stored(broker, "s").gaps == ((4, 9),)


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
@pytest.mark.parametrize("interruption", ["comes and goes", "stays", "ends", "crash", "low disk"])
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_a_gap_that_is_being_made_when_its_session_comes_back_takes_nothing_that_is_kept(
    layout: str, interruption: str, steps: int
) -> None:
    broker = keeping(layout=layout, max_offline_messages=50, expiry_slice=100)
    payloads = deep(broker, 500)
    broker.engine.rotate(broker.now)
    broker.settle()
    broker.now += PASS_MS
    for _ in range(steps):
        one_step(broker)
    assert stored(broker, "s").gaps != ((51, 500),)
    if interruption == "crash":
        broker.restart(keep=0)
    elif interruption == "low disk":
        broker.engine.note_disk_space(is_low=True)
    elif interruption == "ends":
        broker.connect("s", clean_start=True).drop()
        broker.advance(s=30)
        return
    elif interruption == "comes and goes":
        broker.durable("s", receive_maximum=1).drop()
        broker.advance(s=30)
    received = broker.durable("s").receive_all()
    assert received[:50] == payloads[:50]
    # One message is in flight when it goes, so there is room for one that is not in the gap yet.
    assert len(received) == 50 + (interruption == "comes and goes")
    if interruption != "crash":
        assert broker.counters.dropped["session_limit"] == 500 - len(received)


def test_each_message_of_a_gap_is_told_once() -> None:
    broker = keeping(max_offline_messages=3, history_detail="full")
    closed(broker, *numbers(6))
    closed(broker, *numbers(2))
    publish(broker, b"last")
    assert broker.durable("s").receive_all() == [b"0", b"1", b"2"]
    broker.advance(s=1)
    assert columns(told(broker, "msg_dropped"), "msg") == [(number,) for number in range(4, 10)]


def test_a_subscription_that_ends_while_its_session_is_away_makes_room_again() -> None:
    broker = keeping("t", "u", max_offline_messages=2)
    closed(broker, *numbers(3))
    assert stored(broker, "s").gaps == ((3, 3),)
    session = stored(broker, "s")
    sessions = broker.engine._sessions
    sessions.load_rest(session)
    sessions.unsubscribe(session, None, "t")
    broker.settle()
    assert stored(broker, "s").gaps_at == (0, 0)
    for number in range(3):
        broker.publish("u", b"u%d" % number)
    closed(broker)
    assert broker.durable("s").receive_all() == [b"u0", b"u1"]


@pytest.mark.parametrize("then", ["drop_oldest", "reject"])
def test_a_gap_stays_one_under_another_policy(then: str) -> None:
    broker = keeping(max_offline_messages=2)
    closed(broker, *numbers(5))
    broker.settings.on_limit = then
    broker.restart()
    client = broker.connect("p")
    answers = [client.publish("t", b"n%d" % number, 1) for number in range(2)]
    broker.advance(s=30)
    received = broker.durable("s").receive_all()
    if then == "reject":
        assert [answer.reason_code for answer in answers] == [0x97, 0x97]
        assert received == [b"0", b"1"]
    else:
        assert received == [b"n0", b"n1"]
