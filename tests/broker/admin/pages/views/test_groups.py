"""The page of a shared group, and what a purge of it would do."""

import pytest

from broker.admin.pages.views import groups
from broker.admin.records import Group, GroupMember
from tests.broker.admin.pages.records import AT


def group(*, waiting: int | None = 5, returned: int = 0, in_flight: int = 0) -> Group:
    member = GroupMember("a", 1, True, 0)
    return Group("crew", "o/#", 1, 3, 1, waiting, None, returned, in_flight, [member])


def test_who_may_not_act_is_not_led_to_the_purge() -> None:
    context = groups.context(group(), as_of=AT, may_act=False)
    assert (context["subject"], context["purge"]) == ("$share/crew/o/#", "")
    assert context["more"] == "and 2 more members"
    purge = groups.context(group(), as_of=AT, may_act=True)["purge"]
    assert purge == "/group/purge?name=crew&filter=o%2F%23"


def test_a_group_whose_name_is_too_long_for_an_address_has_no_page() -> None:
    found = group()
    found.topic_filter = "x" * 5000
    assert groups.address("/group", found) == ""


@pytest.mark.parametrize(
    ("found", "older", "topic", "text"),
    [
        (group(waiting=0), "", "", "nothing would be dropped"),
        (group(), "", "", "5 messages wait for it. All of that would be dropped, for good."),
        (group(waiting=1), "", "", "1 message waits for it. All"),
        (group(waiting=None), "", "", "It is not known how many messages wait for it. All"),
        (group(waiting=0, returned=2), "", "", "2 came back from members."),
        (group(), "2d", "a/+", "those older than 2d on topics that match a/+ would be dropped"),
        (group(in_flight=3), "", "", "3 messages in flight stay."),
    ],
)
def test_what_a_purge_would_do_is_said(found: Group, older: str, topic: str, text: str) -> None:
    assert text in " ".join(groups.would_purge(found, older, topic))
