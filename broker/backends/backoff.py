"""How long to wait before a store is tried again: twice as long each time, up to a limit.

With jitter, so that many brokers do not come back to a store at once. Knows no clock. Read next:
`broker.backends.process` and `broker.backends.pump.pump`, which wait.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

FIRST_MS: Final = 100
MAX_MS: Final = 30_000
LEAST: Final = 0.5  # of the wait, at random up to all of it


class Backoff:
    """The waits of one thing that fails."""

    def __init__(
        self, values: Mapping[str, Any], draw: Callable[[], float] = random.random
    ) -> None:
        """`values` are the options of a backend: `retry_first_ms` and `retry_max_ms`.

        `draw` returns a number from 0 to 1.
        """
        self.first_s: Final[float] = values.get("retry_first_ms", FIRST_MS) / 1000
        self.max_s: Final[float] = values.get("retry_max_ms", MAX_MS) / 1000
        self._draw: Final = draw
        self._wait_s = 0.0  # 0 = it has not failed since it worked

    @property
    def is_failing(self) -> bool:
        """Has it failed since it worked?"""
        return self._wait_s > 0

    def failed(self) -> float:
        """Note a failure; return how many seconds to wait."""
        self._wait_s = min(max(self.first_s, 2 * self._wait_s), self.max_s)
        return self._wait_s * (LEAST + (1 - LEAST) * self._draw())

    def worked(self) -> None:
        """Note that it works: the next failure waits as the first one."""
        self._wait_s = 0.0
