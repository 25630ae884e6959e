"""Scenes: each is one fault, played by its own clients, so that it affects nothing else.

Scenes are generators: they act within a round and yield the seconds until they continue (0 = the
next round), or DOWN to continue while the broker is down. The model itself stays correct; a scene
changes the recorded rows, or makes the model behave like a broken broker.
"""

import random
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from audit.generate.model import Broker
from audit.generate.state import Client, Message, Row, Session, Will
from storage.history import events as ev

DOWN: Final = -1.0
Scene = Generator[float, None, None]


@dataclass
class Injection:
    """One fault: the invariant it violates, and the ids that identify it, as in the history."""

    invariant: str
    kind: str
    node: str
    session: int | None = None
    msg: int | None = None
    pid: int | None = None
    topic: str | None = None
    client_id: str | None = None
    boot: int | None = None
    seq: int | None = None
    other_session: int | None = None  # a second session concerned
    tolerated: list[str] = field(default_factory=list)  # invariants it may violate, too
    mark: int = 0


class Delivered(NamedTuple):
    """The state after messages have reached a subscriber."""

    publisher: Session
    subscriber: Session
    topic: str
    messages: list[Message]


class Stage:
    """The environment of scenes: one broker, and helpers to find and change its rows."""

    def __init__(self, broker: Broker, rng: random.Random) -> None:
        self.broker = broker
        self.rng = rng
        self.injections: list[Injection] = []
        self._count = 0

    def client(self, expiry_s: int, rmax: int = 20, will: Will | None = None) -> Client:
        """Return a client for one scene only; it has one of the tenants of the others."""
        self._count += 1
        tenant = self.rng.choice(("acme", "borealis", "cobalt"))
        name = f"{tenant}-meter-{self.broker.node}-{self._count}"
        made = Client(name, tenant, 5, expiry_s, rmax)
        made.will = will
        self.broker.watched.add(name)
        return made

    def topic(self, client: Client) -> str:
        """Return a topic that only this client uses."""
        return f"meter/{client.client_id}/value"

    def pair(self, qos: int, expiry_s: int = 7200, rmax: int = 20) -> tuple[Session, Session, str]:
        """Return a publisher, a subscriber of its topic, and the topic."""
        publisher = self.broker.connect(self.client(0))
        client = self.client(expiry_s, rmax)
        subscriber = self.broker.connect(client)
        topic = self.topic(client)
        self.broker.subscribe(subscriber, topic, qos)
        return publisher, subscriber, topic

    def publish(
        self, session: Session, topic: str, qos: int, expiry_s: int | None = None
    ) -> Message:
        """Publish some bytes."""
        return self.broker.publish(session, topic, qos, 64, expiry_s=expiry_s)

    def deliver(
        self, granted: int, qos: int, count: int = 1, expiry_s: int = 7200, rmax: int = 20
    ) -> Generator[float, None, Delivered]:
        """Connect a pair and send messages, which the subscriber does not acknowledge yet.

        Call it with `yield from`. At QoS 2 the exchange with the publisher is completed.
        """
        publisher, subscriber, topic = self.pair(granted, expiry_s, rmax)
        yield 0
        messages = [self.publish(publisher, topic, qos) for _ in range(count)]
        yield 0
        publisher.incoming.clear()
        return Delivered(publisher, subscriber, topic, messages)

    def leave_and_return(self, session: Session, reason: int, after_s: float = 2) -> Scene:
        """End a client's connection, and reconnect it later. Call it with `yield from`."""
        self.broker.disconnect(session, reason)
        yield after_s
        self.broker.connect(session.client)

    def send_again(self, session: Session, message: Message, pid: int, qos: int) -> Row:
        """Record that a message was sent again, though it was not; return the row."""
        columns = {"msg": message.id, "pid": pid, "qos": qos, "dup": True, "attempt": 2}
        return self.broker.emit(ev.MSG_DELIVERED, session, retain=False, **columns)

    def answer(self, session: Session) -> None:
        """Acknowledge and complete everything in flight."""
        for pid in list(session.flights):
            flight = session.flights[pid]
            if not flight.released:
                self.broker.acknowledge(session, pid)
            if flight.qos == 2:
                self.broker.complete(session, pid)

    def rows(
        self, event: int, session: Session | None = None, message: Message | None = None
    ) -> list[Row]:
        """Return rows of this boot, in order, without erased ones."""
        return [
            row
            for row in self.broker.watched_rows
            if row["ev"] == event
            and not row.get("erased")
            and (session is None or row.get("session") == session.number)
            and (message is None or row.get("msg") == message.id)
        ]

    def row(
        self, event: int, session: Session | None = None, message: Message | None = None
    ) -> Row:
        """Return the last of these rows."""
        return self.rows(event, session, message)[-1]

    def erase(self, rows: Iterable[Row]) -> None:
        """Remove rows, as if their events had not happened."""
        for row in rows:
            row["erased"] = True

    def swap(self, first: Row, second: Row) -> None:
        """Exchange the places of two rows."""
        for name in {*first, *second} - {"ts", "slot"}:
            one, other = first.pop(name, None), second.pop(name, None)
            if other is not None:
                first[name] = other
            if one is not None:
                second[name] = one

    def inject(self, invariant: str, kind: str, row: Row | None = None, **ids: Any) -> None:
        """Record the injected fault; `row` is where it shows."""
        session = ids.pop("session", None)
        message = ids.pop("message", None)
        made = Injection(invariant, kind, self.broker.node, **ids)
        if session is not None:
            made.session, made.client_id = session.number, session.client_id
        if message is not None:
            made.msg = message.id
        made.boot = self.broker.boots[-1].number
        made.mark = len(self.injections) + 1
        if row is not None and "mark" not in row:
            row["mark"] = made.mark
        self.injections.append(made)


Play = Callable[[Stage], Scene]


class Director:
    """Runs scenes: starts each in its round, and continues it when it asked for."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._sleeping: list[tuple[float, int, Scene]] = []  # until when, serial
        self._down: list[Scene] = []
        self._planned: list[tuple[int, Play]] = []
        self._serial = 0

    def plan(self, slot: int, play: Play) -> None:
        """Start a scene in the first round from `slot` on."""
        self._planned.append((slot, play))

    def round(self) -> None:
        """Continue every scene that is due."""
        slot, now = self._stage.broker.slot, self._stage.broker.now
        for planned in [p for p in self._planned if p[0] <= slot]:
            self._planned.remove(planned)
            self._go_on(planned[1](self._stage))
        for sleeping in [s for s in self._sleeping if s[0] <= now]:
            self._sleeping.remove(sleeping)
            self._go_on(sleeping[2])

    def down(self) -> None:
        """Continue the scenes that wait for the broker to be down."""
        waiting, self._down = self._down, []
        for scene in waiting:
            self._go_on(scene)

    def finish(self) -> None:
        """Check that every scene was played to its end."""
        left = [*self._planned, *self._sleeping, *self._down]
        assert not left, f"{len(left)} scenes did not end: the history is too short"

    def _go_on(self, scene: Scene) -> None:
        wait_s = next(scene, None)
        if wait_s is None:
            return
        self._serial += 1
        if wait_s == DOWN:
            self._down.append(scene)
        else:
            until = self._stage.broker.now + wait_s * 1e6
            self._sleeping.append((until, self._serial, scene))
