"""Is every setting that would lose what was acknowledged told in one line?"""

from typing import Any

import pytest

from tests.storage.replicated.kafka.stand_ins import PATIENCE_S

topic: Any = pytest.importorskip("storage.replicated.kafka.topic")
client: Any = pytest.importorskip("storage.replicated.kafka.client")

RIGHT: dict[str, str] = {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": "1048576",
    "message.timestamp.type": "CreateTime",
}


def told(sizes: list[int], replicas: int = 3, **changed: str) -> list[str]:
    values = RIGHT | {key.replace("_", "."): value for key, value in changed.items()}
    return list(topic.problems(sizes, values, replicas))


def test_a_topic_as_it_must_be_has_no_problem() -> None:
    assert told([3]) == []
    assert told([5], min_insync_replicas="4") == []
    assert told([2], 2) == []
    assert told([1], 1, min_insync_replicas="1") == []


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("min.insync.replicas", "1", "expected 2 with 3 replica(s)"),
        ("min.insync.replicas", "3", "expected 2 with 3 replica(s)"),
        ("min.insync.replicas", "many", "expected 2 with 3 replica(s)"),
        ("unclean.leader.election.enable", "true", "expected false: a leader may lack"),
        ("cleanup.policy", "compact", "expected delete: compaction would delete"),
        ("cleanup.policy", "compact,delete", "expected delete: compaction would delete"),
        ("retention.ms", "604800000", "expected -1: old records would be deleted"),
        ("retention.bytes", "1000", "expected -1: old records would be deleted"),
        ("max.message.bytes", "65536", f"expected at least {topic.SET_BYTES_MAX}"),
    ],
)
def test_a_wrong_setting_is_one_line(key: str, value: str, expected: str) -> None:
    (line,) = told([3], **{key.replace(".", "_"): value})
    assert line.startswith(f"{key} = {value}: {expected}")


def test_replicas_and_partitions_are_counted() -> None:
    assert told([2])[0] == "2 replica(s): expected at least 3"
    assert told([3, 3]) == [
        "2 partitions: expected exactly 1, or records have no common order",
    ]
    assert told([5], min_insync_replicas="1")[0].startswith("min.insync.replicas = 1: expected 2 ")


def test_what_is_not_told_is_wrong() -> None:
    assert len(list(topic.problems([3], {}, 3))) == 1 + len(topic.FIXED) + 1


@pytest.mark.parametrize(("replicas", "least"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_most_replicas_must_have_a_record(replicas: int, least: int) -> None:
    assert topic.in_sync(replicas) == least
    assert told([replicas], replicas, min_insync_replicas=str(least)) == []


def test_servers_that_cannot_be_reached_are_one_line() -> None:
    access = client.Access(("127.0.0.1:1",))
    for call in (topic.create_topic, topic.check_topic):
        with pytest.raises(topic.TopicError, match=r"^127.0.0.1:1: topic log: .*refused") as told:
            call(access, "log", timeout_s=1.0)
        assert "\n" not in str(told.value)


def test_a_password_that_is_not_there_is_one_line() -> None:
    access = client.Access(("127.0.0.1:1",), username="u", password_file="/nowhere/p")
    with pytest.raises(topic.TopicError, match="password_file /nowhere/p: No such file"):
        topic.check_topic(access, "log", timeout_s=PATIENCE_S)
