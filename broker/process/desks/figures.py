"""The figures of a running broker at one moment, for who looks at it live.

Counters count from the start: who asks twice knows what happened between. Nothing is counted for an
answer that the metrics do not count too. Read next: `broker.cli.watching.top`.
"""

import json
import time
from typing import Any, Final

from broker.loop.driver import Driver
from broker.observe.metrics import Status
from broker.operations.control_socket import ControlError, Request
from broker.version import VERSION
from session.counters import Counters

FIGURES: Final = "live_figures"
REQUESTS: Final = frozenset({FIGURES})

# Gauges take 20 ms with 100,000 connections: they are taken again when 50 times what they took is
# over, so that many who look cost 2 % at most.
REST: Final = 50
GAUGES: Final = (
    *("connections", "sessions_online", "sessions_stored", "sessions_stored_online"),
    *("retained_messages", "log_bytes", "generations", "waiting_replies", "writes_refused"),
)


class FiguresDesk:
    """Answers one request: all figures."""

    def __init__(self, counters: Counters, driver: Driver, status: Status) -> None:
        self._counters: Final = counters
        self._driver: Final = driver
        self._status: Final = status
        self._began_s: Final = time.monotonic()
        self._gauges: dict[str, int] = {}
        self._again_s: float = 0.0  # when they are taken again

    def answer(self, request: Request) -> Request:
        """Answer `FIGURES`. Raises `ControlError`."""
        found: list[dict[str, Any]] = []
        self._driver.run(self._look, found)
        if not found:
            raise ControlError("an internal error, which is in the log")
        return {"figures": json.dumps(found[0])}

    def _look(self, found: list[dict[str, Any]]) -> None:
        counters, disk = self._counters, self._status.disk
        began_s = time.monotonic()
        if began_s >= self._again_s:
            self._gauges = self._driver.gauges()
            now_s = time.monotonic()
            self._again_s = now_s + REST * (now_s - began_s)
        gauges = self._gauges
        found.append(
            {
                "at_s": time.monotonic(),
                "up_s": round(time.monotonic() - self._began_s),
                "version": VERSION,
                "phase": self._status.phase,
                "messages_in": sum(counters.messages_received),
                "messages_out": sum(counters.messages_sent),
                "bytes_in": counters.bytes_received,
                "bytes_out": counters.bytes_sent,
                "accepted": counters.connections_accepted,
                "refused": sum(sum(each.values()) for each in counters.refused.values()),
                "dropped": sum(counters.dropped.values()),
                "expired": counters.expired_messages,
                "commits": counters.commits,
                "commit_seconds": counters.commit_seconds.total,
                "commit_buckets": counters.commit_seconds.cumulative()[:-1],
                **{name: gauges[name] for name in GAUGES},
                "disk": None
                if disk is None
                else {
                    "free_bytes": disk.free_bytes,
                    "total_bytes": disk.total_bytes,
                    "low_water_bytes": disk.low_water_bytes,
                },
            }
        )
