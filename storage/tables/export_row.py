"""The row that says how far the history was exported, for whoever goes on with a replicated store.

Another machine does not see the segments of the one before it. So that both cut the same segments
out of the same rows, an export is begun here before its first segment, and ended before its first
row is deleted. A store of one machine has no such row. Read next: `broker.history.exporter` and
docs/formats.md.
"""

import struct
from dataclasses import dataclass
from typing import Final

from storage.api import Store
from storage.errors import CorruptRecord
from storage.tables.tables import META, seal, unseal

EXPORT_KEY: Final = b"export"

_VERSION: Final = 1
_EXPORT: Final = struct.Struct(">BIQIQIQ")  # version, begun, exported, where the last segment ends
_HEAD_BYTES: Final = 32

Key = tuple[int, int]  # of a row of the history: boot, first seq


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """How far rows were exported, and up to where the export goes that was begun last."""

    begun: Key = (0, 0)
    exported: Key = (0, 0)  # the last row that is in a segment
    end: Key = (0, 0)  # boot and last event of the newest segment
    head: str = ""  # and its head in the chain: hexadecimal, "" = there is none

    def encode(self) -> bytes:
        """Return the value of the row."""
        body = _EXPORT.pack(_VERSION, *self.begun, *self.exported, *self.end)
        return seal(body + bytes.fromhex(self.head))


def load_progress(store: Store) -> ExportProgress:
    """Return what the store says, zeros if nothing was exported. Raises `CorruptRecord`."""
    value = store.get(META, EXPORT_KEY)
    if value is None:
        return ExportProgress()
    body = unseal(value, "export")
    if len(body) not in (_EXPORT.size, _EXPORT.size + _HEAD_BYTES) or body[0] != _VERSION:
        raise CorruptRecord(f"export: version {body[:1].hex()} of {len(body)} bytes, expected 1")
    _, *numbers = _EXPORT.unpack_from(body)
    begun, exported, end = zip(numbers[::2], numbers[1::2], strict=True)
    return ExportProgress(begun, exported, end, body[_EXPORT.size :].hex())
