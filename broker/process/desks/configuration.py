"""The configuration of a running broker: read it again, and write more or less of a log for a time.

Does what SIGHUP does, and says what that has changed. Read next: `broker.process.reload`.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Final

from broker.configuration.config import Config
from broker.loop.driver import Driver
from broker.observe.structured_log import LEVELS, Log
from broker.operations.control_socket import BY, ControlError, Request
from broker.process.reload import Outcome

RELOAD: Final = "config_reload"
LEVEL: Final = "log_level"
REQUESTS: Final = frozenset({RELOAD, LEVEL})

FOR_MS_MAX: Final = 24 * 3600 * 1000


class ConfigurationDesk:
    """Answers requests about the configuration."""

    def __init__(
        self, config: Config, driver: Driver, log: Log, reload: Callable[[], Outcome]
    ) -> None:
        self._config: Final = config
        self._driver: Final = driver
        self._log: Final = log
        self._reload_all: Final = reload
        self._back: asyncio.TimerHandle | None = None  # sets the level that is configured

    def answer(self, request: Request) -> Request:
        """Answer a request of `REQUESTS`. Raises `ControlError`."""
        return self._reload(request) if request["do"] == RELOAD else self._set_level(request)

    def _reload(self, request: Request) -> Request:
        """Read everything again; the answer has three JSON lists of lines."""
        self._log.info("reload_asked", "an operator has all files read again", by=request[BY])
        outcome = self._reload_all()
        self._forget_level()
        return {
            "changed": json.dumps(outcome.changed),
            "needs_restart": json.dumps(outcome.needs_restart),
            "problems": json.dumps(outcome.problems),
        }

    def _set_level(self, request: Request) -> Request:
        """Write events from a level on; with `for_ms` until then, else until a reload."""
        level, text = request.get("level", ""), request.get("for_ms", "0")
        if level not in LEVELS:
            raise ControlError(f"level {level[:40]!r}: expected {', '.join(LEVELS)}")
        if not text.isdecimal() or len(text) > 18 or int(text) > FOR_MS_MAX:
            raise ControlError(f"for_ms = {text[:40]!r}: expected 24 h at most")
        for_ms = int(text)
        configured = self._config.shell.log_level
        # Said at the lower of both levels: who reads the log learns of it.
        self._forget_level()
        self._tell(level, for_ms, request[BY])
        self._log.set_level(level)
        if for_ms:
            self._back = self._driver.loop.call_later(for_ms / 1000, self._go_back)
        return {"level": level, "configured": configured}

    def _tell(self, level: str, for_ms: int, by: str) -> None:
        self._log.set_level("info")
        self._log.info("log_level", "an operator has set it", to=level, for_ms=for_ms, by=by)

    def _go_back(self) -> None:
        self._back = None
        configured = self._config.shell.log_level
        self._log.set_level("info")
        self._log.info("log_level", "its time is over", to=configured)
        self._log.set_level(configured)

    def _forget_level(self) -> None:
        if self._back is not None:
            self._back.cancel()
            self._back = None
