"""Shared groups as text for people and for programs."""

import json

from broker.operations.looking import groups_report
from broker.operations.looking.listing import Asked
from broker.operations.looking.shared_groups import Member, SharedGroup


def group(share_name: str = "work", *, waiting: int | None = 3, members: int = 2) -> SharedGroup:
    """Return a group of a connected member with a message in flight, and others."""
    made = SharedGroup(share_name, "a/#", 17, 4, [5])
    made.waiting = waiting
    made.members = [Member("w1", 1, True, 1), Member("w2", 2, False, 0)]
    made.members_count = members
    made.connected = made.in_flight = 1
    return made


def listed(*groups: SharedGroup, output: str = "table") -> list[str]:
    return list(groups_report.GROUPS.lines(Asked(output=output), map(groups_report.fields, groups)))


def test_a_table_has_a_line_for_each_and_tells_what_is_missing() -> None:
    lines = listed(group(), group("late", waiting=None))
    assert [line.split() for line in lines] == [
        ["NAME", "FILTER", "MEMBERS", "CONNECTED", "WAITING", "RETURNED", "IN_FLIGHT", "BYTES"],
        ["work", "a/#", "2", "1", "3", "1", "1", "-"],
        ["late", "a/#", "2", "1", "?", "1", "1", "-"],
    ]


def test_bytes_are_shown_where_they_were_counted() -> None:
    made = group()
    made.size_bytes = 4711
    assert listed(made)[1].split()[-1] == "4711"
    assert json.loads(groups_report.group_as_json(made))["bytes"] == 4711


def test_json_is_an_array_of_any_length_with_members() -> None:
    assert json.loads("\n".join(listed(output="json"))) == []
    first, second = json.loads("\n".join(listed(group(), group(waiting=None), output="json")))
    assert (first["share_name"], first["topic_filter"], first["position"]) == ("work", "a/#", 17)
    assert (first["members"], first["connected"], first["waiting"]) == (2, 1, 3)
    assert (first["returned"], first["in_flight"]) == (1, 1)
    assert first["first_members"][0] == {
        "client_id": "w1", "qos": 1, "connected": True, "in_flight": 1,
    }  # fmt: skip
    assert second["waiting"] is None
    assert second["bytes"] is None
    assert json.loads(groups_report.group_as_json(group())) == first


def test_a_page_lists_members_and_how_many_more_there_are() -> None:
    lines = list(groups_report.group_as_page(group(members=5)))
    assert lines[0].split() == ["share_name", "work"]
    assert ["waiting", "3"] in [line.split() for line in lines]
    assert [line.split() for line in lines[-4:]] == [
        ["CLIENT_ID", "QOS", "CONNECTED", "IN_FLIGHT"],
        ["w1", "1", "yes", "1"],
        ["w2", "2", "no", "0"],
        ["and", "3", "more", "members"],
    ]


def test_a_page_without_members_has_no_table() -> None:
    made = SharedGroup("g", "a", 1, 0, [])
    assert list(groups_report.group_as_page(made))[-1].split() == ["bytes", "-"]


def test_hostile_names_cannot_disturb_the_terminal() -> None:
    hostile = group("a\x1b[31m\n")
    hostile.topic_filter = "\u202e/#"
    hostile.members = [Member("\x07", 1, False, 0)]
    for lines in (listed(hostile), groups_report.group_as_page(hostile)):
        assert all(line.isprintable() for line in lines)
