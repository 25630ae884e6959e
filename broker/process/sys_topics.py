"""The $SYS tree, with mosquitto's topics and meanings, so that its dashboards work.

Must never do I/O or read a clock: the shell hands in the numbers and the time, and a function that
publishes. A value is published when it changed (and once at the start), as mosquitto does; every
value is retained. Precedent: mosquitto's sys_tree.c. Read next: `session.counters`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

from session.counters import Counters

ROOT: Final = "$SYS/broker/"
CONNECT: Final = 1  # control packet type, the index in the packet counters
LOAD_MINUTES: Final = (1, 5, 15)


class SystemTopics:
    """Publishes the values under $SYS that have changed, once each interval."""

    def __init__(
        self,
        publish: Callable[[str, bytes, int], None],
        counters: Counters,
        *,
        version: str,
        started_ms: int,
    ) -> None:
        """`publish(topic, payload, now)` is `Engine.publish_system`; times are broker time."""
        self._publish = publish
        self._counters = counters
        self._version: str = version
        self._started_ms: int = started_ms
        self._published: dict[str, bytes] = {}
        self._loads: dict[str, _Load] = {}
        self._last_ms: int = started_ms
        self._heap_maximum: int = 0

    def refresh(self, now: int, stats: Mapping[str, int], *, heap_bytes: int) -> int:
        """Publish every value that changed since the last call and return how many there were.

        `stats` is `Engine.stats()`; a number the engine does not give counts as 0.
        """
        values = self._values(now, stats, heap_bytes)
        values.update(self._load_values(now))
        self._last_ms = now
        changed = 0
        for name, text in values.items():
            payload = text.encode()
            if self._published.get(name) != payload:
                self._published[name] = payload
                self._publish(ROOT + name, payload, now)
                changed += 1
        return changed

    def _values(self, now: int, stats: Mapping[str, int], heap_bytes: int) -> dict[str, str]:
        counters = self._counters
        connected = stats.get("sessions_online", 0)
        offline = stats.get("sessions_offline", 0)
        self._heap_maximum = max(self._heap_maximum, heap_bytes)
        counters.connected_maximum = max(counters.connected_maximum, connected)
        numbers: dict[str, int] = {
            "clients/total": connected + offline,
            "clients/connected": connected,
            "clients/disconnected": offline,
            # The old names of the two above; dashboards and exporters still read them.
            "clients/active": connected,
            "clients/inactive": offline,
            "clients/expired": counters.sessions_expired,
            "clients/maximum": counters.connected_maximum,
            "messages/received": sum(counters.packets_received),
            "messages/sent": sum(counters.sent_by_type()),
            # A message is stored once, however many sessions wait for it.
            "messages/stored": counters.messages_stored,
            "store/messages/count": counters.messages_stored,
            "store/messages/bytes": stats.get("log_bytes", 0),
            "publish/messages/received": sum(counters.messages_received),
            "publish/messages/sent": sum(counters.messages_sent),
            "publish/messages/dropped": sum(counters.dropped.values()),
            "publish/bytes/received": counters.payload_bytes_received,
            "publish/bytes/sent": counters.payload_bytes_sent,
            "bytes/received": counters.bytes_received,
            "bytes/sent": counters.bytes_sent,
            "retained messages/count": stats.get("retained_messages", 0),
            "subscriptions/count": stats.get("subscriptions_stored", 0),
            "shared_subscriptions/count": stats.get("shared_groups", 0),
            "heap/current": heap_bytes,
            "heap/maximum": self._heap_maximum,
            "packet/out/count": stats.get("pending_messages", 0),
            "connections/socket/count": stats.get("connections", 0),
            # Not in mosquitto, which keeps its messages in memory.
            "sessions/durable": stats.get("sessions_stored", 0),
            "sessions/offline": offline,
            "recovery/last_ms": stats.get("recovery_ms", 0),
        }
        values = {name: str(number) for name, number in numbers.items()}
        values["version"] = f"holdfast version {self._version}"
        values["uptime"] = f"{(now - self._started_ms) // 1000} seconds"
        return values

    def _load_values(self, now: int) -> dict[str, str]:
        """Return the 1, 5 and 15 minute averages, per minute."""
        counters = self._counters
        totals: dict[str, int] = {
            "messages/received": sum(counters.packets_received),
            "messages/sent": sum(counters.sent_by_type()),
            "publish/received": sum(counters.messages_received),
            "publish/sent": sum(counters.messages_sent),
            "publish/dropped": sum(counters.dropped.values()),
            "bytes/received": counters.bytes_received,
            "bytes/sent": counters.bytes_sent,
            "sockets": counters.connections_accepted,
            "connections": counters.packets_received[CONNECT],
        }
        elapsed_s = (now - self._last_ms) / 1000
        values: dict[str, str] = {}
        for name, total in totals.items():
            load = self._loads.setdefault(name, _Load())
            load.add(total, elapsed_s)
            for minutes, average in zip(LOAD_MINUTES, load.averages, strict=True):
                values[f"load/{name}/{minutes}min"] = f"{average:.2f}"
        return values


class _Load:
    """Exponential moving averages of a growing total, as events per minute."""

    __slots__ = ("averages", "total")

    def __init__(self) -> None:
        self.total: int = 0
        self.averages: list[float] = [0.0] * len(LOAD_MINUTES)

    def add(self, total: int, elapsed_s: float) -> None:
        """Update the averages with the total after `elapsed_s` more seconds."""
        if elapsed_s <= 0:
            return  # no time has passed; the difference counts next time
        rate = (total - self.total) * 60 / elapsed_s
        self.total = total
        for index, minutes in enumerate(LOAD_MINUTES):
            keep = math.exp(-elapsed_s / (60 * minutes))
            self.averages[index] = rate + keep * (self.averages[index] - rate)
