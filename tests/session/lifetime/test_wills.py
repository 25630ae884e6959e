"""Wills: published once, when the specification says, whatever happens meanwhile."""

import pytest

from mqtt import reasons
from mqtt.packets import Publish
from tests.session.harness import NEVER, Broker, Client, will


def watch(broker: Broker, **fields: object) -> Client:
    """Return a durable watcher of all topics below `will`."""
    return broker.durable("watcher", "will/#", **fields)


def leave_will(broker: Broker, **fields: object) -> Client:
    """Connect `c` with the will `will/c`."""
    delay = fields.pop("delay", 0)
    return broker.connect("c", will=will("will/c", delay=delay), **fields)


# When it is published [MQTT-3.1.2-8]


@pytest.mark.parametrize("version", [4, 5])
def test_a_lost_connection_publishes_the_will_at_once(version: int) -> None:
    broker = Broker()
    watcher = watch(broker)
    leave_will(broker, version=version).drop()
    assert watcher.message() == Publish("will/c", b"will", 1, packet_id=1)


@pytest.mark.parametrize("version", [4, 5])
def test_disconnect_deletes_the_will(version: int) -> None:
    broker = Broker()
    watcher = watch(broker)
    leave_will(broker, version=version).disconnect()
    broker.restart(after_ms=100_000)
    broker.advance(s=1)
    watcher = watch(broker)
    watcher.expect_nothing()
    assert broker.counters.wills["fired"] == 0


@pytest.mark.parametrize("reason_code", [0x04, 0x80, 0x81, 0x98])
def test_disconnect_with_any_other_reason_publishes_the_will(reason_code: int) -> None:
    broker = Broker()
    watcher = watch(broker)
    leave_will(broker).disconnect(reason_code)
    assert watcher.receive_all() == [b"will"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_protocol_error_publishes_the_will(version: int) -> None:
    broker = Broker()
    watcher = watch(broker)
    client = leave_will(broker, version=version)
    client.send_bytes(b"\x00\x00")
    client.expect_closed(reasons.MALFORMED_PACKET)
    assert watcher.receive_all() == [b"will"]


@pytest.mark.parametrize("version", [4, 5])
def test_silence_beyond_the_keep_alive_publishes_the_will(version: int) -> None:
    broker = Broker()
    watcher = watch(broker)
    leave_will(broker, version=version, keep_alive=10)
    broker.advance(s=15)
    assert watcher.receive_all() == [b"will"]


def test_disconnect_0x04_that_ends_the_session_publishes_the_will_at_once() -> None:
    broker = Broker()
    watcher = watch(broker)
    leave_will(broker, expiry=100, delay=60).disconnect(0x04, session_expiry_interval=0)
    assert watcher.receive_all() == [b"will"]


def test_a_will_waits_for_its_delay() -> None:
    broker = Broker()
    watcher = watch(broker)
    leave_will(broker, expiry=100, delay=10).drop()
    broker.advance(ms=9_999)
    watcher.expect_nothing()
    broker.advance(ms=1)
    assert watcher.receive_all() == [b"will"]
    broker.advance(s=200)
    watcher.expect_nothing()


def test_a_will_is_due_when_its_session_ends_if_that_comes_first() -> None:
    broker = Broker()
    watcher = watch(broker)
    leave_will(broker, expiry=2, delay=60).drop()
    broker.advance(ms=1_999)
    watcher.expect_nothing()
    broker.advance(ms=1)
    assert watcher.receive_all() == [b"will"]
    broker.advance(s=100)
    watcher.expect_nothing()
    assert broker.rows("due") == []


def test_a_delay_without_a_session_to_outlive_is_none() -> None:
    broker = Broker()
    watcher = watch(broker)
    leave_will(broker, delay=60).drop()
    assert watcher.receive_all() == [b"will"]


def test_a_client_that_returns_in_time_cancels_its_will() -> None:
    broker = Broker()
    watcher = watch(broker)
    leave_will(broker, expiry=100, delay=10).drop()
    broker.advance(s=9)
    broker.durable("c", expiry=100)
    broker.advance(s=100)
    watcher.expect_nothing()
    assert broker.counters.wills["cancelled"] == 1


def test_a_client_that_returns_too_late_does_not() -> None:
    broker = Broker()
    watcher = watch(broker)
    leave_will(broker, expiry=100, delay=10).drop()
    broker.now += 10_000  # no timer has fired
    broker.durable("c", expiry=100)
    assert watcher.receive_all() == [b"will"]
    broker.advance(s=100)
    watcher.expect_nothing()


def test_a_clean_start_publishes_the_waiting_will_because_the_session_ends() -> None:
    broker = Broker()
    watcher = watch(broker)
    leave_will(broker, expiry=100, delay=60).drop()
    broker.connect("c", clean_start=True)
    assert watcher.receive_all() == [b"will"]
    broker.advance(s=100)
    watcher.expect_nothing()


def test_expiry_of_a_session_found_at_connect_publishes_its_will() -> None:
    broker = Broker()
    watcher = watch(broker)
    leave_will(broker, expiry=20, delay=60).drop()
    broker.now += 20_000  # no timer has fired
    broker.connect("c", clean_start=False)
    assert watcher.receive_all() == [b"will"]
    broker.advance(s=100)
    watcher.expect_nothing()


def test_the_next_connection_has_its_own_will_or_none() -> None:
    broker = Broker()
    watcher = watch(broker)
    leave_will(broker, expiry=100, delay=10).drop()
    broker.durable("c", expiry=100, will=will("will/c", b"second")).drop()
    assert watcher.receive_all() == [b"second"]
    broker.durable("c", expiry=100).drop()
    broker.advance(s=50)
    watcher.expect_nothing()


# Taking over: the table of section 3.1.4


@pytest.mark.parametrize(
    ("clean_start", "expiry", "delay", "is_published"),
    [
        (True, 0, 0, True),
        (True, 100, 0, True),
        (True, 100, 60, True),
        (False, 0, 0, True),
        (False, 0, 60, True),
        (False, 100, 0, True),
        (False, 100, 60, False),
    ],
)
def test_a_takeover_publishes_the_will_if_the_session_ends_or_it_has_no_delay(
    clean_start: bool, expiry: int, delay: int, is_published: bool
) -> None:
    broker = Broker()
    watcher = watch(broker)
    old = leave_will(broker, expiry=expiry, delay=delay)
    new = broker.connect("c", clean_start=clean_start)
    old.expect_closed(reasons.SESSION_TAKEN_OVER)
    assert new.connack is not None
    assert new.connack.session_present is (expiry > 0 and not clean_start)
    broker.advance(s=100)
    assert watcher.receive_all() == ([b"will"] if is_published else [])


@pytest.mark.parametrize("durable", [True, False])
def test_a_takeover_of_a_v4_connection_always_publishes_its_will(durable: bool) -> None:
    broker = Broker()
    watcher = watch(broker)
    leave_will(broker, version=4, durable=durable)
    broker.connect("c", version=4, durable=durable)
    assert watcher.receive_all() == [b"will"]


# Crashes


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("durable", [True, False])
def test_a_crash_publishes_the_will_of_every_connection_once(version: int, durable: bool) -> None:
    broker = Broker()
    watch(broker)
    if version == 4:
        leave_will(broker, version=4, durable=durable)
    else:
        leave_will(broker, expiry=NEVER if durable else 0)
    for _ in range(3):
        broker.restart(after_ms=1000)
        broker.advance()
    assert watch(broker).receive_all() == [b"will"]


def test_a_delay_goes_on_while_the_broker_is_down() -> None:
    broker = Broker()
    watch(broker)
    leave_will(broker, expiry=1000, delay=60)
    broker.restart(after_ms=30_000)
    watcher = watch(broker)
    broker.advance(ms=31_249)  # counted from when the next heartbeat was overdue
    watcher.expect_nothing()
    broker.advance(ms=1)
    assert watcher.receive_all() == [b"will"]


def test_a_will_that_fell_due_while_the_broker_was_down_lives_from_its_publication_on() -> None:
    """Its delay and its Message Expiry Interval are both over; still it is a new message.

    Section 3.1.2.5: a server may publish wills late, after a restart; 3.1.3.2.4: the interval is
    sent as it is when the will is published.
    """
    broker = Broker()
    watch(broker)
    broker.durable("late", "will/#").drop()
    mortal = will("will/c", delay=60, message_expiry_interval=10, retain=True)
    broker.connect("c", expiry=1000, will=mortal).drop()
    broker.restart(after_ms=3_600_000)
    watcher = watch(broker)
    broker.advance()
    assert watcher.message().message_expiry_interval == 10
    broker.advance(s=10)
    assert broker.durable("late", expiry=1000).receive_all() == []  # it expires like any other
    reader = broker.connect("r")
    reader.subscribe("will/c")
    reader.expect_nothing()


def test_a_delay_that_began_before_the_crash_is_kept() -> None:
    broker = Broker()
    watch(broker)
    leave_will(broker, expiry=1000, delay=60).drop()
    broker.advance(s=10)
    broker.restart(after_ms=10_000)
    watcher = watch(broker)
    broker.advance(ms=39_000)
    watcher.expect_nothing()
    broker.advance(ms=1_000)
    assert watcher.receive_all() == [b"will"]


def test_a_will_due_at_the_end_of_its_session_fires_after_a_restart() -> None:
    broker = Broker()
    watch(broker)
    leave_will(broker, expiry=10, delay=60)
    broker.restart(after_ms=20_000)
    broker.advance()
    assert watch(broker).receive_all() == [b"will"]
    assert [key for key, _ in broker.rows("sessions")] == [b"watcher"]


def test_a_crash_right_after_the_will_fired_does_not_repeat_it() -> None:
    broker = Broker()
    watch(broker)
    leave_will(broker, expiry=1000, delay=5).drop()
    broker.advance(s=5)
    broker.restart(after_ms=100_000)
    broker.advance()
    assert watch(broker).receive_all() == [b"will"]


def test_a_firing_that_was_not_durable_is_made_up_for_after_the_crash() -> None:
    broker = Broker()
    watch(broker).drop()
    leave_will(broker, expiry=1000, delay=5).drop()
    broker.hold_commits()
    broker.advance(s=5)
    broker.restart()
    broker.advance()
    assert watch(broker).receive_all() == [b"will"]


# What it says


def test_a_will_is_sent_with_its_own_properties() -> None:
    properties = b"\x01\x01\x03\x00\x01t\x26\x00\x01k\x00\x01v"
    broker = Broker()
    watcher = watch(broker)
    testament = will("will/c", message_expiry_interval=30, properties=properties, delay=5)
    broker.durable("c", expiry=100, will=testament).drop()
    broker.advance(s=5)
    message = watcher.message()
    assert message.message_expiry_interval == 30  # counted from the publication
    assert message.properties == properties


def test_a_retained_will_is_kept() -> None:
    broker = Broker()
    broker.connect("c", will=will("will/c", b"gone", retain=True)).drop()
    assert watch(broker).message().payload == b"gone"


def test_a_retained_will_without_payload_clears_the_topic() -> None:
    broker = Broker()
    broker.publish("will/c", b"there", retain=True)
    broker.connect("c", will=will("will/c", b"", retain=True)).drop()
    assert broker.rows("retained") == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_has_the_qos_that_it_was_left_with(qos: int) -> None:
    broker = Broker()
    watcher = broker.durable("watcher", "will/#", qos=2)
    broker.connect("c", will=will("will/c", qos=qos)).drop()
    assert watcher.message().qos == qos


def test_a_will_that_the_policy_forbids_is_not_published() -> None:
    broker = Broker()
    watcher = watch(broker)
    broker.rules.forbid("publish", "will/c")
    leave_will(broker).drop()
    watcher.expect_nothing()
    assert broker.counters.wills["refused"] == 1
    assert broker.rules.asked[-1] == ("publish", "", "c", "will/c")
    assert broker.denied == [("will", "c", "", "will/c")]


def test_the_policy_is_asked_when_the_will_fires_and_not_when_it_is_left() -> None:
    broker = Broker()
    watcher = watch(broker)
    leave_will(broker, expiry=100, delay=10, username="ann").drop()
    broker.rules.forbid("publish", "will/c")
    broker.advance(s=10)
    watcher.expect_nothing()
    assert broker.rules.asked[-1] == ("publish", "ann", "c", "will/c")


# Disks


def test_a_will_that_cannot_be_stored_is_published_later() -> None:
    broker = Broker()
    watcher = watch(broker)
    client = leave_will(broker)
    broker.engine.note_disk_space(is_low=True)
    client.drop()
    watcher.expect_nothing()
    broker.advance(s=3)
    watcher.expect_nothing()
    broker.engine.note_disk_space(is_low=False)
    broker.advance(s=1)
    assert watcher.receive_all() == [b"will"]


def test_every_will_that_cannot_be_stored_is_published_later() -> None:
    broker = Broker()
    watcher = watch(broker)
    for payload in (b"1", b"2", b"3"):
        client = broker.connect("c", will=will("will/c", payload))
        broker.engine.note_disk_space(is_low=True)
        client.drop()
        broker.engine.note_disk_space(is_low=False)
    broker.advance(s=1)
    assert sorted(watcher.receive_all()) == [b"1", b"2", b"3"]


def test_a_will_that_could_not_be_stored_survives_a_crash() -> None:
    broker = Broker()
    watch(broker)
    client = leave_will(broker)
    broker.engine.note_disk_space(is_low=True)
    client.drop()
    broker.restart(after_ms=2000)
    broker.advance()
    assert watch(broker).receive_all() == [b"will"]
