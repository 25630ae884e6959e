"""What time makes due: generations that come and go, expiry, wills, in bounded slices."""

import pytest

from mqtt.packets import Publish
from session.delivery.backlog import SCAN_MAX
from session.lifetime.collection import SWEEP_PERIOD_MS, SWEEP_SLICE
from tests.session.harness import Broker, Client, will


def crowd(broker: Broker, *, with_backlog: str) -> Client:
    """Fill more than one slice of a sweep; the last session by name is offline with a backlog."""
    for number in range(SWEEP_SLICE + 10):
        broker.durable(f"c{number:03}", "elsewhere")
    broker.durable("z", with_backlog).drop()
    broker.publish(with_backlog, b"1")
    broker.publish(with_backlog, b"2")
    broker.engine.rotate(broker.now)
    broker.settle()
    broker.publish(with_backlog, b"3")
    return broker.clients[0]


def one_slice(broker: Broker) -> None:
    """Let the sweep look at its next slice and no further."""
    broker.engine.handle_timeout(broker.now)
    broker.settle()


def test_a_session_that_resumes_during_a_sweep_keeps_its_generation() -> None:
    broker = Broker()
    crowd(broker, with_backlog="t")
    broker.now += SWEEP_PERIOD_MS
    one_slice(broker)
    late = broker.durable("z", receive_maximum=1)
    broker.advance(s=10)
    assert late.receive_all() == [b"1", b"2", b"3"]


def test_a_session_that_comes_and_goes_during_a_sweep_keeps_its_generation() -> None:
    broker = Broker(linger=True)
    crowd(broker, with_backlog="t")
    broker.now += SWEEP_PERIOD_MS
    one_slice(broker)
    broker.durable("z", receive_maximum=1).disconnect()  # its socket is still open
    broker.advance(s=10)
    assert broker.durable("z").receive_all() == [b"1", b"2", b"3"]


def test_a_generation_goes_when_nothing_of_it_is_owed() -> None:
    broker = Broker()
    crowd(broker, with_backlog="t")
    assert broker.durable("z").receive_all() == [b"1", b"2", b"3"]
    broker.advance(s=10)
    assert [g.number for g in broker.engine._log.list_generations()] == [2]
    assert sorted(f for f in broker.store.families() if f.startswith("msg.")) == ["msg.2"]


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


def test_a_damaged_session_does_not_stop_the_broker_when_it_expires() -> None:
    broker = Broker()
    for name in ("bad", "good"):
        broker.durable(name, "t", expiry=10).drop()
    damage(broker, "bad")
    broker.advance(s=11)
    assert [key for key, _ in broker.rows("sessions")] == [b"bad"]
    assert broker.counters.internal_errors == 1


def test_a_damaged_session_does_not_stop_the_broker_at_start_and_its_will_is_published() -> None:
    broker = Broker()
    broker.durable("watcher", "w")
    broker.durable("bad", "t", will=will("w", b"gone", delay=10))
    damage(broker, "bad")
    broker.store.sync()
    broker.restart(after_ms=1000)
    broker.advance()
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


def test_many_sessions_expire_in_slices() -> None:
    broker = Broker(expiry_slice=10)
    for number in range(35):
        broker.durable(f"c{number}", "t", expiry=10).drop()
    broker.now += 10_000
    left = []
    while broker.rows("sessions"):
        broker.engine.handle_timeout(broker.now)
        broker.settle()
        left.append(len(broker.rows("sessions")))
    assert left == [25, 15, 5, 0]
    assert broker.rows("due") == [] and broker.rows("filters") == []


def test_a_will_and_the_end_of_its_session_may_be_due_in_one_slice() -> None:
    broker = Broker()
    watcher = broker.clean("watcher", "w", qos=1)
    broker.durable("c", expiry=10, will=will("w", delay=60)).drop()
    broker.durable("d", expiry=10, will=will("w", delay=5)).drop()
    broker.now += 20_000
    broker.advance()
    assert watcher.receive_all() == [b"will", b"will"]
    assert broker.rows("due") == broker.rows("sessions") == []


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


def test_a_group_that_ends_during_a_sweep_keeps_nothing() -> None:
    broker = Broker()
    crowd(broker, with_backlog="t")
    assert broker.durable("z").receive_all() == [b"1", b"2", b"3"]
    broker.durable("g", "$share/g/u").drop()
    broker.publish("u", b"owed")
    rotate(broker)
    broker.now += SWEEP_PERIOD_MS
    one_slice(broker)
    broker.connect("g", clean_start=True)
    assert sweep(broker) == [3]


def test_sessions_with_many_rows_expire_in_slices() -> None:
    broker = Broker()
    for number in range(4):
        client = broker.connect(f"c{number}", expiry=10)
        client.subscribe(*(f"t/{number}/{index}" for index in range(400)), qos=1)
        client.drop()
    broker.now += 11_000
    left = []
    while broker.engine.stats()["sessions_stored"]:
        broker.engine.handle_timeout(broker.now)
        broker.settle()
        left.append(broker.engine.stats()["sessions_stored"])
        assert len(left) < 10
    assert left == [3, 2, 1, 0]
    assert broker.rows("subscriptions") == []
