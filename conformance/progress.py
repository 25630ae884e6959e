"""Show the progress of a run on stderr: a line that changes on a terminal, else a few lines."""

import time
from collections import Counter
from typing import Final, TextIO

from conformance.results import Result

PERIOD_S: Final = 10.0  # between lines, if stderr is not a terminal


class Printer:
    """Writes progress to `stream`; failures as they happen."""

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._is_terminal = stream.isatty()
        self._total = 0
        self._counts: Counter[str] = Counter()
        self._said_s = time.monotonic()
        self._began_s = self._said_s

    def begin(self, total: int) -> None:
        """Note that `total` checks will run."""
        self._total = total
        self._show()

    def done(self, result: Result) -> None:
        """Note one more result."""
        self._counts[result.outcome] += 1
        if result.is_bad:
            reason = result.reason.strip().splitlines()
            shown = reason[-1 if result.outcome == "error" else 0] if reason else ""
            self.say(f"{result.outcome} {result.statement.id}: {shown[:160]}")
        self._show()

    def say(self, text: str) -> None:
        """Write a separate line."""
        if not self._quiet:
            self._stream.write("\r\x1b[K" * self._is_terminal + text + "\n")
            self._stream.flush()

    def _show(self) -> None:
        finished = sum(self._counts.values())
        now = time.monotonic()
        is_due = now - self._said_s >= PERIOD_S or finished in (0, self._total)
        if self._quiet or not (self._is_terminal or is_due):
            return
        self._said_s = now
        bad = self._counts["fail"] + self._counts["error"]
        line = f"[{finished:3}/{self._total}] {self._counts['pass']} passed, {bad} failed, "
        line += f"{self._counts['not run']} not run, {now - self._began_s:.0f} s"
        if self._is_terminal:
            self._stream.write(f"\r\x1b[K{line}" + "\n" * (finished == self._total))
        else:
            self._stream.write(line + "\n")
        self._stream.flush()
