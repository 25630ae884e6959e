"""All external stores of a running broker: a pump and a process for each that a rule names.

Without rules there is nothing here. Read next: `broker.backends.pump.pump`.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from broker.backends.link import BackendLink
from broker.backends.pump.port import MakeLink
from broker.backends.pump.pump import Pump
from broker.loop.driver import Driver
from broker.observe.backend_figures import BackendFigures
from broker.observe.metrics import Status
from broker.observe.structured_log import Log
from broker.operations.control_socket import ControlError, Request
from broker.process import dead_letters
from broker.process.dead_letters import DeadLetterDesk
from broker.process.desks import comparing, filling
from broker.process.desks.comparing import ComparisonDesk
from broker.process.desks.filling import FillDesk
from session.engine import Engine

GONE_S: Final = 2.0  # to end the processes; they are killed
STATUS: Final = "backend_status"
PAUSE: Final = "backend_pause"
RESUME: Final = "backend_resume"
REQUESTS: Final = (
    frozenset({STATUS, PAUSE, RESUME})
    | dead_letters.REQUESTS
    | comparing.REQUESTS
    | filling.REQUESTS
)
WHY_CHARACTERS_MAX: Final = 200  # the answer for all backends is a line of 16 KiB


class Feeding:
    """Feeds the stores of one running broker."""

    def __init__(
        self,
        configurations: Mapping[str, dict[str, Any]],
        required: frozenset[str],
        engine: Engine,
        driver: Driver,
        status: Status,
        log: Log,
        *,
        make_link: MakeLink = BackendLink,
    ) -> None:
        """`configurations` has what each process is told first, without the instance."""
        self._status: Final = status
        self._pumps: Final = {
            name: Pump(
                name,
                engine,
                driver,
                configuration,
                make_link,
                log,
                is_required=name in required,
                changed=self._tell_status,
            )
            for name, configuration in configurations.items()
        }
        self._desks: Final = {
            name: DeadLetterDesk(name, engine, driver, log) for name in configurations
        }
        self._comparisons: Final = {
            name: ComparisonDesk(name, configuration, engine, driver)
            for name, configuration in configurations.items()
        }
        self._fills: Final = {name: FillDesk(name, engine, driver, log) for name in configurations}
        driver.backends = self.figures
        driver.commits_durable = self._look

    def start(self) -> None:
        """Start the processes."""
        self._tell_status()
        for pump in self._pumps.values():
            pump.start()

    def figures(self) -> list[BackendFigures]:
        """Return the figures of every backend."""
        return [pump.figures() for pump in self._pumps.values()]

    def find(self, name: str) -> Pump | None:
        """Return the pump of a backend, None if there is no such backend."""
        return self._pumps.get(name)

    def desk(self, name: str, do: str) -> DeadLetterDesk | ComparisonDesk | FillDesk | None:
        """Return who answers requests of a kind for a backend that there is, if anybody does."""
        if do in dead_letters.REQUESTS:
            return self._desks[name]
        if do in comparing.REQUESTS:
            return self._comparisons[name]
        return self._fills[name] if do in filling.REQUESTS else None

    def objects(self) -> list[dict[str, Any]]:
        """Return what `holdfast backend status` tells of every backend."""
        return [
            {**as_object(figures), "backfill": self._fills[figures.name].progress()}
            for figures in self.figures()
        ]

    async def close(self) -> None:
        """End the processes; what is not confirmed stays for the next start."""
        closing = [asyncio.ensure_future(pump.close()) for pump in self._pumps.values()]
        _, late = await asyncio.wait(closing, timeout=GONE_S)
        for each in late:
            each.cancel()

    def _look(self) -> None:
        for pump in self._pumps.values():
            pump.commits_durable()

    def _tell_status(self) -> None:
        pumps = self._pumps.items()
        self._status.backends_down = {
            name: pump.is_required for name, pump in pumps if not pump.is_up
        }


def answer(feeding: Feeding | None, request: Request) -> Request:
    """Answer a request of `REQUESTS` to a running broker; None = it has no backend with a rule.

    Raises `ControlError`.
    """
    if request["do"] == STATUS:
        return {"backends": json.dumps([] if feeding is None else feeding.objects())}
    name = request.get("name", "")
    pump = None if feeding is None else feeding.find(name)
    if feeding is None or pump is None:
        raise ControlError(f"no backend {name!r} that a rule names")
    desk = feeding.desk(name, request["do"])
    if desk is not None:
        return desk.answer(request)
    if request["do"] == PAUSE:
        pump.pause()
    else:
        pump.resume()
    return {"name": name}


def as_object(figures: BackendFigures) -> dict[str, Any]:
    """Return what `holdfast backend status` tells of a backend."""
    return {
        "backend": figures.name,
        "state": figures.state,
        "why": "" if figures.is_up else figures.why[:WHY_CHARACTERS_MAX],
        "paused": figures.is_paused,
        "required": figures.is_required,
        "position": figures.cursor[0],
        "event": figures.cursor[1],
        "rows_behind": figures.rows_behind,
        "backlog_bytes": figures.backlog_bytes,
        "refusing": figures.is_refusing,
        "lag_seconds": round(figures.lag_s, 3),
        "rows": figures.rows,
        "retries": figures.retries,
        "rewinds": figures.rewinds,
        "gaps": figures.gaps,
        "dead_letters": figures.dead_letters,
        "fetches_owed": figures.fetches_owed,
    }
