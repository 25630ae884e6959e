"""What a running broker knows of all that is owed, as it was counted last.

A process counts in the background (`broker.operations.owing.count_thread`); nothing is counted for
an answer. Read next: `broker.operations.owing.report`, which says what the fields mean.
"""

import json
import time
from typing import Final

from broker.operations.control_socket import ControlError, Request
from broker.operations.owing.count_thread import Counted

TOTALS: Final = "backlog_totals"
PINS: Final = "storage_pins"
REQUESTS: Final = frozenset({TOTALS, PINS})

PAGE_BYTES: Final = 256 << 10  # of an answer about generations; the last one may exceed it


class OwedDesk:
    """Answers what is owed, and which generations that keeps."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on: Final = is_on
        self._counted: Counted | None = None

    def found(self, counted: Counted) -> None:
        """Take what was counted now; from any thread."""
        self._counted = counted

    def answer(self, request: Request) -> Request:
        """Answer a request of `REQUESTS`. Raises `ControlError`."""
        counted = self._counted
        if not self._is_on:
            raise ControlError("what is owed is not counted: metrics.backlog_interval is 0")
        if counted is None:
            raise ControlError("what is owed was not counted yet: ask again in a minute")
        age_ms = max(0, int((time.monotonic() - counted.at_s) * 1000))
        answer = {"age_ms": str(age_ms), "problem": "".join(counted.problems)}
        if request["do"] == TOTALS:
            return answer | _totals(counted)
        return answer | _page(counted, request)


def _totals(counted: Counted) -> Request:
    return {
        name: str(value) if isinstance(value, int) else json.dumps(value)
        for name, value in counted.totals.items()
    }


def _page(counted: Counted, request: Request) -> Request:
    """Return the generations behind the number `after`, as many as an answer holds."""
    after = request.get("after", "0")
    if not after.isdecimal() or len(after) > 19:
        raise ControlError(f"after = {after[:40]!r}: expected the number of a generation")
    rows = [row for row in counted.pins if row["generation"] > int(after)]
    page: list[str] = []
    size = 0
    for row in rows:
        page.append(json.dumps(row))
        size += len(page[-1])
        if size > PAGE_BYTES:
            break
    more = str(rows[len(page) - 1]["generation"]) if len(page) < len(rows) else ""
    return {"pins": f"[{', '.join(page)}]", "after": more}
