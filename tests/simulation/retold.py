"""Replay the history and compare the result with the state on the disk.

After every crash and at the end, the new history rows on the disk are replayed on top of the
earlier ones, and the result is compared with the rows of the state. In between some rows that were
already replayed are trimmed, as an exporter would do. Must never look inside the broker, which is
not running at that time. Read next: `storage.history.replay`.
"""

from collections.abc import Collection, Iterator
from itertools import groupby
from random import Random
from typing import Final

from mqtt.topics import split_shared
from session.history.outbox import Outbox
from session.state.in_flight import (
    FROM_MAILBOX,
    PERHAPS_SENT,
    QOS_MASK,
    REFERENCE_SHIFT,
    RELEASED,
    SOURCE_MASK,
)
from session.state.records import decode_session
from session.state.session import Session
from session.state.shared_group_record import decode_group
from session.state.subscription import Subscription, decode_subscription
from session.state.will_record import decode_connection
from storage.api import Batch
from storage.history.packed_rows import Row, count_missing, expand, split_history_key, unpack
from storage.history.replay import Fold
from storage.history.replay import Session as Folded
from storage.local.memory import MemoryStore
from storage.tables.message_record import decode_message
from storage.tables.tables import (
    BOOT_KEY,
    CONNECTIONS,
    DUE,
    FILTERS,
    GROUPS,
    HISTORY,
    META,
    RETAINED,
    SESSIONS,
    SUBSCRIPTIONS,
    client_prefix,
    decode_filter,
    encode_boot,
    load_boot,
    retained_topic,
    scan_all,
    scan_prefix,
    split_group_key,
    unseal,
)
from storage.tables.timers import WILL
from tests.simulation.left_out import ToldOnce
from tests.simulation.rare import sometimes
from tests.simulation.verdict import Violation

NODE: Final = "world"
ROW_DAMAGED: Final = 1031


class Retold:
    """What the history of a world has said so far."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # its own: whoever looks on changes nothing
        self._next: tuple[int, int] = (0, 0)  # boot and seq of the first event not read yet
        self._said = 0  # problems that were looked at
        self.damaged = 0  # messages of which the history says that their rows are damaged
        self.trims = True  # are rows deleted from the store, while no broker runs?
        self.has_gap = False  # was less recorded for a while?
        # Clients whose rows were damaged: the history cannot have all of their sessions and wills.
        self.excused: Collection[str] = ()
        self.lost_end = False  # a row of the history was: a start may not know how far it went
        self.fold = Fold()
        self._once = ToldOnce()
        self.about_stores: list[dict[str, object]] = []  # events that nobody has looked at yet
        # All rows that an exporter would have taken, by their keys, if anybody wants them.
        self.kept: dict[tuple[int, int], Row] | None = None

    def judge(self, store: MemoryStore) -> None:
        """Read what is new and compare it with the rest of the disk; the broker is dead."""
        self.read(store)
        self.fold.cut_off()
        problems = self.fold.problems()
        for problem in problems[self._said :]:
            if not self._is_excused(problem):
                raise Violation("history_agrees_with_the_state", problem)
        self._said = len(problems)
        for difference in differences(self.fold, store):
            if not self._is_excused(difference):
                raise Violation("history_agrees_with_the_state", difference)

    def _is_excused(self, problem: str) -> bool:
        """Is it about a session, or the end of the history, that was in a damaged row?"""
        if self.lost_end and "the disk has boot" in problem:
            return True
        if self.excused and "recovered: found" in problem:
            return True
        return any(name in problem.replace("'", " ").split() for name in self.excused)

    def read(self, store: MemoryStore) -> None:
        """Take in what is new, and trim some of it."""
        keys = [key for key, _ in self._take(store)]
        if self.trims and keys and self._random.random() < 0.5:
            cut = 1 + int(self._random.random() * len(keys))
            # As `session.history.outbox` does it: the next boot has to know where this one ended.
            trimmed: Batch = [(HISTORY, key, None) for key in keys[:cut]]
            boot, told = load_boot(store)
            if boot == self._next[0]:
                told = self._next[1] - 1
            store.write([*trimmed, (META, BOOT_KEY, encode_boot(boot, told))])
            store.sync()

    def export(self, durable: MemoryStore, outbox: Outbox) -> None:
        """Take in what is new of a running broker, and let it delete some of the rows.

        `durable` is what a crash would leave: nothing else is exported.
        """
        rows = self._take(durable)
        if self._random.random() < 0.4:
            rows = rows[: 1 + int(self._random.random() * len(rows))]
        is_full = self._random.random() < 0.3
        for boot, group in groupby(rows, key=lambda row: split_history_key(row[0])[0]):
            values = dict(group)
            first_seqs = [split_history_key(key)[1] for key in values]
            size = sum(len(value) for value in values.values())
            is_inherited = boot != outbox.boot
            if is_full:
                for first_seq in first_seqs if self.kept else ():
                    del self.kept[boot, first_seq]  # unless a crash undoes it: then it is taken
                missing = [count_missing(unseal(value, "history")) for value in values.values()]
                count, told = (sum(numbers) for numbers in zip(*missing, strict=True))
                outbox.discard(boot, first_seqs, size, count=count, told=told)
                sometimes("inherited_history_discarded" if is_inherited else "history_discarded")
            else:
                outbox.trim(boot, first_seqs, size)
                if is_inherited:
                    sometimes("inherited_history_trimmed")

    def _take(self, store: MemoryStore) -> list[tuple[bytes, bytes]]:
        """Replay what is new in the store; return all its rows of the history."""
        rows = list(scan_all(store, HISTORY, b"", None))
        for key, value in rows:
            boot, first = split_history_key(key)
            if self.kept is not None and (boot, first) not in self.kept:
                self.kept[boot, first] = unpack(unseal(value, f"history {key.hex()}"))
            if (boot, first) < self._next:
                continue
            row = unpack(unseal(value, f"history {key.hex()}"))
            if row.first_seq != first:
                raise Violation("history_has_no_holes", f"row {boot}/{first} is {row.first_seq}")
            if boot == self._next[0] and first != self._next[1]:
                raise Violation("history_has_no_holes", f"{boot}/{first} follows {self._next}")
            if boot != self._next[0] and first != 1:
                raise Violation("history_has_no_holes", f"{boot}/{first} is its first row")
            self._next = (boot, first + row.events)
            for flat in expand(row, NODE, boot):
                if flat["ev"] == "retained_expired":
                    sometimes("retained_expired")
                if flat["backend"]:
                    self.about_stores.append(flat)
                if flat["reason"] == ROW_DAMAGED:
                    count = flat["count"]  # of a row that tells of several messages
                    self.damaged += count if isinstance(count, int) else 1
                self._once.take(flat)
                self.fold.feed(flat)
        return rows


def differences(fold: Fold, store: MemoryStore) -> Iterator[str]:
    """Yield what the history says otherwise than the disk."""
    found = {key.decode(): value for key, value in scan_all(store, SESSIONS, b"", None)}
    told = {name: session for name, session in fold.sessions.items() if session.is_stored}
    for client_id in found.keys() | told.keys():
        if client_id not in told:
            yield f"{client_id} has a session that the history does not know"
        elif client_id not in found:
            yield f"{client_id} has session {told[client_id].incarnation} in the history only"
        else:
            session = _load(store, client_id, found[client_id])
            for what in _compare(store, fold, told[client_id], session):
                yield f"session of {client_id}: {what}"
    yield from _compare_wills(fold, store)
    retained = {
        retained_topic(key): decode_message(value, 0).accepted_at_ms * 1000
        for key, value in scan_all(store, RETAINED, b"", None)
    }
    if retained != fold.retained:
        yield f"retained are {retained}, and {fold.retained} in the history"


def _load(store: MemoryStore, client_id: str, value: bytes) -> Session:
    session = decode_session(client_id, unseal(value, "session"))
    prefix = client_prefix(client_id)
    for key, row in scan_prefix(store, SUBSCRIPTIONS, prefix):
        topic_filter = key[len(prefix) :].decode()
        shared = split_shared(topic_filter)
        share_name, stream = shared if shared else (None, topic_filter)
        body = unseal(row, "subscription")
        session.add(decode_subscription(topic_filter, share_name, stream, body))
    return session


def _compare(store: MemoryStore, fold: Fold, told: Folded, session: Session) -> Iterator[str]:
    names = (
        ("incarnation", told.incarnation, session.incarnation),
        ("expiry interval", told.expiry_s, session.expiry_interval_s),
        ("subscriptions", set(told.subscriptions), set(session.subscriptions)),
        ("connected", told.conn > 0, not session.disconnected_at_ms),
    )
    for name, in_history, on_disk in names:
        if in_history != on_disk:
            yield f"{name} is {on_disk}, in the history {in_history}"
    at_us = session.disconnected_at_ms * 1000
    if at_us != told.disconnected_us:
        yield f"disconnected at {at_us}, in the history at {told.disconnected_us}"
    for topic_filter in set(told.subscriptions) & set(session.subscriptions):
        held = told.subscriptions[topic_filter]
        expected = _held(store, session.subscriptions[topic_filter])
        if expected != (held.qos, held.stream, held.since, held.no_local):
            yield (
                f"{topic_filter!r} is {expected}, in the history"
                f" {(held.qos, held.stream, held.since, held.no_local)}"
            )
    if told.knows_messages:
        yield from _compare_in_flight(told, session)


def _held(store: MemoryStore, subscription: Subscription) -> tuple[int, int, int, bool]:
    """Return QoS, stream, since-offset and No Local of a subscription on the disk."""
    stream, since = 0, subscription.since
    if subscription.holds or subscription.share_name is not None:
        row = store.get(FILTERS, subscription.stream_filter.encode())
        assert row is not None, f"{subscription.topic_filter!r} has no stream"
        stream = decode_filter(row)[0]
    if subscription.share_name is not None:
        for key, value in scan_all(store, GROUPS, b"", None):
            if split_group_key(key) == (subscription.share_name, subscription.stream_filter):
                since = decode_group(unseal(value, "group")).since
    return subscription.qos, stream, since, subscription.no_local


def _compare_in_flight(told: Folded, session: Session) -> Iterator[str]:
    """Compare QoS 2 exactly; QoS 1 but for what may reach the disk late.

    A message that was perhaps sent is told when it is sent again.
    """
    found: dict[int, tuple[int, int, bool]] = {}
    for packet_id, entry in session.in_flight.items():
        if entry & PERHAPS_SENT:
            continue
        message = 0 if entry & SOURCE_MASK == FROM_MAILBOX else entry >> REFERENCE_SHIFT
        found[packet_id] = (message, entry & QOS_MASK, bool(entry & RELEASED))
    for packet_id, inflight in told.in_flight.items():
        said = (inflight.msg, inflight.qos, inflight.is_released)
        if found.pop(packet_id, None) != said and not inflight.is_doubtful:
            yield f"packet id {packet_id} is {said} in the history only"
    for packet_id, expected in found.items():
        yield f"packet id {packet_id} is {expected}, and not in the history"


def _compare_wills(fold: Fold, store: MemoryStore) -> Iterator[str]:
    """Compare the wills of connections and those that wait, by client, session and topic.

    When one is due is compared where it is the will of a session; others could not be published
    when they were.
    """
    found: list[tuple[str, int, str, int, bool]] = []
    due: set[tuple[str, int, int]] = set()
    for key, value in scan_all(store, CONNECTIONS, b"", None):
        record = decode_connection(unseal(value, "connection"))
        if record.will is not None:
            will = record.will
            found.append((key.decode(), record.incarnation, will.topic, will.qos, False))
    for key, value in scan_all(store, DUE, b"", None):
        at_ms, kind, name = int.from_bytes(key[:8], "big"), key[8], key[9:]
        if kind == WILL:
            record = decode_connection(unseal(value, "due"))
            assert record.will is not None
            client_id, _, number = name.partition(b"\0")
            owner = client_id.decode(), record.incarnation
            found.append((*owner, record.will.topic, record.will.qos, True))
            if not number:
                due.add((*owner, at_ms * 1000))
    told = [
        (client_id, incarnation, will.topic, will.qos, will.due_us > 0)
        for (client_id, incarnation), wills in fold.wills.items()
        for will in wills
    ]
    if sorted(found) != sorted(told):
        yield f"wills are {sorted(found)}, and {sorted(told)} in the history"
    for client_id, incarnation, at_us in due:
        if at_us not in {will.due_us for will in fold.wills[client_id, incarnation]}:
            yield f"a will of {client_id} is due at {at_us}, and not in the history"
