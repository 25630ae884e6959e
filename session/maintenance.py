"""Operations on a running engine: shutdown, ending connections of users, gauges, invariants.

Connections end in slices, so that a shutdown with a hundred thousand does not block the loop. Must
never set the clock: `session.engine` does that before it calls. Read next:
`session.lifetime.disconnect`, which ends connections.
"""

from collections import deque
from collections.abc import Collection, Iterator
from typing import Final

from mqtt import reasons
from session.assembly import Assembly
from session.live.connection import CLOSING, Connection
from session.live.connection_states import SENT_AWAY
from session.live.gauges import count_live

# Connections to end in one tick; 50 microseconds each.
DEPARTURES_MAX: Final = 256


class Maintenance:
    """Ends connections on request, and reports gauges."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly: Final = assembly
        # Connections to end, with reason code and the name of the counter.
        self._departures: deque[tuple[Connection, int, str]] = deque()
        self.is_draining = False

    def drain(self) -> None:
        """End every connection with 0x8B; wills are published or wait in the store.

        What is due from now on waits in the store, so that nothing follows the shutdown.
        """
        self.is_draining = True
        self._assembly.housekeeping.stop()
        farewell = self._assembly.admission.farewell()
        for connection in self._assembly.connections:
            self._departures.append((connection, farewell, "shutting_down"))
        self.end_departures()

    def finish(self) -> None:
        """Record the open books and the shutdown in the history, after the last connection."""
        history, tick = self._assembly.history, self._assembly.core.tick
        self._assembly.outlet.close()
        history.traces.end_all("the broker ends")
        history.recorder.end(tick.batch, tick.now)
        history.sessions.shut_down()
        history.recorder.hurry()

    def send_away(self, identities: Collection[str]) -> None:
        """End with 0x87 the connections of users whose password was changed.

        Except those whose identity the transport has proved. Sessions are kept, wills published.
        """
        for connection in self._assembly.connections:
            session = connection.session
            if session is None or connection.identity is not None or connection.state >= CLOSING:
                continue
            if session.identity in identities:
                self._departures.append((connection, reasons.NOT_AUTHORIZED, "not_authorized"))
        self.end_departures()

    def end_departures(self) -> bool:
        """End the next slice of these connections; False if there was none."""
        departures = self._departures
        if not departures:
            return False
        tick = self._assembly.core.tick
        work_max = tick.work + self._assembly.core.settings.tick_work_max
        for _ in range(min(len(departures), DEPARTURES_MAX)):
            if tick.work > work_max:
                break  # their wills may match very much
            connection, reason_code, word = departures.popleft()
            if connection.state < CLOSING:
                self._assembly.core.counters.disconnects[word] += 1
                self._assembly.disconnects.end(connection, SENT_AWAY, reason_code)
        return True

    def stats(self, durable: int) -> dict[str, int]:
        """Return the gauges for metrics and `$SYS`; `durable` is the last durable serial."""
        assembly = self._assembly
        online = count_live(assembly.sessions.live)
        totals = assembly.database.totals
        return {
            **online,
            "connections": len(assembly.connections),
            "sessions_offline": totals.sessions - online["sessions_stored_online"],
            "sessions_stored": totals.sessions,
            "subscriptions_stored": totals.subscriptions,
            "filters": len(assembly.routes),
            "shared_groups": len(assembly.delivery.groups.all()),
            "retained_messages": totals.retained,
            "log_end": assembly.database.log.end,
            "log_bytes": assembly.quota.total_bytes(),
            "generations": len(assembly.database.log.list_generations()),
            "waiting_replies": len(assembly.core.gate),
            "batches_unsynced": assembly.writer.written - durable,
        }

    def invariants(self) -> Iterator[str]:
        """Yield the invariants between two events that do not hold, for tests and simulation."""
        assembly = self._assembly
        for client_id, connection in assembly.sessions.live.items():
            session = connection.session
            if session is None or session.client_id != client_id:
                yield f"{client_id}: its connection has session {session}"
                continue
            yield from session.invariants()
            yield from assembly.delivery.window.invariants(connection)
        yield from assembly.delivery.groups.invariants()
        yield from assembly.outlet.invariants()
        yield from assembly.delivery.inbox.invariants()
        yield from assembly.delivery.requests.invariants()
        yield from assembly.delivery.proxies.invariants()
        yield from assembly.bans.invariants()
        yield from assembly.core.gate.invariants()
