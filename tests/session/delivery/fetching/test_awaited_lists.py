"""Does a CONNECT that waits for its subscriptions end well, whatever becomes of the store?"""

import pytest

from mqtt import reasons
from mqtt.packets import Connack, Disconnect, Pingreq, Publish, Subscribe, Subscription
from session.delivery.fetching import awaited_lists
from session.delivery.fetching.awaited_lists import FILTERS_MAX, PAGE, WAITING_MAX
from session.packets.proxy import DONE, UNKNOWN
from session.settings import Asks, Feed, Proxying
from storage.tables.fetch_rows import SUBSCRIPTIONS
from storage.tables.tables import FETCHES, SESSIONS
from storage.tables.tables import SUBSCRIPTIONS as SUBSCRIPTION_ROWS
from tests.session.delivery.fetching.test_inbox import ask, asked
from tests.session.feed.backends import EVERYTHING, NAME
from tests.session.harness import Broker, Client, SlowAuthenticator
from tests.session.lifetime.test_authentication import Greeter, auth, begin
from tests.session.packets.test_proxy import changed, held, listed

WAIT_MS = 2_000
OTHER = "other"


def waiting(
    asks: Asks = "always",
    *,
    is_required: bool = False,
    mirrors: bool = False,
    more: tuple[Feed, ...] = (),
    **settings: object,
) -> Broker:
    """Return a broker whose CONNECTs wait for a store."""
    rule = Proxying(asks, mirrors=mirrors, wait_ms=WAIT_MS, is_required=is_required)
    feed = Feed(NAME, (), EVERYTHING, 60_000, proxying=rule)
    return Broker(feeds=(feed, *more), **settings)


def accepted(client: Client) -> Connack:
    """Take the CONNACK, which must be the next packet."""
    packet = client.collect().pop(0)
    assert isinstance(packet, Connack) and packet.reason_code == 0, packet
    return packet


def let_in(broker: Broker, client_id: str, *rows: tuple[str, int], **fields: object) -> Client:
    """Connect a client with its list."""
    client = broker.request(client_id, **fields)
    listed(broker, asked(broker), *rows)
    accepted(client)
    return client


def publish(broker: Broker, topic: str, payload: bytes) -> None:
    """Publish with a client that has no list."""
    shore = let_in(broker, "shore")
    shore.publish(topic, payload, 1)
    shore.disconnect()


def store_is(broker: Broker, *, is_up: bool, name: str = NAME) -> None:
    """Tell the broker whether the store can be reached."""
    broker.engine.handle_timeout(broker.now)
    broker.engine.proxy.store_is(name, is_up=is_up)
    broker.advance(1)


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("version", [4, 5])
def test_the_connack_waits_for_the_list_and_its_subscriptions(version: int, durable: bool) -> None:
    broker = waiting()
    fields = {"expiry": 60 * durable} if version == 5 else {"durable": durable}
    client = broker.request("c", version=version, **fields)
    client.expect_nothing()
    request = asked(broker)
    assert (request.kind, request.client_id) == (SUBSCRIPTIONS, "c")
    assert broker.rows(SESSIONS) == [] and broker.engine.stats()["connections"] == 1
    broker.hold_commits()
    refused = listed(broker, request, ("a/#", 1), ("a/#/b", 1))
    assert refused == [("a/#/b", reasons.TOPIC_FILTER_INVALID)]
    if durable:
        client.expect_nothing()  # the subscriptions are not durable yet
    broker.commit()
    accepted(client)
    assert held(client) == {"a/#": 1}
    publish(broker, "a/1", b"one")
    assert client.receive_all() == [b"one"]
    assert ask(broker) is None and broker.engine.requests.owed(NAME) == 0


def test_the_list_and_the_session_are_one_batch() -> None:
    broker = waiting()
    broker.request("c", expiry=60)
    request = asked(broker)
    broker.hold_commits()
    listed(broker, request, ("a", 1))
    assert broker.store.unsynced == 1
    broker.restart(keep=0)
    assert broker.rows(SESSIONS) == [] and broker.rows(FETCHES) == []
    broker.request("c", expiry=60)
    request = asked(broker)
    broker.hold_commits()
    listed(broker, request, ("a", 1))
    broker.restart(keep=1)
    assert len(broker.rows(SESSIONS)) == 1 and len(broker.rows(FETCHES)) == 1


def test_what_follows_the_connect_is_held_back() -> None:
    broker = waiting()
    client = broker.request("c", expiry=60)
    assert not client.stream.is_read
    client.send(Subscribe(1, [Subscription("b", 1)]), Publish("b", b"own", 1, packet_id=2))
    client.expect_nothing()
    listed(broker, asked(broker), ("a", 1), ("b", 0))
    accepted(client)
    assert client.stream.is_read
    assert held(client) == {"a": 1, "b": 1}  # its own SUBSCRIBE came later
    assert [each.qos for each in client.messages()] == [1]


@pytest.mark.parametrize(("version", "code"), [(5, 0x88), (4, 3)])
def test_a_required_list_that_does_not_come_refuses_the_client(version: int, code: int) -> None:
    broker = waiting(is_required=True)
    client = broker.request("c", version=version, clean_start=False)
    request = asked(broker)
    broker.advance(WAIT_MS - 251)
    client.expect_nothing()
    broker.advance(1)
    client.expect(Connack(session_present=False, reason_code=0x88 if version == 5 else code))
    assert client.is_closed
    assert broker.rows(SESSIONS) == [] and broker.rows(FETCHES) == []
    listed(broker, request, ("a", 1))
    assert broker.engine.requests.owed(NAME) == 0
    assert broker.counters.connects["server_unavailable"] == 1


def test_a_list_that_does_not_come_lets_the_client_in_and_stays_owed() -> None:
    broker = waiting()
    client = broker.request("c", expiry=60)
    late = asked(broker)
    broker.advance(WAIT_MS)
    accepted(client)
    assert held(client) == {}
    request = asked(broker)
    listed(broker, late, ("late", 1))
    assert held(client) == {}
    listed(broker, request, ("a", 1))
    assert held(client) == {"a": 1}


def test_a_refusal_leaves_a_session_and_its_connection_as_they_were() -> None:
    broker = waiting(is_required=True)
    first = let_in(broker, "c", ("a", 1), expiry=60)
    before = broker.rows(SESSIONS)
    second = broker.request("c", expiry=0, clean_start=True)
    asked(broker)
    broker.advance(WAIT_MS)
    second.expect(Connack(session_present=False, reason_code=0x88))
    assert not first.is_closed and held(first) == {"a": 1} and broker.rows(SESSIONS) == before
    first.ping()


def test_a_client_takes_over_only_once_it_has_waited() -> None:
    broker = waiting()
    first = let_in(broker, "c", ("a", 1), expiry=60)
    second = broker.request("c", expiry=60)
    assert not first.is_closed
    listed(broker, asked(broker), ("b", 1))
    first.expect_closed(reasons.SESSION_TAKEN_OVER)
    assert accepted(second).session_present
    assert held(second) == {"a": 1, "b": 1}


def test_of_two_that_wait_the_later_one_has_the_session() -> None:
    broker = waiting()
    first, second = broker.request("c", expiry=60), broker.request("c", expiry=60)
    one, two = asked(broker), asked(broker)
    listed(broker, two, ("b", 1))
    accepted(second)
    listed(broker, one, ("a", 1))
    first.expect_closed()
    assert held(second) == {"b": 1}
    third, fourth = broker.request("c", expiry=60), broker.request("c", expiry=60)
    three, four = asked(broker), asked(broker)
    listed(broker, three)
    accepted(third)
    listed(broker, four)
    third.expect_closed(reasons.SESSION_TAKEN_OVER)
    assert accepted(fourth).session_present


def test_a_client_that_goes_away_while_it_waits_leaves_nothing() -> None:
    broker = waiting(is_required=True)
    client = broker.request("c", expiry=60)
    request = asked(broker)
    client.drop()
    other = broker.request("d", expiry=60)
    other.drop()
    assert broker.engine.requests.owed(NAME) == 0
    listed(broker, request, ("a", 1))
    broker.advance(WAIT_MS)
    assert broker.rows(SESSIONS) == [] and broker.engine.stats()["connections"] == 0


def test_a_shutdown_waits_for_no_list() -> None:
    broker = waiting()
    client = broker.request("c", expiry=60)
    request = asked(broker)
    broker.linger = True
    broker.engine.drain(broker.now)
    broker.settle()
    assert client.is_closed
    listed(broker, request, ("a", 1))
    assert client.take() == [] and broker.rows(SESSIONS) == []


@pytest.mark.parametrize("is_required", [True, False])
def test_nobody_waits_for_a_store_that_is_known_to_be_down(is_required: bool) -> None:
    broker = waiting(is_required=is_required)
    waits = broker.request("c", expiry=60)
    asked(broker)
    store_is(broker, is_up=False)
    late = broker.request("d", expiry=60)
    for client in (waits, late):
        (packet,) = client.take()
        assert isinstance(packet, Connack)
        assert packet.reason_code == (0x88 if is_required else 0)
    store_is(broker, is_up=True)
    client = broker.request("e", expiry=60)
    client.expect_nothing()


def test_a_store_that_will_never_answer_is_not_waited_for() -> None:
    broker = waiting(is_required=True)
    client = broker.request("c", expiry=60)
    listed(broker, asked(broker), is_refused=True)
    client.expect(Connack(session_present=False, reason_code=0x88))


def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaited_lists, "WAITING_MAX", 2)
    broker = waiting()
    first, second = broker.request("a"), broker.request("b")
    third = broker.request("c")
    accepted(third)
    first.expect_nothing()
    first.drop()
    fourth = broker.request("d")
    fourth.expect_nothing()
    broker.advance(WAIT_MS)
    accepted(second)
    accepted(fourth)


def test_a_broken_packet_while_a_client_waits_is_found_behind_the_connack() -> None:
    broker = waiting()
    client = broker.request("c", expiry=60)
    client.send_bytes(b"\x00\x00")
    client.expect_nothing()
    listed(broker, asked(broker), ("a", 1))
    accepted(client)
    client.expect_closed(reasons.MALFORMED_PACKET)


def test_too_much_while_a_client_waits_refuses_it() -> None:
    broker = waiting()
    client = broker.request("c", expiry=60)
    for _ in range(5):
        client.send_bytes(bytes(64 << 10))
    client.expect(Connack(session_present=False, reason_code=reasons.QUOTA_EXCEEDED))
    assert broker.engine.requests.owed(NAME) == 0


def test_a_password_is_checked_before_the_store_is_asked() -> None:
    slow = SlowAuthenticator()
    broker = waiting(authenticator=slow)
    client = broker.request("c", expiry=60)
    assert ask(broker) is None
    slow.answer("c")
    broker.settle()
    listed(broker, asked(broker), ("a", 1))
    accepted(client)
    assert client.stream.is_read
    refused = broker.request("d", expiry=60)
    slow.answer("d", ok=False, reason_code=reasons.NOT_AUTHORIZED)
    broker.settle()
    refused.expect(Connack(session_present=False, reason_code=reasons.NOT_AUTHORIZED))
    assert ask(broker) is None


@pytest.mark.parametrize("sends", ["nothing", "DISCONNECT", "AUTH", "PINGREQ"])
def test_a_client_with_an_exchange_of_auth_waits_behind_it(sends: str) -> None:
    """[MQTT-3.1.2-30]: it may send nothing but AUTH and DISCONNECT before its CONNACK."""
    broker = waiting(authenticator=Greeter())
    client = begin(broker, "c", expiry=60)
    client.expect(auth(b"who?"))
    client.send(auth(b"ann"))
    client.expect_nothing()
    request = asked(broker)
    if sends == "DISCONNECT":
        client.send(Disconnect())
        client.expect_closed()
    elif sends == "AUTH":
        client.send(auth(b"more"))
        client.expect(Connack(session_present=False, reason_code=reasons.PROTOCOL_ERROR))
    elif sends == "PINGREQ":
        client.send(Pingreq())
        client.expect(Connack(session_present=False, reason_code=reasons.PROTOCOL_ERROR))
    listed(broker, request, ("a", 1))
    if sends == "nothing":
        assert accepted(client).authentication_data == b"welcome"
        assert held(client) == {"a": 1}
        client.ping()
    else:
        assert client.take() == [] and broker.rows(SESSIONS) == []
        assert broker.engine.requests.owed(NAME) == 0


def test_a_wait_is_neither_silence_nor_a_late_connect() -> None:
    broker = waiting(connect_timeout_ms=1_000)
    client = broker.request("c", expiry=60, keep_alive=1)
    request = asked(broker)
    broker.advance(WAIT_MS - 300)
    client.expect_nothing()
    listed(broker, request, ("a", 1))
    accepted(client)
    broker.advance(1_400)
    assert not client.is_closed
    broker.advance(200)
    assert client.is_closed


def test_only_a_new_session_waits_if_the_rule_is_for_these() -> None:
    broker = waiting("new")
    client = let_in(broker, "c", ("a", 1), expiry=60)
    assert broker.rows(SUBSCRIPTION_ROWS) and len(broker.rows(FETCHES)) == 1
    client.drop()
    client = broker.request("c", expiry=60)
    assert accepted(client).session_present
    client.drop()
    broker.advance(s=61)
    client = broker.request("c", expiry=60)  # the old one has expired
    client.expect_nothing()
    broker.advance(WAIT_MS)
    assert not accepted(client).session_present
    client.drop()
    client = let_in(broker, "c", ("b", 1), expiry=60)  # it is still owed
    assert held(client) == {"b": 1}


def test_a_list_is_dropped_if_the_session_is_none_of_its_kind_any_more() -> None:
    broker = waiting("new")
    client = broker.request("c", expiry=60)
    first = asked(broker)
    other = broker.request("c", expiry=60)
    listed(broker, asked(broker), ("b", 1))
    accepted(other)
    other.drop()
    listed(broker, first, ("a", 1))
    assert accepted(client).session_present
    assert held(client) == {"b": 1}


def test_a_long_list_comes_in_pages_and_the_end_of_it_behind_the_connack() -> None:
    broker = waiting(mirrors=True)
    client = broker.request("c", expiry=60)
    names = [f"{number:05}" for number in range(FILTERS_MAX + PAGE)]
    for start in range(0, FILTERS_MAX, PAGE):
        client.expect_nothing()
        request = asked(broker)
        assert request.after == (names[start - 1] if start else "")
        listed(broker, request, *((each, 1) for each in names[start : start + PAGE]), more=True)
    accepted(client)
    assert len(held(client)) == FILTERS_MAX
    request = asked(broker)
    assert request.after == names[FILTERS_MAX - 1]
    listed(broker, request, *((each, 1) for each in names[FILTERS_MAX:]))
    assert list(held(client)) == names
    client.drop()
    client = let_in(broker, "c", expiry=60)  # mirrored: nothing is listed any more
    while (rest := ask(broker)) is not None:
        listed(broker, rest)
    assert held(client) == {}


def test_what_is_told_while_a_client_waits_is_newer_than_its_list() -> None:
    broker = waiting()
    client = broker.request("c", expiry=60)
    request = asked(broker)
    assert changed(broker, "c", "new", 2) == UNKNOWN  # there is no session, but somebody waits
    assert changed(broker, "c", "gone", None) == UNKNOWN
    listed(broker, request, ("gone", 1), ("new", 0), ("old", 1))
    accepted(client)
    assert held(client) == {"new": 2, "old": 1}
    second = broker.request("c", expiry=60)
    request = asked(broker)
    assert changed(broker, "c", "old", None) == DONE
    client.unsubscribe("new")
    listed(broker, request, ("new", 1), ("old", 1))
    accepted(second)
    assert held(second) == {}


def test_what_an_earlier_connection_left_does_not_matter_to_a_new_session() -> None:
    broker = waiting()
    first = let_in(broker, "c", ("a", 1), expiry=60)
    second = broker.request("c", expiry=60, clean_start=True)
    request = asked(broker)
    first.unsubscribe("a")
    listed(broker, request, ("a", 1))
    accepted(second)
    assert held(second) == {"a": 1}


def test_a_list_is_asked_for_anew_if_too_much_is_told_meanwhile() -> None:
    broker = waiting()
    client = broker.request("c", expiry=60)
    request = asked(broker)
    for number in range(3):
        changed(broker, "c", f"{number}" * 50_000, 1)
    listed(broker, request, ("late", 1))
    client.expect_nothing()
    listed(broker, asked(broker), ("a", 1))
    accepted(client)
    assert held(client) == {"a": 1}


def test_two_stores_are_waited_for_each_for_its_time() -> None:
    rule = Proxying(wait_ms=WAIT_MS // 2, is_required=False)
    broker = waiting(is_required=True, more=(Feed(OTHER, (), EVERYTHING, 0, proxying=rule),))
    client = broker.request("c", expiry=60)
    listed(broker, asked(broker), ("a", 1))
    client.expect_nothing()
    assert changed(broker, "c", "b", 1) == UNKNOWN
    broker.advance(WAIT_MS // 2)
    accepted(client)
    assert held(client) == {"a": 1, "b": 1}
    assert broker.engine.requests.owed(OTHER) == 1


def test_the_wait_for_a_store_that_comes_back_too_late_is_over() -> None:
    broker = waiting()
    client = broker.request("c", expiry=60)
    asked(broker)
    broker.engine.requests.ask_again(NAME)  # the way to the store was lost
    request = asked(broker)
    broker.advance(WAIT_MS)
    accepted(client)
    listed(broker, request, ("a", 1))
    assert held(client) == {}
    broker.restart()  # with nothing that waits
    assert broker.engine.requests.owed(NAME) == 0


def test_no_list_is_taken_while_the_database_takes_no_writes() -> None:
    broker = waiting()
    let_in(broker, "c", ("a", 1), expiry=60).drop()
    client = broker.request("c", expiry=60)
    request = asked(broker)
    broker.engine.note_disk_space(is_low=True)
    listed(broker, request, ("b", 1))
    assert accepted(client).session_present  # a session that is there needs no room
    assert held(client) == {"a": 1} and broker.engine.requests.owed(NAME) == 1
    new = broker.request("d", expiry=60)
    assert isinstance(new.answer(Connack), Connack) and new.is_closed


def test_there_is_room_for_many_that_wait() -> None:
    broker = waiting()
    for number in range(WAITING_MAX):
        broker.request(f"c{number}")
    for _ in range(3):
        broker.advance(WAIT_MS)
    assert broker.engine.stats()["sessions_online"] == WAITING_MAX
