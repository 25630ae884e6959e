"""Does the history tell what becomes of sessions, wills and retained messages, and in order?"""

from collections.abc import Callable
from zlib import crc32

import pytest

from session.history.session_events import last_seq
from session.lifetime.repository import INCARNATION_SHIFT
from storage.history.packed_rows import history_key, split_history_key
from storage.tables.tables import load_boot, seal
from tests.session.harness import NEVER, Broker, Client, connect_packet, will
from tests.session.told import Told, columns
from tests.session.told import told as told_so_far

FIRST = 1 << INCARNATION_SHIFT | 1


def told(broker: Broker, *names: str) -> list[Told]:
    """Return the events of the store when the last of them had the time to get there."""
    broker.advance(ms=broker.settings.progress_delay_ms)
    return told_so_far(broker, *names)


def names(broker: Broker, client_id: str = "c") -> list[object]:
    """Return what happened to a client, in order, but for its messages."""
    return [
        event["ev"]
        for event in told(broker)
        if event["client_id"] == client_id and not str(event["ev"]).startswith(("msg", "pub"))
    ]


def only(broker: Broker, name: str) -> Told:
    """Return the one event of a name."""
    (event,) = told(broker, name)
    return event


# Connections and sessions


def test_a_session_begins_as_its_client_asked() -> None:
    broker = Broker()
    broker.publish("t", b"in nobody's way")
    broker.connect("c", expiry=30, clean_start=True, receive_maximum=7)
    event = told(broker, "session_created")[-1]
    assert event["session"] == FIRST + 1 and event["tenant"] == ""
    assert (event["proto"], event["clean_start"], event["sp"]) == (5, True, False)
    assert (event["expiry_s"], event["rmax"], event["actor"]) == (30, 7, "client")
    assert (event["subs"], event["inflight"], event["subs_check"]) == (0, 0, 0)
    assert event["queued"] is None
    assert columns([event], "conn") == [(2,)]


def test_a_session_in_memory_begins_at_the_end_of_the_log() -> None:
    broker = Broker()
    broker.durable("other", "t").drop()
    for _ in range(3):
        broker.publish("t", qos=1)
    broker.clean("c")
    broker.durable("stored")
    positions = {e["client_id"]: e["position"] for e in told(broker, "session_created")}
    assert positions["c"] == positions["stored"] == 3


def test_a_session_in_memory_begins_and_ends_with_its_connection() -> None:
    broker = Broker()
    broker.clean("c", "t").disconnect()
    assert names(broker) == [
        "session_created",
        "subscribed",
        "session_disconnected",
        "session_terminated",
    ]
    assert only(broker, "session_created")["expiry_s"] == 0
    assert only(broker, "session_terminated")["reason"] == 1010


def test_a_resumed_session_is_told_as_it_was_before_anything_is_sent() -> None:
    broker = Broker()
    broker.durable("c", "t", "u", qos=2).drop()
    broker.publish("t", b"1", 2)
    client = broker.durable("c")
    client.drop()
    client = broker.connect("c", expiry=60)
    events = told(broker, "session_resumed")
    check = crc32(b"t\x002") + crc32(b"u\x002")
    assert columns(events, "session", "sp", "subs", "subs_check", "inflight", "position") == [
        (FIRST, True, 2, check, 0, 0),
        (FIRST, True, 2, check, 1, 1),
    ]
    assert columns(events, "expiry_s") == [(NEVER,), (60,)]
    assert client.message().dup


@pytest.mark.parametrize(
    ("leave", "reason", "actor"),
    [
        (lambda client: client.disconnect(), 0, "client"),
        (lambda client: client.disconnect(4), 4, "client"),
        (lambda client: client.drop(), 1001, "client"),
        (lambda client: client.broker.advance(s=100), 0x8D, "broker"),
    ],
)
def test_a_connection_ends_for_a_reason(
    leave: Callable[[Client], None], reason: int, actor: str
) -> None:
    broker = Broker()
    leave(broker.connect("c", expiry=NEVER, keep_alive=10))
    event = only(broker, "session_disconnected")
    assert (event["reason"], event["actor"], event["conn"]) == (reason, actor, 1)
    assert event["at"] is None


@pytest.mark.parametrize(
    ("clean_start", "expiry", "ends"),
    [(False, NEVER, None), (True, NEVER, 1011), (False, 0, 1010)],
)
def test_a_takeover_ends_the_old_connection_before_the_new_one_begins(
    clean_start: bool, expiry: int, ends: int | None
) -> None:
    broker = Broker()
    broker.connect("c", expiry=expiry, clean_start=False)
    broker.connect("c", expiry=NEVER, clean_start=clean_start)
    told_names = names(broker)[1:]
    assert told_names[:2] == ["session_taken_over", "session_disconnected"]
    assert only(broker, "session_taken_over")["conn"] == 1
    assert only(broker, "session_disconnected")["reason"] == 0x8E
    if ends is None:
        assert told_names[2:] == ["session_resumed"]
    else:
        assert told_names[2:] == ["session_terminated", "session_created"]
        assert only(broker, "session_terminated")["reason"] == ends


def test_a_disconnect_with_another_interval_is_told_before_the_end() -> None:
    broker = Broker()
    broker.durable("c", "t").disconnect(session_expiry_interval=0)
    assert names(broker)[2:] == [
        "session_expiry_changed",
        "session_disconnected",
        "session_terminated",
    ]
    assert only(broker, "session_expiry_changed")["expiry_s"] == 0
    assert only(broker, "session_terminated")["reason"] == 1012


def test_a_session_expires_when_it_was_due() -> None:
    broker = Broker()
    broker.durable("c", "t", expiry=10).drop()
    due_us = (broker.now + 10_000) * 1000
    broker.advance(s=11)
    event = only(broker, "session_expired")
    assert (event["actor"], event["at"], event["expiry_s"]) == ("gc", due_us, 10)
    assert (event["subs"], event["conn"], event["session"]) == (1, 0, FIRST)
    assert told(broker, "gc_run")


def test_a_session_past_its_time_that_its_client_finds_has_expired_and_is_not_resumed() -> None:
    broker = Broker()
    broker.durable("c", "t", expiry=10).drop()
    broker.crash(keep=broker.store.unsynced)
    broker.now += 20_000
    with broker.one_tick():
        broker.start()
        client = broker.open()
        client.send(connect_packet("c", 5, expiry=NEVER, clean_start=False))
    event = only(broker, "session_expired")
    assert event["actor"] == "client"
    assert names(broker)[-2:] == ["session_expired", "session_created"]
    assert not told(broker, "session_terminated")


def test_a_clean_start_ends_the_session_that_waits() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    broker.connect("c", clean_start=True, expiry=NEVER)
    assert names(broker)[-2:] == ["session_terminated", "session_created"]
    assert only(broker, "session_terminated")["reason"] == 1011


# Subscriptions


def test_a_subscription_names_the_stream_that_is_stored_for_it() -> None:
    broker = Broker()
    broker.durable("other", "t")
    broker.publish("t", b"1")
    client = broker.connect("c", expiry=NEVER)
    client.subscribe("t", qos=1, no_local=True)
    client.subscribe("t", qos=0)
    client.unsubscribe("t")
    events = [e for e in told(broker, "subscribed", "unsubscribed") if e["client_id"] == "c"]
    assert columns(events, "ev", "tfilter", "qos", "stream", "position", "no_local") == [
        ("subscribed", "t", 1, 1, 1, True),
        ("subscribed", "t", 0, 0, 1, False),
        ("unsubscribed", "t", None, 0, 1, None),
    ]


def test_a_subscription_that_is_only_repeated_is_told_once() -> None:
    broker = Broker()
    session = broker.durable("c", "t", qos=1)
    for _ in range(3):
        session.subscribe("t", qos=1)
    assert columns(told(broker, "subscribed"), "qos", "tfilter") == [(1, "t")]
    session.subscribe("t", qos=2)
    session.subscribe("t", qos=2, no_local=True)
    assert columns(told(broker, "subscribed"), "qos", "no_local") == [
        (1, False),
        (2, False),
        (2, True),
    ]


def test_a_subscription_says_whether_it_asks_for_retained_messages() -> None:
    broker = Broker()
    client = broker.connect("c", expiry=NEVER)
    for handling, qos in ((2, 0), (1, 1), (0, 2)):
        client.subscribe("t", qos=qos, retain_handling=handling)
    client.subscribe("u", retain_handling=1)
    client.subscribe("$share/g/u")
    assert columns(told(broker, "subscribed"), "tfilter", "qos", "retain") == [
        ("t", 0, None),
        ("t", 1, None),
        ("t", 2, True),
        ("u", 0, True),
        ("$share/g/u", 0, None),
    ]


def test_a_shared_subscription_names_its_group_and_the_stream_of_that() -> None:
    broker = Broker()
    client = broker.durable("c", "$share/g/t")
    broker.clean("d", "$share/h/t", qos=1)
    client.unsubscribe("$share/g/t")
    events = told(broker, "subscribed", "unsubscribed")
    assert columns(events, "ev", "tfilter", "share", "stream") == [
        ("subscribed", "$share/g/t", "g", 1),
        ("subscribed", "$share/h/t", "h", 0),
        ("unsubscribed", "$share/g/t", "g", 1),
    ]


# Wills


def test_a_will_that_fires_is_told_from_its_connect_to_its_message() -> None:
    broker = Broker()
    broker.durable("watcher", "w")
    broker.connect("c", expiry=NEVER, will=will("w", delay=5)).drop()
    due_us = (broker.now + 5_000) * 1000
    broker.advance(s=6)
    armed, delayed, fired = told(broker, "will_armed", "will_delayed", "will_fired")
    assert (armed["topic"], armed["qos"], armed["expiry_s"], armed["conn"]) == ("w", 1, 5, 2)
    assert (delayed["ev"], delayed["at"], delayed["topic"]) == ("will_delayed", due_us, "w")
    assert (fired["ev"], fired["msg"], fired["topic"], fired["qos"]) == ("will_fired", 1, "w", 1)
    assert fired["at"] == due_us
    assert {event["session"] for event in (armed, delayed, fired)} == {FIRST + 1}


def test_a_will_is_cancelled_for_a_reason() -> None:
    broker = Broker()
    broker.connect("c", expiry=NEVER, will=will("w")).disconnect()
    broker.connect("c", expiry=NEVER, clean_start=False, will=will("w", delay=5)).drop()
    broker.connect("c", expiry=NEVER, clean_start=False, will=will("w", delay=5))
    broker.connect("c", expiry=NEVER, clean_start=False, will=will("$w")).drop()
    assert columns(told(broker, "will_cancelled"), "reason", "topic", "session") == [
        (1040, "w", FIRST),
        (1041, "w", FIRST),
        (1041, "w", FIRST),
        (1042, "$w", FIRST),
    ]


def test_a_will_of_a_session_in_memory_keeps_its_session_over_a_crash() -> None:
    broker = Broker()
    broker.connect("c", will=will("w"))
    broker.restart()
    fired = only(broker, "will_fired")
    assert (fired["session"], fired["boot"]) == (FIRST, 2)
    assert only(broker, "will_delayed")["at"] is not None


# Retained messages


def test_what_is_retained_is_told_and_what_ends_it() -> None:
    broker = Broker()
    broker.publish("a", b"12", 1, retain=True)
    broker.publish("a", b"", 1, retain=True)
    broker.publish("a", b"", 1, retain=True)  # nothing is there
    broker.publish("b", b"x", 0, retain=True, message_expiry_interval=5)
    broker.advance(s=6)
    events = told(broker, "retained_set", "retained_cleared", "retained_expired")
    assert columns(events, "ev", "topic", "bytes", "qos", "client_id") == [
        ("retained_set", "a", 2, 1, "publisher"),
        ("retained_cleared", "a", None, None, "publisher"),
        ("retained_set", "b", 1, 0, "publisher"),
        ("retained_expired", "b", None, None, None),
    ]
    assert events[0]["pub"] == FIRST and events[0]["session"] is None
    assert events[0]["at"] == events[0]["ts"]


def test_a_retained_will_is_of_the_session_that_left_it() -> None:
    broker = Broker()
    broker.connect("c", will=will("w", retain=True)).drop()
    assert only(broker, "retained_set")["pub"] == FIRST


# The broker


def test_a_boot_says_how_far_the_one_before_it_came() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    last = told(broker)[-1]["seq"]
    broker.restart()
    first, second = told(broker, "boot")
    assert (first["seq"], first["boot"], first["count"]) == (1, 1, 0)
    assert (second["seq"], second["boot"], second["count"]) == (1, 2, last)
    assert second["detail"] == "books"
    assert last_seq(broker.store, 1) == last
    assert last_seq(broker.store, 9) == 0


def test_a_start_in_a_cluster_says_who_leads() -> None:
    broker = Broker(member="ann")
    broker.settings.member = "bob"
    broker.restart()
    leaders = columns(told(broker, "member_leads"), "boot", "seq", "detail", "actor")
    assert leaders == [(1, 2, "ann", "broker"), (2, 2, "bob", "broker")]
    alone = Broker()
    assert told(alone, "member_leads") == []


def test_a_damaged_row_of_the_history_does_not_count_and_stops_no_start() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    last = told(broker)[-1]["seq"]
    assert isinstance(last, int)
    broker.store.write([("history", history_key(1, last + 1), seal(b"no row"))])
    assert last_seq(broker.store, 1) == last
    broker.store.write([("history", history_key(1, last + 1), b"not even sealed")])
    broker.crash()
    broker.start()
    assert load_boot(broker.store)[0] == 2


def test_a_database_that_was_set_back_uses_no_number_again() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    broker.crash()
    broker.start(told_of=7)
    (boot,) = [event for event in told(broker, "boot") if event["boot"] == 8]
    assert boot["count"] == 0  # of boot 7 it has nothing
    session = broker.connect("new", expiry=9).connection.session
    assert session is not None
    assert session.incarnation >> INCARNATION_SHIFT == 8


def test_a_boot_says_that_also_if_all_rows_were_exported_and_trimmed() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    last = told(broker)[-1]["seq"]
    keys = [split_history_key(key)[1] for key, _ in broker.rows("history")]
    broker.engine.outbox.trim(1, keys, 0)
    broker.settle()
    assert not broker.rows("history")
    broker.restart()
    assert only(broker, "boot")["count"] == last


def test_who_was_connected_when_the_broker_died_is_disconnected_since_then() -> None:
    broker = Broker()
    broker.durable("c", "t")
    broker.restart(after_ms=5_000)
    event = told(broker, "session_disconnected")[-1]
    assert (event["reason"], event["conn"], event["session"]) == (1002, 0, FIRST)
    at, now = event["at"], event["ts"]
    assert isinstance(at, int) and isinstance(now, int) and at < now
    assert (event["subs"], event["subs_check"]) == (None, None)


def test_the_last_event_of_a_broker_that_ends_in_good_order_says_so() -> None:
    broker = Broker()
    broker.durable("c", "t")
    broker.engine.drain(broker.now)
    broker.settle()
    broker.engine.finish(broker.now)
    broker.settle()
    assert told(broker)[-1]["ev"] == "shutdown"


def test_nothing_follows_the_shutdown_though_something_comes_due() -> None:
    broker = Broker()
    broker.durable("soon", "t", expiry=1, will=will("w", delay=1)).drop()
    broker.publish("t", b"1")
    broker.engine.drain(broker.now)
    broker.settle()
    broker.engine.finish(broker.now)
    broker.advance(s=10)
    last = [event["ev"] for event in told(broker)][-2:]
    assert last == ["books", "shutdown"]
    assert not told(broker, "gc_run", "will_fired", "session_expired")
    broker.restart()
    broker.advance(s=1)
    assert told(broker, "will_fired", "session_expired")


def test_nothing_is_told_where_the_history_is_off() -> None:
    broker = Broker(history_detail="off")
    broker.durable("c", "t", will=will("w", retain=True)).drop()
    broker.advance(s=1)
    broker.restart()
    assert not broker.rows("history")


def test_the_sum_of_hashed_filters_is_that_of_the_filters_in_the_rows() -> None:
    broker = Broker(history_hash_names=True, history_hash_key="k" * 32)
    broker.durable("c", "t", "u").drop()
    check = sum(crc32(f"{e['tfilter']}\0{e['qos']}".encode()) for e in told(broker, "subscribed"))
    assert only(broker, "session_disconnected")["subs_check"] == check
    assert "c" not in {event["client_id"] for event in told(broker)}
    assert only(broker, "boot")["detail"] == "books"
