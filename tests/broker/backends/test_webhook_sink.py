"""Does a real HTTP server get every row, whatever it answers, and is each request signed?"""

import base64
import email.utils
import itertools
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from broker.backends.sink import UNKNOWN, Unavailable, Unusable
from broker.backends.webhook_sink import WebhookSink
from storage.tables.feed_rows import ACKED
from tests.broker.backends.told_rows import (
    INSTANCE,
    NODE,
    NOW_MS,
    batch,
    event,
    message,
    options,
    rule,
)
from tests.broker.backends.webhook_server import PATIENCE_S, Received, Receiver, Reply, receivers
from tests.broker.network.certificates import LOOPBACK, Authority

KEY: Final = b"0123456789abcdef01234567"
SECRET: Final = f"whsec_{base64.b64encode(KEY).decode()}"
ALL: Final = rule("message.publish", "#")
SINKS: Final[list[WebhookSink]] = []


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A running receiver that takes everything."""
    yield from receivers()


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close what a test has opened."""
    yield
    while SINKS:
        SINKS.pop().close()


def made(url: str, *rules: dict[str, Any], **values: Any) -> WebhookSink:
    """Return a sink that is not connected."""
    values = {"url": url, "timeout_ms": 10_000, **values}
    SINKS.append(WebhookSink(options(*(rules or (ALL,)), **values)))
    return SINKS[-1]


def opened(receiver: Receiver, *rules: dict[str, Any], **values: Any) -> WebhookSink:
    """Return a sink that is connected."""
    sink = made(receiver.url, *rules, **values)
    assert sink.open() is UNKNOWN
    return sink


def numbered(*numbers: int) -> Any:
    """Return a batch of messages with these payloads, at these places."""
    rows = [message(number, payload=b"%d" % number) for number in numbers]
    return batch((numbers[0] - 1, 3), (numbers[-1], 3), *rows)


def test_rows_come_as_json_with_the_cursors_around_them(receiver: Receiver) -> None:
    assert opened(receiver).apply(numbered(4, 7), INSTANCE) == []
    (request,) = receiver.requests
    told = dict(request.told)
    rows = told.pop("rows")
    assert told == {
        "backend": "cache", "node": NODE, "instance": INSTANCE, "after": [3, 3], "upto": [7, 3],
    }  # fmt: skip
    assert [(row["id"], row["payload"]) for row in rows] == [
        (f"{INSTANCE}:4:0:{NOW_MS}", "4"),
        (f"{INSTANCE}:7:0:{NOW_MS}", "7"),
    ]
    assert request.path == "/rows"
    assert request.headers["content-type"] == "application/json"


def test_a_batch_that_no_rule_wants_is_not_sent(receiver: Receiver) -> None:
    assert opened(receiver).apply(batch((0, 0), (0, 1), event(ACKED)), INSTANCE) == []
    assert receiver.requests == []


def test_a_connection_begins_with_a_batch_without_rows(receiver: Receiver) -> None:
    opened(receiver, secret=SECRET)
    (probe,) = receiver.probes
    assert probe.is_signed(KEY) and probe.told["after"] == probe.told["upto"] == [0, 0]


@pytest.mark.parametrize(("secret", "key"), [(SECRET, KEY), ("plain text", b"plain text")])
def test_requests_are_signed(receiver: Receiver, secret: str, key: bytes) -> None:

    opened(receiver, secret=secret).apply(numbered(1), INSTANCE)
    (request,) = receiver.requests
    assert request.is_signed(key)
    assert not Received(request.path, request.headers, request.body + b" ").is_signed(key)
    later = {**request.headers, "webhook-timestamp": "1542338754"}
    assert not Received(request.path, later, request.body).is_signed(key)
    assert "webhook-signature" not in signed_without_a_secret(receiver).headers


def signed_without_a_secret(receiver: Receiver) -> Received:
    """Return a request that was sent without a secret."""
    opened(receiver).apply(numbered(2), INSTANCE)
    return receiver.requests[-1]


def test_secrets_may_be_in_files_and_may_change(receiver: Receiver, tmp_path: Path) -> None:
    secret, password = tmp_path / "secret", tmp_path / "password"
    values = {"secret_file": str(secret), "username": "ü", "password_file": str(password)}
    sink = made(receiver.url, **values)
    with pytest.raises(Unavailable, match="secret_file"):
        sink.open()
    secret.write_text("whsec_no base64\n")
    password.write_text("pass:word\n")
    with pytest.raises(Unavailable, match="base64"):
        sink.open()
    secret.write_text("first\n")
    sink.open()
    secret.write_text("second\n")
    sink.open()
    first, second = receiver.probes
    assert first.is_signed(b"first") and second.is_signed(b"second")
    wanted = base64.b64encode("ü:pass:word".encode()).decode()
    assert receiver.probes[0].headers["authorization"] == f"Basic {wanted}"


def test_headers_may_be_added(receiver: Receiver) -> None:
    opened(receiver, headers=[["X-Plant", "7"], ["Authorization", "Bearer x"]])
    headers = receiver.probes[0].headers
    assert (headers["x-plant"], headers["authorization"]) == ("7", "Bearer x")


def test_a_batch_that_is_sent_again_has_the_same_key(receiver: Receiver) -> None:
    receiver.decide = lambda request: Reply(500 if len(receiver.requests) == 1 else 200)
    sink = opened(receiver)
    with pytest.raises(Unavailable):
        sink.apply(numbered(1, 2), INSTANCE)
    sink.open()
    sink.apply(numbered(1, 2), INSTANCE)
    sink.apply(numbered(3), INSTANCE)
    first, again, other = receiver.requests
    assert first.headers["idempotency-key"] == f"{INSTANCE}-0-3-2-3-{NOW_MS}"
    assert again.headers["idempotency-key"] == first.headers["webhook-id"]
    assert again.body == first.body
    assert other.headers["idempotency-key"] != first.headers["idempotency-key"]


def test_one_connection_is_used_for_all_batches(receiver: Receiver) -> None:
    sink = opened(receiver)
    for number in range(1, 6):
        sink.apply(numbered(number), INSTANCE)
    assert len(receiver.connections) == 1


def test_a_connection_that_the_server_has_closed_is_made_anew(receiver: Receiver) -> None:
    sink = opened(receiver)
    for number in range(1, 4):
        receiver.disconnect()
        sink.apply(numbered(number), INSTANCE)
    assert receiver.payloads() == ["1", "2", "3"]


def test_an_answer_with_a_large_body_is_an_answer(receiver: Receiver) -> None:
    receiver.decide = lambda request: Reply(200, bytes(1 << 20))
    sink = opened(receiver)
    for number in (1, 2):
        sink.apply(numbered(number), INSTANCE)
    assert receiver.payloads() == ["1", "2"]


# What is refused


@pytest.mark.parametrize("status", [400, 409, 413, 415, 418, 422])
def test_rows_that_are_refused_are_found_and_the_others_arrive_in_order(
    receiver: Receiver, status: int
) -> None:
    bad = {"3", "4", "9"}
    receiver.decide = lambda request: Reply(
        status if bad & set(request.payloads) else 200, b"not this\n one"
    )
    found = opened(receiver, rule("message.publish", "#", 5)).apply(
        numbered(*range(1, 10)), INSTANCE
    )
    assert [(each.row, each.rule) for each in found] == [(2, 5), (3, 5), (8, 5)]
    assert all(f"{status} " in each.why and each.why.endswith(": not this one") for each in found)
    assert receiver.payloads() == ["1", "2", "5", "6", "7", "8"]
    keys = [request.headers["idempotency-key"] for request in receiver.requests]
    assert len(set(keys)) == len(keys)
    taken = [request for request in receiver.requests if not bad & set(request.payloads)]
    for first, second in itertools.pairwise(taken):
        assert first.told["upto"] <= second.told["after"]


def test_what_is_too_large_is_refused_also_by_a_server_that_does_not_read_it(
    receiver: Receiver,
) -> None:
    receiver.bytes_max = 100_000
    large = b"x" * (8 << 20)  # more than buffers on the way hold
    rows = [message(1, payload=b"1"), message(2, payload=large), message(3, payload=b"3")]
    (found,) = opened(receiver).apply(batch((0, 0), (3, 0), *rows), INSTANCE)
    assert (found.row, found.why.startswith("413 ")) == (1, True)
    assert receiver.payloads() == ["1", "3"]


def test_a_row_that_nothing_can_be_made_of_is_told_and_the_rest_is_sent(
    receiver: Receiver,
) -> None:
    rows = [message(1, properties=b"\x7f"), message(2, payload=b"2")]
    (found,) = opened(receiver).apply(batch((0, 0), (2, 0), *rows), INSTANCE)
    assert (found.row, "0x7F" in found.why) == (0, True)
    assert receiver.payloads() == ["2"]


# What waits


@pytest.mark.parametrize(
    "status", [301, 302, 304, 307, 401, 403, 404, 405, 407, 408, 410, 425, 429, 500, 502, 503, 599]
)
def test_an_answer_that_is_not_about_the_rows_lets_them_wait(
    receiver: Receiver, status: int
) -> None:
    receiver.decide = lambda request: Reply(status, b"no\x1b[31m")
    with pytest.raises(
        Unavailable, match=f"http://127.0.0.1:{receiver.port}: {status}\\b"
    ) as raised:
        opened(receiver).apply(numbered(1, 2), INSTANCE)
    assert str(raised.value).isprintable()
    assert len(receiver.requests) == 1


def test_a_server_that_takes_nothing_is_not_connected(receiver: Receiver) -> None:
    receiver.probed = lambda request: Reply(503)
    with pytest.raises(Unavailable, match="503"):
        opened(receiver)


def test_a_server_that_refuses_a_batch_without_rows_is_there(receiver: Receiver) -> None:
    receiver.probed = lambda request: Reply(422)
    opened(receiver).apply(numbered(1), INSTANCE)
    assert receiver.payloads() == ["1"]


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    other = Receiver().start()
    receiver.decide = lambda request: Reply(307, Location=other.url)
    with pytest.raises(Unavailable, match="redirects are not followed"):
        opened(receiver).apply(numbered(1), INSTANCE)
    assert other.requests == []
    other.kill()


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        ("7", 7.0, 7.0),
        ("99999999999999999999", 300.0, 300.0),
        (email.utils.formatdate(4_000_000_000), 300.0, 300.0),
        (email.utils.formatdate(0), 0.0, 0.0),
        ("soon", 0.0, 0.0),
        ("-1", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_a_server_says_when_it_wants_to_be_tried_again(
    receiver: Receiver, value: str, least: float, most: float
) -> None:
    receiver.decide = lambda request: Reply(429, Retry_After=value)
    with pytest.raises(Unavailable) as raised:
        opened(receiver).apply(numbered(1), INSTANCE)
    assert least <= raised.value.retry_s <= most


def test_a_server_that_is_killed_before_its_answer(receiver: Receiver) -> None:
    receiver.decide = lambda request: None
    sink = opened(receiver)
    with pytest.raises(Unavailable, match="closed connection"):
        sink.apply(numbered(1), INSTANCE)
    receiver.kill()
    with pytest.raises(Unavailable, match="refused"):
        sink.open()


def test_a_server_that_hangs_is_left(receiver: Receiver) -> None:
    release = threading.Event()

    def hang(request: Received) -> Reply:
        release.wait(PATIENCE_S)
        return Reply()

    receiver.decide = hang
    with pytest.raises(Unavailable, match="timed out"):
        opened(receiver, timeout_ms=100).apply(numbered(1), INSTANCE)
    release.set()


def test_a_server_that_answers_byte_by_byte_is_left(receiver: Receiver) -> None:
    """Each byte comes in time, and together they do not."""

    def drip(request: Received) -> None:
        connection = receiver.connections[-1]
        for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + bytes(600):
            try:
                connection.send(bytes([byte or 120]))
            except OSError:
                return
            stop.wait(0.05)
        connection.send(b"\r\nContent-Length: 0\r\n\r\n")

    stop = threading.Event()
    receiver.decide = drip
    with pytest.raises(Unavailable, match="timed out"):
        opened(receiver, timeout_ms=400).apply(numbered(1), INSTANCE)
    stop.set()


@pytest.mark.parametrize(
    "answer",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
    ],
    ids=["no http", "no status", "many headers", "long header", "bad chunk", "103", "100"],
)
def test_an_answer_that_is_none_lets_the_rows_wait(receiver: Receiver, answer: bytes) -> None:
    def say(request: Received) -> None:
        receiver.connections[-1].sendall(answer)

    receiver.decide = say
    sink = opened(receiver)
    with pytest.raises(Unavailable):
        sink.apply(numbered(1), INSTANCE)
    with pytest.raises(Unavailable, match="not connected"):
        sink.apply(numbered(1), INSTANCE)
    receiver.decide = lambda request: Reply(204)
    sink.open()
    assert sink.apply(numbered(1), INSTANCE) == []


# TLS


def tls(authority: Authority) -> ssl.SSLContext:
    """Return what a server that asks for certificates is made of."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = authority.issue("localhost", san=LOOPBACK)
    context.load_cert_chain(*pair)
    context.load_verify_locations(authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_both_ends_show_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    own = authority.issue("holdfast")
    receiver = Receiver().start(tls(authority))
    url = f"https://localhost:{receiver.port}/rows"
    values = {"tls_ca": str(authority.file), "tls_certificate": str(own[0]), "tls_key": str(own[1])}
    try:
        sink = made(url, **values)
        sink.open()
        assert sink.apply(numbered(1), INSTANCE) == []
        receiver.disconnect()
        sink.apply(numbered(2), INSTANCE)
        assert receiver.payloads() == ["1", "2"]
        with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            made(url).open()
        with pytest.raises(Unavailable):
            made(url, tls_ca=str(authority.file)).open()  # no certificate of ours
        with pytest.raises(Unavailable, match="certificates"):
            made(url, **{**values, "tls_ca": str(tmp_path / "absent")}).open()
    finally:
        receiver.kill()


def test_another_name_is_refused_unless_nothing_is_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = authority.issue("elsewhere")
    context.load_cert_chain(*pair)
    receiver = Receiver().start(context)
    url = f"https://localhost:{receiver.port}/"
    try:
        with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            made(url, tls_ca=str(authority.file)).open()
        sink = made(url, tls_verify=False)
        sink.open()
        assert any("tls_verify" in each for each in sink.health()["problems"])
    finally:
        receiver.kill()


# What an operator is told


@pytest.mark.parametrize(
    "url",
    [
        "", "example.org/rows", "ftp://example.org/", "http://", "http://user:pw@example.org/",
        "http://example.org/a b", "http://example.org/ä", "http://example.org:port/",
        "http://example.org/#part", f"http://{'x' * 64}.org/", "http://[::1/",
    ],
)  # fmt: skip
def test_a_url_that_cannot_work_is_refused_at_once(url: str) -> None:
    with pytest.raises(Unusable, match="backend cache: url: "):
        made(url)


def test_what_the_url_holds_besides_the_host_is_not_told(receiver: Receiver) -> None:
    receiver.kill()
    with pytest.raises(Unavailable) as raised:
        made(f"{receiver.url}/token?key=hidden").open()
    assert str(receiver.port) in str(raised.value)
    assert "token" not in str(raised.value) and "hidden" not in str(raised.value)


def test_health_says_what_answers_and_what_should_be_changed(receiver: Receiver) -> None:
    health = opened(receiver).health()
    assert health["writable"] and "Python" in health["server"]
    assert health["version"] == "answers 200 to a batch without rows"
    assert "secret" in health["problems"][0]
    assert opened(receiver, secret="x").health()["problems"] == []
