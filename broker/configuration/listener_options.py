"""The options of one listener: its type, address, TLS and permissions.

Holds values and checks whether they go together; must open nothing. `broker.configuration.load`
fills it from `[listener]` and `[listener.NAME]`. Read next: `broker.network.listeners`, which opens
what this describes.
"""

import re
from collections.abc import Iterator
from typing import Final

TCP: Final = "tcp"
WEBSOCKET: Final = "websocket"
UNIX: Final = "unix"
TYPES: Final = (TCP, WEBSOCKET, UNIX)

IDENTITIES: Final = ("none", "cn", "san")

# Names become metric labels and parts of environment variables, where "__" is a separator.
NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
NAME_CHARACTERS_MAX: Final = 32
ENDPOINTS_MAX: Final = 64  # each is a label value of the metrics
# The kernel takes 107 bytes; the socket is made under a longer name first (see `UnixPath`).
PATH_BYTES_MAX: Final = 103
DEFAULT_PORT: Final = 1883

_TLS_KEYS: Final = ("tls_certificate", "tls_key", "tls_client_ca", "tls_identity")
_NETWORK_KEYS: Final = ("type", "host", "port", "backlog", "proxy_protocol", *_TLS_KEYS)
KEYS: Final[dict[str, tuple[str, ...]]] = {
    TCP: _NETWORK_KEYS,
    WEBSOCKET: (*_NETWORK_KEYS, "origins"),
    UNIX: ("type", "path", "mode", "backlog", "proxy_protocol"),
}


class Endpoint:
    """One listener's settings; attributes are named after the keys."""

    def __init__(self, name: str = "") -> None:
        """`name` is that of `[listener.name]`, "" for `[listener]` itself."""
        self.section: str = f"listener.{name}" if name else "listener"
        self.name: str = name  # of the listener in logs and metrics; `[listener]`: its type
        self.type: str = TCP
        self.host: str = "127.0.0.1"  # loopback unless configured
        # 0 lets the kernel choose; None = not given, which only `[listener]` may leave out.
        self.port: int | None = None if name else DEFAULT_PORT
        self.backlog: int = 1024
        self.path: str | None = None
        self.mode: int = 0o660
        self.tls_certificate: str | None = None
        self.tls_key: str | None = None  # None = in the certificate's file
        self.tls_client_ca: str | None = None  # not None = clients must show a certificate
        self.tls_identity: str = "none"
        self.proxy_protocol: bool = False
        self.origins: tuple[str, ...] = ()

    @property
    def has_tls(self) -> bool:
        """Whether connections begin with a TLS handshake."""
        return self.tls_certificate is not None

    @property
    def address(self) -> str:
        """Where it listens, as people write it; the port as configured."""
        if self.type == UNIX:
            return str(self.path)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def kind(self) -> str:
        """What it speaks: "tcp", "websocket+tls", "tcp+proxy+tls"."""
        return self.type + "+proxy" * self.proxy_protocol + "+tls" * self.has_tls

    def keys(self) -> tuple[str, ...]:
        """Return the keys that mean something for a listener of this type."""
        return KEYS[self.type]

    def problems(self) -> Iterator[str]:
        """Yield what does not go together, each one line naming the keys."""
        section = self.section
        # By now `[listener]` may have a name too (that of its type), and still has a default port.
        untouched = Endpoint("" if section == "listener" else self.name)
        untouched.name = self.name
        for key, default in vars(untouched).items():
            is_key = key in KEYS[WEBSOCKET] or key in KEYS[UNIX]
            if is_key and key not in self.keys() and getattr(self, key) != default:
                yield f"{section}.{key} has no meaning for a listener of type {self.type}"
        if self.type == UNIX:
            if self.path is None:
                yield f"{section}.path is missing: a listener of type unix needs one"
            elif len(self.path.encode()) > PATH_BYTES_MAX:
                yield f"{section}.path = {self.path!r}: expected at most {PATH_BYTES_MAX} bytes"
        elif self.port is None:
            yield f"{section}.port is missing"
        if not self.has_tls:
            for key in ("tls_key", "tls_client_ca"):
                if getattr(self, key) is not None:
                    yield f"{section}.{key} needs {section}.tls_certificate as well"
        if self.tls_identity != "none" and self.tls_client_ca is None:
            yield f"{section}.tls_identity needs {section}.tls_client_ca: who would prove it?"
        elif self.tls_identity != "none" and self.type == WEBSOCKET and not self.origins:
            # A browser sends its certificate for every web page that connects.
            yield (
                f"{section}.tls_identity on a websocket needs {section}.origins: any page in "
                "a browser could act as the owner of its certificate ('*' to allow that)"
            )


def conflicts(endpoints: list[Endpoint]) -> Iterator[str]:
    """Yield conflicts between listeners, each one line."""
    if len(endpoints) > ENDPOINTS_MAX:
        yield f"{len(endpoints)} listeners: expected at most {ENDPOINTS_MAX}"
    names: dict[str, Endpoint] = {}
    places: dict[str, Endpoint] = {}
    for endpoint in endpoints:
        if endpoint.name in names:
            yield (
                f"{endpoint.section}: [listener] itself is called {endpoint.name!r} "
                "in logs and metrics; choose another name"
            )
        names[endpoint.name] = endpoint
        if endpoint.type != UNIX and endpoint.port == 0:
            continue
        if endpoint.address in places:
            other = places[endpoint.address].section
            yield f"{endpoint.section} listens on {endpoint.address}, and so does {other}"
        places[endpoint.address] = endpoint
