"""Writes the witness of the history, away from everything that a client waits for.

The exporter notes once a second what is durable; a thread of its own writes the newest note every
`INTERVAL_S` if there is news, and the last one when the broker ends. So the file may be on a slow
volume, or on one that hangs: then it stays behind, and nothing else waits. What it knew at the
start is compared with what the database holds: the difference is told, the start goes on. Read
next: `storage.history.witness`, `broker.history.exporter`.
"""

import threading
from dataclasses import replace
from typing import Final

from broker.observe.structured_log import Log
from session.history.session_events import last_seq
from storage.api import Store
from storage.errors import CorruptRecord, DamagedRows
from storage.history.witness import Mark, Witness, WitnessError, WitnessFile, lost
from storage.tables.tables import load_boot

INTERVAL_S: Final = 10.0  # a page written and synced, as long as something is recorded
JOIN_S: Final = 30.0  # at the end, for the last page


class WitnessThread:
    """The witness of one running broker; the thread runs from `start` to `close`."""

    def __init__(self, path: str, node: str, store: Store, log: Log) -> None:
        """Open the file and compare it with the database, before that begins a new start.

        What is wrong with either is logged, and no reason not to start.
        """
        self.lost_events: int = 0  # that the witness knows and the database had not
        self.failures: int = 0  # writes that failed
        self.newest_boot: int = 0  # that it knows; the next one must have another number
        self._log: Final = log
        self._file: WitnessFile | None = None
        self._marks: dict[int, Mark] = {}  # by boot; only the loop's thread changes it
        self._news: tuple[Mark, ...] = ()
        self._written: tuple[Mark, ...] = ()
        self._is_failing = False
        self._ending: Final = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._file = WitnessFile(path, node)
        except WitnessError as problem:
            self.failures = 1
            log.error("history_witness_failed", f"{problem}; the history has no witness")
            return
        if self._file.damage:
            log.error("history_witness_damaged", f"{self._file.damage}; it begins anew")
        self._take(self._file.witness, store)

    def _take(self, witness: Witness, store: Store) -> None:
        """Take over what the file knows, and tell what the database lacks of it."""
        self._marks = {mark.boot: mark for mark in witness.marks}
        self.newest_boot = max(self._marks, default=0)
        self._news = self._written = witness.marks
        try:
            boot, told = load_boot(store)
            seq = max(told, last_seq(store, boot))
        except (CorruptRecord, DamagedRows):
            return  # told elsewhere; where the history ends cannot be known
        missing = lost(witness, boot, seq)
        self.lost_events = sum(each.to_seq - each.from_seq + 1 for each in missing)
        if missing:
            first, last = missing[0], missing[-1]
            self._log.error(
                "history_witness_lost",
                f"{witness.place}: the database has lost what was durable: events "
                f"{first.from_seq} to {first.to_seq} of start {first.boot}"
                + (f", and more up to start {last.boot}" if last is not first else "")
                + "; so sessions and messages may be lost too, unless a backup was restored",
                events=self.lost_events,
                boot=first.boot,
            )

    def start(self) -> None:
        """Start to write."""
        if self._file is not None and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="witness", daemon=True)
            self._thread.start()

    def note(self, boot: int, seq: int, at_ms: int) -> None:
        """Note that the history is durable up to this event of a start."""
        mark = self._marks.get(boot) or Mark(boot, 0)
        if seq > mark.seq:
            self._marks[boot] = replace(mark, seq=seq, at_ms=at_ms)
            self._publish()

    def note_exported(self, boot: int, seq: int, head: str, at_ms: int) -> None:
        """Note where the newest segment ends, and its head."""
        mark = self._marks.get(boot) or Mark(boot, 0)
        if seq > mark.exported:
            seqs = max(mark.seq, seq)
            self._marks[boot] = replace(mark, seq=seqs, exported=seq, head=head, at_ms=at_ms)
            self._publish()

    @property
    def is_ending(self) -> bool:
        """Was it told to end?"""
        return self._ending.is_set()

    def close(self) -> None:
        """Write the last note, and end the thread. Idempotent."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)
            if self._thread.is_alive():
                self._log.warning("history_witness_failed", "its volume hangs: it stays behind")
        elif self._file is not None:
            self._file.close()

    def _publish(self) -> None:
        self._news = tuple(self._marks[boot] for boot in sorted(self._marks))

    # --- the thread ---

    def _run(self) -> None:
        while not self._ending.wait(INTERVAL_S):
            self.write()
        self.write()
        assert self._file is not None
        self._file.close()

    def write(self) -> None:
        """Write the newest note, if it is not written."""
        news = self._news
        if self._file is None or news == self._written:
            return
        try:
            self._file.write(news)
        except WitnessError as problem:
            self.failures += 1
            if not self._is_failing:
                self._log.error("history_witness_failed", f"{problem}; it is tried again")
            self._is_failing = True
        else:
            self._written = news
            if self._is_failing:
                self._log.info("history_witness_resumed", "the witness is written again")
            self._is_failing = False
