"""Create many offline sessions with one subscription each, directly through the engine.

    python bench/fill.py DIRECTORY --sessions 1000000 --prefix fill --run 1

The result is the same as if the clients had connected, subscribed and left. Without sockets this
saves minutes of handshakes, which the connection storm measures. The database is synced at the end,
as after an orderly stop. Client identifiers and topics are those of `mqttload offline --prefix
--run`, which can then publish to the sessions and drain them. Prints the sessions made per second.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Final

from broker.security.authenticators import AllowAll, AllowAllPolicy
from session.counters import Counters
from session.engine import Engine
from session.settings import Settings
from storage.local.data_directory import DataDirectory
from storage.local.opening import open_database
from storage.tables.tables import FAMILIES
from storage.time import machine_clocks
from storage.time.broker_clock import Heartbeat

TICK_SESSIONS: Final = 500  # per batch, about what one tick takes in a connection storm
DISCONNECT: Final = b"\xe0\x00"


class Nowhere:
    """A transport that collects what the engine writes."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Keep the bytes for the check at the end."""
        self.answers.append(data)

    def close(self) -> None:
        """Do nothing: `transport_lost` is called anyway."""

    def pause_reading(self) -> None:
        """Do nothing: all bytes have been handed in."""

    def resume_reading(self) -> None:
        """Do nothing."""


def session_packets(client_id: bytes, topic: bytes) -> bytes:
    """Return CONNECT (3.1.1, a session to keep) and SUBSCRIBE with QoS 1, as bytes."""
    connect = b"\x00\x04MQTT\x04\x00\x00\x00" + len(client_id).to_bytes(2, "big") + client_id
    subscribe = b"\x00\x01" + len(topic).to_bytes(2, "big") + topic + b"\x01"
    assert len(connect) < 128
    assert len(subscribe) < 128
    return bytes((0x10, len(connect))) + connect + bytes((0x82, len(subscribe))) + subscribe


def fill(directory: Path, *, sessions: int, prefix: str, run: int) -> None:
    """Create the sessions; on return they are durable and the database is closed."""
    home = DataDirectory(directory)
    store, watermark, _ = open_database(home, families=FAMILIES)
    boot_id, boottime_ms = machine_clocks.boot_id(), machine_clocks.boottime_ms()
    offset_ms = machine_clocks.wall_ms() - boottime_ms

    def heartbeat(now: int) -> bytes:
        return Heartbeat(now, machine_clocks.wall_ms(), boot_id, now - offset_ms).encode()

    engine = Engine(
        store,
        Settings(),
        authenticator=AllowAll(),
        policy=AllowAllPolicy(),
        new_client_id=lambda: "never asked for",
        counters=Counters(),
        heartbeat=heartbeat,
    )
    engine.start(boottime_ms + offset_ms)
    for first in range(0, sessions, TICK_SESSIONS):
        now = machine_clocks.boottime_ms() + offset_ms
        clients = []
        for number in range(first, min(first + TICK_SESSIONS, sessions)):
            transport = Nowhere()
            connection = engine.open(transport, now)
            client_id, topic = f"{prefix}-s{number}".encode(), f"off/{run}/{number}/d".encode()
            engine.receive(connection, session_packets(client_id, topic), now)
            clients.append((transport, connection))
        _settle(engine, now)
        for transport, connection in clients:
            if b"".join(transport.answers) != b"\x20\x02\x00\x00\x90\x03\x00\x01\x01":
                raise SystemExit(f"fill: a session was not made: {transport.answers!r}")
            engine.receive(connection, DISCONNECT, now)
            engine.transport_lost(connection, now)
        _settle(engine, now)
    store.sync()
    watermark.advance(store.synced())
    store.close()
    watermark.close()
    home.close()


def _settle(engine: Engine, now: int) -> None:
    """End the tick and release its replies without a sync; `fill` syncs once at the end."""
    while engine.end_tick(now):
        pass
    engine.committed(engine.written, now)
    while engine.end_tick(now):
        pass


def main() -> int:
    """Fill a directory and print the rate."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--prefix", default="fill")
    parser.add_argument("--run", type=int, default=1)
    arguments = parser.parse_args()
    began = time.monotonic()
    fill(
        arguments.directory,
        sessions=arguments.sessions,
        prefix=arguments.prefix,
        run=arguments.run,
    )
    sys.stdout.write(f"{arguments.sessions / (time.monotonic() - began):.0f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
