"""Planted bugs of replies: they leave before the commit that they promise.

Read next: `session.live.commit_gate`.
"""

from collections.abc import Callable
from typing import Any

from session.delivery.delivery import Delivery
from session.delivery.live import LiveDelivery
from session.delivery.sender import Sender
from session.lifetime.connect import ConnectHandler
from session.lifetime.disconnect import DisconnectHandler
from session.live.commit_gate import CommitGate
from session.live.connection import CLOSING, Connection
from session.live.tick import Tick
from session.packets.acknowledge import AcknowledgeHandler
from session.packets.publish import PublishHandler
from session.packets.subscribe import SubscribeHandler
from tests.simulation.planting import Patcher, mutant

# Replies that leave before their commit

_wait = CommitGate._wait


def _leak(self: CommitGate, connection: Connection, data: bytes, acks: int, messages: int) -> None:
    """Send at once what should wait for the commit (unless even CONNACK has not left)."""
    if connection.connack_waits():
        _wait(self, connection, data, acks, messages)
        return
    connection.inbound_open -= acks
    self._leave(connection, data)


def _leaking(patcher: Patcher, owner: Any, name: str, when: Callable[..., bool]) -> None:
    """Let everything that waits because of `name` leave at once."""

    def around(original: Any, *arguments: Any, **named: Any) -> Any:
        if not when(*arguments):
            return original(*arguments, **named)
        CommitGate._wait = _leak  # type: ignore[method-assign]
        try:
            return original(*arguments, **named)
        finally:
            CommitGate._wait = _wait  # type: ignore[method-assign]

    patcher.wrap(owner, name, around)


def _always(*arguments: Any) -> bool:
    return True


@mutant("gates", seeds=200)
def puback_before_sync(patcher: Patcher) -> None:
    """PUBACK leaves before the message is durable."""
    _leaking(patcher, PublishHandler, "_acknowledge", lambda _, c, s, packet, *a: packet.qos == 1)


@mutant("bursts", seeds=300)
def pubacks_of_a_run_before_sync(patcher: Patcher) -> None:
    """The PUBACKs of messages that came together leave before these are durable."""
    _leaking(patcher, PublishHandler, "publish_run", _always)


@mutant("fanout", seeds=400, start=400)
def run_overtakes_a_backlog(patcher: Patcher) -> None:
    """Messages that came together are sent at once, although the session is behind."""

    def around(original: Any, self: LiveDelivery, target: Any, *arguments: Any) -> Any:
        connection = target.connection
        is_lagging, connection.is_lagging = connection.is_lagging, False
        try:
            return original(self, target, *arguments)
        finally:
            connection.is_lagging = is_lagging

    patcher.wrap(LiveDelivery, "_send_run", around)


@mutant("gates", seeds=200)
def pubrec_before_sync(patcher: Patcher) -> None:
    """PUBREC leaves before the message and its packet id are durable."""
    _leaking(patcher, PublishHandler, "_acknowledge", lambda _, c, s, packet, *a: packet.qos == 2)


@mutant("gates", seeds=200)
def pubrel_before_released_is_durable(patcher: Patcher) -> None:
    """PUBREL leaves before the phase is durable: after a crash the PUBLISH is sent again."""
    _leaking(patcher, AcknowledgeHandler, "pubrec", _always)


@mutant("gates", seeds=300)
def pubcomp_before_deletion_is_durable(patcher: Patcher) -> None:
    """PUBCOMP leaves before the id is forgotten: the next message with it is swallowed."""
    _leaking(patcher, PublishHandler, "pubrel", _always)


@mutant("gates", seeds=200)
def publish_before_binding_is_durable(patcher: Patcher) -> None:
    """A QoS 2 PUBLISH leaves before its packet id is durable."""
    _leaking(patcher, LiveDelivery, "publish", _always)
    _leaking(patcher, Sender, "send_bound", _always)


@mutant("gates", seeds=200)
def suback_before_durable(patcher: Patcher) -> None:
    """SUBACK leaves before the subscription is durable."""
    _leaking(patcher, SubscribeHandler, "subscribe", _always)


@mutant("gates", seeds=400)
def unsuback_before_durable(patcher: Patcher) -> None:
    """UNSUBACK leaves before the subscription is gone for good."""
    _leaking(patcher, SubscribeHandler, "unsubscribe", _always)


def _answer_at_once(patcher: Patcher, present: bool) -> None:
    def around(
        original: Any,
        self: ConnectHandler,
        connection: Connection,
        owner: Any,
        connack: Any,
        *rest: Any,
        **named: Any,
    ) -> None:
        original(self, connection, owner, connack, *rest, **named)
        waiting = connection.waiting
        if connack.session_present is present and waiting is not None and waiting.has_connack:
            assert waiting.unwritten is not None
            connection.waiting = None
            self._gate._unwritten.remove(waiting.unwritten)
            for data in waiting.unwritten.data:
                self._gate.send(connection, data)

    patcher.wrap(ConnectHandler, "_answer", around)


@mutant("gates", seeds=200)
def connack_before_record_is_durable(patcher: Patcher) -> None:
    """CONNACK of a new session leaves before the session is durable."""
    _answer_at_once(patcher, present=False)


@mutant("gates", seeds=3_000, slow=True)
def connack_forgets_an_unsynced_end(patcher: Patcher) -> None:
    """A second clean start is answered at once while the first one is not durable yet."""

    nothing: dict[str, int] = {}
    patcher.set(Tick, "ended", property(lambda self: dict(nothing), lambda self, value: None))


@mutant("gates", seeds=200)
def resume_from_unsynced_memory(patcher: Patcher) -> None:
    """A resumed session is sent what a crash can still take back."""
    _answer_at_once(patcher, present=True)
    _leaking(patcher, Delivery, "resume", _always)


@mutant("gates", seeds=200)
def close_before_disconnect_is_durable(patcher: Patcher) -> None:
    """The client sees its DISCONNECT answered before the will is gone for good."""

    def around(original: Any, self: DisconnectHandler, connection: Connection, packet: Any) -> Any:
        result = original(self, connection, packet)
        if connection.state == CLOSING:
            self._gate.close(connection)
        return result

    patcher.wrap(DisconnectHandler, "disconnect", around)


@mutant("backlog", seeds=60)
def page_leaves_before_its_commit(patcher: Patcher) -> None:
    """A page of a backlog leaves before the packet ids of its messages are durable."""
    _leaking(patcher, CommitGate, "send_messages_after_commit", _always)
