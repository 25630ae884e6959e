"""Which names this process answers to, and which pages may send it what changes something.

Browsers say where a request comes from. An origin is taken apart and compared as scheme, host and
port; a text that only begins like one is none. Pure. Read next: `broker.admin.web.gate`.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from broker.admin.problems import Refused

Origin: TypeAlias = tuple[str, str, int]  # scheme, host, port

PORTS: Final = {"http": 80, "https": 443}


def origin_of(text: str) -> Origin | None:
    """Return the origin that a text is, None = it is none."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    scheme, host = parts.scheme.lower(), (parts.hostname or "").lower()
    if scheme not in PORTS or not host or parts.username is not None or port == 0:
        return None
    if parts.path or parts.query or parts.fragment or not text.isascii() or not text.isprintable():
        return None
    if text.endswith(("?", "#", ":")):
        return None
    return scheme, host, PORTS[scheme] if port is None else port


def names_of(public_urls: Iterable[str]) -> set[str]:
    """Return the names that a `Host` may have for these addresses, without their ports."""
    found = set()
    for url in public_urls:
        origin = origin_of(url)
        assert origin is not None, url  # config has checked it
        found.add(f"[{origin[1]}]" if ":" in origin[1] else origin[1])
    return found


class Origins:
    """The origins from which something may be changed."""

    def __init__(self, public_urls: Iterable[str]) -> None:
        """`public_urls` are origins besides the one that a request was sent to."""
        self._public: Final = frozenset(map(origin_of, public_urls)) - {None}

    def check(self, headers: Mapping[str, str], scheme: str) -> None:
        """Refuse what a page elsewhere makes a browser send. Raises `Refused`."""
        site = headers.get("sec-fetch-site")
        if site is not None and site not in ("same-origin", "none"):
            raise _elsewhere()
        given = headers.get("origin")
        if given is None:
            return
        origin = origin_of(given)
        here = origin_of(f"{scheme}://{headers.get('host', '')}")
        if origin is None or (origin != here and origin not in self._public):
            raise _elsewhere()


def _elsewhere() -> Refused:
    return Refused(403, "this was sent by a page of another site")
