"""Does a pass over tables find everything of the window, whatever is null there? Real tables:
`tests/broker/process/test_server_verify.py`."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from broker.backends.comparing import cassandra_listing, digests
from broker.backends.comparing.cassandra_listing import CassandraListing
from broker.backends.comparing.listing import (
    CLIENT,
    MESSAGE,
    NOT_OURS,
    RETAINED,
    SUBSCRIPTION,
    Window,
)
from broker.backends.message_ids import message_id, message_number

NODE = 7
SINCE_MS = 1_700_000_000_500
ALL = frozenset({MESSAGE, RETAINED, SUBSCRIPTION, CLIENT})
OURS = message_number(SINCE_MS, NODE, 5)
NAME = message_id(SINCE_MS, NODE, 5)
BODY = digests.message_digest(OURS, b"t", b"p", 1, b"x", retain=False, accepted_s=1_700_000_000)


def message(topic: str = "t", msgid: str = NAME, **changed: Any) -> Any:
    told = {"sender": "p", "qos": 1, "retain": 0, "payload": b"x", "at": 1_700_000_000_999}
    return SimpleNamespace(topic=topic, msgid=msgid, **{**told, **changed})


class Tables:
    """Answers the statements of a listing from lists of rows."""

    def __init__(self, **tables: list[Any]) -> None:
        self.tables = tables
        self.waiting = 0
        self.waiting_max = 0

    def read(self, text: str, values: Sequence[object], page_rows: int) -> Iterator[Any]:
        self.waiting += 1
        self.waiting_max = max(self.waiting, self.waiting_max)
        return self.rows(text, values, page_rows)

    def rows(self, text: str, values: Sequence[object], page_rows: int) -> Iterator[Any]:
        self.waiting -= 1
        name = text.split("FROM p_")[1].split()[0]
        rows = self.tables[name]
        if "DISTINCT" in text:
            topics = dict.fromkeys(row.topic for row in rows)
            yield from (SimpleNamespace(topic=topic) for topic in topics)
            return
        if "payload" in text:
            assert page_rows <= cassandra_listing.PAGE_MESSAGES
        for row in rows:
            if "topic = ?" in text and row.topic != values[0]:
                continue
            if "msgid >= ?" in text and row.msgid < values[1]:
                continue
            if "msgid = ?" in text and row.msgid != values[1]:
                continue
            yield row

    def listed(self, kinds: frozenset[str] = ALL) -> list[Any]:
        """Return kind, id or name, and digest of everything."""
        window = Window("me", NODE, SINCE_MS, kinds)
        found = CassandraListing(self.read, "p_{}".format, window).entries()
        return sorted(
            (each.kind, str(each.number or each.text or each.place), each.digest) for each in found
        )


def test_messages_of_the_window_and_of_our_node() -> None:
    older = message_id(SINCE_MS - 1, NODE, 4)
    other = message_id(SINCE_MS, NODE + 1, 4)
    rows = [message(msgid=name) for name in (older, NAME, other, "z of an application")]
    assert Tables(msg=rows).listed(frozenset({MESSAGE})) == [
        (MESSAGE, str(OURS), BODY),
        (NOT_OURS, f"msg t {other}", 0),
        (NOT_OURS, "msg t z of an application", 0),
    ]


def test_each_column_of_a_message_counts_and_so_does_what_is_null() -> None:
    changes = (
        *({"topic": "u"}, {"sender": "q"}, {"qos": 2}, {"retain": 1}, {"payload": b"\xff"}),
        *({"at": 1_700_000_001_000}, {"sender": None}, {"qos": None}, {"qos": -5}),
        *({"payload": None}, {"at": None}),
    )
    found = {
        Tables(msg=[message(**each)]).listed(frozenset({MESSAGE}))[0][2]  # type: ignore[arg-type]
        for each in changes
    }
    assert BODY not in found
    # Both without a number, and all that lack a text, say the same: that it is not as it was told.
    assert len(found) == len(changes) - 2
    assert Tables(msg=[message(retain=None)]).listed(frozenset({MESSAGE}))[0][2] == BODY


def test_topics_are_asked_for_some_at_once() -> None:
    rows = [message(f"t/{number}", message_id(SINCE_MS, NODE, number)) for number in range(100)]
    tables = Tables(msg=rows)
    assert len(tables.listed(frozenset({MESSAGE}))) == 100
    assert tables.waiting_max == cassandra_listing.TOPICS_AT_ONCE


def test_sets_are_found_with_what_is_said_of_them() -> None:
    clients = [("c", "me", 1, 5999), ("off", "me", 0, 5), ("else", "other", 1, 5)]
    tables = Tables(
        msg=[message(payload=b"\xff"), message("u")],
        retain=[
            SimpleNamespace(topic="t", msgid=NAME),
            SimpleNamespace(topic="no message", msgid=NAME),
            SimpleNamespace(topic="u", msgid="of an application"),
            SimpleNamespace(topic="null", msgid=None),
        ],
        sub=[
            SimpleNamespace(clientid="c", topic="f/#", qos=2),
            SimpleNamespace(clientid="c", topic="g", qos=None),
        ],
        client=[
            SimpleNamespace(clientid=name, node=node, state=state, at=at)
            for name, node, state, at in clients
        ],
    )
    sets = ALL - {MESSAGE}
    assert tables.listed(sets) == [
        (CLIENT, "c", digests.presence_digest(b"c", 5)),
        (NOT_OURS, "retain null", 0),
        (NOT_OURS, "retain u", 0),
        (RETAINED, "no message", 0),
        (RETAINED, "t", digests.retained_digest(OURS, b"t", b"p", 1, b"\xff")),
        (SUBSCRIPTION, "c f/#", digests.subscription_digest(b"c", b"f/#", 2)),
        (SUBSCRIPTION, "c g", digests.subscription_digest(b"c", b"g", -1)),
    ]
    assert tables.listed(frozenset({CLIENT})) == tables.listed(sets)[:1]
