"""What a proxy says is believed if it is trusted, and only of the part that it has written."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from broker.admin.web.forwarded import Forwarded

PROXY = "10.0.0.9"
TRUSTED = ("10.0.0.0/24", "::1")


async def nothing() -> Message:
    raise AssertionError


async def forget(message: Message) -> None:
    raise AssertionError


def seen(peer: str | None, *headers: tuple[str, str], trusted: Any = TRUSTED) -> tuple[str, str]:
    """Return the address and the scheme that the application sees."""
    found: list[tuple[str, str]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        client = scope["client"]
        found.append(("" if client is None else client[0], scope["scheme"]))

    scope: Scope = {
        "type": "http",
        "scheme": "http",
        "client": None if peer is None else (peer, 1234),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }
    before = dict(scope)
    asyncio.run(Forwarded(app, trusted=trusted)(scope, nothing, forget))
    assert scope == before
    return found[0]


def told(addresses: str, proto: str = "https") -> tuple[tuple[str, str], tuple[str, str]]:
    return ("x-forwarded-for", addresses), ("x-forwarded-proto", proto)


@pytest.mark.parametrize(
    ("addresses", "address"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("203.0.113.7:4711", "203.0.113.7"),
        ("[2001:db8::7]:4711", "2001:db8::7"),
        ("2001:db8::7", "2001:db8::7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("1.1.1.1, 203.0.113.7", "203.0.113.7"),  # the left one may be anybody's claim
        ("1.1.1.1, 203.0.113.7, 10.0.0.3", "203.0.113.7"),
        ("10.0.0.4, 10.0.0.3", "10.0.0.4"),
        ("203.0.113.7, unknown", PROXY),
        ("203.0.113.7, unknown, 10.0.0.3", "10.0.0.3"),
        ("", PROXY),
        ("x" * 5000, PROXY),
    ],
)
def test_a_trusted_proxy_tells_whom_it_asks_for(addresses: str, address: str) -> None:
    assert seen(PROXY, *told(addresses)) == (address, "https")


def test_several_headers_are_one_list() -> None:
    headers = (("x-forwarded-for", "203.0.113.7"), ("x-forwarded-for", "10.0.0.3"))
    assert seen(PROXY, *headers) == ("203.0.113.7", "http")


@pytest.mark.parametrize("peer", ["203.0.113.7", "10.0.1.9", None])
def test_nobody_else_is_believed(peer: str | None) -> None:
    assert seen(peer, *told("1.1.1.1")) == (peer or "", "http")
    assert seen(PROXY, *told("1.1.1.1"), trusted=()) == (PROXY, "http")


@pytest.mark.parametrize(
    ("proto", "scheme"),
    [("https", "https"), ("HTTPS", "https"), ("http", "http"), ("gopher", "http"), ("", "http")],
)
def test_the_scheme_is_one_of_two(proto: str, scheme: str) -> None:
    assert seen("::1", *told("1.1.1.1", proto)) == ("1.1.1.1", scheme)
    assert seen("::1", *told("1.1.1.1", f"gopher, {proto}"))[1] == scheme


def test_what_is_no_request_passes() -> None:
    passed: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(scope["type"])

    asyncio.run(Forwarded(app, trusted=TRUSTED)({"type": "lifespan"}, nothing, forget))
    assert passed == ["lifespan"]
