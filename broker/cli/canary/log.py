"""The log of a canary's client, as `holdfast audit run --clients` reads it.

docs/audit-clients.md defines the lines. The audit must not share code with what it judges, and
programs of users have a writer of their own, so this is a third one.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Callable
from typing import Final

VERSION: Final = 1
HASH_DIGITS: Final = 16
SYNC_MS: Final = 1000


class CanaryLog:
    """One file with the lines of several clients; each has its own numbers.

    A line is with the operating system when it is written, and synced at most a second later by the
    next line, and at the end. Raises `OSError` if the file cannot be written.
    """

    def __init__(self, path: str, wall_ms: Callable[[], int]) -> None:
        self._wall_ms: Final = wall_ms
        self._file: Final = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._run: Final = secrets.token_hex(8)
        self._numbers: Final[dict[str, int]] = {}
        self._synced_ms: int = wall_ms()

    def record(self, client_id: str, event: str, **fields: object) -> None:
        """Append a line; fields that are None are left out."""
        number = self._numbers[client_id] = self._numbers.get(client_id, 0) + 1
        now_ms = self._wall_ms()
        line = {
            "v": VERSION,
            "log": f"{self._run}-{client_id}",
            "n": number,
            "client_id": client_id,
            "at_us": now_ms * 1000,
            "event": event,
            **{name: value for name, value in fields.items() if value is not None},
        }
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        while data:
            data = data[os.write(self._file, data) :]
        if not 0 <= now_ms - self._synced_ms < SYNC_MS:
            os.fsync(self._file)
            self._synced_ms = now_ms

    def close(self) -> None:
        """Say that nothing follows, and sync."""
        for client_id in list(self._numbers):
            self.record(client_id, "closed")
        os.fsync(self._file)
        os.close(self._file)


def message_fields(payload: bytes) -> dict[str, object]:
    """Return what a line says of a payload."""
    return {
        "hash": hashlib.sha256(payload).hexdigest()[:HASH_DIGITS],
        "bytes": len(payload),
    }
