"""Records as the API gives them, for tests of what pages make of them."""

from typing import Any

from broker.admin.records import (
    Backlog,
    Client,
    ClientDetail,
    ClientFilter,
    OwedTo,
    Session,
    SessionRow,
)

AT = "2026-11-27T12:03:10Z"
EARLIER = "2026-11-27T10:03:10Z"
FIELDS: dict[str, Any] = {
    "client_id": "boat-17",
    "identity": "",
    "state": "offline",
    "protocol_version": 5,
    "created_at": EARLIER,
    "connected_at": EARLIER,
    "disconnected_at": AT,
    "expires_at": "2026-11-28T12:03:10Z",
    "session_expiry_interval": 86_400,
    "position": 7,
    "in_flight": 1,
    "incoming_qos2": 0,
    "waiting": 9,
    "bytes": 4096,
    "oldest_at": EARLIER,
    "subscriptions": 2,
}
CONNECTED: dict[str, Any] = {
    "client_id": "there-1",
    "user": "maria",
    "listener": "tcp",
    "address": "127.0.0.1:5000",
    "protocol_version": 5,
    "keep_alive_seconds": 60,
    "connected_seconds": 3,
    "durable": True,
    "session_expiry_interval": None,
    "subscriptions": 1,
    "in_flight": 0,
    "lagging": False,
    "will_topic": None,
}


def row(**fields: Any) -> SessionRow:
    """Return a session in a list."""
    return SessionRow(**{**FIELDS, **fields})


def session(**fields: Any) -> Session:
    """Return a session."""
    return Session(**{**FIELDS, "subscriptions": [], **fields})


def client(**fields: Any) -> Client:
    """Return a connected client in a list."""
    return Client(**{**CONNECTED, **fields})


def detail(**fields: Any) -> ClientDetail:
    """Return a connected client."""
    filters = [ClientFilter("a/#", 1)]
    return ClientDetail(**{**CONNECTED, "topic_filters": filters, **fields})


def backlog(**fields: Any) -> Backlog:
    """Return what is owed in all."""
    nobody = OwedTo(0, 0, 0)
    given: dict[str, Any] = {
        "age_ms": 12_000,
        "messages": 0,
        "bytes": 0,
        "oldest_ms": 0,
        "sessions": 0,
        "sessions_stored": 3,
        "offline": nobody,
        "online": nobody,
        "groups": nobody,
        "unreadable": 0,
        "top": [],
        "problem": "",
    }
    return Backlog(**{**given, **fields})
