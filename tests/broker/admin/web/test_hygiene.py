"""Host, size, time and headers: what holds for every request, whoever sends it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from broker.admin.web.hygiene import BODY, BODY_BYTES_MAX, HEADERS, LOOPBACK_NAMES, Hygiene
from tests.broker.admin.application import Application


def test_every_answer_has_the_strict_headers_errors_too(tmp_path: Path) -> None:
    application = Application(tmp_path)

    async def story(client: httpx.AsyncClient) -> None:
        for path in ("/healthz", "/api/v1/me", "/api/v1/nothing", "/nothing"):
            answer = await client.get(path)
            for name, value in HEADERS.items():
                assert answer.headers[name] == value, (path, name)
            assert "server" not in answer.headers
            assert "strict-transport-security" not in answer.headers

    application.play(story)


def test_with_tls_a_browser_is_told_to_stay_with_it(tmp_path: Path) -> None:
    application = Application(
        tmp_path, admin_listen="0.0.0.0:8443", admin_tls_certificate="never-opened-here.pem"
    )

    async def story(client: httpx.AsyncClient) -> None:
        answer = await client.get("/healthz")
        assert answer.status_code == 200, "any name is good where the certificate decides"
        assert answer.headers["strict-transport-security"] == "max-age=31536000"

    application.play(story, "https://admin.example:8443")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8080", 200),
        ("evil.example", 421),
        ("evil.example:8080", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example:8080", 421),
        ("127.0.0.1:8080@evil.example", 421),
        ("", 421),
    ],
)
def test_on_loopback_only_its_own_names_are_answered(
    tmp_path: Path, host: str, status: int
) -> None:
    application = Application(tmp_path)

    async def story(client: httpx.AsyncClient) -> None:
        answer = await client.get("/healthz", headers={"Host": host})
        assert answer.status_code == status

    application.play(story)


async def met(
    messages: list[Message],
    headers: list[tuple[bytes, bytes]],
    *,
    app: Callable[[Scope, Receive, Send], Awaitable[None]] | None = None,
    names: frozenset[str] | None = None,
    body_s: float = 60.0,
) -> list[Message]:
    """Return what is sent for a request whose body comes in messages; then nothing comes."""
    sent: list[Message] = []
    coming = iter(messages)

    async def receive() -> Message:
        for message in coming:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        first = await receive()
        assert first["body"] == scope["state"][BODY] and not first["more_body"]
        await PlainTextResponse(scope["state"][BODY])(scope, receive, send)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    hygiene = Hygiene(app or echo, names=names, body_s=body_s)
    await hygiene(scope, receive, send)
    return sent


def piece(body: bytes, *, more: bool) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_in_pieces_is_read_whole_before_anybody_sees_it() -> None:
    sent = asyncio.run(met([piece(b"ab", more=True), piece(b"c", more=False)], []))
    assert [sent[0]["status"], sent[1]["body"]] == [200, b"abc"]


def test_a_body_that_says_or_is_too_large_is_refused() -> None:
    length = [(b"content-length", str(BODY_BYTES_MAX + 1).encode())]
    assert asyncio.run(met([], length))[0]["status"] == 413
    assert asyncio.run(met([], [(b"content-length", b"-1")]))[0]["status"] == 413
    half = b"x" * (BODY_BYTES_MAX // 2 + 1)
    sent = asyncio.run(met([piece(half, more=True), piece(half, more=True)], []))
    assert sent[0]["status"] == 413
    whole = asyncio.run(met([piece(half[1:], more=True), piece(half[1:], more=False)], []))
    assert whole[0]["status"] == 200


def test_a_body_that_does_not_come_is_not_waited_for_for_ever() -> None:
    sent = asyncio.run(met([piece(b"a", more=True)], [], body_s=0.01))
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]


def test_a_peer_that_goes_within_its_body_is_not_served() -> None:
    sent = asyncio.run(met([piece(b"a", more=True), {"type": "http.disconnect"}], []))
    assert sent[0]["status"] == 400


def test_two_hosts_are_no_host() -> None:
    headers = [(b"host", b"localhost"), (b"host", b"localhost")]
    sent = asyncio.run(met([piece(b"", more=False)], headers, names=LOOPBACK_NAMES))
    assert sent[0]["status"] == 421


def test_a_peer_that_does_not_take_its_answer_is_given_up() -> None:
    ended: list[str] = []

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        finally:
            ended.append("the answer")

    async def play() -> None:
        async def receive() -> Message:
            return piece(b"", more=False)

        async def stuck(message: Message) -> None:
            await asyncio.Event().wait()

        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": []}
        hygiene = Hygiene(endless, names=None, send_s=0.01)
        await hygiene(scope, receive, stuck)

    asyncio.run(play())
    assert ended == ["the answer"]
