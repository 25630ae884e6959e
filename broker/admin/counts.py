"""Figures of this process itself, for `GET /api/v1/metrics`: requests by role and outcome.

Label values come from small fixed sets, never from a request. Read next:
`broker.admin.web.counting`, which counts, and `broker.observe.metrics`, which has the figures of
the broker.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from broker.admin.figures import Figures

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Counts:
    """The figures of this process."""

    def __init__(self, figures: Figures) -> None:
        self._figures: Final = figures
        self._registry: Final = CollectorRegistry()
        self.requests: Final = Counter(
            "holdfast_admin_requests",
            "Requests to the HTTP API and the dashboard",
            ("role", "kind", "status"),
            registry=self._registry,
        )
        self._answers: Final = Gauge(
            "holdfast_admin_broker_answers",
            "1 while the broker answers the HTTP API",
            registry=self._registry,
        )
        self._watchers: Final = Gauge(
            "holdfast_admin_event_streams", "Streams of events", registry=self._registry
        )

    def text(self) -> bytes:
        """Return all of them as Prometheus reads them."""
        last = self._figures.last
        self._answers.set(last is not None and last.broker_answers)
        self._watchers.set(self._figures.watchers)
        return generate_latest(self._registry)
