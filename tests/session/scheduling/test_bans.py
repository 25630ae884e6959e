"""Who is banned is refused before its session is touched, for as long as it was said."""

from typing import Any, Final

import pytest

from mqtt import reasons
from mqtt.packets import Connack
from session.scheduling.bans import (
    BANS_BYTES_MAX,
    BANS_MAX,
    ENDED_MAX,
    network_name,
)
from storage.errors import Recoverable
from storage.tables.ban_rows import ADDRESS, CLIENT_ID, USER, ban_key, encode_ban
from storage.tables.tables import BANS
from tests.session.harness import Broker, Client, SlowAuthenticator, connect_packet, will
from tests.session.lifetime.test_authentication import Greeter, accepted, auth, begin
from tests.session.told import told

HOUR_MS: Final = 3_600_000


def ban(
    broker: Broker, kind: bytes, value: str, for_ms: int = HOUR_MS, reason: str = "loud"
) -> None:
    """Have an operator ban."""
    broker.engine.administer(broker.now).ban(kind, value, for_ms, "olga", reason)
    broker.settle()


def unban(broker: Broker, kind: bytes, value: str) -> bool:
    """Have an operator remove a ban."""
    done = broker.engine.administer(broker.now).unban(kind, value, "olga", "sorry")
    broker.settle()
    return done


def answer(
    broker: Broker,
    client_id: str = "c",
    *,
    remote: str = "10.1.2.3:4000",
    identity: str | None = None,
    version: int = 5,
    **fields: Any,
) -> int:
    """Connect from an address; return the code of CONNACK."""
    client = broker.open(version, remote=remote, identity=identity)
    client.send(connect_packet(client_id, version, **fields))
    connack = client.answer(Connack)
    assert isinstance(connack, Connack)
    assert client.is_closed == bool(connack.reason_code)
    return connack.reason_code


@pytest.mark.parametrize(("version", "code"), [(5, reasons.BANNED), (4, 5), (3, 5)])
def test_a_banned_client_is_refused_and_its_session_stays_as_it_is(version: int, code: int) -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    broker.publish("t", b"waits")
    rows = {family: broker.rows(family) for family in ("sessions", "connections", "due")}
    ban(broker, CLIENT_ID, "c")
    for clean_start in (False, True):
        assert answer(broker, version=version, clean_start=clean_start) == code
    assert answer(broker, "d", version=version) == 0
    assert {family: broker.rows(family) for family in rows} == rows
    assert broker.counters.connects["banned"] == 2
    assert broker.counters.refused["tcp"]["banned"] == 2
    assert unban(broker, CLIENT_ID, "c") and not unban(broker, CLIENT_ID, "c")
    assert broker.durable("c").receive_all() == [b"waits"]


@pytest.mark.parametrize(
    ("kind", "value"), [(CLIENT_ID, "c"), (USER, "anna"), (ADDRESS, "10.0.0.0/8")]
)
def test_a_ban_ends_by_broker_time_and_leaves_no_row(kind: bytes, value: str) -> None:
    broker = Broker()
    ban(broker, kind, value, 5000)
    broker.advance(ms=4999)
    assert answer(broker, username="anna") == reasons.BANNED
    broker.now += 1  # nothing has run yet
    assert answer(broker, username="anna") == 0
    assert not unban(broker, kind, value)
    broker.advance(ms=1)
    assert broker.rows(BANS) == []


def test_a_ban_that_is_durable_holds_after_a_crash() -> None:
    broker = Broker()
    ban(broker, CLIENT_ID, "c")
    ban(broker, USER, "anna")
    ban(broker, ADDRESS, "::1")
    broker.restart(after_ms=HOUR_MS - 1)
    assert answer(broker) == reasons.BANNED
    assert answer(broker, "x", username="anna") == reasons.BANNED
    assert answer(broker, "x", remote="[::1]:5") == reasons.BANNED
    broker.restart(after_ms=1)
    assert answer(broker) == 0 and answer(broker, "x", username="anna") == 0
    broker.advance(ms=1)
    assert broker.rows(BANS) == []
    broker.hold_commits()
    ban(broker, CLIENT_ID, "c")
    broker.restart(keep=0)
    assert answer(broker) == 0


def test_a_ban_that_is_made_again_has_the_new_end() -> None:
    broker = Broker()
    ban(broker, CLIENT_ID, "c", 1000)
    ban(broker, CLIENT_ID, "c", 9000)
    broker.advance(ms=5000)
    assert answer(broker) == reasons.BANNED
    ban(broker, CLIENT_ID, "c", 1000)
    broker.advance(ms=1000)
    assert answer(broker) == 0 and broker.rows(BANS) == []


def test_bans_that_are_made_again_and_again_take_no_more_memory() -> None:
    broker = Broker()
    bans = broker.engine.administer(broker.now).bans
    for _ in range(500):
        ban(broker, CLIENT_ID, "c")
    assert len(bans) == 1 and len(bans._ends) < 100
    broker.advance(ms=HOUR_MS)
    assert len(bans) == 0 and answer(broker) == 0


@pytest.mark.parametrize(
    ("network", "inside", "outside"),
    [
        ("10.1.2.3", "10.1.2.3:9", "10.1.2.4:9"),
        ("10.0.0.0/8", "10.255.0.1:9", "11.0.0.1:9"),
        ("10.1.2.2/31", "10.1.2.3:9", "10.1.2.4:9"),
        ("0.0.0.0/0", "203.0.113.9:1", "[2001:db8::1]:1"),
        ("10.1.2.3", "[::ffff:10.1.2.3]:9", "[::ffff:10.1.2.4]:9"),
        ("::ffff:10.1.2.0/120", "10.1.2.77:1", "10.1.3.1:1"),
        ("2001:db8::/32", "[2001:db8:1::5]:9", "[2001:db9::5]:9"),
        ("fe80::1", "[fe80::1%eth0]:9", "[fe80::2%eth0]:9"),
        ("10.1.2.3", "10.1.2.3:9", "/run/holdfast.sock"),
        ("10.1.2.3", "10.1.2.3:9", ""),
    ],
)
def test_an_address_is_in_its_network(network: str, inside: str, outside: str) -> None:
    broker = Broker()
    ban(broker, ADDRESS, network_name(network))
    ban(broker, ADDRESS, network_name("192.0.2.0/24"))
    assert answer(broker, remote=inside) == reasons.BANNED
    assert answer(broker, remote=outside) == 0
    assert unban(broker, ADDRESS, network_name(network))
    assert answer(broker, remote=inside) == 0


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("10.0.0.1/32", "10.0.0.1"),
        ("[::1]", "::1"),
        ("2001:DB8:0::/32", "2001:db8::/32"),
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
    ],
)
def test_a_network_has_one_name(text: str, name: str) -> None:
    assert network_name(text) == name


@pytest.mark.parametrize(
    "text", ["", "boat", "10.0.0.1/33", "10.0.0.256", "10.0.0.0/8/8", "10.0.0.1:4", "x" * 10_000]
)
def test_what_is_no_network_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="expected an address such as") as refused:
        network_name(text)
    assert len(str(refused.value)) < 200


def test_an_address_that_is_not_the_first_of_its_network_is_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"its network is 10\.0\.0\.0/8"):
        network_name("10.1.2.3/8")


def test_no_password_is_checked_of_who_is_banned_by_what_it_says() -> None:
    authenticator = SlowAuthenticator()
    broker = Broker(authenticator=authenticator)
    ban(broker, CLIENT_ID, "c")
    ban(broker, USER, "anna")
    ban(broker, ADDRESS, "10.1.2.3")
    assert answer(broker, remote="10.1.2.4:1") == reasons.BANNED
    assert answer(broker, "x", remote="10.1.2.4:1", username="anna") == reasons.BANNED
    assert answer(broker, "x") == reasons.BANNED
    assert authenticator.waiting == {}


def test_a_ban_that_is_made_while_a_password_is_checked_holds() -> None:
    authenticator = SlowAuthenticator()
    broker = Broker(authenticator=authenticator)
    client = broker.request("c")
    ban(broker, CLIENT_ID, "c")
    authenticator.answer("c")
    broker.settle()
    assert client.take() == [Connack(False, reasons.BANNED)] and client.is_closed
    assert broker.rows("sessions") == []


def test_the_name_that_an_exchange_proves_is_banned() -> None:
    broker = Broker(authenticator=Greeter())
    ban(broker, USER, "anna")
    client = begin(broker)
    client.expect(auth(b"who?"))
    client.send(auth(b"anna"))
    assert client.take() == [Connack(False, reasons.BANNED)] and client.is_closed
    accepted(broker, name=b"bert").ping()


def test_the_name_of_a_certificate_is_banned_and_that_of_connect_does_not_count_then() -> None:
    broker = Broker()
    ban(broker, USER, "boat")
    assert answer(broker, identity="boat", username="other") == reasons.BANNED
    assert answer(broker, identity="other", username="boat") == 0


def test_a_client_without_a_name_is_no_user() -> None:
    broker = Broker()
    ban(broker, USER, "anna")
    assert answer(broker, username=None) == 0 and answer(broker, "d", username="") == 0


def test_the_history_tells_who_banned_whom_and_when_that_ended() -> None:
    broker = Broker()
    ban(broker, CLIENT_ID, "c", 2000)
    ban(broker, USER, "anna", reason="")
    ban(broker, ADDRESS, "10.0.0.0/8")
    unban(broker, USER, "anna")
    broker.advance(ms=2000 + broker.settings.progress_delay_ms)
    found = told(broker, "ban_added", "ban_removed", "ban_expired")
    assert [
        (each["ev"], each["actor"], each["client_id"], each["tenant"], each["detail"])
        for each in found
    ] == [
        ("ban_added", "admin", "c", "", "olga: loud"),
        ("ban_added", "admin", None, "anna", "olga"),
        ("ban_added", "admin", None, None, "address 10.0.0.0/8, olga: loud"),
        ("ban_removed", "admin", None, "anna", "olga: sorry"),
        ("ban_expired", "gc", "c", "", None),
    ]
    at = found[0]["at"]
    assert isinstance(at, int) and at // 1000 == broker.now - broker.settings.progress_delay_ms


def test_a_history_without_names_has_none_of_a_ban() -> None:
    broker = Broker(history_hash_names=True, history_hash_key="0123456789abcdef")
    for kind, value in ((CLIENT_ID, "boat"), (USER, "anna"), (ADDRESS, "10.0.0.0/8")):
        ban(broker, kind, value)
    broker.advance(ms=broker.settings.progress_delay_ms)
    text = repr(told(broker, "ban_added"))
    assert "boat" not in text and "anna" not in text and "10.0.0.0" not in text


def test_there_are_only_so_many_and_so_large_ones() -> None:
    broker = Broker()
    administration = broker.engine.administer(broker.now)
    for number in range(BANS_MAX):
        administration.bans.add(CLIENT_ID, f"{number}", HOUR_MS, "olga", "")
    with pytest.raises(Recoverable, match="10000 bans"):
        ban(broker, CLIENT_ID, "one more")
    ban(broker, CLIENT_ID, "0", 2 * HOUR_MS)
    assert answer(broker, "one more") == 0 and answer(broker, "9999") == reasons.BANNED
    broker = Broker()
    name = "x" * 60_000
    with pytest.raises(Recoverable, match="bytes: remove some"):
        for number in range(BANS_BYTES_MAX // 60_000 + 1):
            ban(broker, CLIENT_ID, f"{number}{name}")
    assert unban(broker, CLIENT_ID, f"0{name}")
    ban(broker, CLIENT_ID, f"0{name}")


def test_many_bans_end_in_slices() -> None:
    broker = Broker()
    bans = broker.engine.administer(broker.now).bans
    with broker.one_tick():
        for number in range(ENDED_MAX + 1):
            bans.add(CLIENT_ID, f"{number}", 1000, "olga", "")
    broker.now += 1000
    broker.engine.handle_timeout(broker.now)
    assert len(bans) == 1 and broker.engine.next_deadline() <= broker.now  # type: ignore[operator]
    broker.engine.handle_timeout(broker.now)
    broker.settle()
    assert len(bans) == 0 and broker.rows(BANS) == []


def test_a_damaged_ban_hides_no_other_one_and_stays() -> None:
    broker = Broker()
    broker.is_audited = False
    ban(broker, CLIENT_ID, "b")
    value = encode_ban(0, 1 << 60, "olga", "")
    damaged = {
        b"cdamaged": b"torn",
        b"xunknown": value,
        ban_key(ADDRESS, "no network"): value,
    }
    broker.store.write([(BANS, key, value) for key, value in damaged.items()])
    broker.store.sync()
    broker.restart()
    assert answer(broker, "b") == reasons.BANNED and answer(broker, "damaged") == 0
    assert broker.counters.damaged_rows["ban"] == 3
    assert damaged.keys() < dict(broker.rows(BANS)).keys()


def test_a_store_that_takes_no_writes_takes_no_ban() -> None:
    broker = Broker()
    broker.store.full = True
    broker.request("c", expiry=60)
    with pytest.raises(Recoverable, match="takes no writes"):
        ban(broker, CLIENT_ID, "c")
    broker.store.full = False
    broker.advance(s=5)
    assert answer(broker) == 0


def test_a_ban_has_a_name_for_logs() -> None:
    broker = Broker()
    made = broker.engine.administer(broker.now).ban(CLIENT_ID, "c", 1, "olga")
    assert repr(made) == f"Ban(b'c', 'c', until {broker.now + 1})"
    assert made.asker == "olga"


def test_the_will_of_a_banned_client_waits_for_its_delay() -> None:
    broker = Broker()
    watcher: Client = broker.clean("watcher", "w")
    broker.durable("c", will=will("w", b"gone", delay=1)).drop()
    ban(broker, CLIENT_ID, "c")
    assert answer(broker, clean_start=False, expiry=60) == reasons.BANNED
    watcher.expect_nothing()
    broker.advance(s=1)
    assert watcher.payloads() == [b"gone"]
