"""Does what is due every second: signs of life, disk space, the history, $SYS."""

import resource
import time
from typing import Final

from broker.history.exporter import Exporter
from broker.loop.driver import Driver
from broker.process.collector import GarbageCollector
from broker.process.disk_watch import DiskWatch
from broker.process.open import OpenBroker
from broker.process.sys_topics import SystemTopics
from broker.process.systemd import notify, watchdog_period_s
from broker.version import VERSION

PERIOD_S: Final = 1.0


class Housekeeping:
    """The regular work of a broker that runs."""

    def __init__(
        self, opened: OpenBroker, driver: Driver, disk: DiskWatch, exporter: Exporter | None
    ) -> None:
        self._opened: Final = opened
        self._driver: Final = driver
        self._disk: Final = disk
        self._exporter: Final = exporter
        self._collector: Final = GarbageCollector()
        self._system_topics: Final = SystemTopics(
            opened.engine.publish_system,
            opened.counters,
            version=VERSION,
            started_ms=driver.now,
        )
        self._due = driver.loop.time()
        self._system_due = driver.loop.time()

    def start(self) -> None:
        """Do everything once, then every second; call it when all of the start is done."""
        self._work()
        self._collector.start(self._driver.loop)

    def _work(self) -> None:
        loop = self._driver.loop
        self._driver.loop_lag_s = max(0.0, loop.time() - self._due)
        self._opened.status.beat = time.monotonic()
        self._due = loop.time() + PERIOD_S
        loop.call_later(PERIOD_S, self._work)
        if watchdog_period_s() is not None:
            notify(WATCHDOG=1)
        self._collector.look()
        self._disk.look()
        if self._exporter is not None:
            self._exporter.beat()
        self._opened.denials.beat()
        interval = self._opened.config.settings.sys_interval_s
        if interval and loop.time() >= self._system_due:
            self._system_due = loop.time() + interval
            self._driver.run(self._publish_system)

    def _publish_system(self) -> None:
        stats = self._driver.gauges()
        stats["recovery_ms"] = int(self._opened.status.recovery_seconds * 1000)
        self._system_topics.refresh(self._driver.now, stats, heap_bytes=resident_bytes())


def resident_bytes() -> int:
    """Return the memory this process has in use, 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0
