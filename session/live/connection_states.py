"""The states of a connection as a table: the next state for each state and event.

    AWAITING_CONNECT --CONNECT--> AUTHENTICATING --CONNACK 0--> ACTIVE
           |                            |                         |
           +--------- refused, timed out, DISCONNECT, ended ------+
                                        |
                                        v
                                     CLOSING --transport lost--> CLOSED

Whoever is authenticated may have to wait for a list of subscriptions (`AwaitedLists`): that is part
of AUTHENTICATING, for it may still be refused. A lost transport closes from every state. No state
is entered twice: who is refused or ended opens another connection. `move` is the only code that
changes `Connection.state`. A pair that the table lacks cannot happen: what a client may send in the
wrong state is a protocol error, found before `move` is asked, and what comes to a connection that
is closing already is ignored. Nothing is read in CLOSING; what was sent or waits still goes out.
"""

from typing import Final

from session.live.connection import (
    ACTIVE,
    AUTHENTICATING,
    AWAITING_CONNECT,
    CLOSED,
    CLOSING,
    Connection,
)

STATES: Final = {
    AWAITING_CONNECT: "awaiting CONNECT",
    AUTHENTICATING: "authenticating",
    ACTIVE: "active",
    CLOSING: "closing",
    CLOSED: "closed",
}

# Events. Before CONNACK:
TURNED_AWAY: Final = "turned away at once"  # too many connections, or a shutdown
CONNECT_RECEIVED: Final = "CONNECT received"  # and nothing in it is a reason to refuse
CONNECT_REFUSED: Final = "CONNECT refused"  # for what it says, who sent it, or a broken packet
CONNECT_ACCEPTED: Final = "CONNECT accepted"
CONNECT_TIMEOUT: Final = "connect timeout"
# From the client:
AUTH_RECEIVED: Final = "AUTH received"
DISCONNECT_RECEIVED: Final = "DISCONNECT received"
# From the broker, with DISCONNECT to a v5 client:
PROTOCOL_ERROR: Final = "protocol error"  # or a limit that the client exceeds
AUTHENTICATION_FAILED: Final = "authenticating again failed"
TAKEN_OVER: Final = "taken over"
KEEP_ALIVE_TIMEOUT: Final = "keep alive timeout"
SENT_AWAY: Final = "sent away"  # the broker shuts down, or the user's password changed
# From the network:
TRANSPORT_LOST: Final = "transport lost"

EVENTS: Final = (
    TURNED_AWAY,
    CONNECT_RECEIVED,
    CONNECT_REFUSED,
    CONNECT_ACCEPTED,
    CONNECT_TIMEOUT,
    AUTH_RECEIVED,
    DISCONNECT_RECEIVED,
    PROTOCOL_ERROR,
    AUTHENTICATION_FAILED,
    TAKEN_OVER,
    KEEP_ALIVE_TIMEOUT,
    SENT_AWAY,
    TRANSPORT_LOST,
)

TRANSITIONS: Final[dict[tuple[int, str], int]] = {
    (AWAITING_CONNECT, TURNED_AWAY): CLOSING,
    (AWAITING_CONNECT, CONNECT_RECEIVED): AUTHENTICATING,  # [MQTT-3.1.0-1]
    (AWAITING_CONNECT, CONNECT_REFUSED): CLOSING,  # [MQTT-3.1.4-1], [MQTT-3.1.4-2]
    (AWAITING_CONNECT, CONNECT_TIMEOUT): CLOSING,
    (AWAITING_CONNECT, SENT_AWAY): CLOSING,
    (AWAITING_CONNECT, TRANSPORT_LOST): CLOSED,
    (AUTHENTICATING, CONNECT_REFUSED): CLOSING,  # [MQTT-4.12.0-4], [MQTT-3.1.2-30]
    (AUTHENTICATING, CONNECT_ACCEPTED): ACTIVE,  # [MQTT-3.1.4-5]
    (AUTHENTICATING, CONNECT_TIMEOUT): CLOSING,  # the client's turn in an exchange of AUTH
    (AUTHENTICATING, AUTH_RECEIVED): AUTHENTICATING,  # [MQTT-4.12.0-3]
    (AUTHENTICATING, DISCONNECT_RECEIVED): CLOSING,  # [MQTT-3.1.2-30]
    (AUTHENTICATING, SENT_AWAY): CLOSING,
    (AUTHENTICATING, TRANSPORT_LOST): CLOSED,
    (ACTIVE, AUTH_RECEIVED): ACTIVE,  # [MQTT-4.12.1-1]
    (ACTIVE, DISCONNECT_RECEIVED): CLOSING,  # [MQTT-3.14.4-2]
    (ACTIVE, PROTOCOL_ERROR): CLOSING,  # [MQTT-4.13.1-1]
    (ACTIVE, AUTHENTICATION_FAILED): CLOSING,  # [MQTT-4.12.1-2]
    (ACTIVE, TAKEN_OVER): CLOSING,  # [MQTT-3.1.4-3]
    (ACTIVE, KEEP_ALIVE_TIMEOUT): CLOSING,  # [MQTT-3.1.2-22]
    (ACTIVE, SENT_AWAY): CLOSING,  # [MQTT-3.14.4-1]: nothing follows our DISCONNECT
    (ACTIVE, TRANSPORT_LOST): CLOSED,
    (CLOSING, TRANSPORT_LOST): CLOSED,
}


def move(connection: Connection, event: str) -> None:
    """Change the connection's state by the table; an event that it lacks is a bug."""
    state = TRANSITIONS.get((connection.state, event))
    assert state is not None, f"{event} while {STATES[connection.state]}"
    connection.state = state
