"""Who gets a topic, retained messages and their payloads."""

import base64

from broker.admin.pages.views import topics
from broker.admin.records import Group, Page, Retained, RetainedMessage, TopicReaders, TopicSession
from tests.broker.admin.pages.records import AT


def retained(topic: str) -> Retained:
    return Retained(topic, 3, 1, AT, None, "sensor")


def test_a_summary_counts_all_and_says_how_many_are_not_shown() -> None:
    one = TopicSession("a", "t/#", 1, False, True, "now")
    readers = TopicReaders("t", [one], 1200, 400, 1300, [], 2, AT, [])
    context = topics.context(
        readers, Page([], None, AT, []), Page([], None, AT, []), topic="t", topic_problem="",
        topic_filter="", filter_problem="", cursor="",
        groups_cursor="", may_act=False,
    )  # fmt: skip
    assert context["readers"]["summary"] == (
        "1,200 stored sessions, 400 connected; 2 shared groups."
    )
    assert context["readers"]["more"] == "and 1,299 more subscriptions and 2 more groups"


def test_lists_lead_on_each_for_itself() -> None:
    group = Group("crew", "o/#", 1, 2, 1, 5, False, 0, 0, [])
    context = topics.context(
        None, Page([retained("a")], "ab", AT, []), Page([group], "cd", AT, []), topic="",
        topic_problem="", topic_filter="a/#", filter_problem="", cursor="",
        groups_cursor="x", may_act=True,
    )  # fmt: skip
    assert context["links"]["retained_next"] == "/topics?filter=a%2F%23&cursor=ab#retained"
    assert context["links"]["groups_next"] == "/topics?filter=a%2F%23&groups=cd#groups"
    assert [each["href"] for each in context["groups"]] == ["/group?name=crew&filter=o%2F%23"]
    assert context["publish"] == "/publish"
    assert context["links"]["groups_first"] == "/topics?filter=a%2F%23#groups"


def test_a_topic_that_is_too_long_for_an_address_has_no_link() -> None:
    context = topics.context(
        None, Page([retained("a/b"), retained("x" * 5000)], None, AT, []), None, topic="",
        topic_problem="", topic_filter="", filter_problem="", cursor="",
        groups_cursor="", may_act=False,
    )  # fmt: skip
    assert [each["href"] for each in context["retained"]] == ["/retained?topic=a%2Fb", ""]


def test_a_payload_is_shown_only_where_the_record_has_it() -> None:
    assert topics.retained(retained("t"), may_delete=False)["payload"] is None
    data = base64.b64encode(b"<b>").decode()
    message = RetainedMessage(
        "t", 3, 1, AT, None, None, data, True, "text/plain", None, "answers", "AP8=",
        [("unit", "m")] * 105, None,
    )  # fmt: skip
    context = topics.retained(message, may_delete=False)
    assert (str(context["payload"]), context["kind"]) == ("&lt;b&gt;", "text, the first 3 bytes")
    assert context["facts"] == [
        ("Content type", "text/plain"),
        ("Response topic", "answers"),
        ("Correlation data", "00 ff"),
    ]
    assert (len(context["user_properties"]), context["more_properties"]) == (100, 5)
