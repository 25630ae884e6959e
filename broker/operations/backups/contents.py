"""What is in a backup: `backup.json`, its last file, with the size and checksum of every other one.

A backup comes from another machine, perhaps damaged or made up: what is read here names no place
outside of a data directory. Read next: `broker.operations.backups.media`.
"""

import json
import re
from typing import Any, Final

NAME: Final = "backup.json"
FORMAT: Final = 1
BYTES_MAX: Final = 64 << 20  # of backup.json: 400,000 files
FILE_NAME: Final = re.compile(r"watermark|db/[A-Za-z0-9_][A-Za-z0-9_.-]*")
DIGEST: Final = re.compile(r"[0-9a-f]{64}")
DIGEST_BYTES: Final = 32  # of BLAKE2b


class BackupError(Exception):
    """A backup that cannot be made, or is not what it should be; one line for the operator."""


class Contents:
    """When a backup was made, how many rows it has, and its files."""

    def __init__(self, made_at: str, version: str, rows: dict[str, int]) -> None:
        self.made_at: str = made_at  # ISO 8601, UTC
        self.version: str = version  # of Holdfast
        self.rows: dict[str, int] = rows  # by column family
        self.files: dict[str, tuple[int, str]] = {}  # bytes and BLAKE2b, by name

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(size for size, _ in self.files.values())

    def encode(self) -> bytes:
        """Return the text of `backup.json`."""
        told = {
            "format": FORMAT,
            "made_at": self.made_at,
            "version": self.version,
            "rows": self.rows,
            "files": {
                name: {"bytes": size, "blake2b": digest}
                for name, (size, digest) in self.files.items()
            },
        }
        return json.dumps(told, indent=1).encode() + b"\n"

    def line(self) -> str:
        """Return what is in it, for people."""
        rows = self.rows
        return (
            f"made at {self.made_at} by Holdfast {self.version}: {rows.get('sessions', 0)} "
            f"sessions, {rows.get('retained', 0)} retained messages, {sum(rows.values())} rows, "
            f"{self.size_bytes} bytes in {len(self.files)} files"
        )


def decode(data: bytes) -> Contents:
    """Return what `backup.json` says. Raises `BackupError`."""
    try:
        told = json.loads(data)
        if told["format"] != FORMAT:
            raise BackupError(f"{NAME}: format {told['format']!r}: expected {FORMAT}")
        contents = Contents(
            _text(told["made_at"]),
            _text(told["version"]),
            {_text(family): _count(count) for family, count in told["rows"].items()},
        )
        for name, file in told["files"].items():
            if FILE_NAME.fullmatch(name) is None:
                raise BackupError(f"{NAME}: file {name[:100]!r}: expected one of a database")
            if DIGEST.fullmatch(file["blake2b"]) is None:
                raise ValueError
            contents.files[name] = (_count(file["bytes"]), file["blake2b"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BackupError(f"{NAME}: damaged, or of something else than a backup") from None
    if "watermark" not in contents.files or "db/CURRENT" not in contents.files:
        raise BackupError(f"{NAME}: names no watermark, or no database")
    return contents


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > 100:
        raise ValueError
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError
    return value
