"""Sums over all connected sessions, for metrics. Read next: `session.engine`."""

from session.live.connection import Connection


def count_live(live: dict[str, Connection]) -> dict[str, int]:
    """Return the sums over all connected sessions; takes 20 ms for 100,000."""
    stored = lagging = in_flight = pending = 0
    for connection in live.values():
        session = connection.session
        assert session is not None
        if session.is_stored:
            stored += 1
        if connection.is_lagging:
            lagging += 1
        in_flight += len(session.in_flight)
        pending += len(connection.ahead) + len(connection.pending)
    return {
        "sessions_online": len(live),
        "sessions_stored_online": stored,
        "sessions_lagging": lagging,
        "inflight_messages": in_flight,
        "pending_messages": pending,
    }
