"""The password file: one `username:hash` per line, of any kind that `password_hashes` knows.

Must never hold or log a password or a hash, never skip a line it does not understand, and never
leave a half-written file behind: changes go to a temporary file that replaces the old one. Read
next: `broker.security.password_hashes` (the kinds) and `broker.security.authenticators` (who asks
at CONNECT).
"""

import os
import tempfile
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from broker.security import password_hashes, scram
from broker.security.password_hashes import StoredHash

FILE_BYTES_MAX: Final = 64 << 20  # half a million users; a larger file is a mistaken path
USERNAME_BYTES_MAX: Final = 65_535  # the protocol's own limit for a UTF-8 string


class PasswordFileError(Exception):
    """A password file that cannot be read or written; the message is one line naming it."""


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


def load(
    path: str, known: Mapping[str, StoredHash] = MappingProxyType({})
) -> dict[str, StoredHash]:
    """Return the users of the file at `path`, in its order; raise `PasswordFileError`.

    A line that is the same as in `known`, an earlier result, is not checked again: that takes a
    tenth of the time.
    """
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
    users: dict[str, StoredHash] = {}
    scram_names: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip()
        if not line or line.startswith("#"):
            continue
        mistake = _enter(line, users, scram_names, known)
        if mistake is not None:
            raise PasswordFileError(f"password file {path} line {number}: {mistake}")
    return users


def scram_name_problem(username: str) -> str | None:
    """Return why a user cannot prove this name by SCRAM, or None."""
    try:
        scram.prepared(username)
    except ValueError as problem:
        return f"user name {username!r}: {problem}"
    return None


def _enter(
    line: str,
    users: dict[str, StoredHash],
    scram_names: dict[str, str],
    known: Mapping[str, StoredHash],
) -> str | None:
    """Enter one line, or return what is wrong with it."""
    username, colon, text = line.partition(":")
    stored = known.get(username)
    if stored is None or stored.text != text:
        if not colon or username_problem(username) is not None:
            return "expected USERNAME:HASH as `passwd` writes it"
        try:
            stored = password_hashes.parse(text)
        except ValueError as problem:
            return f"expected {problem}, for {username!r}"
    if username in users:
        return f"{username!r} again"
    if stored.scheme == password_hashes.SCRAM:
        name_problem = scram_name_problem(username)
        if name_problem is not None:
            return name_problem
        same = scram_names.setdefault(scram.prepared(username), username)
        if same != username:
            return f"{username!r} is the same name as {same!r} to SCRAM"
    users[username] = stored
    return None


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
