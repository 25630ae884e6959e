"""`holdfast cluster` answers what the topic is like, and each failure in a line."""

from pathlib import Path
from typing import Any

import pytest

from broker.cli.main import main
from tests.broker.cli.commands import ROOT, Run, complaint
from tests.stand_in import replace_in

cluster_topic: Any = pytest.importorskip("broker.operations.cluster_topic")
topic: Any = pytest.importorskip("storage.replicated.kafka.topic")


class Servers:
    """What the Kafka brokers say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_new = True
        self.problems: list[str] = []
        self.refusal = ""
        self.asked: list[tuple[str, str, int]] = []
        replace_in(
            monkeypatch, cluster_topic, "topic", create_topic=self.create, check_topic=self.check
        )

    def create(self, access: Any, name: str, replicas: int) -> bool:
        self.asked.append(("create", name, replicas))
        if self.refusal:
            raise topic.TopicError(self.refusal)
        return self.is_new

    def check(self, access: Any, name: str, replicas: int, *, is_new: bool) -> list[str]:
        self.asked.append(("check", name, replicas))
        if self.refusal:
            raise topic.TopicError(self.refusal)
        return self.problems


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    monkeypatch.setenv("HOLDFAST__STORAGE__KAFKA__SERVERS", "127.0.0.1:1")
    return Servers(monkeypatch)


def answers(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str], list[str]]:
    """Run a command; return its status, and the lines of stdout and stderr."""
    status = main(["cluster", *words])
    found = capsys.readouterr()
    return status, found.out.splitlines(), found.err.splitlines()


def test_init_makes_the_topic_and_checks_it(
    servers: Servers, capsys: pytest.CaptureFixture[str]
) -> None:
    done = ["topic holdfast: made", "topic holdfast: is as it must be"]
    assert answers(capsys, "init") == (0, done, [])
    assert servers.asked == [("create", "holdfast", 3), ("check", "holdfast", 3)]
    servers.is_new = False
    assert answers(capsys, "init")[:2] == (0, ["topic holdfast: is there", done[1]])


def test_what_is_wrong_is_a_line_each(servers: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    servers.problems = ["topic t: one", "topic t: two"]
    told = ["holdfast: topic t: one", "holdfast: topic t: two"]
    assert answers(capsys, "check") == (1, [], told)
    assert answers(capsys, "init") == (1, ["topic holdfast: made"], told)


def test_replicas_are_those_of_the_flag(
    servers: Servers, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answers(capsys, "check", "--replicas", "5")[0] == 0
    assert servers.asked == [("check", "holdfast", 5)]
    status, _, (line,) = answers(capsys, "check", "--replicas", "many")
    assert (status, "flag --replicas: storage.kafka.replicas = 'many'" in line) == (2, True)


@pytest.mark.parametrize("action", ["init", "check"])
def test_a_refusal_is_one_line(
    servers: Servers, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    servers.refusal = "127.0.0.1:1: topic holdfast: no way there"
    assert answers(capsys, action) == (1, [], [f"holdfast: {servers.refusal}"])


@pytest.mark.parametrize("action", ["init", "check"])
def test_without_servers_nothing_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.delenv("HOLDFAST__STORAGE__KAFKA__SERVERS", raising=False)
    told = "holdfast: storage.kafka.servers is missing: expected host:port of the Kafka brokers"
    assert answers(capsys, action) == (2, [], [told])


@pytest.mark.full  # starts a process
@pytest.mark.parametrize("action", ["init", "check"])
def test_without_the_extra_it_is_said_how_to_get_it(run: Run, tmp_path: Path, action: str) -> None:
    # As if it was not installed: `find_spec` finds nothing, and nobody can import it.
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['confluent_kafka'] = None")
    said = run(
        "cluster",
        action,
        PYTHONPATH=f"{tmp_path}:{ROOT}",
        HOLDFAST__STORAGE__KAFKA__SERVERS="127.0.0.1:1",
    )
    assert "the package confluent_kafka is missing: pip install '.[kafka]'" in complaint(said, 2)
