"""What a listener's settings may say together, and what they may not."""

from typing import Any

import pytest

from broker.configuration.listener_options import (
    ENDPOINTS_MAX,
    KEYS,
    PATH_BYTES_MAX,
    Endpoint,
    conflicts,
)


def endpoint(name: str = "web", /, **values: Any) -> Endpoint:
    """Return a named TCP listener on port 1 with these settings on top."""
    made = Endpoint(name)
    for key, value in {"port": 1, **values}.items():
        assert hasattr(made, key)
        setattr(made, key, value)
    return made


TLS = {"tls_certificate": "c"}
MUTUAL = {**TLS, "tls_client_ca": "ca"}


@pytest.mark.parametrize(
    ("values", "kind", "address"),
    [
        ({}, "tcp", "127.0.0.1:1"),
        ({"host": "::1"}, "tcp", "[::1]:1"),
        ({"type": "websocket", "origins": ("https://a.example",)}, "websocket", "127.0.0.1:1"),
        (TLS, "tcp+tls", "127.0.0.1:1"),
        ({**MUTUAL, "tls_key": "k", "tls_identity": "san"}, "tcp+tls", "127.0.0.1:1"),
        (
            {**MUTUAL, "type": "websocket", "tls_identity": "cn", "origins": ("*",)},
            "websocket+tls",
            "127.0.0.1:1",
        ),
        ({**TLS, "proxy_protocol": True}, "tcp+proxy+tls", "127.0.0.1:1"),
        ({"type": "unix", "path": "/run/h", "port": None, "mode": 0o600}, "unix", "/run/h"),
        ({"type": "unix", "path": "x" * PATH_BYTES_MAX, "port": None}, "unix", "x" * 103),
    ],
)
def test_what_goes_together_is_accepted(values: dict[str, Any], kind: str, address: str) -> None:
    made = endpoint(**values)
    assert list(made.problems()) == []
    assert (made.kind, made.address) == (kind, address)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"port": None}, "listener.web.port is missing"),
        ({"type": "websocket", "port": None}, "listener.web.port is missing"),
        ({"type": "unix", "port": None}, "listener.web.path is missing"),
        ({"type": "unix", "path": "/a"}, "listener.web.port has no meaning"),
        (
            {"type": "unix", "path": "/a", "port": None, "tls_certificate": "c"},
            "listener.web.tls_certificate has no meaning",
        ),
        ({"type": "unix", "path": "é" * 52, "port": None}, "at most 103 bytes"),
        ({"path": "/a"}, "listener.web.path has no meaning for a listener of type tcp"),
        ({"mode": 0o777}, "listener.web.mode has no meaning"),
        ({"origins": ("*",)}, "listener.web.origins has no meaning"),
        ({"tls_key": "k"}, "listener.web.tls_key needs listener.web.tls_certificate"),
        ({"tls_client_ca": "ca"}, "listener.web.tls_client_ca needs"),
        ({**TLS, "tls_identity": "cn"}, "listener.web.tls_identity needs listener.web.tls_cl"),
        ({**MUTUAL, "type": "websocket", "tls_identity": "cn"}, "needs listener.web.origins"),
    ],
)
def test_what_does_not_is_named_with_its_keys(values: dict[str, Any], complaint: str) -> None:
    (problem,) = endpoint(**values).problems()
    assert complaint in problem


def test_the_first_listener_needs_nothing_and_may_be_of_any_type() -> None:
    first = Endpoint()
    assert list(first.problems()) == []
    assert first.section == "listener"
    first.type, first.path = "unix", "/run/h"
    assert list(first.problems()) == []


def test_two_listeners_need_two_names_and_two_places() -> None:
    first = endpoint("")
    first.name = "tcp"
    assert list(conflicts([first, endpoint("a", port=2), endpoint("b", port=0, host="::1")])) == []
    assert list(conflicts([endpoint("a", port=0), endpoint("b", port=0)])) == []
    (problem,) = conflicts([first, endpoint("tcp", port=2)])
    assert problem.startswith("listener.tcp: [listener] itself is called 'tcp'")
    (problem,) = conflicts([first, endpoint("a", port=2), endpoint("b", port=2)])
    assert problem == "listener.b listens on 127.0.0.1:2, and so does listener.a"
    sockets = [endpoint(name, type="unix", path="/run/h", port=None) for name in "ab"]
    (problem,) = conflicts(sockets)
    assert "listens on /run/h" in problem
    many = [endpoint(f"n{number}", port=number) for number in range(ENDPOINTS_MAX + 1)]
    assert list(conflicts(many)) == [f"{ENDPOINTS_MAX + 1} listeners: expected at most 64"]


def test_every_key_is_an_attribute() -> None:
    for keys in KEYS.values():
        for key in keys:
            assert hasattr(Endpoint(), key)
