"""What is owed in all, as the last census found it, and its metrics.

Read next: `broker.operations.owing.count_thread`, which fills it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

KINDS: Final = ("offline", "online", "group")


class BacklogFigures:
    """The figures of one census."""

    __slots__ = ("counted_s", "messages", "oldest_s", "size_bytes")

    def __init__(
        self,
        counted_s: float,
        messages: Mapping[str, int],
        size_bytes: Mapping[str, int],
        oldest_s: float,
    ) -> None:
        self.counted_s: Final = counted_s  # on the monotonic clock
        self.messages: Final = messages  # by `KINDS`
        self.size_bytes: Final = size_bytes  # topics and payloads, by `KINDS`
        self.oldest_s: Final = oldest_s  # age of the oldest of them when they were counted

    def metrics(self, prefix: str, now_s: float) -> Iterable[Metric]:
        """Yield the metrics, the age of the census as of `now_s` on the monotonic clock."""
        for name, help, values in (
            ("messages", "Messages owed to sessions and shared groups", self.messages),
            ("bytes", "Bytes of the topics and payloads that are owed", self.size_bytes),
        ):
            family = GaugeMetricFamily(f"{prefix}backlog_{name}", help, labels=["kind"])
            for kind in KINDS:
                family.add_metric([kind], values[kind])
            yield family
        yield GaugeMetricFamily(
            f"{prefix}oldest_owed_seconds",
            "Age of the oldest message that was owed when the backlog was counted",
            value=self.oldest_s,
        )
        yield GaugeMetricFamily(
            f"{prefix}backlog_census_age_seconds",
            "How long ago the backlog was counted",
            value=max(0.0, now_s - self.counted_s),
        )
