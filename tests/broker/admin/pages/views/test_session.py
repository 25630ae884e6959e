"""The page of one client, and the sentences before something is done to it."""

from typing import Any

from broker.admin.pages.views import session as view
from broker.admin.records import Event, Page, QueueEntry, Subscription, Timeline, Why
from tests.broker.admin.pages.records import AT, detail, session

ENTRY = QueueEntry("waits", None, "log", 5, "t", 1, 30, AT, None, "sensor")


def shown(stored: Any = None, connection: Any = None, queue: Any = None, **fields: Any) -> Any:
    given: dict[str, Any] = {
        "queue_problem": "",
        "topic": "",
        "cursor": "",
        "with_payload": False,
        "may_act": True,
        "may_see_payloads": True,
        **fields,
    }
    return view.context("boat-17", stored, connection, queue, **given)


def test_a_client_is_there_if_its_connection_or_its_session_says_so() -> None:
    assert shown(session())["is_online"] is False
    assert shown(session(state="online"))["is_online"] is True
    assert shown(None, detail())["is_online"] is True


def test_subscriptions_are_those_of_the_stored_session_or_of_the_connection() -> None:
    filters = [Subscription(name, 1, False, False, None) for name in ("b", "a")]
    context = shown(session(subscriptions=filters), detail())
    assert [each["topic_filter"] for each in context["subscriptions"]] == ["a", "b"]
    context = shown(None, detail(subscriptions=5000))
    assert [each["topic_filter"] for each in context["subscriptions"]] == ["a/#"]
    assert context["subscriptions_count"] == 5000
    many = [Subscription(str(number), 1, False, False, None) for number in range(300)]
    assert len(shown(session(subscriptions=many))["subscriptions"]) == view.SUBSCRIPTIONS_MAX


def test_links_of_a_queue_keep_the_filter_and_the_payloads() -> None:
    page = Page([ENTRY], "ab", AT, [])
    links = shown(session(), None, page, topic="t/#", with_payload=True, cursor="cd")["links"]
    assert links["queue_next"] == "/session?id=boat-17&topic=t%2F%23&payloads=1&cursor=ab#queue"
    assert links["queue_first"] == "/session?id=boat-17&topic=t%2F%23&payloads=1#queue"
    assert links["without_payload"] == "/session?id=boat-17&topic=t%2F%23&cursor=cd"


def test_a_payload_is_there_only_where_the_record_has_it() -> None:
    assert shown(session(), None, Page([ENTRY], None, AT, []))["queue"][0]["payload"] is None


def test_the_past_is_read_until_both_parts_are_there() -> None:
    why = Why("boat-17", ["it is away"], [], ["nothing"])
    assert view.past("boat-17", why, None)["is_reading"]
    told = view.past("boat-17", why, Timeline([Event(AT, "connected")], []))
    assert not told["is_reading"]
    assert told["why"] == [("Now", ["it is away"]), ("What is not known", ["nothing"])]


def test_a_purge_says_what_goes_and_what_stays() -> None:
    lines = view.would_purge(1200, 3, "2d", "a/#")
    assert lines[0] == (
        "1,200 messages older than 2d on topics that match a/# would be dropped, for good."
    )
    assert "3 messages in flight stay." in lines
    assert view.would_purge(0, 3, "", "") == ["No message waits for it: nothing would be dropped."]


def test_a_delete_and_a_kick_say_what_is_lost() -> None:
    assert any("9 messages" in line for line in view.would_delete(9, False))
    assert any("connection ends first" in line for line in view.would_delete(0, True))
    assert any("clean one" in line for line in view.would_kick(detail(durable=False)))
    assert any("will is published" in line for line in view.would_kick(detail(will_topic="w")))
    assert not any("will is" in line for line in view.would_kick(detail()))
