"""What an operator asks of the dead letters of a running broker: a page of them, again, gone.

An answer is one line of the control socket: pages are cut to that, and orders are carried out in
slices. Read next: `session.feed.dead_letters`, `broker.cli.backends.dead_letters`.
"""

import json
from typing import Any, Final

from broker.backends.rows import decode_wire_rows, opened
from broker.loop.driver import Driver
from broker.observe.structured_log import Log
from broker.operations.control_socket import LINE_BYTES_MAX, ControlError, Request
from session.engine import Engine
from session.feed.dead_letters import FULL, DeadLetter
from storage.errors import CorruptRecord
from storage.tables import feed_rows
from storage.tables.feed_rows import FeedEvent

LIST: Final = "backend_dead_list"
RETRY: Final = "backend_dead_retry"
DROP: Final = "backend_dead_drop"
REQUESTS: Final = frozenset({LIST, RETRY, DROP})

PAGE_LETTERS: Final = 32  # read for one request: 2 MiB of rows
PAGE_BYTES: Final = LINE_BYTES_MAX - 1024
TEXT_CHARACTERS_MAX: Final = 200
PAYLOAD_BYTES_MAX: Final = 64
KIND_NAMES: Final = {
    feed_rows.CONNECTED: "connected",
    feed_rows.DISCONNECTED: "disconnected",
    feed_rows.SUBSCRIBED: "subscribed",
    feed_rows.UNSUBSCRIBED: "unsubscribed",
    feed_rows.ACKED: "acked",
    feed_rows.DELIVERED: "kept",
    feed_rows.SENT: "delivered",
    feed_rows.RETAINED: "retained",
    feed_rows.RETAIN_DELETED: "retain deleted",
    feed_rows.SESSION_ENDED: "session ended",
}


class DeadLetterDesk:
    """Answers requests for the dead letters of one backend."""

    def __init__(self, name: str, engine: Engine, driver: Driver, log: Log) -> None:
        self._name: Final = name
        self._outlet: Final = engine.feeds
        self._driver: Final = driver
        self._log: Final = log

    def answer(self, request: Request) -> Request:
        """Answer a request of `REQUESTS`. Raises `ControlError`."""
        found: list[dict[str, Any]] = []
        work = self._list if request["do"] == LIST else self._order
        try:
            after = int(request.get("after", "0"))
            count = min(max(1, int(request.get("limit", "1"))), PAGE_LETTERS)
            numbers = [int(each) for each in request.get("ids", "").split(",") if each]
        except ValueError as problem:
            raise ControlError(f"not a number: {problem}") from None
        if not 0 <= after < 1 << 63 or any(not 0 < each < 1 << 63 for each in numbers):
            raise ControlError("expected numbers of dead letters")
        self._driver.run(work, request["do"], after, count, numbers[:PAGE_LETTERS], found)
        if not found:
            raise ControlError("an internal error, which is in the log")
        return {"answer": json.dumps(found[0])}

    def _list(
        self, do: str, after: int, count: int, numbers: list[int], found: list[dict[str, Any]]
    ) -> None:
        """Put a page into `found`: letters, and whether there may be more."""
        letters: list[dict[str, Any]] = []
        page = self._outlet.dead_letters(self._name, after, count)
        size = 0
        for number, letter in page:
            told = {"id": number, **self._told(number, letter)}
            size += len(json.dumps(json.dumps(told)))
            if letters and size > PAGE_BYTES:
                break
            letters.append(told)
        # Also a short page may have others behind it: some cannot be read, or are just gone.
        found.append({"letters": letters, "has_more": bool(page)})

    def _told(self, number: int, letter: DeadLetter) -> dict[str, Any]:
        age_ms = max(0, self._driver.now - letter.at_ms) if letter.at_ms else None
        return {
            "rule": letter.rule,
            "why": _short(letter.why),
            "tries": letter.tries,
            "age_seconds": None if age_ms is None else age_ms // 1000,
            "retrying": self._outlet.is_retried(self._name, number),
            "row": describe(letter.row),
        }

    def _order(
        self, do: str, after: int, count: int, numbers: list[int], found: list[dict[str, Any]]
    ) -> None:
        """Send letters again, or drop them; put into `found` how many, and what was not done."""
        page = self._outlet.dead_letters(self._name, after, count) if not numbers else []
        asked = numbers or [number for number, _ in page]
        done = 0
        is_full = False
        problems: list[str] = []
        for number in asked:
            if do == RETRY:
                why = self._outlet.retry_dead_letter(self._name, number)
            else:
                why = self._outlet.drop_dead_letter(self._name, number)
            if why:
                problems.append(f"{number}: {why}")
                is_full = why == FULL
                if is_full:
                    break
                continue
            done += 1
            self._log.info(
                "backend_dead_letter_retried" if do == RETRY else "backend_dead_letter_dropped",
                "an operator has a row sent again" if do == RETRY else "an operator drops a row",
                backend=self._name,
                dead_letter=number,
            )
        found.append(
            {
                "done": done,
                "problems": problems,
                "last": asked[-1] if asked else after,
                "has_more": bool(page),
                "is_full": is_full,
            }
        )


def describe(row: bytes) -> dict[str, Any] | None:
    """Return the row of a letter as an operator sees it, shortened; None if it was not kept."""
    if not row:
        return None
    try:
        (found,) = decode_wire_rows(row)
        whole = opened(found)
    except (CorruptRecord, ValueError) as problem:
        return {"kind": "unreadable", "why": _short(str(problem))}
    if isinstance(whole, FeedEvent):
        told = {"kind": KIND_NAMES.get(whole.kind, str(whole.kind)), "event": whole.seq}
        told |= {"client": _short(whole.client_id), "topic": _short(whole.text)}
        return told | {"qos": whole.qos}
    where = {"event": found.seq} if isinstance(found, FeedEvent) else {"offset": found.offset}
    return {
        "kind": "message",
        **where,
        "client": _short(whole.publisher),
        "topic": _short(whole.topic),
        "qos": whole.qos,
        "payload": whole.payload[:PAYLOAD_BYTES_MAX].decode("utf-8", "backslashreplace"),
        "payload_bytes": len(whole.payload),
    }


def _short(text: str) -> str:
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    return text[: TEXT_CHARACTERS_MAX - 3] + "..."
