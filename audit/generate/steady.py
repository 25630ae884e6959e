"""Stamped steady traffic: most rows of a large history are the same tick repeated.

A fleet is a set of clients that stay connected and answer at once. A pattern is one tick of their
traffic as arrays; `stamp` repeats patterns with the offsets, packet ids and times of their place.
The sessions are in the model (`audit.generate.model`): they connect, are disconnected and resumed
like all others, with nothing in flight.
"""

import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from audit.generate.model import Broker
from audit.generate.state import NEVER, UNSTORED, Client, Session
from storage.history import events as ev

Ints = npt.NDArray[np.int64]

NUMBERS_FROM: Final = 1 << 36  # first number of unstored messages; the model's are lower
WATCHED: Final = 4  # groups per watcher

# Columns of a pattern; -1 is null. `who` and `pub` are seats, `pid_seat` is the seat whose packet
# ids are used, `stored` says how `msg` counts.
FIELDS: Final = (
    "ev",
    "actor",
    "who",
    "pub",
    "stored",
    "msg",
    "pid_seat",
    "pid",
    "topic",
    "qos",
    "pub_qos",
    "bytes",
    "stream",
    "phase",
)


class Pattern:
    """One tick of traffic: columns of equal length, and the numbers it uses up."""

    def __init__(self, rows: list[dict[str, int]], seats: int) -> None:
        rows.sort(key=lambda row: row["phase"])
        self.columns: dict[str, Ints] = {
            name: np.array([row.get(name, -1) for row in rows], np.int64) for name in FIELDS
        }
        self.size = len(rows)
        accepted = self.columns["ev"] == ev.MSG_ACCEPTED
        self.stored = int((accepted & (self.columns["stored"] == 1)).sum())
        self.unstored = int((accepted & (self.columns["stored"] == 0)).sum())
        self.pids = np.zeros(seats, np.int64)
        used = self.columns["pid_seat"] >= 0
        np.maximum.at(self.pids, self.columns["pid_seat"][used], self.columns["pid"][used] + 1)


class Fleet:
    """The clients of the steady traffic of one node."""

    def __init__(self, broker: Broker, rng: random.Random, groups: int, tenants: Sequence[str]):
        self._broker = broker
        self._rng = rng
        self.clients: list[Client] = []
        self._filters: list[list[tuple[str, int]]] = []
        self.topics: list[str] = []
        self._groups: list[tuple[int, int, int, int]] = []  # kind, publisher, first, second
        watcher = -1
        for number in range(groups):
            tenant = tenants[number // WATCHED % len(tenants)]
            area = f"fleet/{tenant or 'public'}/area{number // WATCHED}"
            name = f"{tenant or 'anon'}-fleet-{broker.node}-{number}"
            kind = number % 4
            if number % WATCHED == 0:
                watcher = self._seat(f"{name}-watch", tenant, NEVER, [(f"{area}/+/up", 1)])
            topic = f"{area}/unit{number}/{'up' if kind < 2 else 'tele'}"
            self.topics.append(topic)
            publisher = self._seat(f"{name}-unit", tenant, 0, [])
            if kind < 2:
                first = self._seat(f"{name}-sink", tenant, 7200, [(topic, kind + 1)])
                second = watcher
            else:
                first = self._seat(f"{name}-a", tenant, 0, [(topic, kind - 2)])
                second = self._seat(f"{name}-b", tenant, 0, [(topic, 0)])
            self._groups.append((kind, publisher, first, second))
        self.streams: dict[int, int] = {}  # seat -> stream
        self.seats: dict[int, list[Session]] = {}  # by boot
        self.conns: dict[int, Ints] = {}

    def _seat(
        self, client_id: str, tenant: str, expiry_s: int, filters: list[tuple[str, int]]
    ) -> int:
        self.clients.append(Client(client_id, tenant, 5, expiry_s))
        self._filters.append(filters)
        return len(self.clients) - 1

    def connect(self) -> None:
        """Connect everybody, in a boot that has just begun."""
        seats = []
        for seat, client in enumerate(self.clients):
            known = self._broker.sessions.get(client.client_id)
            session = self._broker.connect(client, steady=True)
            if session is not known:
                for tfilter, qos in self._filters[seat]:
                    self.streams[seat] = self._broker.subscribe(session, tfilter, qos).stream
            seats.append(session)
        boot = self._broker.boots[-1].number
        self.seats[boot] = seats
        self.conns[boot] = np.array([session.conn for session in seats], np.int64)

    def pattern(self, share: float) -> Pattern:
        """Return a tick in which about `share` of the groups send 1 to 5 messages each."""
        rows: list[dict[str, int]] = []
        use = _Use()
        for group, (kind, publisher, first, second) in enumerate(self._groups):
            if self._rng.random() < share:
                for _ in range(self._rng.randint(1, 5)):
                    self._message(rows, use, group, kind, publisher, first, second)
        return Pattern(rows, len(self.clients))

    def _message(
        self,
        rows: list[dict[str, int]],
        use: "_Use",
        group: int,
        kind: int,
        publisher: int,
        first: int,
        second: int,
    ) -> None:
        """Add the rows of one message. A phase is 4 bits of order, then the number of the row."""
        pub_qos = (1, 2, 0, 1)[kind]
        stored = int(kind < 2)
        msg = {"stored": stored, "msg": use.next(("msg", stored))}

        def add(phase: int, event: int, **columns: int) -> None:
            rows.append({"phase": phase << 32 | len(rows), "ev": event, **columns})

        pid = {"pid_seat": publisher, "pid": use.next(publisher)} if pub_qos else {}
        sent = {"who": publisher, **pid, **msg, "pub_qos": pub_qos}
        size = self._rng.randint(20, 900)
        add(0, ev.MSG_ACCEPTED, actor=ev.CLIENT, pub=publisher, topic=group, bytes=size, **sent)
        for seat in (first, second) if stored else ():
            add(0, ev.MSG_ENQUEUED, actor=ev.BROKER, stream=self.streams[seat], **msg)
        if stored:
            add(2, ev.MSG_PERSISTED, actor=ev.STORAGE, **msg)
        if pub_qos:
            add(3, ev.PUB_ACKED, actor=ev.BROKER, **sent)
        if pub_qos == 2:
            done = {"who": publisher, **pid}
            add(5, ev.PUB_RELEASED, actor=ev.CLIENT, **done)
            add(6, ev.PUB_COMPLETED, actor=ev.BROKER, **done)
        for seat, granted in ((first, (1, 2, 0, 1)[kind]), (second, stored)):
            qos = min(pub_qos, granted)
            got = {"who": seat, **msg, "qos": qos}
            if qos:
                got |= {"pid_seat": seat, "pid": use.next(seat)}
            add(4 if qos == 2 else 1, ev.MSG_DELIVERED, actor=ev.BROKER, **got)
            if qos:
                add(5, ev.MSG_ACKED, actor=ev.CLIENT, **got)
            if qos == 2:
                add(7, ev.MSG_COMPLETED, actor=ev.CLIENT, **got)


class _Use:
    """Counters by key."""

    def __init__(self) -> None:
        self._counts: dict[Any, int] = {}

    def next(self, key: Any) -> int:
        """Increment the counter of a key; return its value before."""
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1
        return count


class Plan:
    """The patterns after each slot of a boot, and the numbers used up before each."""

    def __init__(self, patterns: Sequence[Pattern], slots: Ints, kinds: Ints) -> None:
        """`slots` is ascending; `kinds` has the index of the pattern of each tick."""
        self.patterns = patterns
        self.slots = slots
        self.kinds = kinds
        sizes = np.array([pattern.size for pattern in patterns], np.int64)
        stored = np.array([pattern.stored for pattern in patterns], np.int64)
        unstored = np.array([pattern.unstored for pattern in patterns], np.int64)
        self.sizes = sizes[kinds]
        self.stored = stored[kinds]
        self.unstored_before = _before(unstored[kinds])
        used = np.stack([pattern.pids for pattern in patterns])
        self._pids_before = np.zeros((len(kinds), used.shape[1]), np.int32)
        if len(kinds):
            np.cumsum(used[kinds[:-1]], axis=0, out=self._pids_before[1:])

    def stamp(self, first: int, last: int, bases: Ints, boot: int) -> dict[str, Ints]:
        """Return the columns of ticks `first` up to `last`; `bases` are their first offsets.

        Besides FIELDS it has `tick`, the index of the tick of each row, counted from `first`.
        """
        kinds = self.kinds[first:last]
        columns = {
            name: np.concatenate([self.patterns[kind].columns[name] for kind in kinds])
            for name in FIELDS
        }
        tick = np.repeat(np.arange(len(kinds)), self.sizes[first:last])
        numbers = (UNSTORED | boot << 40 | NUMBERS_FROM) + self.unstored_before[first:last]
        base = np.where(columns["stored"] == 1, bases[tick], numbers[tick])
        has_msg = columns["msg"] >= 0
        columns["msg"] = np.where(has_msg, base + columns["msg"], -1)
        seat = columns["pid_seat"]
        before = self._pids_before[first:last][tick, np.maximum(seat, 0)]
        columns["pid"] = np.where(seat >= 0, (before + columns["pid"]) % 65535 + 1, 0)
        columns["tick"] = tick
        return columns


def _before(counts: Ints) -> Ints:
    """Return, for each count, the sum of the counts before it."""
    return np.cumsum(counts) - counts
