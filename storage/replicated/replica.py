"""One node of a replicated store: it follows the log, takes over, leads, and is deposed.

The log is the only referee: a node leads once it has read its own claim back as a record that
counts (`storage.replicated.record`). A batch of the leader is committed once it is synced in the
leader's own tail, the log has acknowledged it, and it was read back with no other claim before it.
A follower applies each batch that counts. Pure: time is an argument, log, tail and database are
ports. Read next: `storage.replicated.members`, `storage.replicated.log_port`.

Two ends are kept apart. `end` is what this node has applied or may yet apply; `log_end` is what the
log says. They differ only when the log has lost what it promised to keep: then `log_end` is behind,
and whoever leads appends again what is missing. A claim that counts in such a log at an index that
this node has passed means that the others went on without it: the node is broken then.
"""

import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from storage.errors import Recoverable
from storage.replicated import batch_codec, members
from storage.replicated.batch_codec import Operation
from storage.replicated.log_port import (
    Acked,
    CaughtUp,
    Event,
    Missing,
    Read,
    ReplicatedLog,
    Shrunk,
    Unknown,
)
from storage.replicated.members import Members, Presence
from storage.replicated.record import (
    BATCH,
    CHAINED,
    CLAIM,
    HEARTBEAT,
    PART,
    PRESENCE,
    NotARecord,
    Position,
    Record,
    after,
    counts,
    decode,
)

FOLLOWS: Final = "follower"
CLAIMS: Final = "candidate"
LEADS: Final = "leader"
DEPOSED: Final = "deposed"  # the process must begin anew
BROKEN: Final = "broken"  # needs a copy of another node's database

BEAT: Final = struct.Struct(">Q")
RESIGNED: Final = b"R"  # behind the time: the leader resigns, in favour of the name that follows
ANCHORS_MAX: Final = 64
# The log counts as heard without a break while it is read to its end at least so often.
HEARD_GAP_MS: Final = 1000
RANK_MS: Final = 500  # a node later in the list of members waits so much longer before it claims


@dataclass(frozen=True, slots=True)
class Settings:
    """Who and how often; times in milliseconds."""

    node: str
    members: tuple[str, ...]
    address: str = ""  # where clients find this node
    takeover_ms: int = 3000  # silence of the leader before a claim
    heartbeat_ms: int = 500
    presence_ms: int = 1000
    lease_ms: int = 3000  # a leader that has not heard the log for so long says so
    trim_ms: int = 30_000  # how often the leader deletes what nobody needs
    resend_ms: int = 2000  # the leader appends again what did not count for so long
    part_bytes: int = 512 << 10  # of a batch in one record
    anchor_every: int = 256  # records between two anchors
    accepts_data_loss: bool = False  # lead after a cold start without having heard every member


@dataclass(frozen=True, slots=True)
class Anchor:
    """Where the chain was at a place of the log: `place` is that of the next record."""

    position: Position
    place: int


class Database(Protocol):
    """What a replica does to the state of its node."""

    def apply(self, operations: Sequence[Operation], position: Position, place: int) -> None:
        """Apply a batch, and note in the same write what it brings this node to."""
        ...

    def remember(self, places: Sequence[Anchor]) -> None:
        """Note these in place of earlier ones; they may be lost in a crash."""
        ...


class Tail(Protocol):
    """The records that this node keeps itself, by index."""

    def append(self, index: int, data: bytes) -> None:
        """Keep a record, of a greater index than all others.

        It is synced when `Replica.tail_synced` is told so.
        """
        ...

    def drop_from(self, index: int) -> None:
        """Forget the records from `index` on. No sync that began earlier is told of any more."""
        ...

    def read_from(self, index: int) -> Iterator[tuple[int, bytes]]:
        """Return the records from `index` on, or from the first one that is still kept."""
        ...


@dataclass(frozen=True, slots=True)
class Leads:
    """This node leads from now on; its database has everything before."""

    epoch: int
    alive_ms: int  # the time of the last leader when it was heard last, 0 = never heard
    silent_ms: int  # and for how long it was silent since then


@dataclass(frozen=True, slots=True)
class Deposed:
    """Another node leads: nothing may be released any more."""

    leader: str
    address: str


@dataclass(frozen=True, slots=True)
class Committed:
    """The leader's batch that ends at this position is committed, and all before it."""

    position: Position
    place: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something an operator must know; one sentence. "" = it is over."""

    why: str


Told: TypeAlias = Leads | Deposed | Committed | Trouble


@dataclass(slots=True)
class Sent:
    """A record that the leader has written and that is not committed."""

    position: Position  # of the chain behind it
    data: bytes
    ends_batch: bool
    place: int = 0  # in the log, of what is behind it; 0 = not read back


class Replica:
    """The state of one node. Call `events` with what the log gave, and `timeout` now and then."""

    def __init__(
        self,
        settings: Settings,
        log: ReplicatedLog,
        database: Database,
        tail: Tail,
        *,
        nonce: bytes,
        at: Anchor,
        anchors: Iterable[Anchor] = (),
        now: int,
    ) -> None:
        """`at` is where the database is; the log must be read from its place on.

        `anchors` are those that were told earlier, oldest first. `nonce` is new for each process.
        `now` is a clock in milliseconds that never goes back.
        """
        self.settings: Final = settings
        self.role: str = FOLLOWS
        self.leader: str = ""  # who leads, as far as this node knows
        self.end: Position = at.position
        self.log_end: Position = at.position
        self.place: int = at.place  # of the record behind `log_end`
        self.members: Final = Members(settings.node, settings.members, nonce)
        self.is_warm: bool = False  # was a leader heard since this process began?
        self.is_stalled: bool = False  # leads, and does not hear the log
        self.foreign: int = 0  # records that are none
        self.passed_over: int = 0  # records that do not count
        known = [each for each in anchors if each.position.index < at.position.index]
        self.anchors: Final[deque[Anchor]] = deque([*known, at], ANCHORS_MAX)
        self.told: Final[list[Told]] = []
        self._log: Final = log
        self._database: Final = database
        self._tail: Final = tail
        self._nonce: Final = nonce
        self._parts: list[bytes] = []
        self._durable: int = at.position.index  # to where the database is synced
        # What the own tail has behind `end` and was never read from the log, as digests by index.
        self._own: dict[int, bytes] = {}
        # The leader.
        self._written: Position = at.position
        self._pending: deque[Sent] = deque()
        self._tokens: dict[int, int] = {}  # of the last attempt: token -> index
        self._next_token: int = 1
        self._acked: int = 0
        self._tail_synced: int = 0
        # Times.
        self._began: int = now
        self._heard_end: int = now - HEARD_GAP_MS - 1  # when the end of the log was heard last
        self._quiet_since: int = now
        self.leader_ms: int = 0  # what its clock said, 0 = never heard
        self._leader_said: int = now  # when it said so
        self._counted: int = now  # when a record counted last, or was sent again
        # Since when others tell of records that this node should have read, 0 = they do not.
        self._missed_since: int = 0
        self._beat_due: int = now
        self._presence_due: int = now
        self._trim_due: int = now + settings.trim_ms
        self._trouble: str = ""
        self._load_own()

    def _load_own(self) -> None:
        """Learn which records of the own tail go on where the database ends."""
        end = self.end
        for _, data in self._tail.read_from(end.index + 1):
            record = decode(data)
            if not counts(record, end):
                self._tail.drop_from(end.index + 1)
                break
            end = after(record, data)
            self._own[end.index] = end.digest
        self._longest: Position = end

    # What the log says.

    def events(self, events: Iterable[Event], now: int) -> None:
        """Take what happened in the log."""
        for event in events:
            if self.role in (DEPOSED, BROKEN):
                return
            match event:
                case Read(place, data):
                    self._read(place, data, now)
                case CaughtUp():
                    self._caught_up(now)
                case Acked(token):
                    self._acknowledged(token)
                case Unknown(token):
                    self._append_again(token)
                case Shrunk(end):
                    self._shrunk(end)
                case Missing(start):
                    self._break(
                        f"the log begins at {start}, this node must read from {self.place}: "
                        "copy the database of another node"
                    )
        if self.role == LEADS:
            self._commit()

    def _read(self, place: int, data: bytes, now: int) -> None:
        try:
            record = decode(data)
            if record.kind == PRESENCE:
                self.members.take(record.node, members.decode(record))
                return
        except NotARecord:
            self.foreign += 1
            return
        if record.kind == HEARTBEAT:
            self._beat(record, now)
        elif record.kind in CHAINED and counts(record, self.log_end):
            self._count(record, data, place, now)
        else:
            self.passed_over += 1
            self._note_missed(record, now, self.log_end.index + 1)

    def _note_missed(self, record: Record, now: int, index: int) -> None:
        """Note that a record tells of others that this node has not read, those up to `index`."""
        if record.epoch >= self.log_end.epoch and record.index > index and not self._missed_since:
            self._missed_since = now

    def _beat(self, record: Record, now: int) -> None:
        self._note_missed(record, now, self.log_end.index)
        if record.epoch != self.log_end.epoch or len(record.body) < BEAT.size:
            return
        self.leader_ms, self._leader_said = BEAT.unpack_from(record.body)[0], now
        self._hear(record.node, now)

    def _hear(self, leader: str, now: int) -> None:
        """Note that the leader lives."""
        self.leader = leader
        self._quiet_since = now
        if leader != self.settings.node and self.members.are_heard:
            self.is_warm = True

    def _count(self, record: Record, data: bytes, place: int, now: int) -> None:
        """Take a record that counts in the log."""
        is_old = record.index <= self.end.index
        if is_old and record.kind == CLAIM and record.epoch > self.end.epoch:
            self._break(
                f"the log lost records and {record.node} went on at {record.index} without them; "
                f"this node has {self.end.index}: copy the database of another node"
            )
            return
        self.log_end = after(record, data)
        self.place = place + 1
        self._counted = now
        self._missed_since = 0
        self._hear(record.node, now)
        behind = record.index - self._pending[0].position.index if self._pending else -1
        if 0 <= behind < len(self._pending):
            self._pending[behind].place = self.place
        if is_old:
            if self.log_end == self.end and record.kind != PART and self.role != LEADS:
                self._database.apply((), self.end, self.place)
            return
        if self._longest.index < record.index or self._own.pop(record.index, b"") != (
            self.log_end.digest
        ):
            self._keep(record.index, data)
        self.end = self.log_end
        if record.kind == CLAIM:
            self._begin_epoch(record, now)
        elif self.role != LEADS:
            self.role = FOLLOWS
            self._apply(record)
        if record.index % self.settings.anchor_every == 0 and record.kind != PART:
            self.anchors.append(Anchor(self.end, self.place))
            self._database.remember(tuple(self.anchors))

    def _keep(self, index: int, data: bytes) -> None:
        """Keep a record that was read; what the own tail had there was never committed."""
        if self._longest.index >= index:
            self._tail.drop_from(index)
            self._own.clear()
        self._tail.append(index, data)
        self._longest = self.log_end

    def _apply(self, record: Record) -> None:
        """Apply a batch that counts, once it is whole."""
        self._parts.append(record.body)
        if record.kind == BATCH:
            body = b"".join(self._parts)
            self._parts.clear()
            self._database.apply(list(batch_codec.decode(body)), self.end, self.place)

    def _begin_epoch(self, record: Record, now: int) -> None:
        """A node leads from here on."""
        self._parts.clear()
        mine = record.node == self.settings.node and record.body == self._nonce
        if self.role == LEADS:
            self.role = DEPOSED
            self.told.append(Deposed(record.node, self.members.address(record.node)))
            return
        self._database.apply((), self.end, self.place)
        if not mine:
            self.role = FOLLOWS
            return
        self.role = LEADS
        self._written = self.end
        self._acked = self._tail_synced = self.end.index
        silent_ms = now - self._leader_said if self.leader_ms else 0
        self.told.append(Leads(record.epoch, self.leader_ms, silent_ms))
        self._beat_due = now

    def _caught_up(self, now: int) -> None:
        if now - self._heard_end > HEARD_GAP_MS:
            self._quiet_since = now  # the leader may have said something that was not read yet
        self._heard_end = now
        if self.is_stalled:
            self.is_stalled = False
            self._say("")

    def _shrunk(self, end: int) -> None:
        """The log has lost records: go back to where it still agrees with this node."""
        while self.anchors and self.anchors[-1].place > end:
            self.anchors.pop()
        if not self._go_back(f"the log ends at {end}"):
            return
        self._say(f"the log lost what is behind {end}; this node has {self.end.index}")
        if self.role == LEADS:
            self._append_missing()
            self._send_again(self.end.index + 1)

    def _go_back(self, why: str) -> bool:
        """Read on from the last anchor; without one return False, and this node is broken."""
        if not self.anchors:
            self._break(
                f"{why}, and this node remembers no place from where to read again: "
                "copy the database of another node"
            )
            return False
        self.log_end, self.place = self.anchors[-1].position, self.anchors[-1].place
        self._missed_since = 0
        self._log.read_from(self.place)
        return True

    def _look_back(self, now: int) -> None:
        """Read again from further back if what others have read does not come.

        The place in the database is wrong if the log lost records and got them again elsewhere, and
        this node lost power before it had noted that.
        """
        waited = now - self._missed_since if self._missed_since else 0
        if waited > 2 * self.settings.resend_ms and now - self._heard_end <= HEARD_GAP_MS:
            self.anchors.pop()
            self._go_back(f"the log has records behind {self.log_end.index} that do not follow it")

    def _append_missing(self) -> Position:
        """Append what this node has and the log may lack; return the end of that."""
        end = self.log_end
        for _, data in self._tail.read_from(end.index + 1):
            record = decode(data)
            if not counts(record, end) or (self.role == LEADS and record.index > self.end.index):
                break
            self._log.append(data)
            end = after(record, data)
        return end

    # The leader.

    def write(self, operations: Sequence[Operation]) -> int:
        """Append a batch; return its index. It is committed when `Committed` tells so.

        Raises `Recoverable` if this node does not lead.
        """
        if self.role != LEADS:
            raise Recoverable(f"this node is a {self.role}")
        pieces = batch_codec.parts(batch_codec.encode(operations), self.settings.part_bytes)
        for number, piece in enumerate(pieces, 1):
            is_last = number == len(pieces)
            self._append(BATCH if is_last else PART, piece)
        return self._written.index

    @property
    def written(self) -> int:
        """Return the index of the last record that this node has written, or begun after."""
        return self._written.index

    def _append(self, kind: int, body: bytes) -> None:
        end = self._written
        record = Record(kind, end.epoch, end.index + 1, end.digest, self.settings.node, body)
        data = record.encode()
        self._written = self._longest = after(record, data)
        self._own[record.index] = self._written.digest
        self._pending.append(Sent(self._written, data, kind == BATCH))
        self._tail.append(record.index, data)
        self._send(record.index, data)

    def _send(self, index: int, data: bytes) -> None:
        token, self._next_token = self._next_token, self._next_token + 1
        self._tokens[token] = index
        self._log.append(data, token)

    def _acknowledged(self, token: int) -> None:
        index = self._tokens.pop(token, 0)
        if index == self._acked + 1:
            self._acked = index

    def _append_again(self, token: int) -> None:
        """Append again what may be missing in the log, and all behind it.

        The acknowledgement of a record counts only if everything before it was sent before it.
        """
        index = self._tokens.get(token, 0)
        if index and self.role == LEADS:
            self._send_again(index)

    def _send_again(self, index: int) -> None:
        self._tokens.clear()
        self._acked = min(self._acked, index - 1)
        for sent in self._pending:
            if sent.position.index > self._acked:
                self._send(sent.position.index, sent.data)

    def tail_synced(self, index: int) -> None:
        """The own tail is synced up to `index`."""
        self._tail_synced = max(self._tail_synced, index)
        if self.role == LEADS:
            self._commit()

    def _commit(self) -> None:
        index = min(self._tail_synced, self._acked, self.end.index)
        while self._pending and self._pending[0].position.index <= index:
            sent = self._pending.popleft()
            if sent.ends_batch:
                self.told.append(Committed(sent.position, sent.place))

    def synced(self, index: int) -> None:
        """The database is synced up to `index`."""
        self._durable = max(self._durable, index)

    # Time.

    def timeout(self, now: int) -> None:
        """Do what is due."""
        if self.role in (DEPOSED, BROKEN):
            return
        if now >= self._presence_due:
            self._presence_due = now + self.settings.presence_ms
            self._tell_presence()
        if self.role == LEADS:
            self._lead(now)
            return
        self._look_back(now)
        if self.role != BROKEN and self._may_claim(now):
            self._claim(now)

    def _tell_presence(self) -> None:
        end = self.end
        node, address = self.settings.node, self.settings.address
        body = Presence(self._nonce, self._longest.index, end.index, self._durable, address)
        self._log.append(
            Record(PRESENCE, end.epoch, end.index, end.digest, node, body.encode()).encode()
        )

    def beat(self, broker_ms: int, now: int) -> None:
        """Say that the leader lives, at this time of its broker's clock, if that is due."""
        if self.role != LEADS or now < self._beat_due:
            return
        self._beat_due = now + self.settings.heartbeat_ms
        self._log.append(self.heartbeat(broker_ms))

    def heartbeat(self, broker_ms: int) -> bytes:
        """Return the record that says that this leader lives."""
        end, node = self.end, self.settings.node
        body = BEAT.pack(broker_ms)
        return Record(HEARTBEAT, end.epoch, end.index, end.digest, node, body).encode()

    def silent_ms(self, now: int) -> int:
        """Return how long ago the end of the log was heard last."""
        return now - self._heard_end

    def resign(self, successor: str, broker_ms: int) -> None:
        """Lead no more: `successor` may claim at once, "" = everybody. All must be committed."""
        if self.role != LEADS:
            return
        self.role = DEPOSED
        body = BEAT.pack(broker_ms) + RESIGNED + successor.encode()
        end, node = self.end, self.settings.node
        self._log.append(Record(HEARTBEAT, end.epoch, end.index, end.digest, node, body).encode())

    def _lead(self, now: int) -> None:
        if not self.is_stalled and now - self._heard_end > self.settings.lease_ms:
            self.is_stalled = True
            self._say("the log is not heard: nothing can be committed")
        is_behind = bool(self._pending) or self.log_end.index < self.end.index
        if is_behind and not self.is_stalled and now - self._counted > self.settings.resend_ms:
            self._counted = now
            self._append_missing()
            self._send_again(self.end.index + 1)
        if now >= self._trim_due:
            self._trim_due = now + self.settings.trim_ms
            self._trim()

    def _trim(self) -> None:
        """Delete from the log what two nodes have in a synced database."""
        safe = self.members.twice_durable(self._durable)
        kept = [anchor.place for anchor in self.anchors if anchor.position.index <= safe]
        if kept:
            self._log.delete_before(kept[-1])

    def _may_claim(self, now: int) -> bool:
        """Return whether this node should lead: nobody does, and it knows everything."""
        if now - self._heard_end > HEARD_GAP_MS:
            return False
        wait = self.settings.takeover_ms + RANK_MS * self.members.rank
        if now - self._quiet_since < wait:
            return False
        if self.settings.accepts_data_loss:
            return True
        if self.is_warm:
            ahead = self.members.have_read_beyond(self.end.index)
        else:
            ahead = self.members.ahead_of(self._longest.index)
        if ahead:
            self._say(f"waiting for {', '.join(ahead)}, which has more records than this node")
            return False
        missing = [] if self.is_warm else self.members.missing()
        if missing:
            self._say(
                f"nobody leads, and {', '.join(missing)} was not heard since this node began: it "
                "may have acknowledged more. Start it, or start this node with --accept-data-loss"
            )
        return not missing

    def _claim(self, now: int) -> None:
        """Append what the log lacks, and a claim behind it. It counts if nobody was faster."""
        self.role = CLAIMS
        self._quiet_since = now  # the next try comes after a whole wait
        end = self._append_missing()
        node = self.settings.node
        claim = Record(CLAIM, end.epoch + 1, end.index + 1, end.digest, node, self._nonce)
        self._log.append(claim.encode())

    def _say(self, why: str) -> None:
        """Tell of a trouble, or of its end, once."""
        if why != self._trouble:
            self._trouble = why
            self.told.append(Trouble(why))

    def _break(self, why: str) -> None:
        self.role = BROKEN
        self._say(why)
