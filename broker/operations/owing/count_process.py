"""The process that counts for a running broker what is owed: one census, then it ends.

A process of its own, that runs only when nobody else wants the processor, so that the broker's
event loop notices nothing. It reads the database as a tool does. Its stdin has what the census
before it knew, its stdout two lines of JSON: what was found, and what the next one may know. Must
never outlive its broker. Read next: `broker.operations.owing.census`,
`broker.operations.owing.count_thread` (the broker's end).
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, Final

from broker.operations.looking.store_time import StoreTime
from broker.operations.owing import census, report
from broker.operations.sessions.behind import Known
from storage.errors import StorageError
from storage.local.rocks import RocksStore
from storage.time import machine_clocks

EXIT_FAILED: Final = 1
NAME_MAX: Final = 256  # characters of a name that are handed on
# It works for this long, then rests for three times as long: a quarter of a core, also of the disk.
WORK_S: Final = 0.02
REST_SHARE: Final = 3


class Breath:
    """Rests between pieces of work, and ends the process when its broker has gone."""

    def __init__(self) -> None:
        self._parent: Final = os.getppid()
        self._began = time.process_time()

    def __call__(self) -> None:
        """Rest if it is time."""
        worked_s = time.process_time() - self._began
        if worked_s < WORK_S:
            return
        if os.getppid() != self._parent:
            os._exit(EXIT_FAILED)
        time.sleep(min(1.0, worked_s * REST_SHARE))
        self._began = time.process_time()


def give_way() -> None:
    """Let everybody else have the processor first."""
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def count(database: Path, before: bytes, breath: Breath) -> list[dict[str, Any]]:
    """Return what is found in a database, and what to know next time. Raises `StorageError`."""
    known = Known({(key[0], key[1], key[2]): (key[3], key[4], key[5]) for key in _read(before)})
    with contextlib.closing(RocksStore(database, read_only=True)) as store:
        store_time = StoreTime(
            store,
            machine_clocks.wall_ms(),
            machine_clocks.boot_id(),
            machine_clocks.boottime_ms(),
        )
        found = census.take(store, store_time.now_ms, known=known, breathe=breath)
        answer = {
            "totals": report.totals(found),
            "pins": report.pins(found, store_time),
            "problems": list(found.problems.lines())[:1],
            "cpu_seconds": round(time.process_time(), 3),
        }
    return [_cut(answer), {"known": [[*key, *count] for key, count in known.used.items()]}]


def _read(before: bytes) -> list[list[int]]:
    """Return what the census before this one knew; nothing if there was none."""
    if not before:
        return []
    rows: list[list[int]] = json.loads(before)["known"]
    return rows


def _cut(value: Any) -> Any:
    """Return the same with long texts cut."""
    if isinstance(value, dict):
        return {key: _cut(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_cut(each) for each in value]
    if isinstance(value, str) and len(value) > NAME_MAX:
        return value[:NAME_MAX]
    return value


def serve(database: Path, before: BinaryIO, lines: BinaryIO) -> int:
    """Count once; return the exit status."""
    try:
        found = count(database, before.read(), Breath())
    except StorageError as problem:
        lines.write(json.dumps({"error": str(problem)}).encode() + b"\n")
        return EXIT_FAILED
    for each in found:
        lines.write(json.dumps(each).encode() + b"\n")
    lines.flush()
    return 0


def main() -> int:
    """Count in the database that the command line names."""
    give_way()
    return serve(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    sys.exit(main())
