"""What a reverse proxy says of whom it asks for: the address and the scheme, if it is trusted.

Each proxy adds the address that it was asked from at the right of `X-Forwarded-For`; what somebody
else has written there is to the left of it. Must never believe anybody who is not in the list. Read
next: `broker.admin.web.hygiene`.
"""

import ipaddress
from collections.abc import Iterable
from typing import Final, TypeAlias

from starlette.types import ASGIApp, Receive, Scope, Send

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

FOR: Final = b"x-forwarded-for"
PROTO: Final = b"x-forwarded-proto"
SCHEMES: Final = frozenset({"http", "https"})
HOPS_MAX: Final = 32  # that are looked at, from the right


class Forwarded:
    """Wraps the application: a request of a trusted proxy is as if the other one had sent it."""

    def __init__(self, app: ASGIApp, *, trusted: Iterable[str]) -> None:
        """`trusted` are addresses and networks."""
        self._app: Final = app
        self._trusted: Final[tuple[Network, ...]] = tuple(map(ipaddress.ip_network, trusted))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and self._trusted:
            client = scope.get("client")
            peer = None if client is None else _address(str(client[0]))
            if peer is not None and self._is_trusted(peer):
                scope = {**scope, **self._said(scope, peer)}
        await self._app(scope, receive, send)

    def _said(self, scope: Scope, peer: Address) -> dict[str, object]:
        scheme = _values(scope, PROTO)[-1:]
        found: dict[str, object] = {"client": (str(self._first(scope, peer)), 0)}
        if scheme and scheme[0].lower() in SCHEMES:
            found["scheme"] = scheme[0].lower()
        return found

    def _first(self, scope: Scope, peer: Address) -> Address:
        """Return the last address on the way here that is no trusted proxy's."""
        found = peer
        for text in reversed(_values(scope, FOR)[-HOPS_MAX:]):
            address = _address(text)
            if address is None:
                break  # a proxy is asked by somebody who hides: count by the proxy
            found = address
            if not self._is_trusted(address):
                break
        return found

    def _is_trusted(self, address: Address) -> bool:
        return any(address in network for network in self._trusted)


def _values(scope: Scope, wanted: bytes) -> list[str]:
    """Return the values of a header that may be there several times, and have several each."""
    found: list[str] = []
    for name, value in scope["headers"]:
        if name == wanted:
            found += [each.strip() for each in value.decode("latin-1").split(",")]
    return found


def _address(text: str) -> Address | None:
    """Return the address of a text, which may have a port; None = it has none."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found
