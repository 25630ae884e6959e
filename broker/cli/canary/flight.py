"""The clients of a canary and what they do in turn: publish, read, sleep, ask what is retained.

One thread: each call of `turn` handles what has come and what is due. `say` gets each line for
people, at once; a problem is counted, too.
"""

import selectors
import socket
from collections.abc import Callable, Iterable
from typing import Final

from broker.cli.canary.books import Books
from broker.cli.canary.client import CanaryClient, ClientError, Server
from broker.cli.canary.log import CanaryLog
from mqtt.packets import Publish

SESSION_EXPIRY_S: Final = 86_400
NAP_ROUNDS: Final = 3  # the sleeper is here so many rounds, and then away as many
WAIT_S: Final = 0.2
FAILED: Final = 0x80
WRITER, READER, SLEEPER, FRESH = "writer", "reader", "sleeper", "fresh"


class Flight:
    """Four clients: a writer, a reader, one that sleeps now and then, one for what is retained."""

    def __init__(
        self,
        server: Server,
        run: str,
        topic: str,
        log: CanaryLog | None,
        clock: Callable[[], float],
        *,
        interval_s: float,
        timeout_s: float,
        say: Callable[[str], None],
    ) -> None:
        self.books: Final = Books((READER, SLEEPER), timeout_s)
        self.outages: int = 0
        self.rounds: int = 0
        self._topic: Final = f"{topic}/{run}"
        self._clock: Final = clock
        self._interval_s: Final = interval_s
        self._timeout_s: Final = timeout_s
        self._say: Final = say
        self._clients: Final = {
            name: CanaryClient(
                server, f"canary-{run}-{name}", log, clock,
                expiry_s=0 if name == FRESH else SESSION_EXPIRY_S,
            )
            for name in (WRITER, READER, SLEEPER, FRESH)
        }  # fmt: skip
        self._wanted: Final = {WRITER, READER, SLEEPER}
        self._known: Final[set[str]] = set()  # have a session
        self._lost_at: Final[dict[str, float]] = {}
        self._numbers: Final[dict[tuple[str, int], tuple[int, int]]] = {}
        self._next_at: float = 0.0
        self._kept: int = 0  # number of the retained message that is acknowledged
        self._asked_kept: tuple[int, float] | None = None  # what must be served, since when
        for name in (READER, SLEEPER):
            self._clients[name].on_message = self._reads(name)
        self._clients[WRITER].on_acknowledged = self._acknowledged
        self._clients[FRESH].on_message = self._serves

    @property
    def is_up(self) -> bool:
        """Return whether all clients that should be are connected."""
        return all(self._clients[name].socket is not None for name in self._wanted)

    @property
    def is_done(self) -> bool:
        """Return whether nobody waits for anything."""
        owed = self.books.waiting() or self.books.unanswered() or self._asked_kept is not None
        return not owed

    def turn(self, *, publishes: bool) -> None:
        """Do what is due, and wait a moment for what comes."""
        now = self._clock()
        for name in sorted(self._wanted):
            if self._clients[name].may_connect(now):
                self._guarded(name, self._connect)
        if publishes and now >= self._next_at and self._is_ready():
            self._next_at = now + self._interval_s
            self._guarded(WRITER, self._publish)
            self._nap()
        self._wait()
        since = self._clients[WRITER].connected_at
        self._complain(self.books.overdue(self._clock(), publisher_since=since))
        self._check_kept()

    def wake(self) -> None:
        """Have the sleeper connected from now on: the end is near."""
        self._wanted.add(SLEEPER)

    def end(self) -> None:
        """Remove the retained message and the sessions, as far as the broker can be reached."""
        writer = self._clients[WRITER]
        if writer.socket is not None and self._kept:
            self._guarded(WRITER, self._clear)
        for client in self._clients.values():
            client.leave(expiry_s=0)
            client.close()

    # In turn.

    def _connect(self, name: str) -> None:
        client = self._clients[name]
        client.connect(clean_start=name not in self._known)
        self.books.sums.connections += 1
        now = self._clock()
        lost_at = self._lost_at.pop(name, None)
        if lost_at is not None:
            self._say(f"{name}: connected again after {now - lost_at:.1f} s")
        if name in self._known and not client.session_present:
            self._problem(f"{name}: the session is lost: Session Present was 0")
            self._session_lost(name)
        elif name not in self._known and client.session_present:
            self._problem(f"{name}: Session Present was 1 behind a clean start")
        if name != FRESH:
            self._known.add(name)
        for topic_filter, qos in self._filters(name):
            if topic_filter not in client.granted:
                client.subscribe(topic_filter, qos)
        if name in (READER, SLEEPER):
            self.books.connected(name, now)

    def _session_lost(self, name: str) -> None:
        if name == WRITER:
            self._numbers.clear()
            self.books.forget_unanswered()
        else:
            self.books.forget(name)

    def _filters(self, name: str) -> list[tuple[str, int]]:
        if name == FRESH:
            return [(f"{self._topic}/kept", 1)]
        return [(f"{self._topic}/+", 2)] if name in (READER, SLEEPER) else []

    def _is_ready(self) -> bool:
        """Return whether whoever must get a message has a subscription."""
        readers = (self._clients[name] for name in (READER, SLEEPER))
        return self._clients[WRITER].socket is not None and all(each.granted for each in readers)

    def _publish(self, name: str) -> None:
        writer = self._clients[name]
        self.rounds += 1
        now = self._clock()
        packet_ids = []
        for qos in (1, 2):
            packet_id = writer.publish(f"{self._topic}/q{qos}", b"%d" % self.rounds, qos)
            self._numbers[f"q{qos}", packet_id] = (qos, self.rounds)
            self.books.published(qos, self.rounds, now)
            packet_ids.append(packet_id)
        if self.rounds % NAP_ROUNDS == 1:
            kept = writer.publish(f"{self._topic}/kept", b"%d" % self.rounds, 1, retain=True)
            self._numbers["kept", kept] = (0, self.rounds)
            packet_ids.append(kept)
        for packet_id in packet_ids:
            writer.flush(packet_id)

    def _nap(self) -> None:
        """Let the sleeper go or come, every few rounds; when it comes, so does the fresh one."""
        if self.rounds % NAP_ROUNDS or not self.rounds:
            return
        if self.rounds // NAP_ROUNDS % 2:
            self._wanted.discard(SLEEPER)
            self._clients[SLEEPER].leave()
            self.books.disconnected(SLEEPER)
            return
        self._wanted.add(SLEEPER)
        if self._kept and FRESH not in self._wanted:
            self._wanted.add(FRESH)
            self._asked_kept = (self._kept, self._clock())

    def _clear(self, name: str) -> None:
        writer = self._clients[name]
        writer.flush(writer.publish(f"{self._topic}/kept", b"", 1, retain=True))

    def _wait(self) -> None:
        open_ = {
            client.socket: name
            for name, client in self._clients.items()
            if client.socket is not None
        }
        for ready in _readable(open_, WAIT_S):
            self._guarded(open_[ready], lambda name: self._clients[name].turn())
        for name in open_.values():
            self._guarded(name, lambda name: self._clients[name].ping())

    def _guarded(self, name: str, what: Callable[[str], None]) -> None:
        """Do something with a client; a lost connection is told once, until it is back."""
        try:
            what(name)
        except ClientError as problem:
            if name in (READER, SLEEPER):
                self.books.disconnected(name)
            if name not in self._lost_at:
                self._lost_at[name] = self._clock()
                self.outages += 1
                self._say(f"{name}: {problem}")

    # What comes.

    def _reads(self, name: str) -> Callable[[Publish], None]:
        def read(publish: Publish) -> None:
            last = publish.topic.rpartition("/")[2]
            if last not in ("q1", "q2") or not publish.payload.isdigit():
                return
            now, qos = self._clock(), int(last[1])
            number = int(publish.payload)
            self._complain(self.books.received(name, qos, number, now))

        return read

    def _acknowledged(self, packet_id: int, reason: int) -> None:
        for topic in ("q1", "q2", "kept"):
            found = self._numbers.pop((topic, packet_id), None)
            if found is None:
                continue
            qos, number = found
            if reason >= FAILED:
                self._problem(f"message {number} was refused: reason {reason:#04x}")
                self.books.refused(qos, number)
            elif topic == "kept":
                self._kept = max(self._kept, number)
            else:
                self.books.acknowledged(qos, number, self._clock())

    def _serves(self, publish: Publish) -> None:
        if self._asked_kept is None or not publish.payload.isdigit():
            return
        wanted, _ = self._asked_kept
        number = int(publish.payload)
        if number < wanted:
            self._problem(f"the retained message was number {number}, not {wanted}")
        self._asked_kept = None
        self._wanted.discard(FRESH)

    def _check_kept(self) -> None:
        fresh = self._clients[FRESH]
        if self._asked_kept is None:
            if fresh.socket is not None:
                fresh.leave()
            return
        number, since = self._asked_kept
        connected = fresh.connected_at
        if connected is not None and self._clock() - max(since, connected) > self._timeout_s:
            self._problem(f"retained message {number} was not served in {self._timeout_s:g} s")
            self._asked_kept = None
            self._wanted.discard(FRESH)

    def _complain(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._problem(line)

    def _problem(self, line: str) -> None:
        self.books.sums.problems += 1
        self._say(f"PROBLEM {line}")


def _readable(sockets: Iterable[socket.socket], wait_s: float) -> list[socket.socket]:
    """Return which sockets have something to read, after at most so long."""
    with selectors.DefaultSelector() as selector:
        for each in sockets:
            selector.register(each, selectors.EVENT_READ)
        found = [key.fileobj for key, _ in selector.select(wait_s)]
    return [each for each in found if isinstance(each, socket.socket)]
