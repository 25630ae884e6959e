"""Why a client lacks messages: each cause has its sentence, and none is made up."""

import pytest

from broker.operations.looking.why import (
    NOTABLE_MAX,
    STATES,
    TRACED_MAX,
    Story,
    connection_lines,
    limits_of_knowledge,
    queue_lines,
    session_lines,
    topic_lines,
)
from broker.operations.sessions import owed
from broker.operations.sessions.owed import Owed
from mqtt.message import Message
from session.state.session import Session
from session.state.subscription import Subscription
from storage.history.events import BOOKS_LEVEL, FULL


def event(name: str, **columns: object) -> dict[str, object]:
    """Return an event as the history tells it."""
    return {"ev": name, "ts": 1_700_000_000_000_000, "at": None, "client_id": "c", **columns}


def told(*events: dict[str, object]) -> str:
    """Return what is said of some events."""
    story = Story()
    for each in events:
        story.add(each)
    return "\n".join(story.sentences())


def test_every_state_of_a_queue_has_words() -> None:
    places = {owed.LOG, owed.SHARED, owed.RETAINED, owed.FETCHED}
    states = {
        value
        for name, value in vars(owed).items()
        if name.isupper() and isinstance(value, str) and value not in places
    }
    assert states == set(STATES)


def test_a_history_without_the_client_says_so() -> None:
    assert told() == "the history has nothing of it in that time"


def test_two_clients_with_one_id_are_suspected() -> None:
    said = told(event("session_created"), event("session_resumed"), event("session_taken_over"))
    assert "connected 2 times: its session was resumed once, and a new one once" in said
    assert "took over once: do two clients share the id?" in said


def test_ends_and_drops_are_told() -> None:
    said = told(
        event("session_terminated", reason=1011, actor="client"),
        event("session_purged", count=5, actor="admin", detail="olga: full", position=9),
        event("msg_dropped", reason=1027, count=3),
        event("msg_dropped", reason=1020, count=None),
        event("msg_expired", reason=None, count=None),
        event("unsubscribed", tfilter="t"),
    )
    assert "2023-11-14 22:13:20.000Z: session ended: clean start" in said
    assert "5 messages that waited were dropped: by olga: full" in said
    assert "dropped (max age): 3" in said and "dropped (queue full): 1" in said
    assert "dropped (expired): 1" in said and "it unsubscribed once" in said


def test_only_the_newest_ends_are_told_one_by_one() -> None:
    ends = [event("session_expired", ts=at * 1_000_000) for at in range(NOTABLE_MAX + 5)]
    assert told(*ends).count("session expired") == NOTABLE_MAX


@pytest.mark.parametrize(
    ("is_connected", "expires", "words"),
    [
        (True, None, "connected since NOON"),
        (False, None, "away since NOON, and its session ends never"),
        (False, "SOON", "away since NOON, and its session ends SOON"),
    ],
)
def test_a_session_is_there_or_away(is_connected: bool, expires: str | None, words: str) -> None:
    session = Session("c", "", 1)
    lines = session_lines(session, since="NOON", expires=expires, is_connected=is_connected)
    first, second = lines
    assert first.endswith(words) and "no subscriptions" in second


def test_without_a_session_it_is_said_how_to_get_one() -> None:
    (said,) = session_lines(None, since=None, expires=None, is_connected=False)
    assert "Session Expiry Interval" in said and "Clean Session 0" in said


def test_subscriptions_of_a_topic_say_what_they_get() -> None:
    session = Session("c", "", 1)
    for topic_filter, qos, share in (("a/#", 1, None), ("+/b", 0, None), ("$share/g/a/b", 2, "g")):
        stream = "a/b" if share else topic_filter
        session.add(
            Subscription(topic_filter, share, stream, qos, False, False, 0, 0, 0, holds=True)
        )
    said = "\n".join(topic_lines(session, "a/b"))
    assert "'a/#' matches: at QoS 1, from offset 1 on" in said
    assert "'+/b' matches: at QoS 0, so that" in said
    assert "'$share/g/a/b' matches: each message goes to one member" in said
    assert list(topic_lines(session, "x")) == [
        "no subscription of it matches 'x': it is owed nothing on it"
    ]


def test_a_queue_is_counted_by_what_becomes_of_it() -> None:
    def one(state: str, topic: str) -> Owed:
        return Owed(state, 0, owed.LOG, 1, 1, Message(topic, b"x", 1, False, b"", "p", 1, 0))

    queue = [one("waits", "a"), one("waits", "b"), one("expired", "a")]
    assert list(queue_lines(queue, None)) == [
        f"2 messages {STATES['waits']}",
        f"1 message {STATES['expired']}",
    ]
    assert list(queue_lines(queue, "b")) == [f"1 message {STATES['waits']}"]
    assert list(queue_lines(queue, "c")) == ["nothing waits for it, and nothing is in flight"]


def test_what_is_not_recorded_is_said() -> None:
    books = list(limits_of_knowledge(BOOKS_LEVEL, has_rules=True))
    assert "history.detail is 'books'" in books[0] and "client_denied" in books[1]
    (only,) = limits_of_knowledge(FULL, has_rules=False)
    assert "QoS 0" in only


def connected(**changes: object) -> dict[str, object]:
    """Return a client as the running broker shows it."""
    return {
        "user": "",
        "connected_seconds": 7,
        "address": "10.0.0.1:5",
        "listener": "tcp",
        "lagging": False,
        "durable": False,
        "subscriptions": 0,
        "topic_filters": [],
        **changes,
    }


def test_a_connection_is_told_with_who_it_is() -> None:
    (line,) = connection_lines(connected(durable=True), "t")
    assert line == "it is connected since 7 s from 10.0.0.1:5 (tcp), anonymous"
    lines = list(connection_lines(connected(durable=True, user="anna", lagging=True), None))
    assert lines[0].endswith("user 'anna'") and lines[1].startswith("it is behind")


def test_a_clean_session_is_told_with_its_subscriptions() -> None:
    said = "\n".join(connection_lines(connected(), None))
    assert "its session is clean" in said and "it has no subscriptions" in said
    filters = [{"topic_filter": "a/+", "qos": 1}, {"topic_filter": "$share/g/a/#", "qos": 0}]
    shown = connected(topic_filters=filters, subscriptions=2)
    said = "\n".join(connection_lines(shown, "a/b"))
    assert "'a/+' matches, QoS 1" in said and "'$share/g/a/#' matches, QoS 0" in said
    assert "no subscription of it matches 'b'" in "\n".join(connection_lines(shown, "b"))
    many = connected(topic_filters=filters, subscriptions=5000)
    assert "no subscription of the first 1,000 of it" in "\n".join(connection_lines(many, "b"))


def test_traces_are_told_from_when_to_when() -> None:
    said = told(
        event("trace_began", detail="books, olga"),
        event("msg_delivered", msg=3),
        {**event("trace_ended", detail="books, its time is over"), "ts": 1_700_000_060_000_000},
        event("trace_began", detail="books, olga"),
    )
    first, second = (line for line in said.splitlines() if "a trace had all of it" in line)
    assert "22:13:20.000Z to 2023-11-14 22:14:20.000Z: `holdfast history timeline`" in first
    assert "to now, or the end of the broker: " in second


def test_of_many_traces_the_newest_are_told() -> None:
    said = told(*[event("trace_began", detail="books, olga")] * (TRACED_MAX + 3))
    assert said.count("a trace had all of it") == TRACED_MAX
