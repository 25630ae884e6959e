"""Limits of connections and of the rate at which clients send; no session is involved.

Must never close a connection: it reports what exceeds a limit, and the engine acts. An address is
forgotten with its last connection. Read next: `session.live.rate_meter`,
`session.engine`.
"""

import heapq
from typing import Final

from mqtt import reasons
from session.live.connection import Connection, Meters
from session.live.rate_meter import Meter
from session.scheduling.read_pauses import ReadPauses
from session.settings import Settings

# Connections beyond `max_connections` that may still send a CONNECT: it may be a takeover.
STRANGERS_MAX: Final = 1024
# Connections of one address that may, in limits of that address: all may be takeovers.
TAKEOVERS: Final = 2


class Admission:
    """Applies the limits of connections and rates."""

    def __init__(self, settings: Settings, pauses: ReadPauses) -> None:
        self._settings: Final = settings
        self._pauses: Final = pauses
        self._addresses: Final[dict[str, int]] = {}  # number of connections, if limited
        self._meter: Meter | None = None  # of new connections, None = no limit
        self.settings_changed()
        self._throttled: Final[list[tuple[int, int, Connection]]] = []  # (until, number, who)

    def settings_changed(self) -> None:
        """Apply the present limits to connections from now on."""
        rate = self._settings.connection_rate
        self._meter = Meter(rate) if rate else None

    def enter(self, connection: Connection, connections: int, now: int) -> bool:
        """Count a new connection, one of `connections`; False if it must be closed at once.

        Sets `refusal` to the reason code for its CONNECT. Both limits of connections are applied
        when the client is authenticated: a takeover adds no connection.
        """
        settings = self._settings
        if settings.publish_rate or settings.receive_rate_bytes:
            connection.meters = Meters(
                Meter(settings.publish_rate) if settings.publish_rate else None,
                Meter(settings.receive_rate_bytes) if settings.receive_rate_bytes else None,
            )
        connection.refusal = self._refusal(connection, now)
        most = settings.max_connections
        if most and connections > most + STRANGERS_MAX:
            return False
        if not connection.address:
            return True
        at_address = self._addresses[connection.address]
        return at_address <= TAKEOVERS * settings.connections_per_address

    def _refusal(self, connection: Connection, now: int) -> int:
        settings = self._settings
        most = settings.connections_per_address
        address = connection.remote.rpartition(":")[0]
        count = 0
        if most and address:
            connection.address = address
            count = self._addresses[address] = self._addresses.get(address, 0) + 1
            if count > TAKEOVERS * most:
                return reasons.QUOTA_EXCEEDED  # closed at once
        # Before the limit of the address, which may not apply: what is read costs as much.
        if self._meter is not None and not self._meter.try_take(now):
            return reasons.CONNECTION_RATE_EXCEEDED
        if settings.server_reference and settings.redirect_when == "always":
            return self.farewell()
        return reasons.QUOTA_EXCEEDED if count > most else 0

    def farewell(self) -> int:
        """Return the reason code for clients when this broker stops serving them."""
        if not self._settings.server_reference:
            return reasons.SERVER_SHUTTING_DOWN
        moved = self._settings.server_moved
        return reasons.SERVER_MOVED if moved else reasons.USE_ANOTHER_SERVER

    def leave(self, connection: Connection) -> None:
        """Count a connection as closed. Idempotent."""
        address, connection.address = connection.address, ""
        if address:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    def measure(self, connection: Connection, messages: int, size: int, now: int) -> bool:
        """Count what a client sent; False if it exceeds its rate.

        With `on_rate = throttle` it is then not read from until `run` resumes it.
        """
        assert connection.meters is not None
        pause_ms = connection.meters.take(messages, size, now)
        if not pause_ms:
            return True
        if self._settings.on_rate == "throttle":
            connection.throttled_until_ms = now + pause_ms
            connection.transport.pause_reading()
            heapq.heappush(self._throttled, (now + pause_ms, connection.number, connection))
        return False

    def next_deadline(self) -> int | None:
        """Return when the first throttled client may send again, broker ms."""
        return self._throttled[0][0] if self._throttled else None

    def run(self, now: int) -> None:
        """Read again from clients whose pause is over."""
        throttled = self._throttled
        while throttled and throttled[0][0] <= now:
            until, _, connection = heapq.heappop(throttled)
            if connection.throttled_until_ms == until:  # it was not extended
                connection.throttled_until_ms = 0
                connection.last_received_ms = now
                self._pauses.resume(connection)
