"""Which desk answers a request to the control socket of a running broker.

Each desk names its requests; no request has two desks. Must never answer anything itself. Read
next: `broker.operations.control_socket`, which brings requests here.
"""

from collections.abc import Callable
from typing import Final

from broker.loop.driver import Driver
from broker.operations.control_socket import Answer, Request
from broker.process.desks import (
    bans,
    clients,
    configuration,
    figures,
    owing,
    publishing,
    restart,
    tracing,
)
from broker.process.open import OpenBroker
from broker.process.reload import Reload

Desk = Callable[[Request], Answer]


class Reception:
    """The desks of one broker."""

    def __init__(self, opened: OpenBroker, driver: Driver, reload: Reload) -> None:
        engine, log, shell = opened.engine, opened.log, opened.config.shell
        self.owed: Final = owing.OwedDesk(is_on=shell.backlog_interval_s > 0)
        watching = tracing.TraceDesk(engine, driver, log)
        opened.taps = watching.taps
        settings = configuration.ConfigurationDesk(opened.config, driver, log, reload.run)
        self._desks: Final[dict[str, Desk]] = {}
        self.open(clients.REQUESTS, clients.ClientDesk(engine, driver, log).answer)
        self.open(bans.REQUESTS, bans.BanDesk(engine, driver, log).answer)
        self.open(publishing.REQUESTS, publishing.PublishDesk(engine, driver, log).answer)
        self.open(tracing.REQUESTS, watching.answer)
        self.open(configuration.REQUESTS, settings.answer)
        self.open(restart.REQUESTS, restart.RestartDesk(engine, driver, opened.status).answer)
        looking = figures.FiguresDesk(opened.counters, driver, opened.status)
        self.open(figures.REQUESTS, looking.answer)
        self.open(owing.REQUESTS, self.owed.answer)

    def open(self, requests: frozenset[str], desk: Desk) -> None:
        """From now on these requests are answered at this desk."""
        assert not requests & self._desks.keys(), f"two desks for {requests & self._desks.keys()}"
        self._desks.update(dict.fromkeys(requests, desk))

    def desk_of(self, request: Request) -> Desk | None:
        """Return what answers a request, None = no desk does."""
        return self._desks.get(request.get("do", ""))
