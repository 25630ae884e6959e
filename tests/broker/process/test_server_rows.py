"""A real broker, and a receiver that keeps no cursor: every row arrives, whoever is killed."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.broker.backends.kafka_server import KafkaServer, needs_kafka, servers
from tests.broker.backends.webhook_server import Received, Receiver, Reply, receivers
from tests.broker.process.starts import events
from tests.broker.process.test_server_backends import (
    PATIENCE_S,
    command,
    processes_of,
    status,
    until,
)
from tests.durability.load import Publisher
from tests.durability.process import ROOT, BrokerProcess, free_port
from tests.durability.rawclient import RawClient

pytestmark = pytest.mark.full  # starts processes

RULE: Final = '[[rules]]\non = "message.publish"\ntopic = "load/#"\nbackend = "out"\n'
KEY: Final = b"of the signature"
Row = dict[str, Any]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A running receiver that takes everything."""
    yield from receivers()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A running Kafka."""
    yield from servers(tmp_path_factory.mktemp("kafka"))


def feed(broker: BrokerProcess, options: str, rules: str = RULE) -> None:
    """Configure a broker that is not started yet."""
    path = broker.directory / "holdfast.toml"
    path.write_text(f'[backends.out]\nnode = "edge"\n{options}\n{rules}')
    broker.arguments = ("--config", str(path))


def webhook(receiver: Receiver, more: str = "") -> str:
    """Return the options of a webhook."""
    return f'type = "webhook"\nurl = "{receiver.url}"\nsecret = "{KEY.decode()}"\n{more}'


def started(broker: BrokerProcess, count: int, rate: int) -> list[Publisher]:
    """Return clients that publish."""
    publishers = [
        Publisher(broker.port, f"p{number}", qos=2, version=5, rate=rate) for number in range(count)
    ]
    for publisher in publishers:
        publisher.start()
    return publishers


def finish(publishers: list[Publisher]) -> None:
    """Let clients finish, and see that the broker kept its promises to them."""
    for publisher in publishers:
        publisher.finish()
    for publisher in publishers:
        publisher.join(PATIENCE_S)
        assert publisher.violations == []
        assert not publisher.is_alive()


def missing(rows: list[Row], publishers: list[Publisher]) -> int:
    """Return how many acknowledged messages are not there; check identifiers and order."""
    first: dict[str, Row] = {}
    for row in rows:
        known = first.setdefault(row["id"], row)
        assert known == row, "one identifier, two rows"
    numbers: dict[str, list[int]] = {}
    for row in first.values():
        numbers.setdefault(row["topic"], []).append(int(row["payload"]))
    for found in numbers.values():
        assert found == sorted(set(found)), "out of order, or two identifiers for one message"
    wanted = {each for publisher in publishers for each in publisher.acknowledged}
    return len(wanted - {(row["topic"], int(row["payload"])) for row in first.values()})


def kill_process(broker: BrokerProcess) -> None:
    """Kill the process of the one backend."""
    (process,) = processes_of(broker)
    os.kill(process, signal.SIGKILL)


def test_a_webhook_gets_every_row_whoever_is_killed(
    prepare: Callable[..., BrokerProcess], receiver: Receiver
) -> None:
    broker = prepare()
    feed(broker, webhook(receiver))
    broker.start()
    count = itertools.count(1)

    def decide(request: Received) -> Reply | None:
        assert request.is_signed(KEY)
        number = next(count)
        if number % 7 == 0:
            return Reply(503)
        if number % 11 == 0:
            receiver.keep(request)  # and nobody hears that
            return None
        return Reply()

    receiver.decide = decide
    publishers = started(broker, 2, 1500)
    for kill_broker, kill_receiver, kill_child in ((0, 1, 0), (1, 0, 0), (0, 0, 1), (1, 1, 0)) * 2:
        seen = len(receiver.payloads())
        until(lambda seen=seen: len(receiver.payloads()) > seen + 200, broker)  # type: ignore[misc]
        if kill_child:
            kill_process(broker)
        if kill_receiver:
            receiver.kill()
        if kill_broker:
            broker.crash()
        if kill_receiver:
            receiver.start()
    finish(publishers)
    until(lambda: missing(receiver.taken, publishers) == 0, broker)
    until(lambda: status(broker)["rows_behind"] == 0, broker)
    told = status(broker)
    assert (told["gaps"], told["dead_letters"]) == (0, 0)
    metrics = broker.metrics()
    assert metrics['holdfast_backend_rewinds_total{backend="out"}'] == 0
    assert "backend_rewound" not in events(broker)


def test_a_webhook_gets_messages_with_qos_0_if_it_asks_and_the_user_of_a_client(
    prepare: Callable[..., BrokerProcess], receiver: Receiver
) -> None:
    broker = prepare()
    asking = RULE.replace("load/#", "zero/#") + "qos0 = true\n"
    who = '[[rules]]\non = "session.subscribed"\ntopic = "#"\nbackend = "out"\n'
    feed(broker, webhook(receiver), RULE + asking + who)
    broker.start()
    client = RawClient(broker.port, "c")
    client.connect(username="ann")
    client.subscribe("none", qos=1)
    for topic in ("zero/1", "load/1"):
        for qos in (0, 1, 2, 0):
            client.publish(topic, b"%d" % qos, qos=qos)
    client.publish("zero/1", b"end", qos=1)
    until(lambda: any(row.get("payload") == "end" for row in receiver.taken), broker)
    rows = [row for row in receiver.taken if row["hook"] == "message.publish"]
    assert [(row["topic"], row["qos"], row["payload"]) for row in rows] == [
        ("zero/1", 0, "0"), ("zero/1", 1, "1"), ("zero/1", 2, "2"), ("zero/1", 0, "0"),
        ("load/1", 1, "1"), ("load/1", 2, "2"), ("zero/1", 1, "end"),
    ]  # fmt: skip
    assert {row["username"] for row in rows} == {"ann"}
    assert len({row["id"] for row in rows}) == len({row["msgid"] for row in rows}) == len(rows)
    (row,) = [row for row in receiver.taken if row["hook"] == "session.subscribed"]
    assert (row["clientid"], row["username"], row["topic"]) == ("c", "ann", "none")
    client.drop()


def test_a_row_that_a_receiver_refuses_is_a_dead_letter_and_the_rest_flows(
    prepare: Callable[..., BrokerProcess], receiver: Receiver
) -> None:
    broker = prepare()
    feed(broker, webhook(receiver))
    broker.start()
    receiver.decide = lambda request: Reply(422 if "bad" in request.payloads else 200)
    client = RawClient(broker.port, "c")
    client.connect()
    for payload in (b"a", b"bad", b"b"):
        client.publish("load/1", payload, qos=1)
    until(lambda: receiver.payloads() == ["a", "b"], broker)
    until(lambda: status(broker)["dead_letters"] == 1, broker)
    assert "422" in str(events(broker)["backend_dead_letter"]["message"])
    code, out, err = command(broker, "check")
    assert (code, err) == (0, "")
    assert "kept by the broker" in out
    client.drop()


def test_a_receiver_that_hangs_fills_no_memory_and_gets_all_of_it_later(
    prepare: Callable[..., BrokerProcess], receiver: Receiver
) -> None:
    broker = prepare()
    feed(broker, webhook(receiver, 'timeout = "1s"'))
    broker.start()
    until(lambda: status(broker)["state"] == "connected", broker)
    release = threading.Event()

    def hang(request: Received) -> Reply | None:
        release.wait(PATIENCE_S)
        return None

    receiver.decide = hang
    client = RawClient(broker.port, "c")
    client.connect()
    client.publish("load/1", bytes(60_000), qos=1)
    until(lambda: len(receiver.requests) >= 1, broker)
    before = child_bytes(broker)
    for _ in range(1000):
        client.publish("load/1", bytes(60_000), qos=1)
    count = len(receiver.requests)
    until(lambda: len(receiver.requests) >= count + 3, broker)
    assert child_bytes(broker) < before + (48 << 20)
    receiver.decide = lambda request: Reply()
    release.set()
    until(lambda: len({row["id"] for row in receiver.taken}) == 1001, broker)
    assert child_bytes(broker) < before + (48 << 20)
    client.drop()


def child_bytes(broker: BrokerProcess) -> int:
    """Return the resident memory of the process of the one backend."""
    (process,) = processes_of(broker)
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmRSS")


@needs_kafka
def test_kafka_gets_every_row_in_order_whoever_is_killed(
    prepare: Callable[..., BrokerProcess], server: KafkaServer
) -> None:
    topic = server.create("load", 3)
    broker = prepare()
    feed(
        broker, f'type = "kafka"\nservers = "{server.address}"\ntopic = "{topic}"\ntimeout = "2s"\n'
    )
    broker.start()

    def rows() -> list[Row]:
        return [json.loads(value) for value in server.values(topic)]

    publishers = started(broker, 2, 1000)
    for kill_broker, kill_kafka, kill_child in ((0, 1, 0), (1, 0, 0), (0, 0, 1), (1, 1, 0)):
        seen = len(rows())
        until(lambda seen=seen: len(rows()) > seen + 200, broker)  # type: ignore[misc]
        if kill_child:
            kill_process(broker)
        if kill_kafka:
            server.kill()
        if kill_broker:
            broker.crash()
        if kill_kafka:
            server.start()
    finish(publishers)
    until(lambda: missing(rows(), publishers) == 0, broker)
    until(lambda: status(broker)["rows_behind"] == 0, broker)
    told = status(broker)
    assert (told["gaps"], told["dead_letters"]) == (0, 0)
    assert broker.metrics()['holdfast_backend_rewinds_total{backend="out"}'] == 0


# What the documents show


def shown(section: str, language: str) -> str:
    """Return the first example of a section of docs/backends.md: of Python, or of TOML."""
    text = (ROOT / "docs" / "backends.md").read_text()
    body = text[text.index(f"\n## {section}\n") :]
    if language == "python":
        return body.split("```python\n", 1)[1].split("```", 1)[0]
    lines = itertools.dropwhile(
        lambda line: not line.startswith("    [backends."), body.split("\n")
    )
    block = itertools.takewhile(lambda line: not line or line.startswith("    "), lines)
    return "\n".join(line.removeprefix("    ") for line in block)


def example(broker: BrokerProcess, section: str, place: str, here: str) -> subprocess.Popen[bytes]:
    """Configure a broker as a section shows; start the program that is shown there."""
    toml, program = shown(section, "toml"), shown(section, "python")
    assert place in toml
    path = broker.directory / "holdfast.toml"
    path.write_text(toml.replace(place, here))
    broker.arguments = ("--config", str(path))
    script = broker.directory / "shown.py"
    script.write_text(moved(program, place, here))
    return subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)


def moved(program: str, place: str, here: str) -> str:
    """Return a program with the address of this test."""
    host, port = here.rsplit(":", 1)
    there = place.rsplit(":", 1)
    written = f'("{there[0]}", {there[1]})'
    assert (place in program) != (written in program)
    return program.replace(place, here).replace(written, f'("{host}", {port})')


def lines_of(program: subprocess.Popen[bytes], count: int) -> list[bytes]:
    """Return the first lines that a program prints, and end it."""
    assert program.stdout is not None
    with program:
        found = [program.stdout.readline().strip() for _ in range(count)]
        program.kill()
    return found


def test_the_receiver_in_the_documents_works(prepare: Callable[..., BrokerProcess]) -> None:
    broker = prepare()
    program = example(broker, "Webhook", "127.0.0.1:8080", f"127.0.0.1:{free_port()}")
    broker.start()
    client = RawClient(broker.port, "c")
    client.connect()
    client.publish("orders/1", b"tea", qos=1)
    client.publish("other", b"no", qos=1)
    client.publish("orders/2", b"milk", qos=1)
    assert lines_of(program, 3) == [
        b"client.connected c", b"message.publish c tea", b"message.publish c milk",
    ]  # fmt: skip
    client.drop()


@needs_kafka
def test_the_consumer_in_the_documents_works(
    prepare: Callable[..., BrokerProcess], server: KafkaServer
) -> None:
    server.create("mqtt")
    broker = prepare()
    program = example(broker, "Kafka", "127.0.0.1:9092", server.address)
    broker.start()
    client = RawClient(broker.port, "c")
    client.connect()
    client.publish("orders/1", b"tea", qos=1)
    assert lines_of(program, 1) == [b"orders/1 tea"]
    client.drop()
