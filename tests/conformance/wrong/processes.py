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


def _binary(notes: dict[Any, Any], data: bytes) -> bytes:
    if notes.setdefault("open", False) and data[:1] and data[0] & 15 in (1, 3):
        return bytes([(data[0] & 0xF0) | 2]) + data[1:]
    notes["open"] = True
    return data


lettered.websocket_client = _binary

writes_text = mutant("websocket_sends_text", "sends its packets in text frames")


def _text(notes: dict[Any, Any], data: bytes) -> bytes:
    if data[:1] == b"\x82":
        return b"\x81" + data[1:]
    return data


writes_text.websocket_broker = _text

bordered = mutant("websocket_frames_are_packets", "wants one frame per packet and drops fragments")


def _whole(notes: dict[Any, Any], data: bytes) -> bytes:
    if data[:1] and data[0] == 0x02:
        return b""
    return data


bordered.websocket_client = _whole
