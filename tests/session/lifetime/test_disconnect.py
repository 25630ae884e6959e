"""The end of connections and sessions: DISCONNECT, expiry, drain, and what a crash ended."""

import pytest

from mqtt import reasons
from mqtt.packets import (
    DISCONNECT,
    Connect,
    Disconnect,
    Publish,
)
from session.maintenance import DEPARTURES_MAX
from tests.session.harness import NEVER, Broker, Client, will


def present(client: Client) -> bool:
    """Return what CONNACK said about the session."""
    assert client.connack is not None
    return client.connack.session_present


def test_a_session_without_expiry_ends_with_its_connection() -> None:
    broker = Broker()
    client = broker.connect("c", clean_start=False)
    client.subscribe("t", qos=1)
    client.drop()
    assert not present(broker.connect("c", clean_start=False))


def test_a_durable_session_resumed_without_an_expiry_ends_with_that_connection() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    client = broker.connect("c", clean_start=False)
    assert present(client)
    client.drop()
    assert broker.rows("sessions") == [] and broker.rows("filters") == []
    assert not present(broker.durable("c"))


def test_a_session_that_lost_its_expiry_is_gone_after_a_crash() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    broker.connect("c", clean_start=False)
    broker.restart(after_ms=1)
    assert not present(broker.durable("c"))


def test_a_session_outlives_its_disconnection_by_its_expiry_and_no_longer() -> None:
    broker = Broker()
    broker.durable("c", expiry=100).drop()
    broker.advance(s=99)
    client = broker.durable("c", expiry=100)
    assert present(client)
    client.drop()
    broker.advance(s=100)
    assert broker.rows("sessions") == []
    assert not present(broker.durable("c", expiry=100))


def test_expiry_runs_while_the_broker_is_down() -> None:
    broker = Broker()
    broker.durable("gone", "t", expiry=100)
    broker.durable("stays", "t", expiry=1000)
    broker.restart(after_ms=200_000)
    broker.advance(ms=1)
    assert [key for key, _ in broker.rows("sessions")] == [b"stays"]
    assert not present(broker.durable("gone", expiry=100))
    assert present(broker.durable("stays", expiry=1000))


def test_the_largest_expiry_means_never() -> None:
    broker = Broker()
    broker.durable("c", expiry=NEVER).drop()
    broker.now += 200 * 365 * 86_400_000
    broker.advance()
    assert present(broker.durable("c"))
    broker.durable("d", expiry=NEVER - 1).drop()
    broker.now += (NEVER - 1) * 1000
    assert not present(broker.durable("d"))


def test_ended_sessions_leave_nothing_behind() -> None:
    broker = Broker()
    session = broker.durable("c", "a/#", "$share/g/b", qos=2, expiry=10, will=will("w", delay=5))
    broker.publish("a/1", b"R", retain=True)
    session.subscribe("a/+", qos=1)
    session.start_publish("elsewhere", b"", 2, packet_id=9)  # its PUBREL is never sent
    session.drop()
    broker.publish("a/2", b"owed")
    broker.advance(s=11)
    kept = {"meta", "history", "books"}
    left = {name: broker.rows(name) for name in broker.store.families() if name not in kept}
    left = {family: rows for family, rows in left.items() if rows}
    assert set(left) <= {"msg.1", "idx.1", "retained"}


# DISCONNECT


def test_disconnect_closes_the_connection() -> None:
    for version in (4, 5):
        client = Broker().connect("c", version=version)
        client.disconnect()
        client.expect_closed()


def test_nothing_after_disconnect_is_done() -> None:
    broker = Broker()
    client = broker.connect("c")
    client.send(Disconnect(), Publish("t", b"1", 0, retain=True))
    assert broker.rows("retained") == []


@pytest.mark.parametrize(("version", "count"), [(4, 0), (5, 1)])
def test_a_disconnect_of_ours_is_counted_if_the_version_has_it(version: int, count: int) -> None:
    broker = Broker()
    old = broker.connect("c", version=version)
    broker.connect("c")
    assert [type(packet) for packet in old.take()] == [Disconnect] * count
    assert broker.counters.packets_sent[DISCONNECT] == count


def test_disconnect_changes_the_expiry() -> None:
    broker = Broker()
    broker.durable("shorter", expiry=300).disconnect(session_expiry_interval=1)
    broker.durable("same", expiry=300).disconnect()
    broker.durable("longer", expiry=1).disconnect(session_expiry_interval=300)
    broker.advance(s=3)
    assert not present(broker.durable("shorter", expiry=300))
    assert present(broker.durable("same", expiry=300))
    assert present(broker.durable("longer", expiry=300))


def test_disconnect_cannot_raise_the_expiry_above_the_ceiling() -> None:
    broker = Broker(session_expiry_max_s=60)
    broker.durable("c", expiry=10).disconnect(session_expiry_interval=1000)
    broker.advance(s=61)
    assert not present(broker.durable("c", expiry=10))


def test_disconnect_with_expiry_0_ends_the_session() -> None:
    broker = Broker()
    broker.durable("c", "t", expiry=300).disconnect(session_expiry_interval=0)
    assert broker.rows("sessions") == []
    assert not present(broker.durable("c"))


def test_disconnect_that_raises_the_expiry_from_0_is_void() -> None:
    broker = Broker()
    watcher = broker.clean("watcher", "w", qos=1)
    client = broker.connect("c", will=will("w", b"void"))
    client.disconnect(session_expiry_interval=10)
    client.expect_closed(reasons.PROTOCOL_ERROR)
    assert watcher.receive_all() == [b"void"]
    assert not present(broker.durable("c"))


def test_disconnect_may_repeat_an_expiry_of_0() -> None:
    broker = Broker()
    client = broker.connect("c")
    client.disconnect(session_expiry_interval=0)
    client.expect_closed()


# Shutting down


def test_draining_says_goodbye_to_everybody_and_keeps_their_sessions() -> None:
    broker = Broker()
    five = broker.durable("five", "t")
    four = broker.durable("four", "t", version=4)
    early = broker.open()
    broker.engine.drain(broker.now)
    broker.settle()
    five.expect_closed(reasons.SERVER_SHUTTING_DOWN)
    four.expect_closed()
    early.expect_closed()
    late = broker.open()
    broker.settle()
    late.expect_closed()
    broker.restart()
    assert present(broker.durable("five"))
    assert present(broker.durable("four", version=4))


def test_a_shutdown_publishes_wills_without_delay() -> None:
    broker = Broker()
    broker.durable("watcher", "w")
    broker.connect("now", will=will("w", b"now"))
    broker.durable("later", will=will("w", b"later", delay=60))
    broker.engine.drain(broker.now)
    broker.settle()
    broker.restart()
    watcher = broker.durable("watcher")
    assert watcher.receive_all() == [b"now"]
    broker.advance(s=61)
    assert watcher.receive_all() == [b"later"]


# Users who are no longer who they were


@pytest.mark.parametrize("version", [4, 5])
def test_users_sent_away_lose_their_connections_and_keep_their_sessions(version: int) -> None:
    broker = Broker()
    watcher = broker.clean("watcher", "w", username="ben")
    gone = [
        broker.durable(name, "t", username="anna", version=version, will=will("w", name.encode()))
        for name in ("one", "two")
    ]
    nameless = broker.connect("nameless")
    unknown = broker.open()
    broker.engine.send_away({"anna", "nobody"}, broker.now)
    broker.settle()
    for client in gone:
        client.expect_closed(reasons.NOT_AUTHORIZED if version == 5 else None)
    assert sorted(watcher.receive_all()) == [b"one", b"two"]
    for client in (watcher, nameless):
        client.ping()
    assert not unknown.is_closed
    assert broker.engine.counters.disconnects["not_authorized"] == 2
    broker.publish("t", b"later")
    back = broker.durable("one", username="anna", version=version)
    assert present(back)
    assert back.receive_all() == [b"later"]


def test_a_client_whose_transport_proves_who_it_is_is_not_sent_away() -> None:
    broker = Broker()
    proved = broker.open(identity="anna")
    proved.send(Connect("proved"))
    broker.settle()
    broker.engine.send_away({"anna"}, broker.now)
    broker.settle()
    proved.ping()


# Restarts


@pytest.mark.parametrize(("down_ms", "is_there"), [(101_249, True), (101_250, False)])
def test_a_crash_is_dated_when_the_next_heartbeat_was_overdue(down_ms: int, is_there: bool) -> None:
    """Never early, and late by a period and a quarter at most."""
    broker = Broker()
    broker.durable("c", expiry=100)
    broker.advance(s=30)
    broker.restart(after_ms=down_ms)
    assert present(broker.durable("c", expiry=100)) is is_there


def test_a_crash_is_not_dated_later_than_the_start_that_finds_it() -> None:
    broker = Broker()
    broker.durable("c", expiry=100)
    broker.restart(after_ms=200)
    broker.advance(ms=99_999)
    assert present(broker.durable("c", expiry=100))
    broker.restart(after_ms=200)
    broker.advance(ms=100_000)
    assert not present(broker.durable("c", expiry=100))


def test_that_a_client_connected_is_a_sign_of_life_too() -> None:
    """The heart of a broker without clients does not beat."""
    broker = Broker()
    broker.advance(s=500)
    broker.durable("c", expiry=100)
    broker.restart(after_ms=101_249)
    assert present(broker.durable("c", expiry=100))


@pytest.mark.parametrize(("down_ms", "is_there"), [(121_249, True), (121_250, False)])
def test_a_later_sign_of_life_from_elsewhere_counts(down_ms: int, is_there: bool) -> None:
    """A full disk may have refused the heartbeats for a while."""
    broker = Broker()
    broker.durable("c", expiry=100)
    alive_ms = broker.now + 20_000
    broker.crash()
    broker.now += down_ms
    broker.start(alive_ms=alive_ms)
    assert present(broker.durable("c", expiry=100)) is is_there


def test_an_expiry_that_a_ceiling_took_away_is_no_mistake_of_the_client() -> None:
    """Section 3.14.2.2.2 speaks of what CONNECT asked for."""
    broker = Broker(session_expiry_max_s=0)
    watcher = broker.clean("watcher", "w")
    client = broker.connect("c", expiry=300, will=will("w"))
    client.disconnect(session_expiry_interval=100)
    client.expect_closed()
    watcher.expect_nothing()


def test_many_are_sent_away_in_slices() -> None:
    broker = Broker()
    count = 2 * DEPARTURES_MAX + 10
    clients = [broker.connect(f"c{number}") for number in range(count)]
    broker.engine.drain(broker.now)
    seen = []
    for _ in range(3):
        broker.engine.end_tick(broker.now)
        seen.append(sum(client.is_closed for client in clients))
    assert seen == [DEPARTURES_MAX, 2 * DEPARTURES_MAX, count]
    broker.settle()
    clients[-1].expect_closed(reasons.SERVER_SHUTTING_DOWN)
