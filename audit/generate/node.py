"""The history of one node: play its boots, rounds, scenes and gaps, then write segments."""

import copy
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from audit.generate.assembly import Assembler
from audit.generate.books import MINUTE
from audit.generate.columns import FILL_GONE, FILL_HIDDEN
from audit.generate.model import Broker
from audit.generate.scenes import Director, Injection, Play, Stage
from audit.generate.script import TENANTS, Cast
from audit.generate.state import NEVER, SECOND, Row
from audit.generate.steady import Fleet, Plan
from storage.history import events as ev
from storage.history.segments import Segment

CRASH: Final = "crash"
SHUTDOWN: Final = "shutdown"
FORGETFUL_CRASH: Final = "forgetful crash"  # unsynced data is lost, even if acknowledged
RUNNING: Final = "running"  # the history ends while the broker runs

ROWS_PER_ROUND: Final = 120  # about, with PLANTS_ACTING
PLANTS_ACTING: Final = 3
PATTERNS: Final = 5
SETTLING: Final = 12  # rounds
TAIL_MESSAGES: Final = 5
NODE_MARKS: Final = 1 << 20  # first mark of faults without a scene
# Not rolled back when a disk loses data: the time, and what was recorded.
_TOLD: Final = frozenset(
    {"now", "slot", "slot_ends", "slot_begins", "slot_lasts", "boots", "rows", "watched"}
    | {"watched_rows", "node"}
)


@dataclass
class Outline:
    """The plan for the history of a node."""

    node: str
    seed: int
    events: int
    played: int  # of these, rows played by the model; the rest is stamped
    began_at: int  # microseconds since 1970
    duration_s: int
    ends: list[str] = field(default_factory=lambda: [CRASH, SHUTDOWN, RUNNING])
    plays: list[tuple[int, Play]] = field(default_factory=list)  # boot, from 0
    hide: bool = False  # a gap with a lowered level, in the second boot
    trim: bool = False  # rows deleted, with a row that reports it, in the third boot
    hole: bool = False  # rows missing without a report, in the third boot


class Node:
    """Plays one outline; `write` then writes it."""

    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        self.broker = Broker(outline.node, outline.began_at)
        self._rng = random.Random(outline.seed)
        plants = max(12, outline.played // 800)
        self._cast = Cast(self.broker, self._rng, plants)
        groups = min(320, max(8, outline.events // 25_000))
        self._fleet = Fleet(self.broker, self._rng, groups, TENANTS)
        self.stage = Stage(self.broker, random.Random(outline.seed + 1))
        self._director = Director(self.stage)
        self.honest: list[Injection] = []  # gaps: what they hide is unknown
        self._claims: dict[int, int] = {}  # boot -> last slot of the boot before that it found
        self._barred: set[int] = set()  # slots without stamped traffic
        self._rounds = max(40 * len(outline.ends), outline.played // ROWS_PER_ROUND)
        self._step = outline.duration_s * SECOND // self._rounds

    def play(self) -> None:
        """Play all boots."""
        ends = self.outline.ends
        # The last boot is longer, because `stuck` needs more time than any horizon.
        share = self._rounds / (len(ends) + 1)
        at = self.outline.began_at
        for number, end in enumerate(ends):
            rounds = int(share * (2 if number == len(ends) - 1 else 1))
            self.broker.boot(at)
            self._fleet.connect()
            self._barred.add(self.broker.slot)
            self._boot(number, rounds)
            self._end(end)
            at = self.broker.now + self._rng.randint(2, 40) * SECOND
        self._director.finish()
        self.broker.finish()

    def _boot(self, number: int, rounds: int) -> None:
        outline, broker = self.outline, self.broker
        first = broker.slot + 1
        for boot, play in outline.plays:
            if boot == number:
                self._director.plan(first + self._rng.randrange(max(1, rounds // 6)), play)
        gap = range(first + rounds // 2, first + rounds // 2 + max(3, rounds // 12))
        hides = outline.hide and number == 1
        trims = outline.trim and number == 2
        hole = first + 3 * rounds // 4 if outline.hole and number == 2 else -1
        for slot in range(first, first + rounds):
            before = len(broker.rows)
            broker.turn(broker.now + self._step)
            if hides and slot in (gap.start, gap.stop):
                self._change_level(slot == gap.start)
            if trims and slot == gap.stop:
                self._note("trimmed", self.honest, self._gap(1051, fill=FILL_GONE))
            self._round(PLANTS_ACTING)
            if slot == hole or (trims and slot in gap):
                self._lose(before)
                if slot == hole:
                    self._note("hole", self.stage.injections, broker.rows[before])

    def _round(self, plants: int, everything: bool = False) -> None:
        if plants:
            self._director.round()
            self._cast.act(plants)
        self.broker.commit()
        self._cast.acknowledge(everything)

    def _gap(self, reason: int, detail: str = "full", **columns: int) -> Row:
        end = self.broker.log_end
        return self.broker.emit(
            ev.HISTORY_GAP, None, reason=reason, detail=detail, position=end, **columns
        )

    def _change_level(self, lower: bool) -> None:
        broker = self.broker
        if lower:
            row = self._gap(1053, "books")
            self._note("lowered_level", self.honest, row)
            broker.boots[-1].hidden_slots.append((broker.slot, broker.slot))
        else:
            ((first, _),) = broker.boots[-1].hidden_slots
            broker.boots[-1].hidden_slots[0] = (first, broker.slot - 1)
            self._gap(1050, fill=FILL_HIDDEN)
        broker.muted = lower

    def _lose(self, first: int) -> None:
        """Keep the rows of this slot, also the stamped ones, out of the history."""
        broker = self.broker
        for row in broker.rows[first:]:
            row["gone"] = 1
        broker.boots[-1].gone_slots.append((broker.slot, broker.slot))

    def _note(self, kind: str, where: list[Injection], row: Row) -> None:
        broker = self.broker
        made = Injection("H1", kind, broker.node, boot=broker.boots[-1].number)
        made.mark = NODE_MARKS + len(self.honest) + len(self.stage.injections)
        row["mark"] = made.mark
        where.append(made)

    def _settle(self) -> None:
        """Let every client acknowledge everything."""
        for _ in range(SETTLING):
            self.broker.turn(self.broker.now + self._step)
            self._round(0, everything=True)

    def _end(self, end: str) -> None:
        broker = self.broker
        if end == CRASH:
            broker.turn(broker.now + self._step)
            self._cast.act(PLANTS_ACTING)
            broker.commit()
            self._cast.acknowledge()  # the crash undoes these ends of exchanges
            self._cast.free_leases()
            broker.deaf = True
            self._cast.act(PLANTS_ACTING)
        else:
            self._settle()
            broker.turn(broker.now + self._step)
        if end == RUNNING:
            # The books of a minute are written when it is over.
            broker.turn((broker.now // MINUTE + 1) * MINUTE + SECOND)
        elif end == SHUTDOWN:
            broker.shutdown()
        else:
            if end == FORGETFUL_CRASH:
                self._forget_tail()
            broker.crash()
            self._director.down()
        self._barred.add(broker.slot)

    def _forget_tail(self) -> None:
        """Accept, acknowledge and record messages that the disk then loses."""
        stage, broker = self.stage, self.broker
        publisher, subscriber, topic = stage.pair(1, NEVER)
        broker.commit()
        broker.disconnect(subscriber, 0)
        kept = broker.slot
        self._barred.add(kept)
        state = {name: value for name, value in vars(broker).items() if name not in _TOLD}
        state = copy.deepcopy(state)
        broker.turn(broker.now + self._step)
        messages = [stage.publish(publisher, topic, 1) for _ in range(TAIL_MESSAGES)]
        broker.commit()
        for message in messages:
            row = stage.row(ev.PUB_ACKED, message=message)
            stage.inject("L2", "disk_forgot", row, session=subscriber, message=message)
        for invariant in ("H1", "S5"):
            stage.inject(invariant, "disk_shorter")
        vars(broker).update(state)
        self._claims[broker.boots[-1].number + 1] = kept

    def write(self, directory: Path) -> list[Segment]:
        """Write the played rows as segments, and final offsets and seqs into the injections."""
        broker = self.broker
        for boot in broker.boots:
            boot.rows = [row for row in boot.rows if not row.get("erased")]
            if boot.number in self._claims:
                boot.rows[0]["claims_slot"] = self._claims[boot.number]
        assembler = Assembler(broker, self._fleet, self._plan(), directory)
        assembler.write()
        for made in (*self.stage.injections, *self.honest):
            if made.msg is not None:
                made.msg = assembler.offset(made.msg)
            made.boot, made.seq = assembler.marks.get(made.mark, (made.boot, None))
        return assembler.segments

    def _plan(self) -> Plan:
        played = sum(len(boot.rows) for boot in self.broker.boots)
        patterns = [self._fleet.pattern(self._rng.uniform(0.2, 0.9)) for _ in range(PATTERNS)]
        mean = max(1, sum(pattern.size for pattern in patterns) // PATTERNS)
        ticks = max(0, self.outline.events - played) // mean
        free = np.array(
            [slot for slot in range(self.broker.slot) if slot not in self._barred], np.int64
        )
        slots = free[np.arange(ticks) * len(free) // max(1, ticks)]
        chance = np.random.default_rng(self.outline.seed)
        return Plan(patterns, slots, chance.integers(0, PATTERNS, ticks))
