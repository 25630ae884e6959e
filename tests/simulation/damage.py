"""Rows that cannot be read any more: which, what was in them, and whom that excuses.

A damaged row may cost what it holds and no more. So the oracle is told what a row held before it
is damaged: a message may then be missing, a will may not fire, a client may be refused. All else
stays promised. An operator brings back the rows of sessions before the world heals: nothing of
them may be missing then. Read next: `tests.simulation.world`, `session.live.damage`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mqtt.message import Message
from session.state.will_record import decode_connection
from storage.local.memory import MemoryStore
from storage.log.layouts import blocks, timeline
from storage.log.layouts.block_format import Block
from storage.tables.message_record import decode_message
from storage.tables.tables import (
    CONNECTIONS,
    DUE,
    FILTERS,
    GROUPS,
    HISTORY,
    HOLDERS,
    INCOMING,
    MAILBOX,
    RETAINED,
    SESSIONS,
    SUBSCRIPTIONS,
    retained_topic,
    unseal,
)
from storage.tables.timers import WILL
from tests.simulation.rare import sometimes
from tests.simulation.verdict import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

MESSAGES: Final = "msg"
INDEX: Final = "idx"
# What is damaged, and how often: one of these at a time.
FAMILIES: Final = {
    MESSAGES: 8,
    INDEX: 2,
    SESSIONS: 2,
    SUBSCRIPTIONS: 2,
    INCOMING: 20,
    HOLDERS: 2,
    FILTERS: 2,
    GROUPS: 2,
    MAILBOX: 20,
    RETAINED: 3,
    DUE: 3,
    CONNECTIONS: 2,
    HISTORY: 2,
}
HOLDERS_READ: Final = 40  # their weight in worlds where limits refuse: nothing else reads them
# The broker does not start without them, and says so: it would route messages to nobody.
NEEDED: Final = (FILTERS, GROUPS)
# Nothing replaces these rows while they cannot be read: an operator does, from a backup.
RESCUED: Final = (FILTERS, GROUPS, SESSIONS, SUBSCRIPTIONS, INCOMING, DUE, CONNECTIONS)


class Damages:
    """What of the store of a world cannot be read."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.clients: set[str] = set()  # whose sessions or timers were in damaged rows
        self.struck = False
        self.lost_index = False
        self.passed_over = 0  # messages that broker processes before this one have given up
        self.met: dict[str, int] = {}  # counted by them: what rows hold -> places

    def strike(self) -> None:
        """Damage a row of the running broker's store, or two neighbours."""
        world = self._world
        process = world.up()
        assert process is not None
        store, random = process.store, world.random
        found: dict[str, list[tuple[str, bytes]]] = {}
        for family, durable in store.crash()._families.items():
            kind = family.partition(".")[0]
            if kind not in FAMILIES:
                continue
            now = store._families[family].values  # what is only in memory is not damaged
            rows = [(family, key) for key in durable.keys if now.get(key) == durable.values[key]]
            if rows:
                found.setdefault(kind, []).extend(rows)
        if not found:
            return
        weights = [FAMILIES[kind] for kind in found]
        if HOLDERS in found and self._reads_holders():
            weights[list(found).index(HOLDERS)] = HOLDERS_READ
        kind = random.choices(list(found), weights)[0]
        rows = found[kind]
        if kind == MESSAGES:
            rows = rows[-6:]  # that somebody may wait for
        at = int(random.random() * len(rows))
        self.struck = True
        for family, key in rows[at : at + random.choice((1, 1, 2))]:
            world.note("damaged", family, key)
            sometimes(f"damaged_{kind}")
            self._excuse(kind, family, key, store._families[family].values[key])
            store.damage(family, [key])

    def _reads_holders(self) -> bool:
        """Are backlogs counted before a message is stored?"""
        settings = self._world.settings
        is_limited = settings.max_offline_messages or settings.max_offline_bytes
        return settings.on_limit == "reject" and bool(is_limited)

    def start_refused(self) -> bool:
        """The broker found rows damaged when it started; may it? An operator brings them back."""
        store = self._world.store
        if not any(store._damaged.get(family) for family in NEEDED):
            return False
        self._world.note("start refused for damage")
        sometimes("start_refused_for_damage")
        mend(store, NEEDED)
        return True

    def _excuse(self, kind: str, family: str, key: bytes, value: bytes) -> None:
        """Tell the oracle what is lost with a row."""
        oracle = self._world.oracle
        if kind == MESSAGES:
            for message in self._messages(family, key, value):
                self._lose(_index(message))
        elif kind == MAILBOX:
            name = key.partition(b"\0")[0].decode()
            copy = decode_message(value[4:], 0)
            for client in self._world.clients:
                if client.name == name:
                    client.receiver.lose(_index(copy))
                    if client.view is not None:
                        client.view.owed_retained.pop(copy.topic, None)
        elif kind == INDEX:
            self.lost_index = True
        elif kind == RETAINED:
            oracle.lose_retained(retained_topic(key), self._world.step)
        elif kind == DUE:
            self._excuse_timer(key, value)
        elif kind == CONNECTIONS:
            self._excuse_client(key.decode())
            will = decode_connection(unseal(value, "connection")).will
            if will is not None:
                oracle.lost_wills.add(_will_index(will.payload))
        elif kind == HISTORY:
            self._world.retold.lost_end = True
        elif kind == SESSIONS:
            self._excuse_client(key.decode())
            presence = oracle.presences.get(key.decode())
            if presence is not None:
                presence.will_may_part = True
        elif kind in (SUBSCRIPTIONS, INCOMING):
            self._excuse_client(key.partition(b"\0")[0].decode())

    def _excuse_timer(self, key: bytes, value: bytes) -> None:
        name = key[9:].partition(b"\0")[0].decode()
        if key[8] == WILL:
            will = decode_connection(unseal(value, "due")).will
            assert will is not None
            self._world.oracle.lost_wills.add(_will_index(will.payload))
        self._excuse_client(name)

    def _excuse_client(self, name: str) -> None:
        """Its session may be refused, and may end later than it would have."""
        self.clients.add(name)
        self._world.retold.excused = self.clients
        presence = self._world.oracle.presences.get(name)
        if presence is not None:
            presence.may_end_late = True

    def _lose(self, index: int) -> None:
        """A message may never come (again)."""
        if index >= 0:
            self._world.oracle.lose(index)
        for client in self._world.clients:
            client.receiver.lose(index)

    def _messages(self, family: str, key: bytes, value: bytes) -> Iterator[Message]:
        """Yield the messages of a row of the log."""
        process = self._world.up()
        assert process is not None
        number, last = int(family.partition(".")[2]), int.from_bytes(key, "big")
        for generation in process.engine._log.list_generations():
            if generation.number != number:
                continue
            # Without an index a stretch of damaged rows is told as one place.
            self.lost_index = self.lost_index or generation.layout == timeline.NAME
            if generation.layout != blocks.NAME:
                yield decode_message(value, last)
                continue
            block = Block(value, last)
            for offset in range(block.first, last + 1):
                message = block.get(offset)
                assert message is not None
                yield message

    # What the broker made of it

    def process_ends(self) -> None:
        """Add up what the process that ends now has met."""
        process = self._world.process
        assert process is not None
        self.passed_over += process.counters.dropped["damaged"]
        for what, places in process.counters.damaged_rows.items():
            self.met[what] = self.met.get(what, 0) + places
            if places:
                sometimes(f"met_damaged_{what}")

    def rescue(self) -> None:
        """Bring back what no message is in: the broker is down while that is done."""
        world = self._world
        if not self.struck:
            return
        world.crash()
        mend(world.store, RESCUED)
        world.note("rescued")

    def judge(self) -> None:
        """Judge that what was lost with a row was counted; the last process has ended."""
        if not self.struck or self._world.limited:  # limits may have dropped it before
            return
        lost = self._world.oracle.count_damaged()
        if lost:
            sometimes("damaged_message_lost")
        if self.lost_index:  # which messages were in a stretch of the log is not known then
            lost = min(lost, 1)
        if lost > self.passed_over:
            raise Violation(
                "no_acknowledged_message_is_lost",
                f"{lost} were lost in damaged rows, {self.passed_over} counted",
            )
        world = self._world
        if lost > world.retold.damaged and world.detail == "full" and not world.retold.has_gap:
            raise Violation(
                "history_agrees_with_the_state",
                f"{lost} were lost in damaged rows, {world.retold.damaged} are in the history",
            )


def mend(store: MemoryStore, families: tuple[str, ...] = ()) -> dict[str, list[bytes]]:
    """Let rows of these families (all) be read again; returns what could not."""
    damaged = {name: list(keys) for name, keys in store._damaged.items()}
    for name in damaged if not families else families:
        store._damaged.pop(name, None)
    return damaged


def _index(message: Message) -> int:
    """Return which message it is, as receivers do: -1 stands for those without a payload."""
    return int(message.payload.partition(b".")[0] or -1)


def _will_index(payload: bytes) -> int:
    return int(payload.partition(b".")[0])
