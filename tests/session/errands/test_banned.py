"""A client that is banned while it is connected is sent away, whatever the ban is of."""

import pytest

from mqtt import reasons
from session.errands.banned import LOOKED_AT_MAX
from storage.errors import Recoverable
from storage.tables.ban_rows import ADDRESS, CLIENT_ID, USER
from tests.session.harness import Broker, Client, connect_packet, will
from tests.session.scheduling.test_bans import ban
from tests.session.told import told


def here(
    broker: Broker, client_id: str, *, remote: str = "10.1.2.3:4000", **fields: object
) -> Client:
    """Connect from an address, with a session that stays."""
    version = fields.pop("version", 5)
    assert isinstance(version, int)
    client = broker.open(version, remote=remote)
    kind = {"expiry": 3600} if version == 5 else {"durable": True}
    client.send(connect_packet(client_id, version, **kind, **fields))
    client.take()
    return client


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("kind", "value"), [(CLIENT_ID, "c"), (USER, "anna"), (ADDRESS, "10.1.0.0/16")]
)
def test_the_connection_ends_with_its_will_and_the_session_stays(
    version: int, kind: bytes, value: str
) -> None:
    broker = Broker()
    watcher = broker.clean("watcher", "w")
    other = here(broker, "d", remote="10.2.0.1:1", username="bert")
    client = here(broker, "c", version=version, username="anna", will=will("w", b"gone"))
    client.subscribe("t", qos=1)
    ban(broker, kind, value, 5000)
    broker.advance(ms=1)
    client.expect_closed(reasons.ADMINISTRATIVE_ACTION)
    assert watcher.receive_all() == [b"gone"]
    assert broker.counters.disconnects["administrative_action"] == 1
    broker.publish("t", b"waits")
    other.ping()
    broker.advance(ms=5000)
    assert broker.durable("c", username="anna").receive_all() == [b"waits"]


def test_all_connections_are_looked_at_a_slice_in_each_step() -> None:
    broker = Broker()
    clients = [here(broker, f"{number}") for number in range(LOOKED_AT_MAX + 1)]
    ban(broker, ADDRESS, "10.1.2.3")
    broker.engine.handle_timeout(broker.now)
    broker.settle()
    assert sum(client.is_closed for client in clients) == LOOKED_AT_MAX
    broker.engine.handle_timeout(broker.now)
    broker.settle()
    assert all(client.is_closed for client in clients)


def test_wills_that_match_much_divide_a_step() -> None:
    broker = Broker(tick_work_max=64)
    for number in range(40):
        broker.clean(f"watcher-{number}", "w")
    clients = [here(broker, f"{number}", will=will("w", qos=0)) for number in range(4)]
    ban(broker, ADDRESS, "10.1.2.3")
    broker.engine.handle_timeout(broker.now)
    broker.settle()
    closed = sum(client.is_closed for client in clients)
    assert 0 < closed < 4
    broker.advance(ms=1)
    assert all(client.is_closed for client in clients)


def test_a_ban_that_is_made_during_a_look_is_seen_to_as_well() -> None:
    broker = Broker()
    first = here(broker, "first", username="anna")
    others = [here(broker, f"{number}") for number in range(LOOKED_AT_MAX)]
    ban(broker, ADDRESS, "10.9.9.9")
    broker.engine.handle_timeout(broker.now)  # `first` was looked at
    broker.settle()
    ban(broker, USER, "anna")
    assert not first.is_closed
    broker.advance(ms=1)
    assert first.is_closed and not any(each.is_closed for each in others)


def test_a_connection_that_is_gone_meanwhile_is_passed_over() -> None:
    broker = Broker()
    client = here(broker, "c")
    ban(broker, ADDRESS, "10.1.2.3")
    client.drop()
    broker.open(remote="10.1.2.3:7")  # says nothing yet
    broker.advance(ms=1)
    assert broker.counters.disconnects["administrative_action"] == 0


def test_the_history_names_the_operator() -> None:
    broker = Broker()
    here(broker, "c", username="anna")
    ban(broker, USER, "anna")
    broker.advance(ms=1 + broker.settings.progress_delay_ms)
    (left,) = told(broker, "session_disconnected")
    assert (left["client_id"], left["reason"]) == ("c", 0x98)
    assert (left["actor"], left["detail"]) == ("admin", "olga: loud")


def test_a_broker_that_ends_looks_no_further() -> None:
    broker = Broker()
    here(broker, "c")
    ban(broker, ADDRESS, "10.1.2.3")
    broker.engine.drain(broker.now)
    broker.settle()
    assert broker.counters.disconnects["administrative_action"] == 0
    assert broker.counters.disconnects["shutting_down"] == 1
    with pytest.raises(Recoverable, match="shutting down"):
        ban(broker, ADDRESS, "10.1.2.4")
