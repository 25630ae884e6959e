"""What an operator asks of a client or its session, and what the history tells of it."""

import pytest

from mqtt import reasons
from mqtt.packets import Disconnect
from storage.errors import DamagedRows, Recoverable
from storage.tables.tables import SESSIONS
from tests.session.harness import Broker, Client, will
from tests.session.told import told


def kick(broker: Broker, client_id: str, reason: str = "") -> bool:
    """Have an operator end a connection."""
    done = broker.engine.administer(broker.now).kick(client_id, "olga", reason)
    broker.settle()
    return done


def end(broker: Broker, client_id: str, reason: str = "", *, offline_ms: int = 0) -> bool:
    """Have an operator end a session."""
    administration = broker.engine.administer(broker.now)
    done = administration.end_session(client_id, "olga", reason, offline_ms=offline_ms)
    broker.settle()
    return done


def present(client: Client) -> bool:
    """Return what CONNACK said about the session."""
    assert client.connack is not None
    return client.connack.session_present


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_that_is_kicked_keeps_its_session_and_its_will_is_published(version: int) -> None:
    broker = Broker()
    watcher = broker.clean("watcher", "w")
    client = broker.durable("c", "t", version=version, will=will("w", b"gone"))
    assert kick(broker, "c")
    client.expect_closed(reasons.ADMINISTRATIVE_ACTION if version == 5 else None)
    assert watcher.receive_all() == [b"gone"]
    broker.publish("t", b"later")
    back = broker.durable("c", version=version)
    assert present(back) and back.receive_all() == [b"later"]
    assert broker.counters.disconnects["administrative_action"] == 1


def test_a_kicked_client_is_told_why_if_that_fits_into_its_packets() -> None:
    broker = Broker()
    short = broker.connect("short", maximum_packet_size=30)
    long = broker.connect("long")
    why = "the firmware of this boat floods us"
    for name in ("short", "long"):
        assert kick(broker, name, why)
    assert short.take() == [Disconnect(reasons.ADMINISTRATIVE_ACTION)]
    assert long.take() == [Disconnect(reasons.ADMINISTRATIVE_ACTION, reason_string=why)]


def test_who_is_not_connected_is_not_kicked() -> None:
    broker = Broker()
    broker.durable("away", "t").drop()
    assert not kick(broker, "away") and not kick(broker, "nobody")
    assert present(broker.durable("away"))
    assert broker.counters.disconnects["administrative_action"] == 0


def test_a_client_in_memory_that_is_kicked_is_gone_with_its_session() -> None:
    broker = Broker()
    broker.clean("c", "t")
    assert kick(broker, "c", "bye")
    assert not present(broker.connect("c", clean_start=False))
    broker.advance(ms=broker.settings.progress_delay_ms)
    (event,) = told(broker, "session_terminated")
    assert event["reason"] == 1010


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_session_that_is_ended_leaves_nothing_behind(is_connected: bool) -> None:
    broker = Broker()
    client = broker.durable("c", "t", "$share/g/s", will=will("w", b"gone", delay=60))
    broker.publish("t", b"in flight")
    client.start_publish("q", b"half", qos=2)
    if not is_connected:
        client.drop()
        broker.publish("t", b"waits")
    watcher = broker.clean("watcher", "w")
    assert end(broker, "c")
    assert watcher.receive_all() == [b"gone"]
    for family in ("sessions", "subscriptions", "incoming", "connections", "due"):
        rows = [key for key, _ in broker.rows(family) if key not in (b"p", b"watcher")]
        assert rows == [], family
    assert broker.counters.sessions_terminated == 1
    assert not end(broker, "c")
    broker.restart()
    assert not present(broker.durable("c"))


def test_members_of_a_group_get_what_an_ended_session_had_in_flight() -> None:
    broker = Broker()
    first = broker.durable("first", "$share/g/s")
    broker.publish("s", b"work")
    assert first.payloads() == [b"work"]
    other = broker.durable("other", "$share/g/s")
    assert end(broker, "first")
    assert other.receive_all() == [b"work"]


def test_a_session_ends_only_if_its_client_is_away_for_long() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    broker.durable("here", "t")
    broker.advance(s=10)
    assert not end(broker, "c", offline_ms=10_001)
    assert not end(broker, "here", offline_ms=1)
    assert end(broker, "c", offline_ms=10_000)
    assert [key for key, _ in broker.rows(SESSIONS)] == [b"here"]


def test_what_an_operator_has_ended_stays_ended_after_a_crash() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    broker.durable("kept", "t")
    assert end(broker, "c") and kick(broker, "kept")
    broker.restart()
    assert not present(broker.durable("c"))
    assert present(broker.durable("kept"))


def test_the_history_names_the_operator_and_why() -> None:
    broker = Broker()
    broker.durable("c", "t")
    broker.durable("away", "t").drop()
    kick(broker, "c", "too loud")
    end(broker, "away", "sold")
    broker.advance(ms=broker.settings.progress_delay_ms)
    left = told(broker, "session_disconnected")
    assert [(each["client_id"], each["reason"]) for each in left] == [("away", 1001), ("c", 0x98)]
    assert [(each["actor"], each["detail"]) for each in left] == [
        ("client", None),
        ("admin", "olga: too loud"),
    ]
    (ended,) = told(broker, "session_terminated")
    assert (ended["client_id"], ended["reason"]) == ("away", 1014)
    assert (ended["actor"], ended["detail"]) == ("admin", "olga: sold")
    broker.durable("c").disconnect(session_expiry_interval=0)
    broker.advance(ms=broker.settings.progress_delay_ms)
    assert told(broker, "session_terminated")[-1]["actor"] == "client"


def test_a_session_is_kept_while_the_store_takes_no_writes() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    broker.store.full = True
    broker.request("other", expiry=100)  # what it changes cannot be written
    with pytest.raises(Recoverable, match="takes no writes just now"):
        broker.engine.administer(broker.now).end_session("c", "olga")
    broker.store.full = False
    broker.advance(s=5)
    assert present(broker.durable("c"))


def test_a_session_that_cannot_be_read_is_not_ended() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    ((key, value),) = broker.rows(SESSIONS)
    broker.store.write([(SESSIONS, key, value[:-1] + bytes([value[-1] ^ 1]))])
    with pytest.raises(DamagedRows):
        broker.engine.administer(broker.now).end_session("c", "olga")
    assert len(broker.rows(SESSIONS)) == 1
