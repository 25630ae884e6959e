"""The password file: one `username:$argon2id$...` per line, and the hashing behind it.

Must never hold or log a password, and never leave a half-written file behind: changes go to a
temporary file that replaces the old one. Read next: `broker.auth` (who asks it at CONNECT).
"""

import os
import tempfile
from typing import Final

from argon2 import PasswordHasher, Type
from argon2.exceptions import Argon2Error, InvalidHashError

# OWASP's first recommendation for argon2id: 19 MiB, two passes, one lane. The library's default
# (64 MiB, four lanes) would let a storm of CONNECTs take gigabytes; this costs ~25 ms and 19 MiB.
MEMORY_KIB: Final = 19_456
TIME_COST: Final = 2
LANES: Final = 1

FILE_BYTES_MAX: Final = 64 << 20  # half a million users; a larger file is a mistaken path
USERNAME_BYTES_MAX: Final = 65_535  # the protocol's own limit for a UTF-8 string


class PasswordFileError(Exception):
    """A password file that cannot be read or written; the message is one line naming it."""


def hasher() -> PasswordHasher:
    """Return the hasher with our parameters; `verify` reads a hash's own parameters."""
    return PasswordHasher(
        time_cost=TIME_COST, memory_cost=MEMORY_KIB, parallelism=LANES, type=Type.ID
    )


def matches(stored_hash: str, password: bytes) -> bool:
    """Return whether `password` is the one behind `stored_hash`. Costs ~25 ms, releases the GIL."""
    try:
        return hasher().verify(stored_hash, password)
    except (Argon2Error, InvalidHashError):
        return False


def username_problem(username: str) -> str | None:
    """Return why `username` cannot stand in a password file, or None."""
    if not username:
        return "user name '': expected at least one character"
    if ":" in username or not username.isprintable() or username.startswith("#"):
        return f"user name {username!r}: expected printable characters without ':' or a leading '#'"
    if username != username.strip():
        return f"user name {username!r}: expected no space at its ends"
    if len(username.encode()) > USERNAME_BYTES_MAX:
        return (
            f"user name of {len(username)} characters: expected at most {USERNAME_BYTES_MAX} bytes"
        )
    return None


def load(path: str) -> dict[str, str]:
    """Return user names and hashes of the file at `path`; raise `PasswordFileError`."""
    try:
        with open(path, "rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
        text = content.decode()
    except OSError as problem:
        raise PasswordFileError(f"password file {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise PasswordFileError(f"password file {path}: expected UTF-8 text") from None
    if len(content) > FILE_BYTES_MAX:
        raise PasswordFileError(f"password file {path}: larger than {FILE_BYTES_MAX} bytes")
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        username, colon, stored_hash = line.partition(":")
        if not colon or username_problem(username) is not None:
            raise PasswordFileError(
                f"password file {path} line {number}: expected USERNAME:HASH as `passwd` writes it"
            )
        if not stored_hash.startswith("$argon2id$"):
            raise PasswordFileError(
                f"password file {path} line {number}: expected an argon2id hash for {username!r}; "
                "set it again with `passwd`"
            )
        if username in users:
            raise PasswordFileError(f"password file {path} line {number}: {username!r} again")
        users[username] = stored_hash
    return users


def save(path: str, users: dict[str, str]) -> None:
    """Replace the file at `path` by `users`, readable by its owner only; durable on return.

    An existing file keeps its mode. Raises `PasswordFileError`; the old file is then intact.
    """
    content = "".join(f"{username}:{stored_hash}\n" for username, stored_hash in users.items())
    folder = os.path.dirname(os.path.abspath(path))
    temporary = ""
    try:
        mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o600
        descriptor, temporary = tempfile.mkstemp(prefix=".passwd-", dir=folder)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
        temporary = ""
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as problem:
        raise PasswordFileError(f"password file {path}: {problem.strerror}") from None
    finally:
        if temporary:
            os.unlink(temporary)
