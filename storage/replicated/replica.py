"""One node of a replicated store: it follows the log, takes over, leads, and is deposed.

The log is the only referee: a node leads once it has read its own claim back as a record that
counts (`storage.replicated.record`), and nothing behind it. A batch of the leader is committed once
it is synced in the leader's own tail, the log has acknowledged it, and it was read back with no
other claim before it. A follower applies each batch that counts once its own tail has it synced: no
database ever has what its tail could not give back to the log. Pure: time is an argument, log, tail
and database are ports. Read next: `storage.replicated.members`, `storage.replicated.log_port`.

Two ends are kept apart. `end` is what this node has applied or may yet apply; `log_end` is what the
log says. They differ only when the log has lost what it promised to keep: then `log_end` is behind,
and whoever leads appends again what is missing. A claim that counts in such a log at an index that
this node has passed means that the others went on without it: the node is broken then.

Where to read on is a place of the log with the record that must be there. If another one is there,
or none, the log has changed since, and the node reads from an earlier one.
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
from storage.replicated.members import Members, Presence, Reach
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
    digest,
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
    """The record at `place` ends the chain up to `position`; the beginning of a log has none."""

    position: Position
    place: int


class Database(Protocol):
    """What a replica does to the state of its node."""

    def apply(self, operations: Sequence[Operation], position: Position, place: int) -> None:
        """Apply a batch, and note in the same write which record ended it, and its place."""
        ...

    def remember(self, anchors: Sequence[Anchor], *, is_synced: bool = False) -> None:
        """Note these in place of earlier ones; they may be lost in a crash if it is not synced."""
        ...


class Tail(Protocol):
    """The records that this node keeps itself, by index."""

    def append(self, index: int, data: bytes) -> None:
        """Keep a record, of a greater index than all others.

        It is synced when `Replica.tail_synced` is told so, by followers too.
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
    # The time of the last leader when it was heard last, 0 = it was never heard. A leader before it
    # may have been, but its clock was ahead by what the last leader had not heard of it.
    alive_ms: int
    silent_ms: int  # and for how long it was silent since; without a word: since its last batch


@dataclass(frozen=True, slots=True)
class Deposed:
    """Another node leads: nothing may be released any more."""

    leader: str
    address: str


@dataclass(frozen=True, slots=True)
class Committed:
    """The leader's batch that the record at `place` ends is committed, and all before it."""

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
    place: int = -1  # in the log, -1 = not read back


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
        """`at` is where the database is, `anchors` are those that were remembered, oldest first.

        The log is read from the last of them on that is not behind `at`: its place was right when
        the log shrank last, that of `at` need not be. `nonce` is new for each process.
        `now` is a clock in milliseconds that never goes back.
        """
        self.settings: Final = settings
        self.role: str = FOLLOWS
        self.leader: str = ""  # who leads, as far as this node knows
        self.end: Position = at.position
        self.log_end: Position = at.position
        self.place: int = at.place  # of the record that ends `log_end`
        self.members: Final = Members(settings.node, settings.members, nonce)
        self.is_warm: bool = False  # was a leader heard since this process began?
        self.is_stalled: bool = False  # leads, and does not hear the log
        self.foreign: int = 0  # records that are none
        self.passed_over: int = 0  # records that do not count
        known = [each for each in anchors if each.position.index <= at.position.index]
        self.anchors: Final[deque[Anchor]] = deque(known or [at], ANCHORS_MAX)
        self.told: Final[list[Told]] = []
        self._log: Final = log
        self._database: Final = database
        self._tail: Final = tail
        self._nonce: Final = nonce
        # Was the record at `place` read, so that what comes behind it continues the chain?
        self._is_found: bool = at.position.index == 0
        self._read_to: int = at.place  # everything before was read
        self._has_turned: bool = False  # what comes was read before this node went back
        self._has_shrunk: bool = False  # the log lost records, which may have to be sent again
        self._parts: list[bytes] = []
        # What counts and may not be applied before the own tail has it synced.
        self._unapplied: deque[tuple[list[Operation], Position, int]] = deque()
        self._tail_synced: int = at.position.index
        self._durable: int = 0  # to where the database is known to be synced
        # What the own tail has behind `end` and was never read from the log, as digests by index.
        self._own: dict[int, bytes] = {}
        # The leader.
        self._written: Position = at.position
        self._pending: deque[Sent] = deque()
        self._has_won: bool = False  # its claim counts; it does not lead yet
        self._is_clear: bool = False  # and nothing was behind that
        self._tokens: dict[int, int] = {}  # of the last attempt: token -> index
        self._next_token: int = 1
        self._acks: deque[int] = deque()  # places that were acknowledged and not yet read
        self._promised: int = -1  # the last place that was acknowledged and then read
        self._set_times(now)
        if not known:
            database.remember(tuple(self.anchors))
        self._load_own()
        self._go_back("the log was to be read")

    def _set_times(self, now: int) -> None:
        """Begin to count the time."""
        self._began: int = now
        self._heard_end: int = now - HEARD_GAP_MS - 1  # when the end of the log was heard last
        self._quiet_since: int = now
        # Has the leader resigned, in favour of this node or of everybody?
        self._is_free: bool = False
        self._free = (RESIGNED, RESIGNED + self.settings.node.encode())
        self.leader_ms: int = 0  # what its clock said, 0 = never heard
        self._leader_said: int = now  # when it said so
        self._said_epoch: int = 0  # and whose word that was
        self._batch_epoch: int = 0  # of the last batch that counted
        self._batch_counted: int = now  # and when it did
        self._counted: int = now  # when a record counted last, or was sent again
        # Since when others tell of records that this node should have read, 0 = they do not.
        self._missed_since: int = 0
        self._look_back_ms: int = 2 * self.settings.resend_ms
        # Longer each time: a slow log needs no repeats.
        self._resend_ms: int = self.settings.resend_ms
        self._restored: int = now  # when the log was given back what it had lost
        self._beat_due: int = now
        self._presence_due: int = now
        self._trim_due: int = now + self.settings.trim_ms
        self._trouble: str = ""

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

    @property
    def longest(self) -> Reach:
        """Return how far the records of this node reach, those of its own tail included."""
        return _reach(self._longest)

    # What the log says.

    def events(self, events: Iterable[Event], now: int) -> None:
        """Take what happened in the log."""
        self._has_turned = False
        for event in events:
            if self.role in (DEPOSED, BROKEN):
                return
            match event:
                case Acked(token, place):
                    self._acknowledged(token, place)
                case Unknown(token):
                    self._append_again(token)
                case Shrunk(end):
                    self._shrunk(end)
                case _ if self._has_turned:
                    continue  # it comes again, behind what must be read before it
                case Read(place, data):
                    self._read(place, data, now)
                case CaughtUp(end):
                    self._caught_up(end, now)
                case Missing(start):
                    self._break(
                        f"the log begins at {start}, this node must read from {self.place}: "
                        "copy the database of another node"
                    )
        if self.role == LEADS:
            self._commit()

    def _read(self, place: int, data: bytes, now: int) -> None:
        self._read_to = place + 1
        if not self._is_found:
            self._is_found = place == self.place and digest(data) == self.log_end.digest
            if not self._is_found:
                self._anchor_is_wrong()
            return
        try:
            record = decode(data)
            if record.kind == PRESENCE:
                self._hear_presence(record, place)
                return
        except NotARecord:
            self.foreign += 1
            return
        if record.kind == HEARTBEAT:
            self._beat(record, place, now)
        elif record.kind in CHAINED and counts(record, self.log_end):
            self._count(record, data, place, now)
        else:
            self.passed_over += 1
            self._note_missed(record, now, self.log_end.index + 1)

    def _hear_presence(self, record: Record, place: int) -> None:
        self.members.take(record.node, members.decode(record), place)
        if self.members.has_twin:
            self._say(f"another process says that it is {self.settings.node}: end one of them")

    def _note_missed(self, record: Record, now: int, index: int) -> None:
        """Note that a record tells of others that this node has not read, those up to `index`."""
        if record.epoch >= self.log_end.epoch and record.index > index and not self._missed_since:
            self._missed_since = now

    def _beat(self, record: Record, place: int, now: int) -> None:
        self._note_missed(record, now, self.log_end.index)
        if record.epoch < self.log_end.epoch or len(record.body) < BEAT.size:
            return
        self._quiet_since = now  # also if its claim is missing here: it must send that again
        self._is_free = False
        if record.epoch != self.log_end.epoch:
            return
        self.leader = record.node
        self.leader_ms, self._leader_said = BEAT.unpack_from(record.body)[0], now
        self._said_epoch = record.epoch
        self._is_free = record.body[BEAT.size :] in self._free
        # Only this tells that somebody leads: what continues the chain may be sent again by others.
        has_all = record.index <= self.log_end.index and self.members.is_new(place)
        self.is_warm = self.is_warm or (has_all and record.node != self.settings.node)

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
        self.place = place
        self._counted = now
        if record.kind == BATCH:
            self._batch_epoch, self._batch_counted = record.epoch, now
        self._missed_since = 0
        self._look_back_ms = 2 * self.settings.resend_ms
        self._resend_ms = self.settings.resend_ms
        self.leader = record.node
        self._quiet_since = now
        self._is_free = False
        if self._has_forked(record):
            self._break(
                f"the log has other records up to {record.index} than this node, which were "
                f"written by {record.node}: copy the database of another node"
            )
            return
        if is_old:
            if self.log_end == self.end and record.kind != PART and self.role != LEADS:
                self._apply([])
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
            self._take_part(record)
        if record.index % self.settings.anchor_every == 0 and record.kind != PART:
            self.anchors.append(Anchor(self.end, self.place))
            self._database.remember(tuple(self.anchors))

    def _has_forked(self, record: Record) -> bool:
        """Return whether this node has another record at this index. Note where its own one is."""
        behind = record.index - self._pending[0].position.index if self._pending else -1
        if record.kind != CLAIM and 0 <= behind < len(self._pending):
            if self._pending[behind].position != self.log_end:
                return True
            self._pending[behind].place = self.place
        return record.index == self.end.index and self.log_end != self.end

    def _keep(self, index: int, data: bytes) -> None:
        """Keep a record that was read; what the own tail had there was never committed."""
        if self._longest.index >= index:
            self._tail.drop_from(index)
            self._tail_synced = min(self._tail_synced, index - 1)
            self._own.clear()
        self._tail.append(index, data)
        self._longest = self.log_end

    def _take_part(self, record: Record) -> None:
        """Apply a batch that counts, once it is whole."""
        self._parts.append(record.body)
        if record.kind == BATCH:
            body = b"".join(self._parts)
            self._parts.clear()
            self._apply(list(batch_codec.decode(body)))

    def _apply(self, operations: list[Operation]) -> None:
        """Bring the database to `end`, once the own tail has that synced."""
        self._unapplied.append((operations, self.end, self.place))
        self._apply_synced()

    def _apply_synced(self) -> None:
        while self._unapplied and self._unapplied[0][1].index <= self._tail_synced:
            self._database.apply(*self._unapplied.popleft())

    def _begin_epoch(self, record: Record, now: int) -> None:
        """A node leads from here on."""
        self._parts.clear()
        mine = record.node == self.settings.node and record.body == self._nonce
        if self.role == LEADS:
            self.role = DEPOSED
            self.told.append(Deposed(record.node, self.members.address(record.node)))
            return
        self._apply([])
        self.role = CLAIMS if mine else FOLLOWS
        self._has_won, self._is_clear = mine, False

    def _caught_up(self, end: int, now: int) -> None:
        if not self._is_found:
            self._shrunk(min(end, self.place))
            return
        if now - self._heard_end > HEARD_GAP_MS:
            self._quiet_since = now  # the leader may have said something that was not read yet
        self._heard_end = now
        self._is_clear = self._has_won and self.log_end == self.end
        self._lead_if_clear(now)
        if self._has_shrunk and self.role == LEADS:
            self._has_shrunk = False
            self._append_missing()
            self._send_again(self.end.index + 1)
        if self.is_stalled:
            self.is_stalled = False
            self._say("")

    def _lead_if_clear(self, now: int) -> None:
        """Lead if nothing was behind this node's claim and its database has all before it."""
        if not self._is_clear or self._unapplied:
            return
        self.role = LEADS
        self._has_won = self._is_clear = False
        self._written = self.end
        self.told.append(self._leads(now))
        self._beat_due = now
        self._say("")

    def _leads(self, now: int) -> Leads:
        """Return what is known of the time of the last leader that may have used it."""
        epoch = self.end.epoch
        if self._batch_epoch > self._said_epoch:
            return Leads(epoch, 0, now - self._batch_counted)
        return Leads(epoch, self.leader_ms, now - self._leader_said if self.leader_ms else 0)

    def _shrunk(self, end: int) -> None:
        """The log has lost records: go back to where it still agrees with this node."""
        self._has_shrunk = True
        self.is_warm = False
        self.members.shrunk(end)
        self._promised = min(self._promised, end - 1)
        self._acks.clear()
        self._tokens.clear()
        while self.anchors and self.anchors[-1].position.index and self.anchors[-1].place >= end:
            self.anchors.pop()
        self._database.remember(tuple(self.anchors), is_synced=True)
        if self._go_back(f"the log ended at {end}"):
            self._say(f"the log lost what was behind {end}; this node has {self.end.index}")

    def _anchor_is_wrong(self) -> None:
        """Another record is where this node read on: the log lost records and got others since."""
        self.is_warm = False
        self.anchors.pop()
        self._database.remember(tuple(self.anchors), is_synced=True)
        self._go_back(f"the log has another record at {self.place} than before")

    def _go_back(self, why: str) -> bool:
        """Read on from the last anchor; without one return False, and this node is broken."""
        if not self.anchors:
            self._break(
                f"{why}, and this node remembers no place from where to read again: "
                "copy the database of another node"
            )
            return False
        self.log_end, self.place = self.anchors[-1].position, self.anchors[-1].place
        self._is_found = self.log_end.index == 0
        self._read_to = self.place
        self._has_turned = True
        self._is_clear = False
        self._missed_since = 0
        self._log.read_from(self.place)
        return True

    def _look_back(self, now: int) -> None:
        """Read again from further back if what others have read does not come.

        The log may have lost records and got them again elsewhere, and nobody has told this node.
        """
        waited = now - self._missed_since if self._missed_since else 0
        if waited > self._look_back_ms and now - self._heard_end <= HEARD_GAP_MS:
            self._look_back_ms *= 2
            self._go_back(f"the log has records behind {self.log_end.index} that do not follow it")

    def _restore(self, now: int) -> None:
        """Nobody leads: give back to the log what it lost and this node had read from it."""
        is_due = now - max(self._restored, self._quiet_since) >= self.settings.takeover_ms
        if is_due and self.log_end.index < self.end.index:
            self._restored = now
            self._append_missing(counted_only=True)

    def _append_missing(self, *, counted_only: bool = False) -> Position:
        """Append what this node has and the log may lack; return the end of that."""
        end = self.log_end
        counted_only = counted_only or self.role == LEADS
        for _, data in self._tail.read_from(end.index + 1):
            record = decode(data)
            if not counts(record, end) or (counted_only and record.index > self.end.index):
                break
            self._log.append(data)
            end = after(record, data)
        return end

    # The leader.

    def write(self, operations: Sequence[Operation]) -> int:
        """Append a batch; return its index. It is committed when `Committed` tells so.

        Raises `Recoverable` if this node does not lead, or its own tail has no room.
        """
        if self.role != LEADS:
            raise Recoverable(f"this node is a {self.role}")
        pieces = batch_codec.parts(batch_codec.encode(operations), self.settings.part_bytes)
        end, node, sent = self._written, self.settings.node, list[Sent]()
        for number, piece in enumerate(pieces, 1):
            kind = BATCH if number == len(pieces) else PART
            record = Record(kind, end.epoch, end.index + 1, end.digest, node, piece)
            data = record.encode()
            end = after(record, data)
            sent.append(Sent(end, data, kind == BATCH))
        self._keep_own(sent)
        for each in sent:
            self._own[each.position.index] = each.position.digest
            self._send(each.position.index, each.data)
        self._pending += sent
        self._written = self._longest = end
        return end.index

    @property
    def written(self) -> int:
        """Return the index of the last record that this node has written, or began after."""
        return self._written.index

    def _keep_own(self, sent: Sequence[Sent]) -> None:
        """Put a batch into the own tail: all of it, or raise `Recoverable` and nothing."""
        try:
            for each in sent:
                self._tail.append(each.position.index, each.data)
        except Recoverable:
            self._tail.drop_from(sent[0].position.index)
            raise

    def _send(self, index: int, data: bytes) -> None:
        token, self._next_token = self._next_token, self._next_token + 1
        self._tokens[token] = index
        self._log.append(data, token)

    def _acknowledged(self, token: int, place: int) -> None:
        """Note what the log keeps: whatever is at this place now, and all before it.

        Whether that is what this node knows of is certain when it has read so far: records may have
        been lost, and others come in their place, since it last did.
        """
        if self._tokens.pop(token, 0):
            self._acks.append(place)

    def _append_again(self, token: int) -> None:
        """Append again what may be missing in the log, and all behind it."""
        index = self._tokens.get(token, 0)
        if index and self.role == LEADS:
            self._send_again(index)

    def _send_again(self, index: int) -> None:
        self._tokens = {each: to for each, to in self._tokens.items() if to < index}
        for sent in self._pending:
            if sent.position.index >= index:
                self._send(sent.position.index, sent.data)

    def tail_synced(self, index: int) -> None:
        """The own tail is synced up to `index`."""
        self._tail_synced = max(self._tail_synced, index)
        self._apply_synced()
        if self.role == LEADS:
            self._commit()

    def _commit(self) -> None:
        while self._acks and self._acks[0] < self._read_to:
            self._promised = max(self._promised, self._acks.popleft())
        index = min(self._tail_synced, self.log_end.index)
        while self._pending and self._pending[0].position.index <= index:
            if self._pending[0].place > self._promised:
                break
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
        self._lead_if_clear(now)
        if self.role == LEADS:
            self._lead(now)
            return
        self._look_back(now)
        self._restore(now)
        if self.role != BROKEN and self._may_claim(now):
            self._claim(now)

    def _tell_presence(self) -> None:
        end = self.end
        node, address = self.settings.node, self.settings.address
        longest, reached = self.longest, _reach(end)
        body = Presence(self._nonce, longest, reached, self._durable, address)
        self._log.append(
            Record(PRESENCE, end.epoch, end.index, end.digest, node, body.encode()).encode()
        )

    def beat(self, broker_ms: int, now: int) -> None:
        """Say that the leader lives, at this time of its broker's clock, if that is due."""
        if self.role != LEADS or now < self._beat_due:
            return
        self._beat_due = now + self.settings.heartbeat_ms
        self._log.append(self.heartbeat(broker_ms))

    def heartbeat(self, broker_ms: int, more: bytes = b"") -> bytes:
        """Return the record that says that this leader lives."""
        end, node = self.end, self.settings.node
        body = BEAT.pack(broker_ms) + more
        return Record(HEARTBEAT, end.epoch, end.index, end.digest, node, body).encode()

    def resign(self, successor: str, broker_ms: int) -> None:
        """Lead no more: `successor` may claim at once, "" = everybody. All must be committed."""
        if self.role == LEADS:
            self.role = DEPOSED
            self._log.append(self.heartbeat(broker_ms, RESIGNED + successor.encode()))

    def silent_ms(self, now: int) -> int:
        """Return how long ago the end of the log was heard last."""
        return now - self._heard_end

    def _lead(self, now: int) -> None:
        if not self.is_stalled and now - self._heard_end > self.settings.lease_ms:
            self.is_stalled = True
            self._say("the log is not heard: nothing can be committed")
        is_behind = bool(self._pending) or self.log_end.index < self.end.index
        if is_behind and not self.is_stalled and now - self._counted > self._resend_ms:
            self._counted = now
            self._resend_ms *= 2
            self._append_missing()
            self._send_again(self._pending[0].position.index if self._pending else 0)
        if now >= self._trim_due:
            self._trim_due = now + self.settings.trim_ms
            self._trim()

    def _trim(self) -> None:
        """Delete from the log what two nodes have in a synced database."""
        safe = self.members.twice_durable(self._durable)
        every = self.settings.anchor_every  # those that all nodes have, whenever they began
        kept = [
            anchor.place
            for anchor in self.anchors
            if 0 < anchor.position.index <= safe and anchor.position.index % every == 0
        ]
        if kept:
            self._log.delete_before(kept[-1])

    def _may_claim(self, now: int) -> bool:
        """Return whether this node should lead: nobody does, and it knows everything."""
        if self._has_won or now - self._heard_end > HEARD_GAP_MS:
            return False
        wait = 0 if self._is_free else self.settings.takeover_ms
        wait += 0 if self._is_free else RANK_MS * self.members.rank
        if now - self._quiet_since < wait:
            return False
        if self.settings.accepts_data_loss:
            return True
        if self.is_warm:
            ahead = self.members.have_read_beyond(_reach(self.end))
        else:
            ahead = self.members.ahead_of(self.longest)
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
        self._quiet_since = now  # the next try comes after a whole wait
        self._is_free = False
        end = self._append_missing()
        if end.index < self.end.index:
            self._say(
                f"the log ends at {end.index}, and this node no longer has all records from there "
                f"to {self.end.index}: start the other nodes"
            )
            return
        self.role = CLAIMS
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


def _reach(position: Position) -> Reach:
    return position.epoch, position.index
