"""What the engine asks of its surroundings: a transport, an authenticator, a policy.

Must never hold an implementation. Shells provide a `Transport` per connection (`broker.transport`,
or the simulation's fake network); `broker.auth` provides the rest. Read next: `broker.engine`.
"""

from collections.abc import Callable
from typing import Protocol


class Transport(Protocol):
    """One client's byte stream, as the engine sees it. Never raises; never blocks."""

    def write(self, data: bytes) -> None:
        """Queue `data` to the peer; ignored once the stream is closing or lost."""
        ...

    def close(self) -> None:
        """Close once everything written is out. Idempotent.

        The shell calls `Engine.transport_lost()` exactly once afterwards, as after any other end.
        """
        ...

    def pause_reading(self) -> None:
        """Stop handing in bytes (after those already on their way). Idempotent."""
        ...

    def resume_reading(self) -> None:
        """Hand in bytes again. Idempotent."""
        ...


class Verdict:
    """An authenticator's answer about one CONNECT."""

    __slots__ = ("identity", "ok", "reason_code")

    def __init__(self, ok: bool, reason_code: int, identity: str) -> None:
        self.ok: bool = ok
        self.reason_code: int = reason_code  # CONNACK reason when refused, else 0
        self.identity: str = identity  # owner of the session; "" is the anonymous identity

    def __repr__(self) -> str:
        return f"Verdict(ok={self.ok}, reason_code={self.reason_code:#04x}, {self.identity!r})"


class Authenticator(Protocol):
    """Says who a client is."""

    def authenticate(
        self,
        client_id: str,
        username: str | None,
        password: bytes | None,
        done: Callable[[Verdict], None],
    ) -> None:
        """Judge the credentials and call `done` exactly once, on the engine's own thread.

        `done` may be called before this returns (nothing to wait for) or later (a hash is being
        computed elsewhere). The connection may be gone by then; that is the engine's to notice.
        """
        ...


class Policy(Protocol):
    """Says what an identity may do. Asked at PUBLISH, at SUBSCRIBE and at delivery from storage.

    Must be quick and must not block. An implementation compares topics level by level and never
    builds a pattern out of client data.
    """

    def may_publish(self, identity: str, client_id: str, topic: str) -> bool:
        """Return whether the client may publish to `topic`."""
        ...

    def may_subscribe(self, identity: str, client_id: str, topic: str) -> bool:
        """Return whether the client may hold a subscription to the topic filter `topic`."""
        ...

    def may_receive(self, identity: str, client_id: str, topic: str) -> bool:
        """Return whether a stored message on `topic` may be delivered to the client."""
        ...
