"""What a running broker knows of its own restart: what would be lost, what is against it.

Read next: `broker.cli.administration.restart`, which says it to people.
"""

import json
from typing import Any, Final

from broker.loop.driver import Driver
from broker.observe.metrics import Status
from broker.operations.control_socket import ControlError, Request
from session.engine import Engine

CHECK: Final = "restart_check"
REQUESTS: Final = frozenset({CHECK})


class RestartDesk:
    """Answers one request: is a restart safe?"""

    def __init__(self, engine: Engine, driver: Driver, status: Status) -> None:
        self._engine: Final = engine
        self._driver: Final = driver
        self._status: Final = status

    def answer(self, request: Request) -> Request:
        """Answer `CHECK`. Raises `ControlError`."""
        found: list[dict[str, Any]] = []
        self._driver.run(self._look, found)
        if not found:
            raise ControlError("an internal error, which is in the log")
        return {"facts": json.dumps(found[0])}

    def _look(self, found: list[dict[str, Any]]) -> None:
        gauges, status = self._driver.gauges(), self._status
        durable = gauges["sessions_stored_online"]
        refused = self._engine.refused_by
        found.append(
            {
                "phase": status.phase,
                "connected": gauges["sessions_online"],
                "durable_sessions_connected": durable,
                "clean_sessions_connected": gauges["sessions_online"] - durable,
                "sessions_stored": gauges["sessions_stored"],
                "durability": status.durability,
                "last_recovery_seconds": round(status.recovery_seconds, 2),
                "writes_refused": "" if refused is None else str(refused),
                "disk_is_low": status.is_disk_low(),
                "backends_down": sorted(
                    name for name, is_required in status.backends_down.items() if is_required
                ),
            }
        )
