"""What an operator asks of the bans of a running broker: make one, list them, remove one.

A change is answered when it is durable, and logged with the user who asked. Read next:
`session.scheduling.bans`, `broker.cli.administration.bans`, which asks.
"""

import json
from bisect import bisect_right
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, Final

from broker.loop.driver import Driver
from broker.observe.structured_log import Log
from broker.operations.control_socket import BY, Absent, Answer, ControlError, Request
from broker.process.desks.engine_work import begin, whole_number
from session.engine import Engine
from session.scheduling.bans import BAN_MS_MAX, Ban, network_name
from storage.tables.ban_rows import ADDRESS, CLIENT_ID, USER
from storage.time.machine_clocks import wall_ms

ADD: Final = "ban_add"
LIST: Final = "ban_list"
REMOVE: Final = "ban_remove"
REQUESTS: Final = frozenset({ADD, LIST, REMOVE})

KINDS: Final = {"client-id": CLIENT_ID, "user": USER, "address": ADDRESS}
NAMES: Final = {kind: name for name, kind in KINDS.items()}
VALUE_BYTES_MAX: Final = 65_535  # of what CONNECT can say, UTF-8
PAGE_BANS: Final = 500
PAGE_BYTES: Final = 128 << 10  # of one page; the last ban may exceed it


class BanDesk:
    """Answers requests about bans."""

    def __init__(self, engine: Engine, driver: Driver, log: Log) -> None:
        self._engine: Final = engine
        self._driver: Final = driver
        self._log: Final = log

    def answer(self, request: Request) -> Answer:
        """Answer a request of `REQUESTS`. Raises `ControlError`, at once or in the future."""
        works = {ADD: self._add, LIST: self._list, REMOVE: self._remove}
        return begin(self._driver, works[request["do"]], request)

    def _add(self, request: Request, found: "Future[Request]") -> None:
        kind, value = _banned(request)
        for_ms = whole_number(request, "for_ms")
        if not 0 < for_ms <= BAN_MS_MAX:
            raise ControlError(f"for_ms = {for_ms}: expected 1 to {BAN_MS_MAX}, 100 years")
        administration = self._engine.administer(self._driver.now)
        ban = administration.ban(kind, value, for_ms, request[BY], request.get("reason", ""))
        row = self._row(ban)
        self._log.info(
            "ban_added",
            "an operator bans clients",
            kind=row["kind"],
            value=value,
            until=row["until"],
            by=ban.by,
            reason=ban.reason,
        )
        self._driver.when_durable(lambda: found.set_result({"ban": json.dumps(row)}))

    def _remove(self, request: Request, found: "Future[Request]") -> None:
        kind, value = _banned(request)
        reason = request.get("reason", "")
        administration = self._engine.administer(self._driver.now)
        if not administration.unban(kind, value, request[BY], reason):
            raise Absent(f"no ban of {NAMES[kind]} {value!r}")
        self._log.info(
            "ban_removed",
            "an operator removes a ban",
            kind=NAMES[kind],
            value=value,
            by=request[BY],
            reason=reason,
        )
        self._driver.when_durable(lambda: found.set_result({"value": value}))

    def _list(self, request: Request, found: "Future[Request]") -> None:
        """Tell the bans a page at a time; `after` is what the page before it returned as such."""
        bans = self._engine.administer(self._driver.now).bans.all()
        try:
            after = bytes.fromhex(request.get("after", ""))
        except ValueError:
            raise ControlError("after: expected what the page before has told") from None
        rows: list[dict[str, Any]] = []
        size, more = 0, ""
        for ban in bans[bisect_right(bans, after, key=lambda each: each.key) :]:
            if len(rows) == PAGE_BANS or size > PAGE_BYTES:
                break
            rows.append(self._row(ban))
            size += len(json.dumps(rows[-1]))
            more = ban.key.hex()
        is_last = not bans or more in ("", bans[-1].key.hex())
        found.set_result({"bans": json.dumps(rows), "after": "" if is_last else more})

    def _row(self, ban: Ban) -> dict[str, Any]:
        now, wall = self._driver.now, wall_ms()
        return {
            "kind": NAMES[ban.kind],
            "value": ban.value,
            "since": _moment(wall - max(0, now - ban.made_ms)),
            "until": _moment(wall + ban.until_ms - now),
            "left_seconds": max(0, ban.until_ms - now) // 1000,
            "by": ban.by,
            "reason": ban.reason,
        }


def _banned(request: Request) -> tuple[bytes, str]:
    """Return the kind and the name of what a request is about. Raises `ControlError`."""
    kind = KINDS.get(request.get("kind", ""))
    if kind is None:
        given = request.get("kind", "")[:40]
        raise ControlError(f"kind = {given!r}: expected one of {', '.join(KINDS)}")
    value = request.get("value", "")
    if kind == ADDRESS:
        try:
            return kind, network_name(value)
        except ValueError as problem:
            raise ControlError(str(problem)) from None
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ControlError(f"{NAMES[kind]} {value[:40]!r}: expected UTF-8") from None
    if not 0 < size <= VALUE_BYTES_MAX or "\0" in value:
        raise ControlError(
            f"{NAMES[kind]} {value[:40]!r}: expected 1 to {VALUE_BYTES_MAX} bytes without NUL"
        )
    return kind, value


def _moment(ms: int) -> str:
    """Return a time as ISO 8601 in UTC."""
    when = datetime.fromtimestamp(ms / 1000, UTC)
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")
