"""What a broker tells of a store: pages that fit into an answer, whatever clients call themselves.

What a comparison makes of it: `tests/broker/operations/test_backend_verify.py`.
"""

import base64

import pytest

from broker.backends.comparing.listing import CLIENT, RETAINED, SUBSCRIPTION
from broker.operations.control_socket import ControlError
from broker.process.desks.comparing import MESSAGE_ROW, PAGE_EVENTS_BYTES
from mqtt.message import Message
from session.feed.dead_letters import DeadLetter
from storage.tables.feed_rows import UNSTORED, FeedEvent
from tests.broker.backends.shelf import Shelf
from tests.session.feed.backends import NAME

LONG = "\u7fff" * 10_000


def walked(shelf: Shelf, kind: str) -> list[str]:
    """Return the names of all pages; `ask` checks that each fits into a line."""
    names: list[str] = []
    number, has_more = 0, True
    while has_more:
        page = shelf.ask("state", kind=kind, after=str(number))
        names += [name for name, _, _ in page["rows"]]
        has_more = page["more"]
        number += 1
    assert len(names) == len(set(names))
    return names


def test_pages_fit_into_an_answer_whatever_names_clients_choose() -> None:
    shelf = Shelf()
    for number in range(70):
        client = shelf.broker.connect(f"{LONG}{number}", expiry=100 * (number % 2))
        client.subscribe(f"{LONG}{number}", qos=1)
        client.publish(f"{LONG}{number}", b"x" * 50_000, 0, retain=True)
    for kind in (RETAINED, SUBSCRIPTION, CLIENT):
        assert len(walked(shelf, kind)) == 70, kind


def test_a_client_with_many_subscriptions_in_memory_takes_many_pages() -> None:
    shelf = Shelf()
    client = shelf.broker.connect("c")
    client.subscribe(*(f"f/{number}" for number in range(500)))
    assert len(walked(shelf, SUBSCRIPTION)) == 500


def test_pages_out_of_order_are_refused() -> None:
    shelf = Shelf()
    for number in range(200):
        shelf.broker.connect(f"c{number}")
    shelf.ask("state", kind=CLIENT, after="0")
    assert not shelf.ask("state", kind=CLIENT, after="1").get("is_out_of_order")
    shelf.ask("state", kind=CLIENT, after="0")  # somebody else begins
    assert shelf.ask("state", kind=CLIENT, after="2")["is_out_of_order"]
    assert shelf.ask("state", kind="unknown", after="0") == {"rows": [], "more": False}


def test_only_what_a_rule_with_an_action_stores_is_told() -> None:
    shelf = Shelf(
        (
            ("message.publish", "a/#", "on_message_publish"),
            ("message.publish", "r/#", "on_message_retain"),
            ("session.subscribed", "s/#", "on_subscribed"),
        ),
        others=("#",),
    )
    client = shelf.broker.connect("c", expiry=100)
    client.subscribe("s/1", "t/1", "$share/g/s/1")
    for topic in ("a/1", "b/1", "r/1"):
        client.publish(topic, b"x", 1, retain=True)
    shelf.feed()
    shelf.desk._filters.add("#")  # as if the filter of another rule were looked at
    page = shelf.ask("messages", after="0", upto="3")
    rows = list(MESSAGE_ROW.iter_unpack(base64.b64decode(page["rows"])))
    assert [row[0] for row in rows] == [1]
    assert len(walked(shelf, RETAINED)) == 1
    assert len(walked(shelf, SUBSCRIPTION)) == 2


def test_acknowledgements_come_in_pages() -> None:
    shelf = Shelf()
    clients = [shelf.broker.connect(f"c{number}", expiry=100) for number in range(30)]
    for client in clients:
        client.subscribe("q/#", qos=1)
    for number in range(50):
        shelf.broker.publish("q/1", b"%d" % number)
    with shelf.broker.one_tick():
        for client in clients:
            for _ in range(2):
                for message in client.messages():
                    client.acknowledge(message)
    for client in clients:
        client.receive_all()
    shelf.feed()
    end = shelf.broker.engine.feeds.end()[1]
    found: list[int] = []
    after = pages = 0
    while after < end:
        page = shelf.ask("events", after=str(after), upto=str(end))
        data = base64.b64decode(page["acked"])
        assert len(data) <= PAGE_EVENTS_BYTES and page["after"] > after
        found += [int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data), 8)]
        after = page["after"]
        pages += 1
    assert sorted(found) == sorted(list(range(1, 51)) * 30)
    assert pages > 1


def test_retained_messages_come_in_pages_where_the_store_has_them_among_its_messages() -> None:
    rules = (("message.publish", "r/#", "on_message_retain"),)
    for type, expected in (("cassandra", 500), ("redis", 0)):
        shelf = Shelf(rules, type=type)
        client = shelf.broker.connect("c")
        with shelf.broker.one_tick():
            for number in range(500):
                client.publish(f"r/{number}", b"x" * 5000, 0, retain=True)
                client.publish(f"other/{number}", b"x", 0, retain=True)
        end = shelf.broker.engine.feeds.end()[1]
        found: list[int] = []
        after = pages = 0
        while after < end:
            page = shelf.ask("events", after=str(after), upto=str(end))
            rows = list(MESSAGE_ROW.iter_unpack(base64.b64decode(page["rows"])))
            found += [row[0] for row in rows]
            after = page["after"]
            pages += 1
        assert len(set(found)) == len(found) == expected
        assert pages > 2 or not expected


def test_dead_letters_say_what_they_are_about() -> None:
    shelf = Shelf()
    shelf.refuses = lambda row: isinstance(row, Message)
    client = shelf.broker.connect("c")
    client.publish("t", b"x", 1)
    shelf.feed()
    assert shelf.ask("letters", after="0")["letters"] == [["message", 1]]
    from broker.backends.comparing import digests
    from broker.backends.rows import encode_wire_row
    from storage.tables import feed_rows

    names = {
        feed_rows.SUBSCRIBED: (SUBSCRIPTION, (b"c", b"t")),
        feed_rows.RETAINED: (RETAINED, (b"t",)),
        feed_rows.DISCONNECTED: (CLIENT, (b"c",)),
    }
    rows = [encode_wire_row(FeedEvent(kind, 1, 1, "c", "t", seq=9)) for kind in names]
    rows.append(encode_wire_row(FeedEvent(feed_rows.ACKED, 1, 1, "c", "t", offset=7, seq=9)))
    rows.append(b"")  # too large to be kept: nobody knows whether it was a message or an event
    letters = [DeadLetter((1, 9), "1", "refused", row) for row in rows]
    feeds = shelf.broker.engine.feeds
    feeds.confirm(NAME, feeds.cursor(NAME), letters)
    shelf.broker.settle()
    told = shelf.ask("letters", after="1")["letters"]
    assert told[:3] == [
        [kind, digests.name_of(kind, *parts).hex()] for kind, parts in names.values()
    ]
    assert told[3:] == [["message", 7], ["message", 1, UNSTORED | 9]]


def test_a_request_that_is_none_is_refused() -> None:
    shelf = Shelf()
    for wrong in ("-1", "x", str(1 << 63)):
        with pytest.raises(ControlError, match="expected a number"):
            shelf.ask("messages", after=wrong, upto="3")
    assert shelf.ask("message", after="99") == {"ms": 0, "topic": "", "from": ""}
