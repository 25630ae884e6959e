"""Structured log lines: logfmt for a person at a terminal, one JSON object per line otherwise.

Must never raise into its caller, never block on more than one write, and never let a peer fill the
disk: each event name has a budget of lines, and the next line of that event says how many were
suppressed. Keys in use: ts level event message client_id remote reason.
"""

import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Literal, TextIO, TypeAlias

Format: TypeAlias = Literal["auto", "logfmt", "json"]
Value: TypeAlias = str | int | float | bool | None

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

# One event may write 50 lines in 10 seconds: enough to see who it is, too little to fill a disk
# (a reconnect storm of 10,000 clients then writes 18,000 lines an hour, not a million).
EVENT_LINES_MAX: Final = 50
EVENT_WINDOW_S: Final = 10.0
# Event names are few and fixed; the bound only guards against a bug.
EVENTS_MAX: Final = 1000
FIELD_CHARACTERS_MAX: Final = 2000  # longer values (a hostile client id) are cut


class Log:
    """Writes events at or above a level to one text stream."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        level: str = "info",
        format: Format = "auto",
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream: TextIO = sys.stderr if stream is None else stream
        self._threshold: int = LEVELS[level]
        if format == "auto":
            format = "logfmt" if self._stream.isatty() else "json"
        self._is_json: bool = format == "json"
        self._wall_clock = wall_clock
        self._clock = clock
        # event -> [window start, lines written in it, lines suppressed in it]
        self._budgets: dict[str, list[float]] = {}

    def set_level(self, level: str) -> None:
        """Write events at or above `level` from now on."""
        self._threshold = LEVELS[level]

    def is_debug(self) -> bool:
        """Return whether debug events are written: else their fields need not be collected."""
        return self._threshold <= LEVELS["debug"]

    def suppresses(self, event: str) -> bool:
        """Return whether an info event is not written now; then it is counted as suppressed.

        For events that come by the thousand: the fields of most need not be collected.
        """
        if LEVELS["info"] < self._threshold:
            return True
        budget = self._budgets.get(event)
        if budget is None or budget[1] < EVENT_LINES_MAX:
            return False
        if self._clock() - budget[0] >= EVENT_WINDOW_S:
            return False
        budget[2] += 1
        return True

    def debug(self, event: str, message: str = "", **fields: Value) -> None:
        """Write an event for debugging; off by default."""
        self._write("debug", event, message, fields)

    def info(self, event: str, message: str = "", **fields: Value) -> None:
        """Write an event of normal operation."""
        self._write("info", event, message, fields)

    def warning(self, event: str, message: str = "", **fields: Value) -> None:
        """Write an event an operator should look at."""
        self._write("warning", event, message, fields)

    def error(self, event: str, message: str = "", **fields: Value) -> None:
        """Write an event an operator must act on."""
        self._write("error", event, message, fields)

    def _write(self, level: str, event: str, message: str, fields: dict[str, Value]) -> None:
        if LEVELS[level] < self._threshold:
            return
        suppressed = self._admit(event)
        if suppressed < 0:
            return
        moment = datetime.fromtimestamp(self._wall_clock(), UTC)
        line: dict[str, Value] = {
            "ts": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": level,
            "event": event,
        }
        if message:
            line["message"] = message
        line.update(fields)
        if suppressed:
            line["suppressed"] = suppressed
        text = _json(_cut(line)) if self._is_json else logfmt(_cut(line))
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            # The terminal or pipe is gone: there is nowhere to report it. The broker goes on.
            return

    def _admit(self, event: str) -> int:
        """Return the lines of `event` suppressed since its last one, or -1 to suppress this one."""
        now = self._clock()
        budget = self._budgets.get(event)
        if budget is None:
            if len(self._budgets) >= EVENTS_MAX:
                self._budgets.clear()
            self._budgets[event] = [now, 1, 0]
            return 0
        if now - budget[0] >= EVENT_WINDOW_S:
            suppressed = int(budget[2])
            budget[0], budget[1], budget[2] = now, 1, 0
            return suppressed
        if budget[1] >= EVENT_LINES_MAX:
            budget[2] += 1
            return -1
        budget[1] += 1
        return 0


def _json(fields: dict[str, Value]) -> str:
    """Return `fields` as JSON, in which a name may not turn the line around or break it."""
    text = json.dumps(fields, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(fields)


def logfmt(fields: dict[str, Value]) -> str:
    """Return `fields` as key=value pairs; values with spaces, quotes or controls are quoted."""
    return " ".join(f"{key}={_logfmt_value(value)}" for key, value in fields.items())


def _logfmt_value(value: Value) -> str:
    if value is None:
        return ""
    if value is True or value is False:
        return "true" if value else "false"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if text and all(ch.isprintable() and ch not in ' "=\\' for ch in text):
        return text
    # JSON's escapes keep the value on one line, whatever is in a client id.
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _cut(fields: dict[str, Value]) -> dict[str, Value]:
    """Return `fields` with long strings cut; the end then says how long they were."""
    for key, value in fields.items():
        if isinstance(value, str) and len(value) > FIELD_CHARACTERS_MAX:
            fields[key] = f"{value[:FIELD_CHARACTERS_MAX]}...({len(value)} characters)"
    return fields


class Bridge(logging.Handler):
    """Sends what libraries log by the standard `logging` to our log."""

    def __init__(self, log: Log) -> None:
        super().__init__(level=logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write `record` as a library event."""
        write = self._log.error if record.levelno >= logging.ERROR else self._log.warning
        write("library", record.getMessage(), logger=record.name)


def install_bridge(log: Log) -> None:
    """Send the root logger's warnings and errors to `log` instead of its default handlers."""
    root = logging.getLogger()
    root.handlers = [Bridge(log)]
