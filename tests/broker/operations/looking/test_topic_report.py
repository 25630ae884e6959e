"""Who gets a topic, as text for people and for programs."""

import json

import pytest

from broker.operations.looking import topic_report
from broker.operations.looking.listing import Asked
from broker.operations.looking.rows import Problems
from broker.operations.looking.topic_readers import TopicReaders
from storage.local.memory import MemoryStore
from storage.tables.tables import CONNECTIONS, SUBSCRIPTIONS
from tests.broker.operations.looking.test_topic_readers import row

JSON = Asked(output="json")


def readers(*names: tuple[str, str]) -> TopicReaders:
    """Return the readers of "t"; the client "on" is connected."""
    store = MemoryStore([SUBSCRIPTIONS, CONNECTIONS])
    store.write([row(*name) for name in names])
    store.write([(CONNECTIONS, b"on", b"row")])
    return TopicReaders(store, "t", Problems())


def test_a_table_ends_with_counts_and_with_what_it_does_not_list() -> None:
    lines = list(
        topic_report.lines(
            Asked(),
            readers(("on", "t"), ("on", "+"), ("off", "#"), ("on", "$share/g/t"),
                    ("off", "$share/g/t")),
        )
    )  # fmt: skip
    assert [line.split() for line in lines[:5]] == [
        ["KIND", "NAME", "FILTER", "QOS", "NO_LOCAL", "CONNECTED", "MEMBERS", "GETS_IT"],
        ["session", "off", "#", "1", "no", "no", "-", "later"],
        ["session", "on", "+", "1", "no", "yes", "-", "now"],
        ["session", "on", "t", "1", "no", "yes", "-", "now"],
        ["group", "g", "t", "1", "-", "1", "2", "now"],
    ]
    assert lines[5:] == [
        "",
        "sessions: 2, connected: 1, their subscriptions: 3",
        "shared groups: 1, their members: 2, connected: 1",
        topic_report.CLEAN_SESSIONS,
    ]


def test_different_qos_of_members_and_members_left_out_are_told() -> None:
    store = MemoryStore([SUBSCRIPTIONS, CONNECTIONS])
    store.write([row(f"c{qos}", "$share/g/t", qos=qos) for qos in (2, 0)])
    store.write([row("d", "$share/h/t")])
    lines = list(topic_report.lines(Asked(), TopicReaders(store, "t", Problems(), groups_max=1)))
    assert lines[1].split()[:4] == ["group", "g", "t", "0-2"]
    assert "members of further groups: 1" in lines


def test_json_is_one_object_with_counts() -> None:
    names = (("on", "t"), ("off", "#"), ("off", "$share/g/t"), ("on", "$share/h/t"))
    told = json.loads("\n".join(topic_report.lines(JSON, readers(*names))))
    assert told["topic"] == "t"
    assert told["readers"] == [
        {"kind": "session", "name": "off", "topic_filter": "#", "qos": "1", "no_local": False,
         "connected": False, "members": None, "gets": "later"},
        {"kind": "session", "name": "on", "topic_filter": "t", "qos": "1", "no_local": False,
         "connected": True, "members": None, "gets": "now"},
        {"kind": "group", "name": "g", "topic_filter": "t", "qos": "1", "no_local": None,
         "connected": 0, "members": 1, "gets": "later"},
        {"kind": "group", "name": "h", "topic_filter": "t", "qos": "1", "no_local": None,
         "connected": 1, "members": 1, "gets": "now"},
    ]  # fmt: skip
    assert told["counts"]["sessions"] == 2
    assert told["counts"]["groups"] == 2


def test_json_without_readers_is_valid() -> None:
    told = json.loads("\n".join(topic_report.lines(JSON, readers())))
    assert told["readers"] == []


@pytest.mark.parametrize("output", ["table", "json"])
def test_all_are_counted_however_few_are_shown(output: str) -> None:
    names = (("a", "t"), ("b", "#"), ("b", "$share/g/t"), ("on", "$share/h/t"))
    for asked in (Asked(limit=1, output=output), Asked(match="h", sort="name", output=output)):
        lines = list(topic_report.lines(asked, readers(*names)))
        if output == "json":
            told = json.loads("\n".join(lines))
            assert [row["name"] for row in told["readers"]] == ["h" if asked.match else "a"]
            assert (told["counts"]["sessions"], told["counts"]["groups"]) == (2, 2)
        else:
            assert lines[1].split()[1] == ("h" if asked.match else "a")
            assert "sessions: 2, connected: 0, their subscriptions: 2" in lines


def test_hostile_names_cannot_disturb_the_terminal() -> None:
    names = (("a\x1b[31m\n", "+"), ("b", "$share/\x1b]0;x\x07/+"), ("c\u202e", "t"))
    lines = list(topic_report.lines(Asked(), readers(*names)))
    assert len(lines) == 8
    assert all(line.isprintable() for line in lines)
    assert lines[1].split()[1] == "a\\x1b[31m\\n"
