"""One node of a replicated store: it follows the log, takes over, leads, and is deposed.

The log is the only referee: a node leads once it has read its own claim back as a record that
counts (`storage.replicated.record`), and nothing behind it. A batch of the leader is committed once
it is synced in the leader's own tail, the log has acknowledged it, and it was read back with no
other claim before it. A follower applies each batch that counts once the log is known to keep it
and its own tail has it synced: no database ever has what the log may lose by right, nor what its
tail could not give back. Pure: time is an argument, log, tail and database are ports. Read next:
`storage.replicated.roles.follower`, `storage.replicated.roles.leader`,
`storage.replicated.members`.

The log keeps a record once something at its place or behind it is acknowledged. A node knows that
from its own words, which ask for it, and from the leader, whose heartbeat names the last record
that it has committed. What was read may be lost before that: then the node goes back to what its
database has and reads again. Its tail still has what it forgets, as after a restart.

Two ends are kept apart. `end` is what this node has applied or may yet apply; `log_end` is what the
log says. `log_end` is behind what is applied only when the log has lost what it promised to keep:
then whoever leads appends again what is missing. A claim that counts in such a log at an index that
this node has applied means that the others went on without it: the node is broken then.

Where to read on is a place of the log with the record that must be there. If another one is there,
or none, the log has changed since, and the node reads from an earlier one.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from storage.errors import Recoverable
from storage.replicated import members
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
from storage.replicated.members import UNKNOWN, Members, Presence, Reach
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
from storage.replicated.roles.acknowledgements import Acknowledgements
from storage.replicated.roles.follower import Following
from storage.replicated.roles.leader import Writing
from storage.replicated.roles.terms import (
    BROKEN,
    CLAIMS,
    DEPOSED,
    FOLLOWS,
    LEADS,
    Anchor,
    Committed,
    Database,
    Deposed,
    Leads,
    Settings,
    Tail,
    Told,
    Trouble,
)

BEAT: Final = struct.Struct(">Q")
RESIGNED: Final = b"R"  # behind the time: the leader resigns, in favour of the name that follows
REFUSED: Final = "the database takes nothing"
# The log counts as heard without a break while it is read to its end at least so often.
HEARD_GAP_MS: Final = 1000
RANK_MS: Final = 500  # a node later in the list of members waits so much longer before it claims


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
        is_new: bool = False,
        is_warm: bool = False,
    ) -> None:
        """`at` is where the database is, `anchors` are those that were remembered, oldest first.

        The log is read from the first of them that is in it: it may have lost records since, and
        the places of `at` and of later anchors need not be right. `nonce` is new for each process.
        `is_new`: the database is empty or a copy; the tail that went with the one before is gone.
        `is_warm`: this process has led. `now` is a clock in milliseconds that never goes back.
        """
        self.settings: Final = settings
        self.role: str = FOLLOWS
        self.leader: str = ""  # who leads, as far as this node knows
        self.log_end: Position = at.position
        self.place: int = at.place  # of the record that ends `log_end`
        self.members: Final = Members(settings.node, settings.members, nonce)
        self.is_warm: bool = is_warm  # was a leader heard since this process began, or was one?
        # A loss is accepted once: what comes after it is not what the operator knew of.
        self._was_warm: bool = is_warm
        # May it have known more than it has now? Until it has heard what a leader has.
        self.is_new: bool = is_new
        self.is_stalled: bool = False  # leads, and does not hear the log
        self._strangers: set[str] = set()  # of whom was told
        self.foreign: int = 0  # records that are none
        self.passed_over: int = 0  # records that do not count
        self.told: Final[list[Told]] = []
        self._log: Final = log
        self._tail: Final = tail
        self._nonce: Final = nonce
        self._acks: Final = Acknowledgements(log, now - HEARD_GAP_MS - 1)
        self._follower: Final = Following(settings, database, tail, self._acks, at, anchors)
        self._writing: Final = Writing(settings, tail, self._acks, at.position, now)
        # Was the record at `place` read, so that what comes behind it continues the chain?
        self._is_found: bool = at.position.index == 0
        self._read_to: int = at.place  # everything before was read
        # A record that is read again, after this node went back, tells of nobody who lives now.
        self._seen_to: int = 0
        self._is_news: bool = True
        self._has_turned: bool = False  # what comes was read before this node went back
        self._has_shrunk: bool = False  # the log lost records, which may have to be sent again
        self._durable: int = 0  # to where the database is known to be synced
        self._has_won: bool = False  # its claim counts; it does not lead yet
        self._is_clear: bool = False  # and nothing was behind that
        self._set_times(now)
        self._go_back("the log was to be read")

    def _set_times(self, now: int) -> None:
        """Begin to count the time."""
        self._began: int = now
        self._heard_end: int = now - HEARD_GAP_MS - 1  # when the end of the log was heard last
        self._quiet_since: int = now
        # Has the leader resigned, in favour of this node or of everybody?
        self._is_free: bool = False
        self._free = (RESIGNED, RESIGNED + self.settings.node.encode())
        self._heard_ms: dict[str, int] = {}  # when members said something last
        self.leader_ms: int = 0  # what its clock said, 0 = never heard
        self._is_timed: bool = False  # and that was not read later than it was said
        self._leader_said: int = now  # when it said so
        self._said_epoch: int = 0  # and whose word that was
        self._batch_epoch: int = 0  # of the last batch that counted
        self._batch_counted: int = now  # and when it did
        self._is_batch_timed: bool = False  # and that was when it was written
        # Since when others tell of records that this node should have read, 0 = they do not.
        self._missed_since: int = 0
        self._look_back_ms: int = 2 * self.settings.resend_ms
        self._restored: int = now  # when the log was given back what it had lost
        self._beat_due: int = now
        self._presence_due: int = now
        self._trim_due: int = now + self.settings.trim_ms
        self._refused_since: int = now  # the database has taken all until then
        self._trouble: str = ""

    @property
    def end(self) -> Position:
        """Return what this node has applied or may yet apply."""
        return self._follower.end

    @property
    def longest(self) -> Reach:
        """Return how far the records of this node reach, those of its own tail included."""
        return UNKNOWN if self.is_new else _reach(self._follower.longest)

    @property
    def _is_young(self) -> bool:
        """Whether nothing was ever written in this log, as far as this node knows."""
        longest = self._follower.longest
        return longest.index in (0, longest.epoch)  # of nothing but claims, or not begun yet

    # What the log says.

    def events(self, events: Iterable[Event], now: int) -> None:
        """Take what happened in the log."""
        self._has_turned = False
        for event in events:
            if self.role in (DEPOSED, BROKEN):
                return
            match event:
                case Acked(token, place):
                    self._acks.acknowledged(token, place)
                case Unknown(token):
                    self._append_again(token)
                case Shrunk(end, start):
                    self._shrunk(end, start)
                case _ if self._has_turned:
                    continue  # it comes again, behind what must be read before it
                case Read(place, data):
                    self._read(place, data, now)
                    self._acks.read(self._read_to)
                case CaughtUp(end):
                    self._caught_up(end, now)
                    self._acks.read(self._read_to)
                case Missing(start):
                    self._missing(start)
        if self.role == LEADS:
            self._commit()
        else:
            self._follower.apply_kept()
            self._lead_if_clear(now)

    def _read(self, place: int, data: bytes, now: int) -> None:
        self._read_to = place + 1
        self._is_news = place >= self._seen_to
        self._seen_to = max(self._seen_to, place + 1)
        if not self._is_found:
            self._is_found = place == self.place and digest(data) == self.log_end.digest
            if not self._is_found:
                self._anchor_is_wrong()
            return
        try:
            record = decode(data)
            if record.kind == PRESENCE:
                self._hear_presence(record, place, now)
                return
        except NotARecord:
            self.foreign += 1
            return
        if record.kind == HEARTBEAT:
            self._beat(record, place, now)
        elif record.kind in CHAINED and counts(record, self.log_end):
            self._count(record, data, place, now)
        elif self._begins_elsewhere(record):
            self._break(
                f"the log begins with a database of {record.node} that is another one than this "
                "node has: copy the database of another node"
            )
        else:
            self.passed_over += 1
            self._note_missed(record, now, self.log_end.index + 1)

    def _begins_elsewhere(self, record: Record) -> bool:
        """Return whether the first claim of the log is behind a database that was renewed."""
        is_first = record.index == 1 and self.log_end.index == 0 and record.kind == CLAIM
        return (
            is_first and record.epoch > self.log_end.epoch and record.before != self.log_end.digest
        )

    def _hear_presence(self, record: Record, place: int, now: int) -> None:
        self.members.take(record.node, members.decode(record), place)
        self._heard_ms[record.node] = now
        if self.members.has_twin:
            self._say(f"another process says that it is {self.settings.node}: end one of them")
        if strangers := set(self.members.strangers) - self._strangers:
            self._strangers |= strangers  # told once: other troubles are told again and again
            self._say(
                f"{', '.join(sorted(strangers))} is no member as far as this node knows: "
                "storage.kafka.members must be the same at each node, and each cluster needs a "
                "topic of its own"
            )

    def _note_missed(self, record: Record, now: int, index: int) -> None:
        """Note that a record tells of others that this node has not read, those up to `index`."""
        if record.epoch >= self.log_end.epoch and record.index > index and not self._missed_since:
            self._missed_since = now

    def _beat(self, record: Record, place: int, now: int) -> None:
        self._note_missed(record, now, self.log_end.index)
        if len(record.body) < BEAT.size:
            return
        self._follower.hear_kept(Position(record.epoch, record.index, record.before))
        if record.epoch < self.log_end.epoch:
            return
        if self._is_news:
            self._quiet_since = now  # also if its claim is missing here: it must send that again
            self._is_free = False
        if record.epoch != self.log_end.epoch:
            return
        self.leader = record.node
        self.leader_ms, self._leader_said = BEAT.unpack_from(record.body)[0], now
        self._is_timed = self.members.is_new(place)
        self._said_epoch = record.epoch
        self._is_free = record.body[BEAT.size :] in self._free
        # Only this tells that somebody leads: what continues the chain may be sent again by others.
        has_all = record.index <= self.log_end.index and self.members.is_new(place)
        self.is_warm = self.is_warm or (has_all and record.node != self.settings.node)
        self.is_new = self.is_new and not self.is_warm
        self._was_warm = self._was_warm or self.is_warm

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
        self._writing.counted(now)
        if record.kind == BATCH:
            self._note_batch(record.epoch, place, now)
        self.leader = record.node
        if self._is_news:
            self._missed_since = 0
            self._look_back_ms = 2 * self.settings.resend_ms
            self._quiet_since = now
            self._is_free = False
        if self._has_forked(record):
            self._break(
                f"the log has other records up to {record.index} than this node, which were "
                f"written by {record.node}: copy the database of another node"
            )
            return
        if is_old:
            if record.kind == PART:  # of a batch; all nodes have anchors at the same records
                return
            self._follower.found_again(self.log_end, place)
            if self.log_end == self.end and self.role != LEADS:
                self._follower.apply([], place)
            return
        self._follower.take(self.log_end, data)
        if record.kind == CLAIM:
            self._begin_epoch(record, now)
        elif self.role != LEADS:
            self.role = FOLLOWS
            self._follower.take_part(record, place)

    def _note_batch(self, epoch: int, place: int, now: int) -> None:
        """Note when a leader has written. What the own tail has was written before."""
        is_known = self._follower.has_kept(self.log_end)
        if not is_known or epoch > self._batch_epoch:
            self._batch_epoch, self._batch_counted = epoch, now
            self._is_batch_timed = self.members.is_new(place) and not is_known

    def _has_forked(self, record: Record) -> bool:
        """Return whether this node has another record at this index. Note where its own one is."""
        if record.kind != CLAIM and not self._writing.was_read(self.log_end, self.place):
            return True
        return record.index == self.end.index and self.log_end != self.end

    def _begin_epoch(self, record: Record, now: int) -> None:
        """A node leads from here on."""
        self._follower.parts.clear()
        mine = record.node == self.settings.node and record.body == self._nonce
        # What this node has behind its claim, the log had too, and may have promised to keep.
        mine = mine and self._follower.longest == self.end
        if self.role == LEADS:
            self.role = DEPOSED
            self.told.append(Deposed(record.node, self.members.address(record.node)))
            return
        self._follower.apply([], self.place)
        self.role = CLAIMS if mine else FOLLOWS
        self._has_won, self._is_clear = mine, False

    def _caught_up(self, end: int, now: int) -> None:
        if not self._is_found:
            self._shrunk(min(end, self.place), None)
            return
        if now - self._heard_end > HEARD_GAP_MS:
            self._quiet_since = now  # the leader may have said something that was not read yet
        self._heard_end = now
        self.is_new = self.is_new and not self._is_young  # there was nothing to be known
        # The log has lost what it had promised while this node did not read it.
        self.is_warm = self.is_warm and self.log_end.index >= self._follower.applied.index
        self._is_clear = self._has_won and self.log_end == self.end
        self._lead_if_clear(now)
        if self._has_shrunk and self.role == LEADS:
            self._has_shrunk = False
            self._append_missing()
            self._writing.send_again(self.end.index + 1)
        if self.is_stalled:
            self.is_stalled = False
            self._say("")

    def _lead_if_clear(self, now: int) -> None:
        """Lead if nothing was behind this node's claim and its database has all before it."""
        if not self._is_clear or self._follower.unapplied:
            return
        self.role = LEADS
        self._has_won = self._is_clear = self.is_new = False
        self._writing.end = self.end
        self.told.append(self._leads(now))
        self._beat_due = now
        self._say("")

    def _leads(self, now: int) -> Leads:
        """Return what is known of the time of the last leader that may have used it."""
        epoch = self.end.epoch
        if self._batch_epoch > self._said_epoch:
            return Leads(epoch, 0, now - self._batch_counted, self._is_batch_timed)
        silent_ms = now - self._leader_said if self.leader_ms else 0
        return Leads(epoch, self.leader_ms, silent_ms, self._is_timed)

    def _shrunk(self, end: int, start: int | None) -> None:
        """The log has lost records: go back. It begins at `start`, None = nobody has said."""
        self._has_shrunk = True
        self.is_warm = False
        self._seen_to = min(self._seen_to, end)
        self.members.shrunk(end)
        self._acks.shrunk(end)
        self._acks.repeat_from(0)
        self._follower.drop_anchors(0 if start is None else start, end)
        if self._go_back(f"the log ended at {end}"):
            self._say(f"the log lost what was behind {end}; this node has {self.end.index}")

    def _missing(self, start: int) -> None:
        """The log begins behind where this node must read: read from a later anchor, or break."""
        if self._follower.begin_behind(start):
            self._go_back(f"the log begins at {start}")
        else:
            self._break(
                f"the log begins at {start}, this node must read from {self.place}: "
                "copy the database of another node"
            )

    def _anchor_is_wrong(self) -> None:
        """Another record is where this node read on: the log lost records and got others since."""
        self.is_warm = False
        self._seen_to = 0
        self._acks.shrunk(0)
        self._follower.drop_anchor()
        self._go_back(f"the log has another record at {self.place} than before")

    def _go_back(self, why: str) -> bool:
        """Read on from the last anchor; without one return False, and this node is broken."""
        anchors = self._follower.anchors
        if not anchors:
            self._break(
                f"{why}, and this node remembers no place from where to read again: copy the "
                "database of another node, or if none can go on, see holdfast cluster renew"
            )
            return False
        self._follower.forget_unapplied()
        self._has_won = self._is_clear = False
        if self.role == CLAIMS:
            self.role = FOLLOWS
        self.log_end, self.place = anchors[-1].position, anchors[-1].place
        self._is_found = self.log_end.index == 0
        self._read_to = self.place
        self._has_turned = True
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
        for each in self._writing.write(operations):
            self._follower.wrote(each.position)
        return self.written

    @property
    def written(self) -> int:
        """Return the index of the last record that this node has written, or began after."""
        return self._writing.end.index

    def _append_again(self, token: int) -> None:
        """Append again what may be missing in the log, and all behind it."""
        index = self._acks.index_of(token)
        self._acks.give_up(token)
        if self.role == LEADS and index > self.log_end.index:
            self._writing.send_again(index)
        elif index:
            self._presence_due = 0  # it was read: only whether it is kept must be asked

    def tail_synced(self, index: int) -> None:
        """The own tail is synced up to `index`."""
        self._follower.tail_synced = max(self._follower.tail_synced, index)
        if self.role == LEADS:
            self._commit()
        else:
            self._follower.apply_kept()

    def _commit(self) -> None:
        index = min(self._follower.tail_synced, self.log_end.index)
        for sent in self._writing.commit(index):
            self.told.append(Committed(sent.position, sent.place))
            self._follower.note_applied(sent.position, sent.place)

    def synced(self, index: int) -> None:
        """The database is synced up to `index`."""
        self._durable = max(self._durable, index)

    # Time.

    def timeout(self, now: int) -> None:
        """Do what is due."""
        if self.role in (DEPOSED, BROKEN):
            return
        if now >= self._presence_due:
            self._presence_due = now + self._presence_ms(now)
            self._tell_presence(now)
        self._apply_again(now)
        self._lead_if_clear(now)
        if self.role == LEADS:
            self._lead(now)
            return
        self._look_back(now)
        self._restore(now)
        if self.role != BROKEN and self._may_claim(now):
            self._claim(now)

    @property
    def is_refused(self) -> bool:
        """Whether the database did not take the next batch: nothing more should be read."""
        return self._follower.refusal is not None

    def _apply_again(self, now: int) -> None:
        """Try what the database has refused once more; tell why if that goes on."""
        if self.is_refused:
            self._follower.apply_kept()
        refusal = self._follower.refusal
        if refusal is None:
            self._refused_since = now
            if self._trouble.startswith(REFUSED):
                self._say("")
        elif now - self._refused_since > self.settings.lease_ms:
            self._say(f"{REFUSED}: {refusal}")

    def _presence_ms(self, now: int) -> int:
        """Return when the next word is due: sooner if it may have to prove a claim right."""
        period = self.settings.presence_ms
        is_quiet = self.role != LEADS and now - self._quiet_since > self.settings.takeover_ms // 2
        return period // 4 if is_quiet else period

    def _tell_presence(self, now: int) -> None:
        end = self.end
        node, address = self.settings.node, self.settings.address
        longest, reached = self.longest, _reach(end)
        body = Presence(self._nonce, longest, reached, self._durable, address)
        record = Record(PRESENCE, end.epoch, end.index, end.digest, node, body.encode())
        self._acks.ask(record.encode(), now)

    def beat(self, broker_ms: int, now: int) -> None:
        """Say that the leader lives, at this time of its broker's clock, if that is due."""
        if self.role != LEADS or now < self._beat_due:
            return
        self._beat_due = now + self.settings.heartbeat_ms
        self._log.append(self.heartbeat(broker_ms))

    def heartbeat(self, broker_ms: int, more: bytes = b"") -> bytes:
        """Return the record that says that this leader lives, and what it has committed."""
        end, node = self._follower.applied, self.settings.node
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
        if self._writing.is_overdue(self.log_end, now, is_stalled=self.is_stalled):
            self._append_missing()
            self._writing.send_again(self.log_end.index + 1)
        if now >= self._trim_due:
            self._trim_due = now + self.settings.trim_ms
            self._trim(now)

    def _trim(self, now: int) -> None:
        """Delete from the log what two nodes have in a synced database, and who is not long away.

        Who was not heard since this process began has nothing, as far as is known here.
        """
        safe = self.members.twice_durable(self._durable)
        for name in self.members.names:
            away_ms = now - self._heard_ms.get(name, self._began)
            if name != self.settings.node and away_ms < self.settings.keep_ms:
                safe = min(safe, self.members.durable(name))
        every = self.settings.anchor_every  # those that all nodes have, whenever they began
        kept = [
            anchor.place
            for anchor in self._follower.anchors
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
        # What was read may come from a machine of the log that is cut off, alone with this node.
        if not self._is_free and now - self._acks.proved > HEARD_GAP_MS:
            return False
        if self.settings.accepts_data_loss and not self._was_warm:
            return True
        if self.is_warm:
            ahead = self.members.have_read_beyond(_reach(self.end))
        else:
            ahead = self.members.ahead_of(_reach(self._follower.longest))
        if ahead:
            self._say(f"waiting for {', '.join(ahead)}, which has more records than this node")
            return False
        return self.is_warm or self._has_heard_all()

    def _has_heard_all(self) -> bool:
        """Return whether every member has said how far its records go, and knew it."""
        missing = self.members.missing()
        if missing:
            self._say(
                f"nobody leads, and {', '.join(missing)} was not heard since this node began: it "
                "may have acknowledged more. Start it, or start this node with --accept-data-loss"
            )
            return False
        forgetful = [] if self._is_young else self.members.forgetful()
        if self.is_new:
            forgetful.append(self.settings.node)
        if forgetful:
            self._say(
                f"nobody leads, and {', '.join(forgetful)} began with a copy or with nothing: it "
                "may have acknowledged more. Start the node that has most with --accept-data-loss"
            )
        return not forgetful

    def _claim(self, now: int) -> None:
        """Append what the log lacks, and a claim behind it. It counts if nobody was faster."""
        self._quiet_since = now  # the next try comes after a whole wait
        self._is_free = False
        end = self._append_missing()
        if end.index < self.end.index:
            self._say(
                f"the log ends at {end.index}, and this node no longer has all records from there "
                f"to {self.end.index}: start the other nodes, or if none has them, see holdfast "
                "cluster renew"
            )
            return
        self.role = CLAIMS
        node = self.settings.node
        claim = Record(CLAIM, end.epoch + 1, end.index + 1, end.digest, node, self._nonce)
        self._acks.ask(claim.encode(), now)

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
