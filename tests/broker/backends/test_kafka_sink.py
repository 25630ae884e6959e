"""Does a real Kafka get every row in its order, whatever it answers or refuses?"""

import json
from collections.abc import Iterator
from typing import Any, Final
from uuid import uuid4

import pytest

from broker.backends.sink import UNKNOWN, Unavailable
from storage.tables.feed_rows import CONNECTED
from tests.broker.backends.kafka_server import PASSWORD, USER, KafkaServer, needs_kafka, servers
from tests.broker.backends.told_rows import INSTANCE, NOW_MS, batch, event, message, options, rule

kafka_sink = pytest.importorskip("broker.backends.kafka_sink")
pytestmark = [pytest.mark.full, needs_kafka]  # starts processes

ALL: Final = rule("message.publish", "#")
SINKS: Final[list[Any]] = []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A running Kafka, for all tests of this file."""
    yield from servers(tmp_path_factory.mktemp("kafka"))


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close what a test has opened."""
    yield
    while SINKS:
        SINKS.pop().close()


@pytest.fixture
def topic(server: KafkaServer) -> str:
    """A topic of two partitions."""
    return server.create(f"t-{uuid4().hex}", 2)


def made(server: KafkaServer, topic: str, *rules: dict[str, Any], **values: Any) -> Any:
    """Return a sink that is not connected."""
    values = {"servers": [server.address], "topic": topic, "timeout_ms": 10_000, **values}
    SINKS.append(kafka_sink.KafkaSink(options(*(rules or (ALL,)), **values)))
    return SINKS[-1]


def opened(server: KafkaServer, topic: str, *rules: dict[str, Any], **values: Any) -> Any:
    """Return a sink that is connected."""
    sink = made(server, topic, *rules, **values)
    assert sink.open() is UNKNOWN
    return sink


def numbered(*numbers: int, topic: str = "t") -> Any:
    """Return a batch of messages with these payloads, at these places."""
    rows = [message(number, topic, payload=b"%d" % number) for number in numbers]
    return batch((numbers[0] - 1, 0), (numbers[-1], 0), *rows)


def payloads(server: KafkaServer, topic: str) -> list[str]:
    """Return the payloads of all rows in a topic."""
    return [json.loads(value)["payload"] for value in server.values(topic)]


def test_a_row_has_key_headers_time_and_json(server: KafkaServer, topic: str) -> None:
    assert opened(server, topic).apply(numbered(4, topic="a/b"), INSTANCE) == []
    (found,) = server.messages(topic)
    told = json.loads(found.value())
    assert (told["payload"], told["topic"], found.key()) == ("4", "a/b", b"a/b")
    assert dict(found.headers()) == {
        "id": f"{INSTANCE}:4:0:{NOW_MS}".encode(), "hook": b"message.publish", "qos": b"1",
        "msgid": told["msgid"].encode(),
    }  # fmt: skip
    assert found.timestamp()[1] == NOW_MS


def test_the_key_may_be_the_client_and_the_value_the_payload(
    server: KafkaServer, topic: str
) -> None:
    rules = (ALL, rule("client.connected"))
    sink = opened(server, topic, *rules, key="clientid", value="payload")
    rows = [message(1, payload=b""), message(2, payload=b"\xff"), event(CONNECTED, "c", seq=4)]
    assert sink.apply(batch((0, 3), (2, 4), *rows), INSTANCE) == []
    found = sorted((each.key(), each.value()) for each in server.messages(topic))
    assert [key for key, _ in found] == [b"c", b"sender", b"sender"]
    assert [value for _, value in found[1:]] == [b"", b"\xff"]
    assert json.loads(found[0][1])["hook"] == "client.connected"


def test_rows_of_one_key_stay_in_order(server: KafkaServer, topic: str) -> None:
    sink = opened(server, topic)
    for start in range(1, 3001, 500):
        rows = [message(n, f"t{n % 7}", b"%d" % n) for n in range(start, start + 500)]
        assert sink.apply(batch((start - 1, 0), (start + 499, 0), *rows), INSTANCE) == []
    found = server.messages(topic)
    assert len(found) == 3000
    for key in {each.key() for each in found}:
        numbers = [int(json.loads(e.value())["payload"]) for e in found if e.key() == key]
        assert numbers == sorted(numbers)


def test_rows_may_choose_their_topic(server: KafkaServer) -> None:
    prefix = f"free-{uuid4().hex}"
    for name in ("a_b", "c"):
        server.create(f"{prefix}.{name}")
    sink = opened(server, prefix + ".${topic}", timeout_ms=3000)
    rows = [message(1, "a/b"), message(2, "c"), message(3, "absent"), message(4, "x" * 250)]
    found = sink.apply(batch((0, 0), (4, 0), *rows), INSTANCE)
    assert [each.row for each in found] == [2, 3]
    assert "nknown topic" in found[0].why and "249" in found[1].why
    assert [len(server.messages(f"{prefix}.{name}")) for name in ("a_b", "c")] == [1, 1]


def test_a_row_that_is_too_large_is_found_and_the_others_arrive(server: KafkaServer) -> None:
    topic = server.create(f"small-{uuid4().hex}", max_message_bytes="2000")
    sink = opened(server, topic)
    rows = [message(1, payload=b"1"), message(2, payload=bytes(5000)), message(3, payload=b"3")]
    (found,) = sink.apply(batch((0, 0), (3, 0), *rows), INSTANCE)
    assert (found.row, found.rule) == (1, 1)
    assert "too large" in found.why
    assert payloads(server, topic) == ["1", "3"]
    assert sink.apply(numbered(4), INSTANCE) == []
    assert payloads(server, topic) == ["1", "3", "4"]


def test_small_rows_are_no_dead_letters_where_only_all_together_are_too_large(
    server: KafkaServer,
) -> None:
    topic = server.create(f"small-{uuid4().hex}", max_message_bytes="2000")
    assert opened(server, topic).apply(numbered(*range(1, 101)), INSTANCE) == []
    assert sorted(map(int, set(payloads(server, topic)))) == list(range(1, 101))


def test_a_topic_that_is_not_there_lets_rows_wait(server: KafkaServer) -> None:
    name = f"late-{uuid4().hex}"
    sink = made(server, name, timeout_ms=6000)
    with pytest.raises(Unavailable, match=f"topic {name}: .*nknown topic"):
        sink.open()
    server.create(name)
    sink.open()
    sink.apply(numbered(1), INSTANCE)
    server.delete(name)
    with pytest.raises(Unavailable):
        sink.apply(numbered(2), INSTANCE)
    with pytest.raises(Unavailable, match="not connected"):
        sink.apply(numbered(2), INSTANCE)


def test_a_server_that_is_not_there_is_named(server: KafkaServer) -> None:
    sink = made(server, "t", servers=["127.0.0.1:1"], timeout_ms=500)
    with pytest.raises(Unavailable, match=r"127.0.0.1:1: .*refused"):
        sink.open()


def test_a_server_that_hangs_lets_rows_wait_and_gets_them_afterwards(
    server: KafkaServer, topic: str
) -> None:
    sink = opened(server, topic, timeout_ms=1000)
    sink.apply(numbered(1), INSTANCE)
    server.freeze()
    try:
        with pytest.raises(Unavailable, match="no answer"):
            sink.apply(numbered(2, 3), INSTANCE)
        with pytest.raises(Unavailable):
            sink.open()
    finally:
        server.thaw()
    again = opened(server, topic)
    again.apply(numbered(2, 3), INSTANCE)
    found = payloads(server, topic)
    assert found[0] == "1" and found[-2:] == ["2", "3"] and set(found) == {"1", "2", "3"}


def named(server: KafkaServer, **values: Any) -> dict[str, Any]:
    """Return the options of a client that has a name."""
    return {
        "servers": [f"127.0.0.1:{server.named_port}"], "username": USER, "password": PASSWORD,
        **values,
    }  # fmt: skip


def test_a_wrong_password_and_a_forbidden_topic_let_rows_wait(
    server: KafkaServer, topic: str
) -> None:
    with pytest.raises(Unavailable, match="uthentication"):
        made(server, topic, **named(server, password="wrong", timeout_ms=1500)).open()
    with pytest.raises(Unavailable, match="uthoriz"):
        made(server, topic, **named(server)).open()
    server.allow(topic)
    assert opened(server, topic, **named(server)).apply(numbered(1), INSTANCE) == []
    assert payloads(server, topic) == ["1"]


def test_a_user_who_may_write_nowhere_lets_rows_wait(
    server: KafkaServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """His producer gets no id, which the client calls fatal: it raises from any call."""
    server.forbid()
    for _ in range(8):  # the server may refuse the topic first, or the producer
        sink = opened(server, "w.${topic}", **named(server, timeout_ms=5000))
        with pytest.raises(Unavailable, match="uthoriz"):
            sink.apply(numbered(1), INSTANCE)
    with pytest.raises(Unavailable, match="not connected"):
        sink.look()
    sink.open()
    with pytest.raises(Unavailable, match="uthoriz"):
        while True:
            sink.look()
    assert capfd.readouterr() == ("", "")
    server.allow("w.")
    server.create("w.t")
    sink.open()
    assert sink.apply(numbered(1), INSTANCE) == []
    assert payloads(server, "w.t") == ["1"]


def test_both_ends_show_certificates(server: KafkaServer, topic: str) -> None:
    certificate, key = server.authority.issue("holdfast")
    values = {
        "servers": [f"127.0.0.1:{server.tls_port}"], "tls": True, "timeout_ms": 15_000,
        "tls_ca": str(server.authority.file), "tls_certificate": str(certificate),
        "tls_key": str(key),
    }  # fmt: skip
    assert opened(server, topic, **values).apply(numbered(1), INSTANCE) == []
    assert payloads(server, topic) == ["1"]
    values["timeout_ms"] = 5_000  # a refusal is waited for until then
    with pytest.raises(Unavailable, match="SSL handshake failed"):
        made(server, topic, **{**values, "tls_ca": None}).open()
    trusting = opened(server, topic, **{**values, "tls_ca": None, "tls_verify": False})
    assert any("tls_verify" in each for each in trusting.health()["problems"])
    with pytest.raises(Unavailable):  # no certificate of ours
        made(server, topic, **{**values, "tls_certificate": None, "tls_key": None}).open()
    with pytest.raises(Unavailable, match=r"ssl\.ca\.location failed"):
        made(server, topic, **{**values, "tls_ca": "absent"}).open()


def test_a_forbidden_topic_that_a_row_has_chosen_is_a_dead_letter(server: KafkaServer) -> None:
    prefix = uuid4().hex
    for name in ("free", "other"):
        server.create(f"{name}-{prefix}")
    server.allow("free")
    sink = opened(server, "${topic}-" + prefix, **named(server))
    (found,) = sink.apply(numbered(1, topic="other"), INSTANCE)
    assert found.row == 0 and "uthoriz" in found.why
    rows = [message(1, "other"), message(2, "free")]
    (found,) = sink.apply(batch((0, 0), (2, 0), *rows), INSTANCE)
    assert found.row == 0 and "uthoriz" in found.why
    assert len(server.messages(f"free-{prefix}")) == 1


def test_topics_that_rows_choose_do_not_fill_the_memory(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_sink, "TOPICS_MAX", 1)
    prefix = uuid4().hex
    for name in "abc":
        server.create(f"{prefix}.{name}")
    sink = opened(server, prefix + ".${topic}")
    for number, name in enumerate("abc", 1):
        assert sink.apply(numbered(number, topic=name), INSTANCE) == []
    assert sink._topics == {f"{prefix}.c"}
    assert [payloads(server, f"{prefix}.{name}") for name in "abc"] == [["1"], ["2"], ["3"]]


def test_health_says_what_the_cluster_is(server: KafkaServer, topic: str) -> None:
    health = opened(server, topic).health()
    assert health["server"] == "Kafka" and "1 broker" in health["version"]
    assert health["problems"] == [f"topic {topic} has one replica: with its disk, rows are lost"]
    free = opened(server, "x.${topic}", **named(server)).health()
    assert free["problems"] == ["rows are not encrypted on their way: tls = true"]


def test_a_password_may_be_in_a_file(server: KafkaServer, tmp_path: Any) -> None:
    secret = tmp_path / "secret"
    values = named(server, password=None, password_file=str(secret))
    with pytest.raises(Unavailable, match="secret"):
        made(server, "x.${topic}", **values).open()
    secret.write_text(PASSWORD + "\n")
    opened(server, "x.${topic}", **values)
