"""The log of an MQTT client, as `holdfast audit run --clients` reads it: the writer.

For programs of users, so it needs nothing but Python; `holdfast_mqtt.paho_log` uses it.
"""

import hashlib
import json
import os
import secrets
import threading
import time
from typing import Final

VERSION: Final = 1
HASH_DIGITS: Final = 16
SYNC_SECONDS: Final = 1.0


def payload_hash(payload: bytes) -> str:
    """Return what names a payload in a log: the first digits of its SHA-256."""
    return hashlib.sha256(payload).hexdigest()[:HASH_DIGITS]


class ClientLog:
    """A file of JSON lines about one client. Threads may share it.

    A line is with the operating system when `record` returns, so it survives the end of the
    process. It survives a power cut when it is synced: at most once in `sync_seconds`, by the next
    line, and at `close`; 0 syncs each line.
    """

    def __init__(
        self, path: str | os.PathLike[str], client_id: str, *, sync_seconds: float = SYNC_SECONDS
    ) -> None:
        self.client_id: Final = client_id
        self._sync_seconds: Final = sync_seconds
        self._log: Final = secrets.token_hex(8)
        self._number: int = 0
        self._lock: Final = threading.Lock()
        self._synced: float = time.monotonic()
        self._file: int = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._forget_half_a_line()

    def record(self, event: str, **fields: object) -> None:
        """Append a record; fields that are None are left out. Does nothing after `close`."""
        with self._lock:
            if self._file >= 0:
                self._append(event, fields)

    def close(self) -> None:
        """Write the last record, sync, and close the file."""
        with self._lock:
            if self._file < 0:
                return
            self._append("closed", {})
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1

    def _append(self, event: str, fields: dict[str, object]) -> None:
        self._number += 1
        line = {
            "v": VERSION,
            "log": self._log,
            "n": self._number,
            "client_id": self.client_id,
            "at_us": time.time_ns() // 1000,
            "event": event,
            **{name: value for name, value in fields.items() if value is not None},
        }
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        while data:
            data = data[os.write(self._file, data) :]
        now = time.monotonic()
        if now - self._synced >= self._sync_seconds:
            os.fsync(self._file)
            self._synced = now

    def _forget_half_a_line(self) -> None:
        """Remove what a power cut has left of a line at the end of an earlier log."""
        end = os.lseek(self._file, 0, os.SEEK_END)
        tail = os.pread(self._file, min(end, 1 << 20), max(0, end - (1 << 20)))
        half = len(tail) - (tail.rfind(b"\n") + 1)
        if half:
            os.ftruncate(self._file, end - half)
