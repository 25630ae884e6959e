"""A fixed piece of work for the engine, without sockets, threads and time: it can be counted.

    PYTHONPATH=TREE valgrind --tool=cachegrind python bench/engine_work.py --messages 2000

One client publishes to another, `--window` messages in a read and a tick, and both acknowledge. The
same arguments are the same work in every tree, also in one from before external stores: so the
instructions of two runs can be compared, where times cannot. `--rule` is a backend with a rule on
messages: that matches `nothing`, or `all` of them.
Read next: `bench.stores`, which runs it.
"""

import argparse
from typing import Any, Final

from broker.security.authenticators import AllowAll, AllowAllPolicy
from session.counters import Counters
from session.engine import Engine
from session.settings import Settings
from storage.local.memory import MemoryStore
from storage.tables.tables import FAMILIES

START_MS: Final = 1_700_000_000_000
PAYLOAD: Final = bytes(128)
TOPIC: Final = b"bench/pair/1"
PACKET_IDS: Final = 65_535
WARM_UP: Final = 200  # messages before those that are asked for; the same in every run
RULES: Final = {"nothing": ("nobody/#",), "all": ("#",)}


class Wire:
    """A transport that keeps what came last, and how much came."""

    def __init__(self) -> None:
        self.size: int = 0

    def write(self, data: bytes) -> None:
        """Count the bytes."""
        self.size += len(data)

    def close(self) -> None:
        """Fail: no client does anything wrong."""
        raise SystemExit("engine_work: the engine closed a connection")

    def pause_reading(self) -> None:
        """Do nothing: a read is handed in whole."""

    def resume_reading(self) -> None:
        """Do nothing."""


def string(data: bytes) -> bytes:
    """Return a UTF-8 string of MQTT."""
    return len(data).to_bytes(2, "big") + data


def packet(first: int, body: bytes) -> bytes:
    """Return a packet; the body is shorter than 16 KiB."""
    size = len(body)
    length = bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7))
    return bytes((first,)) + length + body


class Pair:
    """The engine, a publisher and a subscriber."""

    def __init__(self, qos: int, rule: str | None, *, is_durable: bool) -> None:
        settings = Settings()
        if rule is not None:
            from session.settings import Feed  # not there in a tree from before external stores

            settings.feeds = (Feed("store", RULES[rule], 0),)
        self.qos: Final = qos
        self.engine: Final = Engine(
            MemoryStore(FAMILIES),
            settings,
            authenticator=AllowAll(),
            policy=AllowAllPolicy(),
            new_client_id=lambda: "never asked for",
            counters=Counters(),
        )
        self._now = START_MS
        self.engine.start(self._now)
        self._publisher: Any = self._client(b"p")
        self.wire: Final = Wire()
        self._subscriber: Any = self._client(b"s", self.wire, clean_session=not is_durable)
        subscribe = b"\0\1" + string(TOPIC) + bytes((qos,))
        self.engine.receive(self._subscriber, packet(0x82, subscribe), self._now)
        self._tick()
        self._acknowledged = 0
        self._acks: Final = b"".join(
            [b"\x40\x02" + number.to_bytes(2, "big") for number in range(1, PACKET_IDS + 1)]
        )

    def _client(self, name: bytes, wire: Wire | None = None, *, clean_session: bool = True) -> Any:
        connection = self.engine.open(wire or Wire(), self._now)
        body = string(b"MQTT") + bytes((4, clean_session << 1, 0, 0)) + string(name)
        self.engine.receive(connection, packet(0x10, body), self._now)
        self._tick()
        return connection

    def _tick(self) -> None:
        """Do what the loop does after what it has read, with a disk that takes no time."""
        engine = self.engine
        while engine.end_tick(self._now):
            pass
        if engine.durable < engine.written:
            engine.committed(engine.written, self._now)
            while engine.end_tick(self._now):
                pass
        self._now += 1
        deadline = engine.next_deadline()
        if deadline is not None and deadline <= self._now:
            engine.handle_timeout(self._now)

    def publish(self, messages: int, window: int) -> None:
        """Bring messages from one client to the other; fails if one does not arrive."""
        if self.qos:
            ids = [number.to_bytes(2, "big") for number in range(1, window + 1)]
            read = b"".join([packet(0x32, string(TOPIC) + each + PAYLOAD) for each in ids])
        else:
            read = packet(0x30, string(TOPIC) + PAYLOAD) * window
        before = self.wire.size
        for _ in range(messages // window):
            self.engine.receive(self._publisher, read, self._now)
            self._tick()
            if self.qos:
                if self._acknowledged + window > PACKET_IDS:
                    raise SystemExit("engine_work: too many messages for the packet ids")
                acks = self._acks[4 * self._acknowledged : 4 * (self._acknowledged + window)]
                self._acknowledged += window
                self.engine.receive(self._subscriber, acks, self._now)
                self._tick()
        if self.wire.size - before != messages // window * len(read):
            raise SystemExit("engine_work: not every message arrived")


def main() -> int:
    """Do the work."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--qos", type=int, choices=(0, 1), default=1)
    parser.add_argument("--window", type=int, default=100)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--rule", choices=sorted(RULES))
    parser.add_argument("--durable", action="store_true", help="the subscriber's session is kept")
    arguments = parser.parse_args()
    pair = Pair(arguments.qos, arguments.rule, is_durable=arguments.durable)
    pair.publish(WARM_UP, arguments.window)
    pair.publish(arguments.messages, arguments.window)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
