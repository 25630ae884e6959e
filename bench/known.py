"""Published figures for brokers that are not installed, with their range and source.

A verdict based on one of them says so. Read next: `bench.goals`.
"""

from typing import Final

from bench.brokers import EMQX, FLASHMQ, NANOMQ, SQLITE


class Figure:
    """A range published by others, in the unit of the work."""

    __slots__ = ("high", "low", "source")

    def __init__(self, low: float, high: float, source: str) -> None:
        self.low = low
        self.high = high
        self.source = source


_OURS: Final = "an earlier measurement on 2 shared cores, another C client, one publisher"
_EMQ: Final = (
    "EMQ's comparison of 2023, 16 cores, clean sessions, 16 B, offered load 50,000/s "
    "(github.com/emqx/blog, open-mqtt-benchmarking-comparison-mqtt-brokers-in-2023)"
)

# (broker, work) -> messages a second. Goals compare with the high end.
FIGURES: Final[dict[tuple[str, str], Figure]] = {
    (SQLITE, "offline"): Figure(5_800, 11_800, f"mosquitto 2.1.3, {_OURS}, 256 B"),
    (FLASHMQ, "qos0"): Figure(263_000, 1_270_000, f"{_OURS}, 100 B; it drops under this load"),
    (FLASHMQ, "qos1"): Figure(69_000, 452_000, f"{_OURS}, 100 B"),
    (FLASHMQ, "offline"): Figure(123_000, 228_000, f"in memory, {_OURS}, 256 B"),
    (NANOMQ, "qos1"): Figure(50_000, 50_000, f"0.17, {_EMQ}"),
    (EMQX, "qos1"): Figure(50_000, 50_000, f"4.4, {_EMQ}"),
}
