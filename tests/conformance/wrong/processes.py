"""Brokers that are wrong as a process, or on their WebSocket listener."""

import re
import shutil
from pathlib import Path
from typing import Any

from tests.conformance.wrong.mutant import mutant

forgetful = mutant("forgets_at_restart", "begins with an empty database at every start")


def _forget(directory: Path, environment: dict[str, str], start: int) -> None:
    if start > 1:
        shutil.rmtree(directory / "data")


forgetful.start = _forget

patient = mutant("waits_for_connect", "waits for CONNECT for ever")


def _wait(directory: Path, environment: dict[str, str], start: int) -> None:
    environment["HOLDFAST__LIMITS__CONNECT_TIMEOUT"] = "10m"


patient.start = _wait


def unconfigured(name: str, sentence: str, *variables: str) -> None:
    """Register a broker that does not read parts of its configuration."""

    def start(directory: Path, environment: dict[str, str], start: int) -> None:
        for variable in variables:
            environment.pop(f"HOLDFAST__{variable}", None)

    mutant(name, sentence).start = start


unconfigured("reads_no_acl", "lets everybody publish and subscribe to everything", "AUTH__ACL_FILE")
unconfigured(
    "has_wildcards", "takes wildcards although it was told not to", "LIMITS__WILDCARD_SUBSCRIPTIONS"
)
unconfigured(
    "asks_no_password", "lets everybody in", "AUTH__PASSWORD_FILE", "AUTH__ALLOW_ANONYMOUS"
)

# WebSocket.

silent = mutant("websocket_without_subprotocol", "does not confirm the subprotocol mqtt")


def _strip(notes: dict[Any, Any], data: bytes) -> bytes:
    return re.sub(rb"(?i)sec-websocket-protocol:[^\r]*\r\n", b"", data)


silent.websocket_broker = _strip

presumptuous = mutant("websocket_always_mqtt", "confirms the subprotocol mqtt to everybody")


def _offer(notes: dict[Any, Any], data: bytes) -> bytes:
    if data.startswith(b"GET ") and b"mqtt\r\n" not in data:
        data = re.sub(rb"(?i)sec-websocket-protocol:[^\r]*\r\n", b"", data)
        data = data.replace(b"\r\n", b"\r\nSec-WebSocket-Protocol: mqtt\r\n", 1)
    return data


presumptuous.websocket_client = _offer

lettered = mutant("websocket_takes_text", "takes text frames as well")


def _frames(notes: dict[Any, Any], data: bytes) -> list[bytes]:
    """Cut what a client sends into frames (RFC 6455, all of them masked) and the request."""
    pending = notes.get("pending", b"") + data
    found = []
    if not notes.get("open"):
        head, mark, pending = pending.partition(b"\r\n\r\n")
        found.append(head + mark)
        notes["open"] = True
    while len(pending) >= 2:
        length, header = pending[1] & 0x7F, 6
        if length >= 126:
            header = 8 if length == 126 else 14
            length = int.from_bytes(pending[2 : header - 4], "big")
        if len(pending) < header + length:
            break
        found.append(pending[: header + length])
        pending = pending[header + length :]
    notes["pending"] = pending
    return found


def _binary(notes: dict[Any, Any], data: bytes) -> bytes:
    return b"".join(
        bytes([(frame[0] & 0xF0) | 2]) + frame[1:] if frame[0] & 15 in (1, 3) else frame
        for frame in _frames(notes, data)
    )


lettered.websocket_client = _binary


def _text(notes: dict[Any, Any], data: bytes) -> bytes:
    if data[:1] == b"\x82":
        return b"\x81" + data[1:]
    return data


bordered = mutant("websocket_frames_are_packets", "wants one frame per packet and drops fragments")


def _whole(notes: dict[Any, Any], data: bytes) -> bytes:
    return b"".join(frame for frame in _frames(notes, data) if frame[0] not in (0x00, 0x02, 0x80))


bordered.websocket_client = _whole
