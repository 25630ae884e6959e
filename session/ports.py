"""The interfaces that the engine needs: transport, authenticator and policy.

Must never hold an implementation. Shells provide a `Transport` per connection
(`broker.loop.client_stream`, or the simulation's fake network); `broker.security.authenticators`
provides the rest. Read next: `session.engine`.
"""

from collections.abc import Callable
from typing import Final, Protocol

# Outcomes of one step of an enhanced authentication.
STEP_CONTINUE: Final = 0  # the client has to answer `data`
STEP_SUCCESS: Final = 1  # authenticated; `data`, if any, is sent to the client
STEP_REFUSED: Final = 2


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
    """An authenticator's answer to one CONNECT."""

    __slots__ = ("identity", "ok", "reason_code")

    def __init__(self, *, ok: bool, reason_code: int, identity: str) -> None:
        self.ok: bool = ok
        self.reason_code: int = reason_code  # CONNACK reason when refused, else 0
        self.identity: str = identity  # owner of the session; "" is the anonymous identity

    def __repr__(self) -> str:
        return f"Verdict(ok={self.ok}, reason_code={self.reason_code:#04x}, {self.identity!r})"


def accepted(identity: str) -> Verdict:
    """Return the verdict that a client is who it says it is; its sessions belong to `identity`."""
    return Verdict(ok=True, reason_code=0, identity=identity)


def refused(reason_code: int) -> Verdict:
    """Return the verdict that a client is refused, with this reason code of CONNACK."""
    return Verdict(ok=False, reason_code=reason_code, identity="")


class Step:
    """An exchange's answer to one AUTH packet, or to the CONNECT that began it."""

    __slots__ = ("data", "identity", "outcome", "reason_code")

    def __init__(
        self,
        outcome: int,
        data: bytes | None = None,
        identity: str = "",
        reason_code: int = 0,
    ) -> None:
        self.outcome: int = outcome  # one of STEP_*
        self.data: bytes | None = data  # Authentication Data for the client
        self.identity: str = identity  # owner of the session, when the outcome is success
        self.reason_code: int = reason_code  # CONNACK or DISCONNECT reason when refused

    def __repr__(self) -> str:
        return f"Step({self.outcome}, {self.identity!r}, {self.reason_code:#04x})"  # data is secret


class Exchange(Protocol):
    """One enhanced authentication under way (section 4.12); it belongs to one connection."""

    def step(self, data: bytes | None, done: Callable[[Step], None]) -> None:
        """Take the client's Authentication Data (None = it sent none) and call `done` once.

        On the engine's own thread, before this returns or later. No further step follows one that
        was not STEP_CONTINUE.
        """
        ...


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
        computed elsewhere). The connection may be closed by then; the engine checks that.
        """
        ...

    def exchange(self, method: str, client_id: str) -> Exchange | None:
        """Begin an enhanced authentication; None if there is no such Authentication Method."""
        ...


class Policy(Protocol):
    """Says what an identity may do. Asked at PUBLISH, at SUBSCRIBE, and at every delivery.

    Its answers may change while the broker runs; a delivery and a will are judged by the answer at
    the time of sending. Must be quick and must not block. An
    implementation compares topics level by level and never builds a pattern out of client data.
    """

    @property
    def is_open(self) -> bool:
        """Return whether everything is always allowed: then no other method is called."""
        ...

    def may_publish(self, identity: str, client_id: str, topic: str) -> bool:
        """Return whether the client may publish to `topic`."""
        ...

    def may_subscribe(self, identity: str, client_id: str, topic: str) -> bool:
        """Return whether the client may hold a subscription to the topic filter `topic`."""
        ...

    def may_receive(self, identity: str, client_id: str, topic: str) -> bool:
        """Return whether a message on `topic` may be delivered to the client, now."""
        ...
