"""What a client is told that has to go to another server [MQTT-5 4.11].

CONNACK before it was let in, DISCONNECT behind that; MQTT 3 knows only "server unavailable".
"""

from mqtt.encoder import encode
from mqtt.packets import V5, Connack, Disconnect
from mqtt.reasons import SERVER_UNAVAILABLE, USE_ANOTHER_SERVER


def refusal(version: int, server: str, limit: int) -> bytes:
    """Return the CONNACK; `server` is "" if none is known, `limit` the client's, 0 = none."""
    if version != V5 or not server:
        return _fitting(limit, encode(Connack(reason_code=SERVER_UNAVAILABLE), version))
    return _fitting(
        limit,
        encode(Connack(reason_code=USE_ANOTHER_SERVER, server_reference=server), version),
        encode(Connack(reason_code=USE_ANOTHER_SERVER), version),
    )


def farewell(version: int, server: str, limit: int) -> bytes:
    """Return the DISCONNECT, which is nothing in MQTT 3."""
    if version != V5:
        return b""
    return _fitting(
        limit,
        encode(Disconnect(USE_ANOTHER_SERVER, server_reference=server or None), version),
        encode(Disconnect(USE_ANOTHER_SERVER), version),
    )


def _fitting(limit: int, *packets: bytes) -> bytes:
    """Return the first that is not too long for the client, b"" if none is [MQTT-3.1.2-24]."""
    return next((packet for packet in packets if not limit or len(packet) <= limit), b"")
