"""What is asked of the show in a wrong way. The whole show: `tests.replication.test_operating`."""

from collections.abc import Sequence

import pytest

from broker.cli.cluster_demo import play
from broker.cli.demo import DemoError
from broker.cli.main import main
from tests.stand_in import replace_in

pytest.importorskip("confluent_kafka")


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("--kafka", "/x"), 2, "--kafka and --servers are for --cluster"),
        (("--cluster", "--kafka", "/x", "--servers", "a:1"), 2, "expected one of them"),
        (("--cluster",), 1, "no Kafka: say --kafka DIR"),
        (("--cluster", "--servers", "nowhere"), 1, "--servers: environment "),
    ],
)
def test_a_mistake_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: Sequence[str],
    status: int,
    told: str,
) -> None:
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    assert main(["demo", *words]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("holdfast: ") and told in line


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "find_spec", lambda name: None)
    with pytest.raises(DemoError, match="the extra 'kafka': pip install"):
        play.play("a:1", None)


def test_every_show_has_a_topic_of_its_own() -> None:
    first, second = (play._options("a:1,b:2") for _ in range(2))
    assert first.topic != second.topic
    assert first.servers == ("a:1", "b:2")


def test_a_topic_that_cannot_be_made_is_one_line() -> None:
    from broker.operations import cluster_topic
    from storage.replicated.kafka.topic import TopicError

    def refuse(cluster: object) -> bool:
        raise TopicError("no servers")

    with pytest.MonkeyPatch.context() as patch:
        replace_in(patch, cluster_topic, "topic", create_topic=lambda *rest: refuse(rest))
        with pytest.raises(DemoError, match="no servers"), play._topic("a:1"):
            pass
