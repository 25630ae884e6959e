"""Generations begin when it is time, and go when nobody is owed anything in them."""

import pytest

from mqtt.packets import Pubcomp, Publish, Pubrel
from session.delivery.backlog import SCAN_MAX
from session.lifetime import collection
from session.lifetime.collection import SWEEP_PERIOD_MS, SWEEP_SLICE
from tests.session.harness import Broker, will


def rotate(broker: Broker, layout: str | None = None) -> None:
    """Begin a new generation."""
    broker.engine.rotate(broker.now, layout)
    broker.settle()


def numbers_of(broker: Broker) -> list[int]:
    """Return the numbers of the generations."""
    return [generation.number for generation in broker.engine._log.list_generations()]


def sweep(broker: Broker) -> list[int]:
    """Let sweeps come to their end; return the numbers of the generations that are left."""
    broker.advance(ms=5 * SWEEP_PERIOD_MS)
    return numbers_of(broker)


# What keeps a generation


def test_an_old_generation_without_readers_goes_with_its_families() -> None:
    broker = Broker()
    session = broker.durable("c", "t")
    broker.publish("t")
    session.receive_all()
    rotate(broker)
    assert sweep(broker) == [2]
    assert not {"msg.1", "idx.1"} & set(broker.store.families())
    broker.restart()
    assert numbers_of(broker) == [2]


def test_several_old_generations_go_one_after_another() -> None:
    broker = Broker()
    session = broker.durable("c", "t")
    for _ in range(5):
        broker.publish("t")
        session.receive_all()
        rotate(broker)
    assert sweep(broker) == [6]


def test_a_backlog_keeps_its_generation_and_all_later_ones() -> None:
    broker = Broker()
    broker.durable("off", "t").drop()
    for payload in (b"1", b"2", b"3"):
        broker.publish("t", payload)
        rotate(broker)
    assert sweep(broker) == [1, 2, 3, 4]
    broker.restart()
    assert sweep(broker) == [1, 2, 3, 4]
    assert broker.durable("off").receive_all() == [b"1", b"2", b"3"]
    assert sweep(broker) == [4]


def test_a_session_that_is_owed_nothing_of_it_keeps_no_generation() -> None:
    broker = Broker()
    broker.durable("off", "elsewhere").drop()
    session = broker.durable("c", "t")
    broker.publish("t")
    session.receive_all()
    rotate(broker)
    assert sweep(broker) == [2]
    broker.publish("elsewhere", b"1")
    assert broker.durable("off").receive_all() == [b"1"]


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_in_flight_keeps_its_generation(online: bool, qos: int) -> None:
    broker = Broker()
    session = broker.durable("c", "t", qos=2)
    broker.publish("t", b"1", qos)
    message = session.message()
    if not online:
        session.drop()
    rotate(broker)
    assert sweep(broker) == [1, 2]
    if not online:
        session = broker.durable("c")
        assert session.message().payload == b"1"
    session.acknowledge(message)
    assert sweep(broker) == [2]


def test_what_waits_for_the_window_keeps_its_generation() -> None:
    broker = Broker(max_inflight=1)
    session = broker.durable("c", "t")
    broker.publish("t", b"1")
    rotate(broker)
    broker.publish("t", b"2")
    rotate(broker)
    session.acknowledge(session.message())
    assert sweep(broker) == [2, 3]
    assert session.receive_all() == [b"2"]
    assert sweep(broker) == [3]


def test_a_session_that_is_behind_keeps_what_it_still_has_to_read() -> None:
    broker = Broker(max_inflight=1, pending_messages_max=1)
    session = broker.durable("c", "t")
    for payload in (b"1", b"2", b"3", b"4"):
        broker.publish("t", payload)
        rotate(broker)
    assert session.connection.is_lagging
    assert sweep(broker) == [1, 2, 3, 4, 5]
    assert session.receive_all() == [b"1", b"2", b"3", b"4"]
    assert sweep(broker) == [5]


@pytest.mark.parametrize("kind", ["waiting", "leased", "taken back"])
def test_what_a_group_owes_keeps_its_generation(kind: str) -> None:
    broker = Broker()
    member = broker.durable("stored", "$share/g/t", expiry=100)
    if kind == "waiting":
        member.drop()
        broker.publish("t", b"1")
    elif kind == "leased":
        member.drop()
        passing = broker.clean("passing", "$share/g/t", qos=1)
        broker.publish("t", b"1")
        assert passing.payloads() == [b"1"]
    else:
        broker.publish("t", b"1")
        broker.durable("other", "$share/g/t").drop()
        member.disconnect(session_expiry_interval=0)
        assert [key for key, _ in broker.rows("sessions")] == [b"other"]
    rotate(broker)
    assert sweep(broker) == [1, 2]
    if kind == "leased":
        passing.drop()
    client = broker.durable("other" if kind == "taken back" else "stored", expiry=100)
    assert client.receive_all() == [b"1"]
    assert sweep(broker) == [2]


def test_the_generation_that_takes_messages_is_never_dropped() -> None:
    broker = Broker()
    broker.durable("c", "t")
    assert sweep(broker) == [1]


def test_an_expired_session_keeps_nothing() -> None:
    broker = Broker()
    broker.durable("off", "t", expiry=100).drop()
    broker.publish("t", b"1")
    rotate(broker)
    assert sweep(broker) == [1, 2]
    broker.advance(s=100)
    assert sweep(broker) == [2]


# Several at once


def test_a_generation_that_nobody_needs_goes_though_an_older_one_stays() -> None:
    broker = Broker()
    broker.durable("off", "t", "u").drop()
    session = broker.durable("c", "a")
    for topic in ("t", "a", "a", "u", "a"):
        broker.publish(topic, topic.encode())
        rotate(broker)
    session.receive_all()
    assert sweep(broker) == [1, 4, 6]
    broker.restart()
    assert sweep(broker) == [1, 4, 6]
    assert broker.durable("off").receive_all() == [b"t", b"u"]
    assert sweep(broker) == [6]


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
@pytest.mark.parametrize("kind", ["session", "group", "lagging", "in flight", "taken back"])
def test_each_reader_keeps_what_it_needs_and_nothing_else(layout: str, kind: str) -> None:
    broker = Broker(layout=layout, max_inflight=1, pending_messages_max=1)
    session = broker.durable("c", "#")
    if kind == "session":
        broker.durable("s", "t").drop()
    elif kind in ("group", "taken back"):
        member = broker.durable("s", "$share/g/t", expiry=100)
        if kind == "group":
            member.drop()
    else:
        reader = broker.durable("s", "t")
        if kind == "lagging":
            reader.stop_taking()
    for payload in (b"1", b"2", b"3"):
        broker.publish("t", payload)
        rotate(broker)
        broker.publish("nobody", payload)
        rotate(broker)
        session.receive_all()
    kept = sweep(broker)
    if kind == "in flight":  # the second is queued, and read from the log by a resumed session
        assert {1, 3, 5, 7} <= set(kept)
    else:
        assert {1, 3, 5, 7} == set(kept)
    if kind == "lagging":
        reader.go_on_taking()
    elif kind == "in flight":
        assert reader.receive_all() == [b"1", b"2", b"3"]
        return
    elif kind == "taken back":
        broker.durable("other", "$share/g/t", expiry=100).drop()
        member.disconnect(session_expiry_interval=0)
        assert {1, 3, 5, 7} == set(sweep(broker))
        # What was taken back may come late.
        assert sorted(broker.durable("other", expiry=100).receive_all()) == [b"1", b"2", b"3"]
        assert sweep(broker) == [7]
        return
    else:
        reader = broker.durable("s", expiry=100)
    assert reader.receive_all() == [b"1", b"2", b"3"]
    assert sweep(broker) == [7]


def test_more_generations_than_one_sweep_searches_for_go_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collection, "CANDIDATES_MAX", 3)
    broker = Broker()
    broker.durable("off", "t").drop()
    session = broker.durable("c", "a")
    for number in range(12):
        broker.publish("t" if number < 4 else "a")
        rotate(broker)
        session.receive_all()
    for _ in range(3):
        sweep(broker)
    assert numbers_of(broker) == [1, 2, 3, 4, 13]


def test_the_families_of_many_generations_go_one_generation_in_a_step() -> None:
    broker = Broker()
    session = broker.durable("c", "t")
    for _ in range(9):
        broker.publish("t")
        rotate(broker)
        session.receive_all()
    broker.is_audited = False
    broker.now += SWEEP_PERIOD_MS
    left = families = len(broker.store.families())
    for _ in range(100):
        broker.engine.handle_timeout(broker.now)
        while broker.engine.end_tick(broker.now):
            pass
        broker.store.sync()
        broker.engine.committed(broker.engine.written, broker.now)
        assert left - len(broker.store.families()) <= 4  # in a step, and at the commit after it
        left = len(broker.store.families())
    assert left == families - 18


# When a generation begins early


def early(**settings: object) -> Broker:
    """Return a broker whose generations may be closed early after 64 bytes and a second."""
    return Broker(generation_size_bytes=64 << 4, generation_age_s=60, **settings)


def test_a_generation_that_nobody_needs_ends_early_and_goes() -> None:
    broker = early()
    broker.durable("off", "t", expiry=10).drop()
    broker.publish("t", b"x" * 80)
    broker.advance(s=8)
    assert numbers_of(broker) == [1]
    broker.advance(s=10)  # "off" has expired
    assert numbers_of(broker) == [2]
    assert "msg.1" not in broker.store.families()


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
def test_a_generation_ends_early_once_its_older_half_is_owed_to_nobody(layout: str) -> None:
    broker = early(layout=layout, max_inflight=1)
    broker.durable("off", "t").drop()
    for number in range(6):
        broker.publish("t", b"%d" % number)
    broker.advance(s=20)
    assert numbers_of(broker) == [1]
    session = broker.durable("off", receive_maximum=1)
    for number in range(2):
        message = session.message()
        assert message.payload == b"%d" % number
        session.acknowledge(message)
    session.drop()  # the third is in flight: the last of the older half
    broker.advance(s=20)
    assert numbers_of(broker) == [1]
    session = broker.durable("off", receive_maximum=1)
    message = session.message()
    session.acknowledge(message)
    session.drop()
    broker.advance(s=20)
    assert numbers_of(broker) == [1, 2]
    broker.publish("t", b"6")
    assert broker.durable("off").receive_all() == [b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize(("size", "age_s"), [(15 << 4, 100), (100, 1 << 20)])
def test_a_generation_that_is_small_or_young_does_not_end_early(size: int, age_s: int) -> None:
    broker = Broker(generation_size_bytes=(size << 4) + 16, generation_age_s=age_s * 60)
    session = broker.durable("c", "t")
    broker.publish("t", b"x" * (size if age_s == 100 else 4 * size))
    session.receive_all()
    broker.is_audited = False
    broker.advance(s=99)
    assert numbers_of(broker) == [1]


def test_a_low_disk_lets_a_generation_end_at_once_if_nobody_needs_it() -> None:
    broker = Broker(generation_size_bytes=100 << 8)
    broker.durable("off", "t", expiry=100).drop()
    session = broker.durable("c", "u")
    broker.publish("u", b"x" * 101)
    session.receive_all()
    broker.publish("t", b"x" * 101)
    broker.engine.note_disk_space(is_low=True)
    broker.advance(ms=2 * SWEEP_PERIOD_MS)
    assert numbers_of(broker) == [1, 2]  # its older half is owed to nobody
    broker.advance(s=60)
    assert numbers_of(broker) == [1, 2]
    broker.connect("off", clean_start=True).drop()
    broker.advance(ms=2 * SWEEP_PERIOD_MS)
    assert numbers_of(broker) == [2]


def test_a_low_disk_does_not_end_a_generation_of_little_worth() -> None:
    broker = Broker(generation_size_bytes=100 << 8)
    session = broker.durable("c", "t")
    broker.publish("t", b"x")
    session.receive_all()
    broker.engine.note_disk_space(is_low=True)
    broker.advance(s=60)
    assert numbers_of(broker) == [1]


def test_on_a_nearly_full_disk_a_few_late_messages_keep_little() -> None:
    broker = Broker(generation_size_bytes=100 << 8)
    session = broker.durable("c", "t")
    broker.durable("off", "u").drop()
    broker.engine.note_disk_space(is_low=False, room_bytes=4 * 400)
    for number in range(10):
        broker.publish("t", b"x" * 300)
        if number == 4:
            broker.publish("u", b"late")
        broker.advance(s=3)
        session.receive_all()
    broker.advance(s=10)
    assert numbers_of(broker) == [3, 6]  # of ten messages two are with the late one
    broker.engine.note_disk_space(is_low=False, room_bytes=4 * 8000)
    for _ in range(10):
        broker.publish("t", b"x" * 300)
        broker.advance(s=3)
        session.receive_all()
    assert numbers_of(broker) == [3, 6]  # there is room
    assert broker.durable("off").receive_all() == [b"late"]


def test_a_generation_that_takes_much_of_the_room_ends_at_the_next_look_at_the_disk() -> None:
    broker = Broker(generation_size_bytes=100 << 8)
    broker.durable("c", "t").drop()
    broker.engine.note_disk_space(is_low=False, room_bytes=4 * 400)
    broker.publish("t", b"x" * 300)
    broker.publish("t", b"x" * 300)
    assert numbers_of(broker) == [1]
    broker.engine.note_disk_space(is_low=False, room_bytes=4 * 100)
    broker.advance(ms=10)
    assert numbers_of(broker) == [1, 2]


def test_a_full_disk_does_not_stop_the_broker_when_a_generation_should_end_early() -> None:
    broker = early()
    session = broker.durable("c", "t")
    broker.publish("t", b"x" * 80)
    session.receive_all()
    session.drop()
    broker.store.full = True
    broker.advance(s=10)
    assert numbers_of(broker) == [1]
    broker.store.full = False
    broker.advance(s=10)
    assert numbers_of(broker) == [2]


def test_a_generation_that_ends_by_its_size_during_a_sweep_does_not_end_twice() -> None:
    broker = early()
    for number in range(SWEEP_SLICE + 10):
        broker.durable(f"c{number:03}", "elsewhere").drop()
    session = broker.durable("c", "t")
    broker.publish("t", b"x" * 80)
    session.receive_all()
    broker.now += SWEEP_PERIOD_MS
    broker.engine.handle_timeout(broker.now)
    assert [each.is_open for each in broker.engine._collection._sweep.candidates] == [True]
    rotate(broker)
    broker.is_audited = False
    assert sweep(broker) == [2]


# When a generation begins


def test_a_generation_ends_at_its_size() -> None:
    broker = Broker(generation_size_bytes=500)
    broker.durable("off", "t").drop()
    payloads = [b"%02d" % number for number in range(30)]
    for payload in payloads:
        broker.publish("t", payload)
        broker.advance(ms=SWEEP_PERIOD_MS)
    assert 2 < len(numbers_of(broker)) < 10
    broker.restart()
    assert broker.durable("off").receive_all() == payloads


def test_a_generation_ends_at_its_age_but_not_while_it_is_empty() -> None:
    broker = Broker(generation_age_s=60)
    broker.durable("off", "t").drop()
    broker.advance(s=120)
    assert numbers_of(broker) == [1]
    broker.publish("t", b"1")
    broker.advance(s=61)
    assert numbers_of(broker) == [1, 2]
    broker.advance(s=120)
    assert numbers_of(broker) == [1, 2]


@pytest.mark.parametrize(
    ("first", "second"), [("blocks", "timeline"), ("timeline", "filters"), ("filters", "blocks")]
)
def test_a_new_layout_begins_with_a_new_generation_and_both_are_read(
    first: str, second: str
) -> None:
    broker = Broker(layout=first, max_inflight=2)
    broker.durable("off", "t", "u/#").drop()
    broker.publish("t", b"1")
    broker.publish("elsewhere", b"-")
    rotate(broker, second)
    broker.publish("u/x", b"2")
    broker.publish("t", b"3")
    layouts = [generation.layout for generation in broker.engine._log.list_generations()]
    assert layouts == [first, second]
    broker.settings.layout = second  # type: ignore[assignment]
    broker.restart()
    assert broker.durable("off").receive_all() == [b"1", b"2", b"3"]
    assert sweep(broker) == [2]


def test_a_long_search_without_an_index_is_cut_into_slices() -> None:
    broker = Broker(layout="timeline")
    broker.durable("other", "busy", qos=1).drop()
    broker.durable("off", "rare").drop()
    broker.durable("shared", "$share/g/rare").drop()
    publisher = broker.connect("p", version=4)
    with broker.one_tick():
        for number in range(3 * SCAN_MAX):
            publisher.send(Publish("busy", b"x", 1, packet_id=number + 1))
        publisher.send(Publish("rare", b"found", 1, packet_id=60_000))
    with broker.one_tick():
        for name in ("off", "shared"):
            broker.request(name, expiry=100)
        ticks = 1
        while broker.engine.end_tick(broker.now):
            ticks += 1
        assert ticks > 3
    broker.durable("off"), broker.durable("shared")
    for client in broker.clients[-2:]:
        assert client.receive_all() == [b"found"]


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
@pytest.mark.parametrize("reader", ["session", "group"])
@pytest.mark.parametrize("owed", [True, False])
def test_a_sweep_finds_what_is_owed_without_stopping_the_loop(
    layout: str, reader: str, owed: bool
) -> None:
    broker = Broker(layout=layout)
    broker.durable("off", "rare" if reader == "session" else "$share/g/rare").drop()
    broker.durable("busy", "busy", expiry=1).drop()
    publisher = broker.connect("p", version=4)
    with broker.one_tick():
        for number in range(3 * SCAN_MAX):
            publisher.send(Publish("busy", b"x", 1, packet_id=number + 1))
        if owed:
            publisher.send(Publish("rare", b"found", 1, packet_id=60_000))
        publisher.send(Publish("busy", b"x", 1, packet_id=60_001))
    rotate(broker)
    broker.advance(s=2)  # "busy" has expired
    broker.is_audited = False
    most = 0
    for _ in range(30):
        calls = broker.store.io_calls
        broker.engine.handle_timeout(broker.now)
        most = max(most, broker.store.io_calls - calls)
        broker.settle()
        broker.now += 500
    assert numbers_of(broker) == ([1, 2] if owed else [2])
    assert most < 60
    if owed:
        assert broker.durable("off").receive_all() == [b"found"]
        assert sweep(broker) == [2]


def steps_of_a_sweep(broker: Broker) -> list[int]:
    """Sweep once; return how often each step has asked the store."""
    broker.is_audited = False
    broker.now += SWEEP_PERIOD_MS
    steps = []
    while broker.engine.next_deadline() in (None, 1) or not steps:
        calls = broker.store.io_calls
        broker.engine.handle_timeout(broker.now)
        steps.append(broker.store.io_calls - calls)
        broker.settle()
        assert len(steps) < 1000
    return steps


def test_a_sweep_of_many_generations_for_sessions_of_many_filters_takes_small_steps() -> None:
    broker = Broker()
    filters = [f"f/{number}" for number in range(60)]
    for number in range(3):
        broker.durable(f"off{number}", *filters).drop()
    session = broker.durable("c", "other")
    for _ in range(30):
        broker.publish("other")
        rotate(broker)
    broker.publish("f/7", b"owed")
    session.receive_all()
    assert max(steps_of_a_sweep(broker)) < 400  # with 60 filters and 30 generations: 1,800
    assert numbers_of(broker) == [31]
    assert broker.durable("off1").receive_all() == [b"owed"]


def test_a_sweep_looks_at_sessions_that_lag_in_slices() -> None:
    broker = Broker(max_inflight=1, pending_messages_max=1)
    filters = [f"f/{number}" for number in range(20)]
    readers = [broker.durable(f"r{number}", *filters) for number in range(20)]
    session = broker.durable("c", "other")
    for number in range(10):
        broker.publish("f/1" if number == 4 else "other")
        rotate(broker)
        session.receive_all()
    for reader in readers:
        reader.stop_taking()
    for number in range(3):
        broker.publish("f/2", b"%d" % number)
    assert all(reader.connection.is_lagging for reader in readers)
    steps = steps_of_a_sweep(broker)
    assert max(steps) < 600  # for all of them 20 * 20 * 10
    assert numbers_of(broker) == [5, 11]
    for reader in readers:
        reader.go_on_taking()
        assert reader.receive_all() == [b"x", b"0", b"1", b"2"]
    steps_of_a_sweep(broker)
    assert numbers_of(broker) == [11]


@pytest.mark.parametrize("layout", ["blocks", "filters"])
@pytest.mark.parametrize("owed", [True, False])
def test_a_sweep_looks_at_a_session_of_many_filters_in_slices(layout: str, owed: bool) -> None:
    broker = Broker(layout=layout)
    broker.durable("off", *(f"rare/{number}" for number in range(1000))).drop()
    broker.durable("busy", "busy", expiry=1).drop()
    broker.publish("busy")
    if owed:
        broker.publish("rare/999", b"found")
    rotate(broker)
    broker.is_audited = False
    most = 0
    for _ in range(30):
        calls = broker.store.io_calls
        broker.engine.handle_timeout(broker.now)
        most = max(most, broker.store.io_calls - calls)
        broker.settle()
        broker.now += 500
    assert numbers_of(broker) == ([1, 2] if owed else [2])
    assert most < 300
    if owed:
        assert broker.durable("off").receive_all() == [b"found"]


def test_a_full_disk_does_not_stop_the_broker_when_a_generation_should_begin() -> None:
    broker = Broker(generation_age_s=10)
    broker.durable("off", "t").drop()
    broker.publish("t", b"1")
    broker.store.full = True
    broker.advance(s=60)
    assert numbers_of(broker) == [1]
    broker.store.full = False
    broker.advance(s=10)
    assert numbers_of(broker) == [1, 2]


def test_a_full_disk_does_not_stop_the_broker_when_space_should_return() -> None:
    broker = Broker()
    session = broker.durable("c", "t")
    broker.publish("t")
    session.receive_all()
    rotate(broker)
    broker.hold_commits()
    broker.advance(ms=5 * SWEEP_PERIOD_MS)
    broker.store.full = True
    broker.commit()
    assert "msg.1" in broker.store.families()
    broker.store.full = False
    broker.publish("t")
    assert "msg.1" not in broker.store.families()


def test_space_returns_after_a_full_disk_though_nothing_is_committed_any_more() -> None:
    broker = Broker()
    session = broker.durable("c", "t")
    broker.publish("t")
    session.receive_all()
    rotate(broker)
    session.drop()
    broker.hold_commits()
    assert sweep(broker) == [2]
    broker.store.full = True
    broker.commit()
    assert "msg.1" in broker.store.families()
    written = broker.engine.written
    broker.store.full = False
    sweep(broker)
    assert "msg.1" not in broker.store.families()
    assert broker.engine.written == written


def test_families_go_only_when_the_drop_is_durable() -> None:
    broker = Broker()
    session = broker.durable("c", "t")
    broker.publish("t")
    session.receive_all()
    rotate(broker)
    broker.hold_commits()
    assert sweep(broker) == [2]
    assert "msg.1" in broker.store.families()
    broker.commit()
    assert "msg.1" not in broker.store.families()


# Damage


def damage(broker: Broker, client_id: str) -> None:
    """Spoil the record of one session."""
    row = broker.store.get("sessions", client_id.encode())
    assert row is not None
    broker.store.write([("sessions", client_id.encode(), row[:-1] + b"?")])
    broker.is_audited = False


def test_a_damaged_session_does_not_stop_the_broker_at_start_and_its_will_is_published() -> None:
    broker = Broker()
    broker.durable("watcher", "w")
    broker.durable("bad", "t", will=will("w", b"gone", delay=10))
    damage(broker, "bad")
    broker.store.sync()
    broker.restart(after_ms=1000)
    broker.advance(s=5)
    assert broker.durable("watcher").receive_all() == []
    broker.advance(s=10)
    assert broker.durable("watcher").receive_all() == [b"gone"]
    assert broker.refused("bad") == 0x88


def test_a_damaged_session_keeps_the_generations_that_it_may_need() -> None:
    broker = Broker()
    broker.durable("bad", "t").drop()
    broker.publish("t", b"1")
    damage(broker, "bad")
    rotate(broker)
    assert sweep(broker) == [1, 2]


def test_a_damaged_session_is_no_reason_to_reject_messages() -> None:
    broker = Broker(max_offline_messages=1, on_limit="reject")
    broker.durable("bad", "t").drop()
    broker.publish("t", b"1")
    damage(broker, "bad")
    broker.advance(s=1)
    broker.publish("t", b"2")


# Expiry in slices


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
def test_a_slow_consumer_that_is_behind_keeps_its_generation(layout: str) -> None:
    broker = Broker(layout=layout, pending_messages_max=1)
    session = broker.durable("c", "t")
    session.stop_taking()
    for payload in (b"1", b"2", b"3"):
        broker.publish("t", payload)
    assert session.connection.is_lagging
    rotate(broker)
    assert sweep(broker) == [1, 2]
    session.go_on_taking()
    assert session.receive_all() == [b"1", b"2", b"3"]
    assert sweep(broker) == [2]


def test_a_damaged_session_does_not_stop_the_broker_when_it_expires() -> None:
    broker = Broker()
    for name in ("bad", "good"):
        broker.durable(name, "t", expiry=10).drop()
    damage(broker, "bad")
    broker.advance(s=11)
    assert [key for key, _ in broker.rows("sessions")] == [b"bad"]
    assert broker.counters.damaged_rows["session"] == 1


def test_the_maximum_age_counts_the_messages_of_each_generation() -> None:
    broker = Broker(max_age_s=60)
    broker.durable("off", "t").drop()
    for count in (3, 2):
        for _ in range(count):
            broker.publish("t")
        rotate(broker)
    broker.advance(s=61 + 5 * SWEEP_PERIOD_MS // 1000)
    assert numbers_of(broker) == [3]
    assert broker.counters.dropped["max_age"] == 5


def left_after(broker: Broker, rounds: int = 12) -> list[int]:
    """Publish for a session that never comes back, a generation a round; return what is left."""
    broker.durable("gone", "t").drop()
    publisher = broker.connect("p")
    for number in range(rounds):
        publisher.start_publish("t", b"%d" % number, 1)
        publisher.take()
        rotate(broker)
        broker.advance(s=20)
    return numbers_of(broker)


# docs/operations.md, "What frees the disk"
@pytest.mark.parametrize("on_limit", ["drop_oldest", "drop_new", "reject"])
def test_the_maximum_age_frees_what_a_session_keeps_that_never_comes_back(on_limit: str) -> None:
    assert left_after(Broker(max_age_s=60, on_limit=on_limit)) == [11, 12, 13]


def test_with_drop_oldest_only_what_a_session_will_get_stays() -> None:
    left = left_after(Broker(max_offline_messages=2, on_limit="drop_oldest"))
    assert left == [11, 12, 13]


def test_with_reject_the_oldest_stay_and_nothing_is_added() -> None:
    left = left_after(Broker(max_offline_messages=2, on_limit="reject"))
    assert left == [1, 2, 13]


def test_with_drop_new_the_oldest_stay_and_what_comes_behind_them_goes() -> None:
    broker = Broker(max_offline_messages=2, on_limit="drop_new")
    assert left_after(broker) == [1, 2, 13]
    assert broker.durable("gone").receive_all() == [b"0", b"1"]
    assert broker.counters.dropped["session_limit"] == 10


def test_a_qos_2_message_in_flight_that_is_too_old_ends_with_pubrel() -> None:
    """The client may hold the packet id, though the message is gone."""
    broker = Broker(max_age_s=60)
    client = broker.durable("c", "t", qos=2)
    broker.publish("t", b"old", qos=2)
    packet_id = client.message().packet_id
    client.drop()
    rotate(broker)
    broker.advance(s=61 + 5 * SWEEP_PERIOD_MS // 1000)
    assert numbers_of(broker) == [2]
    client = broker.durable("c")
    client.expect(Pubrel(packet_id))
    client.send(Pubcomp(packet_id))
    client.ping()
    assert not client.connection.session.in_flight


def test_the_families_of_a_generation_go_after_the_commit_of_its_end() -> None:
    """A crash between the two would find a generation without its families, and not start."""
    broker = Broker(max_age_s=60)
    broker.durable("off", "t").drop()
    broker.publish("t")
    rotate(broker)
    broker.advance(s=59)
    broker.hold_commits()
    broker.connect("p").send(Publish("t", b"", 1, packet_id=1))
    while numbers_of(broker) == [1, 2]:
        broker.advance(ms=1)
    end = broker.engine.written
    broker.engine.committed(end - 1, broker.now)
    assert "msg.1" in broker.store.families()
    broker.engine.committed(end, broker.now)
    assert "msg.1" not in broker.store.families()
