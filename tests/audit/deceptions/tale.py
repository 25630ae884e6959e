"""A true history of the real engine, to be falsified: ten minutes in which everything happens once.

The engine runs with a fake clock and a disk in memory (`tests.session.harness`), so the history is
the same each time and its times are long enough for wills, expiry and the horizon of the audit.
`tell` returns the rows as an exporter would have them, `Tale` is a copy for one attack.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from mqtt.packets import Puback, Pubcomp, Pubrec, Will
from storage.history.columns import ARROW_SCHEMA, expand_table
from storage.history.packed_rows import split_history_key, unpack
from storage.history.segments import split_for_segments, write_segment
from storage.tables.tables import HISTORY, unseal
from tests.session.harness import Broker, Client, will

BEAT_SECONDS: Final = 5

Event = dict[str, Any]


@dataclass
class Tale:
    """A history that an attack changes: its rows in their order, and then its files."""

    rows: list[Event]
    # Done to the written segments, sorted.
    on_files: list[Callable[[list[Path]], None]] = field(default_factory=list)

    def of(self, ev: str, **columns: object) -> list[Event]:
        """Return the rows of an event with these values."""
        return [
            row
            for row in self.rows
            if row["ev"] == ev and all(row[name] == value for name, value in columns.items())
        ]

    def one(self, ev: str, at: int = 0, **columns: object) -> Event:
        """Return one of these rows."""
        return self.of(ev, **columns)[at]

    def about(self, msg: int) -> list[Event]:
        """Return all rows of a message."""
        return [row for row in self.rows if row["msg"] == msg and row["ev"] != "retained_set"]

    def topics(self) -> dict[int, str]:
        """Return the topic of each message."""
        return {row["msg"]: row["topic"] for row in self.of("msg_accepted")}

    def drop(self, *rows: Event) -> None:
        """Take rows out; their numbers are missing then."""
        gone = {id(row) for row in rows}
        assert gone
        self.rows = [row for row in self.rows if id(row) not in gone]

    def insert(self, after: Event, **columns: object) -> Event:
        """Put a copy of a row with other values behind it; `renumber` must follow."""
        row = {**after, **columns}
        self.rows.insert(self.index(after) + 1, row)
        return row

    def move(self, row: Event, *, after: Event) -> None:
        """Move a row; `renumber` must follow."""
        self.drop(row)
        row |= {name: after[name] for name in ("boot", "ts", "mono_ns")}
        self.rows.insert(self.index(after) + 1, row)

    def index(self, row: Event) -> int:
        """Return where a row is."""
        return next(at for at, each in enumerate(self.rows) if each is row)

    def renumber(self, *, adjusted: bool = True) -> None:
        """Close all holes; `adjusted`: also where the next boot says how many rows there were."""
        count = 0
        for _, group in groupby(self.rows, key=lambda row: row["boot"]):
            for seq, row in enumerate(group, 1):
                if row["ev"] == "boot" and row["boot"] > 1 and adjusted:
                    row["count"] = count
                row["seq"] = seq
            count = row["seq"]

    def write(self, directory: Path, node: str) -> None:
        """Write the segments as an exporter would name them, and do to them what is to be done."""
        before = set(directory.rglob("*.parquet"))
        for boot, rows in groupby(self.rows, key=lambda row: row["boot"]):
            mine = [{**row, "node": node} for row in rows]
            for piece in split_for_segments(pa.Table.from_pylist(mine, ARROW_SCHEMA)):
                write_segment(directory, piece, node, boot)
        written = sorted(set(directory.rglob("*.parquet")) - before, key=lambda path: path.name)
        for change in self.on_files:
            change(written)


def events(broker: Broker) -> Iterator[Event]:
    """Yield the rows of a broker's history."""
    found = [
        (split_history_key(key)[0], unpack(unseal(value, "history")))
        for key, value in broker.rows(HISTORY)
    ]
    for boot, group in groupby(found, key=lambda pair: pair[0]):
        yield from expand_table([row for _, row in group], "tale", boot).to_pylist()


def tell() -> Tale:
    """Return the true history, for one attack."""
    return Tale([dict(row) for row in _told()])


@cache
def _told() -> list[Event]:
    broker = Broker(history_detail="full")
    _first_boot(broker)
    broker.advance(s=3)
    broker.restart(after_ms=2_000)
    _second_boot(broker)
    end(broker)
    broker.now += 5_000
    broker.start()
    _third_boot(broker)
    end(broker)
    return list(events(broker))


def end(broker: Broker) -> None:
    """Let the broker end in good order."""
    broker.engine.drain(broker.now)
    broker.settle()
    broker.engine.finish(broker.now)
    broker.settle()
    broker.crash()


def let_pass(broker: Broker, seconds: int) -> None:
    """Let time pass, with a sign of life now and then."""
    step = 1 if seconds < BEAT_SECONDS else BEAT_SECONDS
    for _ in range(0, seconds, step):
        broker.advance(s=step)


def resume(broker: Broker, name: str, **fields: Any) -> Client:
    """Go on with a session."""
    client = broker.durable(name, **fields)
    assert client.connack is not None and client.connack.session_present
    return client


def last_will(topic: str, *, delay: int = 0) -> Will:
    """Return a will at QoS 1."""
    return will(topic, qos=1, delay=delay)


def _first_boot(broker: Broker) -> None:
    reader = broker.durable("reader", "a/#", "will/#", qos=1)
    exact = broker.durable("exact", "a/#", qos=2, receive_maximum=2)
    broker.durable("away", "a/#", qos=1).disconnect()
    broker.durable("brief", "none/#", expiry=60).disconnect()
    broker.durable("later", "none/#", expiry=200).disconnect()
    broker.durable("member1", "$share/g/job/#", qos=1)
    broker.durable("member2", "$share/g/job/#", qos=1)
    giver = broker.durable("giver")
    for number in range(8):
        giver.publish(f"a/{number % 2}", b"%d" % number, 1 + number % 2)
        reader.receive_all()
        exact.receive_all()
        let_pass(broker, 1)
    _qos2_sent_again(broker, exact, giver)
    for number in range(4):
        giver.publish(f"job/{number}", b"x", 1)
    for name in ("member1", "member2"):
        _client(broker, name).receive_all()
    for payload in (b"old", b"new"):
        giver.publish("kept", payload, 1, retain=True)
        let_pass(broker, 1)
    broker.durable("late", "kept", qos=1).receive_all()
    giver.publish("a/soon", b"x", 1, message_expiry_interval=5)
    giver.publish("a/long", b"x", 1, message_expiry_interval=2000)
    for client in (reader, exact):
        client.receive_all()
    # A will at once, one after its delay, one that a resume cancels, one of a good end.
    broker.durable("dying", will=last_will("will/now")).drop()
    broker.durable("waiting", will=last_will("will/late", delay=70)).drop()
    broker.durable("back", will=last_will("will/back", delay=100)).drop()
    broker.durable("calm", will=last_will("will/calm")).disconnect()
    let_pass(broker, 75)
    resume(broker, "back").disconnect()
    _client(broker, "reader").receive_all()
    # A takeover.
    broker.durable("twice", "none/#")
    resume(broker, "twice")
    giver.publish("a/0", b"before the crash", 1)
    reader.receive_all()
    exact.receive_all()


def _qos2_sent_again(broker: Broker, exact: Client, giver: Client) -> None:
    """Lose a connection with one exchange before its PUBREC, and one behind it."""
    giver.publish("a/2", b"one", 2)
    giver.publish("a/2", b"two", 2)
    first, second = exact.messages()
    exact.send(Pubrec(second.packet_id))
    exact.drop()
    broker.advance(s=2)
    again = resume(broker, "exact", receive_maximum=2)
    (resent,) = again.messages()
    assert resent.packet_id == first.packet_id
    again.take()
    again.acknowledge(resent)
    again.drop()
    exact = resume(broker, "exact", receive_maximum=2)
    exact.take()
    exact.send(Pubcomp(second.packet_id))


def _client(broker: Broker, name: str) -> Client:
    return next(each for each in broker.clients if each.connection.client_id == name)


def _second_boot(broker: Broker) -> None:
    """Behind the crash: everybody comes back; what waited for those away is delivered."""
    let_pass(broker, 2)
    reader = resume(broker, "reader")
    reader.receive_all()
    exact = resume(broker, "exact", receive_maximum=2)
    exact.receive_all()
    resume(broker, "away").receive_all()
    giver = resume(broker, "giver")
    for number in range(6):
        giver.publish(f"a/{number % 2}", b"%d" % number, 1)
        let_pass(broker, 1)
    burst = reader.messages()
    reader.send(*(Puback(each.packet_id) for each in burst))
    exact.receive_all()
    resume(broker, "member1").receive_all()
    resume(broker, "member2").receive_all()
    giver.publish("kept", b"newest", 1, retain=True)
    broker.durable("later reader", "kept", qos=1).receive_all()
    let_pass(broker, 320)


def _third_boot(broker: Broker) -> None:
    """Behind an orderly end."""
    let_pass(broker, 2)
    resume(broker, "reader").receive_all()
    giver = resume(broker, "giver")
    for number in range(4):
        giver.publish(f"a/{number % 2}", b"%d" % number, 1)
        _client(broker, "reader").receive_all()
        let_pass(broker, 1)
    resume(broker, "exact", receive_maximum=2).receive_all()
    let_pass(broker, 60)


@cache
def _lies() -> tuple[list[Event], list[Event]]:
    """Return what was exported before a disk lost what it had synced, and what is on it then."""
    broker = Broker(history_detail="full")
    broker.durable("reader", "a/#", qos=1).disconnect()
    giver = broker.durable("giver")
    giver.publish("a/0", b"kept", 1)
    let_pass(broker, 5)
    disk = broker.store.crash(None)
    broker.durable("lost session", "a/#", qos=1).disconnect()
    for number in range(50):
        giver.publish("a/0", b"%d" % number, 1)
    let_pass(broker, 5)
    exported = list(events(broker))
    broker.crash()
    broker.store = disk
    broker.now += 2_000
    broker.start()
    resume(broker, "reader").receive_all()
    resume(broker, "giver")
    let_pass(broker, 400)
    end(broker)
    return exported, list(events(broker))


def lie_of_a_disk(*, exported: bool) -> list[Event]:
    """Return a history over which a disk lost what it had said it had.

    `exported`: the rows that it lost were in a segment by then.
    """
    before, after = _lies()
    if not exported:
        return [dict(row) for row in after]
    return [dict(row) for row in (*before, *(row for row in after if row["boot"] > 1))]
