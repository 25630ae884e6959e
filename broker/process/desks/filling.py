"""What an operator asks of a backfill of a running broker: begin, stop, how far is it.

Read next: `session.feed.backfill`, `broker.cli.backends.backfill`.
"""

from typing import Any, Final

from broker.loop.driver import Driver
from broker.observe.structured_log import Log
from broker.operations.control_socket import ControlError, Request
from session.engine import Engine
from session.state.backend_record import PARTS, PRESENCE, RETAINED, SUBSCRIPTIONS

BEGIN: Final = "backend_backfill"
STOP: Final = "backend_backfill_stop"
REQUESTS: Final = frozenset({BEGIN, STOP})
NAMES: Final = {"subscriptions": SUBSCRIPTIONS, "retained": RETAINED, "presence": PRESENCE}


class FillDesk:
    """Answers requests for the backfill of one backend."""

    def __init__(self, name: str, engine: Engine, driver: Driver, log: Log) -> None:
        self._name: Final = name
        self._engine: Final = engine
        self._driver: Final = driver
        self._log: Final = log

    def answer(self, request: Request) -> Request:
        """Answer a request of `REQUESTS`. Raises `ControlError`."""
        words = [word for word in request.get("parts", "").split(",") if word]
        unknown = [word for word in words if word not in NAMES]
        if unknown:
            raise ControlError(f"{unknown[0][:40]!r}: expected one of {', '.join(NAMES)}")
        parts = sum({NAMES[word] for word in words}) or sum(PARTS)
        found: list[str] = []
        if request["do"] == BEGIN:
            self._driver.run(self._begin, parts, found)
        else:
            self._driver.run(self._stop, found)
        if not found:
            raise ControlError("an internal error, which is in the log")
        if found[0]:
            raise ControlError(found[0])
        return {"name": self._name}

    def _begin(self, parts: int, found: list[str]) -> None:
        why = self._engine.backfill.begin(self._name, parts)
        found.append(why)
        if not why:
            fill = self._engine.backfill.fill(self._name)
            told = [word for word, part in NAMES.items() if fill is not None and fill.parts & part]
            self._log.info(
                "backend_backfill",
                f"an operator has the store told what there is: {', '.join(told)}",
                backend=self._name,
            )

    def _stop(self, found: list[str]) -> None:
        why = self._engine.backfill.stop(self._name)
        found.append(why)
        if not why:
            self._log.info(
                "backend_backfill_stopped", "an operator ends a backfill", backend=self._name
            )

    def progress(self) -> dict[str, Any] | None:
        """Return how far the last backfill is, None if there was none."""
        fill = self._engine.backfill.fill(self._name)
        if fill is None:
            return None
        now = self._driver.now
        return {
            "left": [word for word, part in NAMES.items() if fill.parts & part],
            "rows": fill.rows,
            "began_seconds_ago": max(0, now - fill.begun_ms) // 1000,
            "ended_seconds_ago": max(0, now - fill.ended_ms) // 1000 if fill.ended_ms else None,
        }
