"""Write rows and patterns as segments: one boot after the other, a minute at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from audit.generate import columns
from audit.generate.books import MINUTE, Ledger
from audit.generate.columns import NULL, Piece, Words, decode, spliced
from audit.generate.model import Boot, Broker
from audit.generate.state import Row
from audit.generate.steady import Fleet, Ints, Plan
from storage.history import events as ev
from storage.history.chain import NONE
from storage.history.segments import Segment, split_for_segments, write_segment

PHASES: Final = 8
BASES: Final = ("ev", "actor", "msg", "pid", "qos", "pub_qos", "bytes", "stream")


class Assembler:
    """Writes the history of one node: call `write`, then read its results."""

    def __init__(self, broker: Broker, fleet: Fleet, plan: Plan, directory: Path) -> None:
        self._broker = broker
        self._fleet = fleet
        self._plan = plan
        self._directory = directory
        self._words = Words()
        self._ledger = Ledger(self._words)
        self._topics = np.array([self._words.index(topic) for topic in fleet.topics], np.int64)
        self._clients = np.array(
            [self._words.index(client.client_id) for client in fleet.clients], np.int64
        )
        self._tenants = np.array(
            [self._words.index(client.tenant) for client in fleet.clients], np.int64
        )
        # Offsets used by stamped traffic before each slot, and at each tick.
        slots = len(broker.slot_ends)
        used = np.bincount(plan.slots, weights=plan.stored, minlength=slots).astype(np.int64)
        self.stamped_before: Ints = np.cumsum(used) - used
        ends = np.array(broker.slot_ends, np.int64)
        self._bases: Ints = ends[plan.slots] + 1 + np.cumsum(plan.stored) - plan.stored
        self._last_seq = 0
        self._slot_seqs: dict[int, int] = {}
        self._hidden = 0
        self._gone = 0
        self.marks: dict[int, tuple[int, int]] = {}  # mark -> boot, seq
        self.segments: list[Segment] = []
        self._head = NONE  # of the chain
        self.rows = 0

    def offset(self, number: int) -> int:
        """Return the offset of a message of the model."""
        found = decode(number, self.stamped_before)
        assert found is not None
        return found

    def write(self) -> None:
        """Write all boots."""
        for boot in self._broker.boots:
            self._ledger.begin_boot()
            self._write_boot(boot)

    def _write_boot(self, boot: Boot) -> None:
        claimed = boot.rows[0].get("claims_slot")
        if boot.number > 1:
            end = self._last_seq if claimed is None else self._slot_seqs[claimed]
            boot.rows[0]["count"] = end
        else:
            boot.rows[0]["count"] = 0
        self._last_seq = self._hidden = self._gone = 0
        self._slot_seqs.clear()
        parts = list(self._parts(boot))
        for index, (first, last, rows) in enumerate(parts):
            closing = boot.clean and index == len(parts) - 1
            piece = self._piece(boot, first, last, rows)
            front = self._ledger.tell(self._begin(first) if index else rows[0]["ts"], first)
            self._ledger.add(piece)
            if closing:
                back = self._ledger.tell(rows[-1]["ts"], last)
                piece = spliced(piece, piece.size - 1, back)
            piece = spliced(piece, 1 if index == 0 else 0, front)
            self._seal(boot, piece)

    def _begin(self, slot: int) -> int:
        return self._broker.slot_begins[slot] // 1000 * 1000

    def _parts(self, boot: Boot) -> Iterator[tuple[int, int, list[Row]]]:
        """Yield first slot, last slot and rows of each minute with any rows of the boot."""
        first, last = boot.rows[0]["slot"], boot.last_slot
        at = 0
        while first <= last:
            minute = self._broker.slot_begins[first] // MINUTE
            end = first
            while end < last and self._broker.slot_begins[end + 1] // MINUTE == minute:
                end += 1
            rows = []
            while at < len(boot.rows) and boot.rows[at]["slot"] <= end:
                rows.append(boot.rows[at])
                at += 1
            yield first, end, rows
            first = end + 1
        assert at == len(boot.rows), "rows out of order"

    def _piece(self, boot: Boot, first: int, last: int, rows: list[Row]) -> Piece:
        """Return the model's rows and the stamped rows of some slots, in one order."""
        low, high = np.searchsorted(self._plan.slots, [first, last + 1]).tolist()
        sizes = self._plan.sizes[low:high]
        slots = last - first + 1
        of_model = np.bincount([row["slot"] - first for row in rows], minlength=slots)
        ticks = self._plan.slots[low:high] - first
        of_plan = np.bincount(ticks, weights=sizes, minlength=slots).astype(np.int64)
        piece = Piece(len(rows) + int(sizes.sum()))
        stamped_before = np.cumsum(of_plan) - of_plan
        model_slots = np.array([row["slot"] - first for row in rows], np.int64)
        places = np.arange(len(rows)) + stamped_before[model_slots]
        if rows:
            piece.put_rows(rows, places, self._words, self.stamped_before)
        if high > low:
            tick_slots = np.repeat(ticks, sizes)
            places = np.arange(len(tick_slots)) + np.cumsum(of_model)[tick_slots]
            self._put_stamped(boot, piece, places, low, high)
        return piece

    def _put_stamped(self, boot: Boot, piece: Piece, places: Ints, low: int, high: int) -> None:
        stamped = self._plan.stamp(low, high, self._bases[low:high], boot.number)
        tick = stamped["tick"]
        for name in BASES:
            values = stamped[name]
            piece.put(name, places, np.where(values < 0, NULL, values))
        event, who = stamped["ev"], np.maximum(stamped["who"], 0)
        has_session = stamped["who"] >= 0
        numbers = np.array([s.number for s in self._fleet.seats[boot.number]], np.int64)

        def put(name: str, values: Ints, where: columns.Flags) -> None:
            piece.put(name, places, np.where(where, values, NULL))

        put("tenant", self._tenants[who], has_session)
        put("client_id", self._clients[who], has_session)
        put("session", numbers[who], has_session)
        put("conn", self._fleet.conns[boot.number][who], has_session)
        accepted, delivered = event == ev.MSG_ACCEPTED, event == ev.MSG_DELIVERED
        acked = (event == ev.MSG_ACKED) | (event == ev.PUB_ACKED)
        zeros = np.zeros(len(event), np.int64)
        put("topic", self._topics[np.maximum(stamped["topic"], 0)], accepted)
        put("pub", numbers[who], accepted)
        put("order", stamped["msg"], accepted)
        put("dup", zeros, accepted | delivered)
        put("retain", zeros, accepted | delivered)
        put("attempt", zeros + 1, delivered)
        put("reason", zeros, acked)
        has_pid = accepted | delivered | acked | (stamped["pid_seat"] >= 0)
        put("pid", stamped["pid"], has_pid)
        times, slots = self._times(low, high)
        phase = stamped["phase"] >> 32
        begin, width = times[0][tick], times[1][tick]
        piece.put("ts", places, (begin + width * phase // PHASES) // 1000 * 1000)
        piece.put("slot", places, slots[tick])
        for name, spans in (("hidden", boot.hidden_slots), ("gone", boot.gone_slots)):
            for start, end in spans:
                inside = (slots[tick] >= start) & (slots[tick] <= end)
                put_where = places[inside]
                piece.put(name, put_where, np.ones(len(put_where), np.int64))

    def _times(self, low: int, high: int) -> tuple[tuple[Ints, Ints], Ints]:
        """Return begin and length of ticks, which are evenly spread until the next slot begins."""
        slots = self._plan.slots[low:high]
        broker = self._broker
        start = np.array(broker.slot_lasts, np.int64)[slots]
        stop = np.array(broker.slot_begins, np.int64)[slots + 1]
        count = np.bincount(slots)[slots]
        index = np.arange(low, high) - np.searchsorted(self._plan.slots, slots)
        space = (stop - start) // count
        return (start + space * index, space // 2), slots

    def _seal(self, boot: Boot, piece: Piece) -> None:
        """Number the rows, fill in the columns that depend on it, and write segments."""
        hidden, gone = piece.column("hidden") == 1, piece.column("gone") == 1
        fill = piece.column("fill")
        for place in np.flatnonzero(fill != NULL).tolist():
            if fill[place] == columns.FILL_HIDDEN:
                count = self._hidden + int(hidden[:place].sum())
                self._hidden = -int(hidden[:place].sum())
            else:
                count = self._gone + int((gone & ~hidden)[:place].sum())
                self._gone = -int((gone & ~hidden)[:place].sum())
            piece.column("count")[place] = count
        self._hidden += int(hidden.sum())
        self._gone += int((gone & ~hidden).sum())
        piece = piece.kept(~hidden)
        piece.numbers["seq"] = self._last_seq + 1 + np.arange(piece.size)
        self._last_seq += piece.size
        seqs, slots = piece.numbers["seq"], piece.column("slot")
        ends = np.flatnonzero(np.diff(slots, append=-1))
        self._slot_seqs.update(zip(slots[ends].tolist(), seqs[ends].tolist(), strict=True))
        marks = piece.column("mark")
        for place in np.flatnonzero(marks != NULL).tolist():
            self.marks[int(marks[place])] = (boot.number, int(seqs[place]))
        piece = piece.kept(piece.column("gone") != 1)
        self.rows += piece.size
        table = piece.table(self._broker.node, boot.number, boot.started_at, self._words)
        for part in split_for_segments(table):
            node, number = self._broker.node, boot.number
            segment, self._head = write_segment(
                self._directory, part, node, number, before=self._head
            )
            self.segments.append(segment)
