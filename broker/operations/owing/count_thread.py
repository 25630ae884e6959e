"""The broker's end of the process that counts what is owed: starts one now and then.

A thread waits for the process; it takes no time of the event loop. A census takes at most a
fiftieth of a core in the long run: after a long one the next one waits. While the disk is low there
is none, because the process keeps files that the broker deletes. Read next:
`broker.operations.owing.count_process`, the other end.
"""

import json
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from broker import own_process
from broker.observe.backlog_figures import BacklogFigures
from broker.observe.structured_log import Log

FIRST_S: Final = 10.0  # after the start
SHARE: Final = 50  # the census takes a fiftieth of a core
LOOK_S: Final = 1.0  # between looks at a process that counts
LOW_S: Final = 5.0  # between looks at a disk that is low
FAILURES_TOLD: Final = 3  # in a row: the broker may delete a file while the process opens it
LINE_CHARACTERS_MAX: Final = 300  # of what a process says that failed


class Counted:
    """What a census has found, as the process tells it."""

    __slots__ = ("at_s", "pins", "problems", "totals")

    def __init__(self, answer: dict[str, Any], at_s: float) -> None:
        self.totals: Final[dict[str, Any]] = answer["totals"]
        self.pins: Final[list[dict[str, Any]]] = answer["pins"]
        self.problems: Final[list[str]] = answer["problems"]
        self.at_s: Final = at_s  # when it began, on the monotonic clock

    def figures(self) -> BacklogFigures:
        """Return what the metrics show."""
        kinds = {"offline": "offline", "online": "online", "group": "groups"}
        return BacklogFigures(
            self.at_s,
            {kind: self.totals[name]["messages"] for kind, name in kinds.items()},
            {kind: self.totals[name]["bytes"] for kind, name in kinds.items()},
            self.totals["oldest_ms"] / 1000,
        )


class CountFailed(Exception):
    """No census; one line for the log."""


class CountThread:
    """Counts regularly until closed."""

    def __init__(
        self,
        database: Path,
        interval_s: float,
        log: Log,
        *,
        is_low: Callable[[], bool],
        found: Callable[[Counted], None],
    ) -> None:
        """`found` is called on a thread of ours, and so is `is_low`: is the disk nearly full?"""
        self._database: Final = database
        self._interval_s: Final = interval_s
        self._log: Final = log
        self._is_low: Final = is_low
        self._found: Final = found
        self._known = b""  # what one census tells the next
        self._failures = 0  # in a row
        self._process: subprocess.Popen[bytes] | None = None  # that counts now
        self._ended: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="count", daemon=True)

    def start(self) -> None:
        """Begin; the first census is soon."""
        self._thread.start()

    def close(self) -> None:
        """End, and end a census that is under way."""
        self._ended.set()
        process = self._process
        if process is not None:
            process.kill()
        self._thread.join()

    def _run(self) -> None:
        pause_s = min(FIRST_S, self._interval_s)
        while not self._ended.wait(pause_s):
            if self._is_low():
                pause_s = min(LOW_S, self._interval_s)
                continue
            began = time.monotonic()
            try:
                cpu_s = self._count(began)
                self._failures = 0
            except CountFailed as problem:
                cpu_s = time.monotonic() - began
                self._note_failure(problem)
            pause_s = max(self._interval_s - (time.monotonic() - began), (SHARE - 1) * cpu_s)

    def _note_failure(self, problem: CountFailed) -> None:
        if self._is_low() or self._ended.is_set():
            return  # we have ended it
        self._failures += 1
        if self._failures == FAILURES_TOLD:
            self._log.warning(
                "backlog_not_counted", f"what is owed could not be counted: {problem}"
            )

    def _count(self, began: float) -> float:
        """Have a process count, and hand on what it found; return the seconds of CPU it took."""
        try:
            process = subprocess.Popen(
                [*own_process.command("broker.operations.owing.count_process"), self._database],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=own_process.environment(),
                start_new_session=True,  # Ctrl-C on a terminal is for the broker
            )
        except OSError as problem:
            raise CountFailed(f"cannot start a process: {problem}") from None
        self._process = process
        with process:
            said, complaint = self._wait_for(process)
        self._process = None
        first, _, known = said.partition(b"\n")
        try:
            answer = json.loads(first)
            counted = Counted(answer, began)
            cpu_s = float(answer["cpu_seconds"])
        except (ValueError, KeyError, TypeError):
            raise CountFailed(_why(first, complaint, process.returncode)) from None
        self._known = known
        self._found(counted)
        return cpu_s

    def _wait_for(self, process: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
        """Return what the process says; it is ended early if the broker ends, or for its disk."""
        known: bytes | None = self._known
        while True:
            try:
                return process.communicate(known, timeout=LOOK_S)
            except subprocess.TimeoutExpired:
                known = None  # it is under way, and must not be handed in again
                if self._ended.is_set() or self._is_low():
                    process.kill()


def _why(first: bytes, complaint: bytes, status: int) -> str:
    try:
        return str(json.loads(first)["error"])
    except (ValueError, KeyError, TypeError):
        lines = complaint.decode(errors="replace").strip().splitlines()
        said = lines[-1] if lines else "it said nothing"
        return f"the process ended with status {status}: {said}"[:LINE_CHARACTERS_MAX]
