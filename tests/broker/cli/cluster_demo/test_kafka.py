"""Is Kafka found where it is said to be, started, and told of when it does not start?"""

import sys
from pathlib import Path

import pytest

from broker.cli.cluster_demo import kafka
from broker.cli.demo import DemoError

# A Java that prepares a directory, and a broker that only listens.
JAVA = f"""#!{sys.executable}
import re, socket, sys, time
settings = open(sys.argv[-1]).read()
if "kafka.Kafka" in sys.argv:
    port = int(re.search(r"PLAINTEXT://127.0.0.1:(\\d+)", settings)[1])
    server = socket.create_server(("127.0.0.1", port))
    while True:
        server.accept()[0].close()
assert "format" in sys.argv
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return an installation, as far as it can be seen from outside."""
    (tmp_path / "kafka" / "libs").mkdir(parents=True)
    (tmp_path / "kafka" / "libs" / "kafka_2.13-4.1.0.jar").write_text("")
    (tmp_path / "bin").mkdir()
    java(tmp_path, JAVA)
    return tmp_path


def java(place: Path, text: str) -> None:
    path = place / "bin" / "java"
    path.write_text(text)
    path.chmod(0o755)


def started(place: Path) -> kafka.Kafka:
    found = kafka.find(str(place / "kafka"), {"JAVA_HOME": str(place)})
    directory = place / "show"
    directory.mkdir()
    return kafka.Kafka(*found, directory)


def test_it_is_found_by_option_or_environment(place: Path) -> None:
    by = {"KAFKA_HOME": str(place / "kafka"), "PATH": str(place / "bin")}
    wanted = (place / "kafka" / "libs", str(place / "bin" / "java"))
    assert kafka.find(None, by) == wanted
    assert kafka.find(str(place / "kafka" / "libs"), {"JAVA_HOME": str(place)}) == wanted


def test_what_is_missing_is_one_line_that_says_how_to_get_it(place: Path) -> None:
    for directory, environment, told in (
        (None, {}, "no Kafka: say --kafka DIR .*kafka.apache.org/downloads.*--servers HOST:PORT"),
        (str(place), {}, f"{place}: no Kafka in it: expected libs/kafka_2.13-VERSION.jar"),
        (str(place / "kafka"), {"PATH": str(place)}, "Kafka needs Java 17 or newer"),
    ):
        with pytest.raises(DemoError, match=told) as raised:
            kafka.find(directory, environment)
        assert "\n" not in str(raised.value)


def test_three_brokers_are_prepared_and_started_and_ended(place: Path) -> None:
    brokers = started(place)
    try:
        assert brokers.start() >= 0
        assert len(brokers.servers.split(",")) == kafka.BROKERS
        assert all(kafka._listens(port) for port in brokers.ports)
    finally:
        brokers.close()
        brokers.close()
    assert not any(kafka._listens(port) for port in brokers.ports)


def test_a_kafka_that_ends_is_told_with_its_last_words(place: Path) -> None:
    java(place, "#!/bin/sh\necho first; echo; echo 'no room in here'; echo; exit 3\n")
    brokers = started(place)
    try:
        with pytest.raises(DemoError, match="Kafka ended with 3: no room in here"):
            brokers.start()
    finally:
        brokers.close()


def test_a_kafka_that_says_nothing_is_told(place: Path) -> None:
    java(place, "#!/bin/sh\nexit 4\n")
    brokers = started(place)
    try:
        with pytest.raises(DemoError, match="Kafka ended with 4: it said nothing"):
            brokers.start()
    finally:
        brokers.close()
