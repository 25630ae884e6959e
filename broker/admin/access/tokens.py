"""Bearer tokens: 256 random bits each, of which a file keeps the SHA-256.

A token has so much chance in it that a slow hash would protect nothing more. Must never write or
return a token but once, when it is made. Read next: `broker.admin.access.private_file`.
"""

import hashlib
import hmac
import secrets
from pathlib import Path
from typing import Any, Final

from broker.admin.access.private_file import (
    AccessFileError,
    BadEntry,
    EntryRefused,
    NoEntry,
    PrivateFile,
)
from broker.admin.access.roles import NAME, NAME_EXPECTED, Role, role_of

NAME_OF_FILE: Final = "admin-tokens.json"
PREFIX: Final = "hf_"  # so that scanners for secrets find a leaked one
BYTES: Final = 32
TOKENS_MAX: Final = 1000
EXPIRES_DAYS_MAX: Final = 3660


class Token:
    """What is known of a token, but for itself. Times are wall-clock ms since 1970."""

    __slots__ = ("created_ms", "digest", "expires_ms", "name", "payloads", "role")

    def __init__(self, entry: dict[str, Any]) -> None:
        self.name: str = entry["name"]
        self.role: Role = role_of(entry["role"])
        self.payloads: bool = bool(entry["payloads"])
        self.digest: str = str(entry["sha256"])
        self.created_ms: int = int(entry["created_ms"])
        self.expires_ms: int = int(entry["expires_ms"])


class Tokens:
    """The tokens of one data directory."""

    def __init__(self, data_dir: str | Path) -> None:
        self._file: Final = PrivateFile(data_dir, NAME_OF_FILE)

    def all(self) -> list[Token]:
        """Return the tokens by name, expired ones too. Raises `AccessFileError`."""
        try:
            found = [Token(entry) for entry in self._file.entries()]
        except (KeyError, ValueError, TypeError):
            raise AccessFileError(f"{self._file.path}: an entry cannot be understood") from None
        return sorted(found, key=lambda token: token.name)

    def named(self, name: str) -> Token | None:
        """Return the token of this name. Raises `AccessFileError`."""
        return next((token for token in self.all() if token.name == name), None)

    def find(self, text: str, now_ms: int) -> Token | None:
        """Return the token that somebody shows, if it is one and has not expired."""
        digest = _digest(text)
        found = None
        for token in self.all():
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found if found is not None and now_ms < found.expires_ms else None

    def add(self, name: str, role: Role, *, payloads: bool, now_ms: int, expires_ms: int) -> str:
        """Make a token and return it; its hash is durable then. Raises `AccessFileError`."""
        if NAME.fullmatch(name) is None:
            raise BadEntry(f"name {name!r}: expected {NAME_EXPECTED}")
        text = PREFIX + secrets.token_urlsafe(BYTES)
        with self._file.change() as entries:
            if any(entry["name"] == name for entry in entries):
                raise EntryRefused(f"there is a token {name!r} already")
            if len(entries) >= TOKENS_MAX:
                raise EntryRefused(f"there are {TOKENS_MAX} tokens already")
            entries.append(
                {
                    "name": name,
                    "role": role.word,
                    "payloads": payloads,
                    "sha256": _digest(text),
                    "created_ms": now_ms,
                    "expires_ms": expires_ms,
                }
            )
        return text

    def remove(self, name: str) -> None:
        """Remove a token; that is durable on return. Raises `AccessFileError`."""
        with self._file.change() as entries:
            left = [entry for entry in entries if entry["name"] != name]
            if len(left) == len(entries):
                raise NoEntry(f"no token {name!r}")
            entries[:] = left


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
