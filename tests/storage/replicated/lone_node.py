"""A node under test: its log is what the test says, and time passes when the test says so."""

from typing import Any

from storage.replicated import batch_codec
from storage.replicated.log_port import Acked, CaughtUp, Event, Read
from storage.replicated.members import Presence
from storage.replicated.record import (
    CHAINED,
    CLAIM,
    HEARTBEAT,
    PRESENCE,
    Position,
    Record,
    after,
    decode,
)
from storage.replicated.replica import BEAT, Replica
from storage.replicated.roles.terms import (
    CLAIMS,
    LEADS,
    Anchor,
    Settings,
)
from tests.replication.node import META, Disk, TailFile

NONCE, OTHER = b"n" * 16, b"o" * 16


class Log:
    """What a replica has sent, and from where it reads."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, int | None]] = []
        self.tokens: dict[int, int] = {}  # of records that continue the chain, by their index
        self.words: list[int] = []  # tokens of presences
        self.read_at: list[int] = []
        self.deleted: list[int] = []

    def append(self, data: bytes, token: int | None = None) -> None:
        """Send a record."""
        self.sent.append((data, token))
        record = decode(data)
        if record.kind in CHAINED and token is not None:
            self.tokens[record.index] = token
        elif record.kind == PRESENCE:
            assert token is not None
            self.words.append(token)

    def take(self) -> list[Event]:
        """Return nothing: the test says what happened."""
        return []

    def read_from(self, place: int) -> None:
        """Note from where to read on."""
        self.read_at.append(place)

    def delete_before(self, place: int) -> None:
        """Note what may be deleted."""
        self.deleted.append(place)


class Chain:
    """Records by another node, each of which continues the chain."""

    def __init__(self, end: Position | None = None, place: int = 0) -> None:
        self.end = end or Position()
        self.place = place

    def add(self, kind: int, epoch: int, body: bytes = b"", node: str = "ann") -> Read:
        """Return the next record."""
        record = Record(kind, epoch, self.end.index + 1, self.end.digest, node, body)
        data = record.encode()
        self.end = after(record, data)
        self.place += 1
        return Read(self.place - 1, data)

    def other(self, kind: int, body: bytes, node: str, epoch: int | None = None) -> Read:
        """Return a record that is not part of the chain."""
        end = self.end
        self.place += 1
        epoch = end.epoch if epoch is None else epoch
        record = Record(kind, epoch, end.index, end.digest, node, body)
        return Read(self.place - 1, record.encode())

    def word(self, node: str, nonce: bytes, longest: tuple[int, int] = (0, 0)) -> Read:
        """Return the presence of a node."""
        said = Presence(nonce, longest, longest, self.end.index, "host")
        return self.other(PRESENCE, said.encode(), node)

    def beat(self, node: str = "ann") -> Read:
        """Return a heartbeat of the leader."""
        return self.other(HEARTBEAT, BEAT.pack(77), node)

    def sent(self, log: Log, back: int = 1) -> Read:
        """Return what a replica has sent, as read back."""
        data = [each for each, _ in log.sent if decode(each).kind in CHAINED][-back]
        record = decode(data)
        self.end = after(record, data)
        self.place += 1
        return Read(self.place - 1, data)


def row(command: int) -> bytes:
    return batch_codec.encode([(META, b"%d" % command, b"value")])


class Bob:
    """A node under test, its log and the clock."""

    def __init__(self, at: Anchor | None = None, anchors: tuple[Anchor, ...] = ()) -> None:
        self.log = Log()
        self.disk = Disk()
        self.tail = TailFile()
        self.now = 1000
        self.begin(at or Anchor(Position(), 0), anchors)

    def begin(
        self,
        at: Anchor,
        anchors: tuple[Anchor, ...] = (),
        *,
        is_new: bool = False,
        has_led: bool = False,
        **more: Any,
    ) -> None:
        """Start a process."""
        members = more.pop("members", ("ann", "bob"))
        settings = Settings("bob", members, anchor_every=4, trim_ms=1000, part_bytes=64, **more)
        self.replica = Replica(
            settings, self.log, self.disk, self.tail,
            nonce=NONCE, at=at, anchors=anchors, now=self.now, is_new=is_new, is_warm=has_led,
        )  # fmt: skip

    def hear(self, *events: Event, synced: bool = True) -> None:
        """Take events; by default what they bring is synced in the tail at once."""
        self.replica.events(events, self.now)
        if synced:
            self.tail.sync_begin()
            self.replica.tail_synced(self.tail.sync_end())

    def wait(self, ms: int, *, alone: bool = False) -> None:
        """Let time pass in which the log is heard and says nothing, but that it keeps all.

        `alone`: what is heard is one machine of the log, which is cut off and keeps nothing.
        """
        until = self.now + ms
        while self.now < until:
            self.now += 100
            end = self.replica._read_to
            kept = [] if alone else [Acked(token, end - 1) for token in self.log.words]
            self.log.words.clear()
            self.replica.events([*kept, CaughtUp(end)], self.now)
            self.replica.timeout(self.now)

    def keep(self) -> None:
        """The log says that it keeps what was read."""
        self.now += self.replica.settings.presence_ms
        self.replica.timeout(self.now)
        end = self.replica._read_to
        self.hear(Acked(self.log.words.pop(), end - 1), CaughtUp(end))

    def ack(self, read: Read) -> Acked:
        """Return that the log keeps a record that this node has sent."""
        return Acked(self.log.tokens[decode(read.data).index], read.place)

    def told(self, kind: type) -> list[object]:
        """Return and forget what was told of a kind."""
        found = [each for each in self.replica.told if isinstance(each, kind)]
        self.replica.told[:] = []
        return found

    def kinds(self) -> list[int]:
        """Return the kinds of what was sent that is part of the chain, and forget all."""
        found = [decode(data).kind for data, _ in self.log.sent]
        self.log.sent.clear()
        return [kind for kind in found if kind != PRESENCE]

    def has(self, command: int) -> bool:
        """Return whether the database has a row."""
        return self.disk.store.get(META, b"%d" % command) is not None


def leading(**settings: Any) -> tuple[Bob, Chain]:
    """Return a node that leads in epoch 2, with nothing written."""
    bob, chain = Bob(), Chain()
    if settings:
        bob.begin(Anchor(Position(), 0), **settings)
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.beat(), CaughtUp(3))
    bob.wait(5000)
    assert bob.replica.role == CLAIMS
    claim = chain.sent(bob.log)
    bob.hear(bob.ack(claim), claim, CaughtUp(4))
    bob.wait(100)
    assert bob.replica.role == LEADS
    bob.log.sent.clear()
    bob.replica.told.clear()
    return bob, chain
