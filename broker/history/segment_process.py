"""The process that writes the history's segments, started by a broker.

Reads frames of packed rows on stdin, spreads them over the columns of the history, and writes
Parquet. On a seal it answers with one line of JSON once everything is durable; then the broker
deletes the rows. It runs at the lowest priority, as a process of its own to keep pyarrow out of the
broker's memory. It ends when stdin ends or when anything fails: its rows are still in the database.

One process at a time writes the segments of a data directory (a lock), and the first thing it does
for a boot is to look for the newest segment of it: rows up to there were exported before a crash
and are not written again. Read next: `storage.history.segments`, `broker.history.export_thread`.
"""

import argparse
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final, TextIO

from broker.history.segment_process_link import FRAME, HOW_TO_INSTALL, ROW, SEAL
from storage.errors import CorruptRecord
from storage.history.packed_rows import Row, unpack
from storage.tables.tables import unseal

HOUR_MS: Final = 3_600_000
DAMAGED_MAX: Final = 100  # lines of one answer
EXIT_FAILED: Final = 1

# Writes one segment of a boot's rows, durable on return; returns the head of the chain.
Write = Callable[[int, list[Row]], str]
# Returns the last seq of a boot that is in a segment, 0 = none is.
Newest = Callable[[int], int]
Chain = tuple[int, int, str]  # boot and last seq of a segment, and its head


class Segmenter:
    """Cuts rows into segments: by boot, hour and number of events, and where rows are missing."""

    def __init__(
        self, write: Write, newest: Newest, end: Callable[[], Chain | None], *, events_max: int
    ) -> None:
        """`end` returns where the newest segment ends, None = there is none."""
        self._write: Final = write
        self._end: Final = end
        self._newest: Final = newest
        self._events_max: Final = events_max
        self._exported: dict[int, int] = {}  # boot -> last seq in a segment
        self._boot = 0
        self._hour = 0
        self._next_seq = 0
        self._rows: list[Row] = []
        self._events = 0
        # Since the last answer.
        self._segments = 0
        self._sealed = 0
        self._damaged: list[str] = []
        self._chain: Chain | None = None
        self._has_skipped = False

    def add(self, boot: int, first_seq: int, value: bytes) -> None:
        """Add a row, unless a segment has it; write segments that are complete."""
        if boot not in self._exported:
            self._exported[boot] = self._newest(boot)
        if first_seq <= self._exported[boot]:
            self._has_skipped = True
            return
        try:
            row = unpack(unseal(value, "history row"))
            if row.first_seq != first_seq:
                raise ValueError(f"history row: says that it is {row.first_seq}")
        except (CorruptRecord, ValueError) as problem:
            if len(self._damaged) < DAMAGED_MAX:
                self._damaged.append(f"boot {boot}, from event {first_seq} on: {problem}")
            return
        hour = row.now_ms // HOUR_MS
        if (boot, hour, first_seq) != (
            self._boot,
            self._hour,
            self._next_seq,
        ) or self._events + row.events > self._events_max:
            self._cut()
        self._boot, self._hour, self._next_seq = boot, hour, first_seq + row.events
        self._rows.append(row)
        self._events += row.events

    def seal(self) -> dict[str, object]:
        """Write what is left; return the answer for everything since the last one."""
        self._cut()
        if self._has_skipped and self._chain is None:
            self._chain = self._end()  # written before a crash: nobody was told
        answer: dict[str, object] = {
            "segments": self._segments,
            "events": self._sealed,
            "damaged": self._damaged,
            "chain": self._chain,
        }
        self._segments = self._sealed = 0
        self._chain = None
        self._has_skipped = False
        self._damaged = []
        return answer

    def _cut(self) -> None:
        if not self._rows:
            return
        head = self._write(self._boot, self._rows)
        self._chain = self._boot, self._next_seq - 1, head
        self._segments += 1
        self._sealed += self._events
        self._exported[self._boot] = self._next_seq - 1
        self._rows = []
        self._events = 0


def serve(
    segmenter: Segmenter,
    source: BinaryIO,
    answers: TextIO,
    *,
    tidy: Callable[[], str] = lambda: "",
) -> None:
    """Carry out the frames of `source` until it ends, perhaps in the middle of one.

    `tidy` is called after every seal; what it could not do goes into the answer.
    """
    while len(head := source.read(FRAME.size)) == FRAME.size:
        kind, boot, first_seq, size = FRAME.unpack(head)
        if kind == SEAL:
            answer = segmenter.seal()
            answer["problem"] = tidy()
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
            continue
        assert kind == ROW, kind
        value = source.read(size)
        if len(value) < size:
            return
        segmenter.add(boot, first_seq, value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m broker.history.segment_process")
    parser.add_argument("--node", required=True)
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--keep-days", type=int, required=True)
    parser.add_argument("--before", default="0:0:")  # boot, last event and head of a segment
    parser.add_argument("directory", type=Path)
    options = parser.parse_args(arguments)
    os.nice(19)
    # Signals are for the broker; it ends this process by closing stdin.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        from broker.history.segment_files import SegmentError, SegmentWriter
    except ImportError as problem:
        return _fail(f"{problem}; {HOW_TO_INSTALL}")
    try:
        with open(options.lock, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # waits for the process of a crashed broker to end
            boot, last_seq, head = options.before.split(":")
            writer = SegmentWriter(
                options.directory,
                options.node,
                keep_days=options.keep_days,
                before=(int(boot), int(last_seq)),
                head=head,
            )
            segmenter = Segmenter(
                writer.write, writer.newest, writer.end, events_max=options.events
            )
            serve(segmenter, sys.stdin.buffer, sys.stdout, tidy=writer.drop_old)
    except SegmentError as problem:
        return _fail(str(problem))
    except OSError as problem:
        return _fail(f"{problem.filename or options.directory}: {problem.strerror}")
    except MemoryError:
        return _fail("not enough memory to write a segment")
    return 0


def _fail(problem: str) -> int:
    sys.stdout.write(json.dumps({"error": problem}) + "\n")
    sys.stdout.flush()
    return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
