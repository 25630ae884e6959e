"""Users who log in with a browser: names, roles and argon2id hashes of their passwords.

They are not the users of MQTT. An unknown name costs as much work as a known one. Must never keep a
password. Read next: `broker.admin.access.private_file`, `broker.admin.access.logins`.
"""

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

NAME_OF_FILE: Final = "admin-users.json"
USERS_MAX: Final = 1000
PASSWORD_CHARACTERS_MIN: Final = 12
PASSWORD_BYTES_MAX: Final = 1024


class User:
    """Somebody who may log in."""

    __slots__ = ("changed_ms", "name", "password_hash", "payloads", "role")

    def __init__(self, entry: dict[str, Any]) -> None:
        self.name: str = entry["name"]
        self.role: Role = role_of(entry["role"])
        self.payloads: bool = bool(entry["payloads"])
        self.password_hash: str = str(entry["argon2id"])
        self.changed_ms: int = int(entry["changed_ms"])  # wall clock, since 1970


class Users:
    """The users of one data directory."""

    def __init__(self, data_dir: str | Path) -> None:
        self._file: Final = PrivateFile(data_dir, NAME_OF_FILE)
        self._nobody = ""  # a hash that no password has

    def all(self) -> list[User]:
        """Return the users by name. Raises `AccessFileError`."""
        try:
            found = [User(entry) for entry in self._file.entries()]
        except (KeyError, ValueError, TypeError):
            raise AccessFileError(f"{self._file.path}: an entry cannot be understood") from None
        return sorted(found, key=lambda user: user.name)

    def find(self, name: str) -> User | None:
        """Return the user of this name. Raises `AccessFileError`."""
        return next((user for user in self.all() if user.name == name), None)

    def verify(self, name: str, password: str) -> User | None:
        """Return the user if the password is right: about 50 ms of work, whatever the name.

        Raises `AccessFileError`.
        """
        from argon2.exceptions import InvalidHashError, VerificationError

        user = self.find(name)
        if not self._nobody:
            self._nobody = _hash("")
        expected = self._nobody if user is None else user.password_hash
        try:
            _hasher().verify(expected, password[:PASSWORD_BYTES_MAX])
        except (VerificationError, InvalidHashError):
            return None
        return user

    def add(self, name: str, role: Role, *, payloads: bool, password: str, now_ms: int) -> None:
        """Add a user; that is durable on return. Raises `AccessFileError`."""
        if NAME.fullmatch(name) is None:
            raise BadEntry(f"name {name!r}: expected {NAME_EXPECTED}")
        _check(password)
        with self._file.change() as entries:
            if any(entry["name"] == name for entry in entries):
                raise EntryRefused(f"there is a user {name!r} already")
            if len(entries) >= USERS_MAX:
                raise EntryRefused(f"there are {USERS_MAX} users already")
            entries.append(_entry(name, role, payloads, _hash(password), now_ms))

    def change(
        self,
        name: str,
        *,
        role: Role | None = None,
        payloads: bool | None = None,
        password: str | None = None,
        now_ms: int,
        keep_admin: bool = False,
    ) -> None:
        """Change a user, who has to log in again; that is durable on return.

        What is None stays as it is. With `keep_admin` the last one with the role admin keeps it.
        Raises `AccessFileError`.
        """
        if password is not None:
            _check(password)
        with self._file.change() as entries:
            old = self._one(entries, name)
            if keep_admin and role not in (None, Role.ADMIN):
                _keep_admin(entries, old)
            entries[entries.index(old)] = _entry(
                name,
                role_of(old["role"]) if role is None else role,
                bool(old["payloads"]) if payloads is None else payloads,
                str(old["argon2id"]) if password is None else _hash(password),
                # Each change is another moment, also when the clock was set back.
                max(now_ms, int(old["changed_ms"]) + 1),
            )

    def remove(self, name: str, *, keep_admin: bool = False) -> None:
        """Remove a user; that is durable on return. Raises `AccessFileError`.

        With `keep_admin` the last one with the role admin stays.
        """
        with self._file.change() as entries:
            old = self._one(entries, name)
            if keep_admin:
                _keep_admin(entries, old)
            entries.remove(old)

    def _one(self, entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
        try:
            return next(entry for entry in entries if entry["name"] == name)
        except StopIteration:
            raise NoEntry(f"no user {name!r}") from None


def _keep_admin(entries: list[dict[str, Any]], old: dict[str, Any]) -> None:
    """Refuse to do without the last one who may change users."""
    admins = [entry for entry in entries if entry["role"] == Role.ADMIN.word]
    if admins == [old]:
        raise EntryRefused(
            f"{old['name']!r} is the last user with the role admin: give it to another one first"
        )


def _entry(
    name: str, role: Role, payloads: bool, password_hash: str, now_ms: int
) -> dict[str, Any]:
    return {
        "name": name,
        "role": role.word,
        "payloads": payloads,
        "argon2id": password_hash,
        "changed_ms": now_ms,
    }


def _check(password: str) -> None:
    if len(password) < PASSWORD_CHARACTERS_MIN:
        raise BadEntry(f"the password is too short: expected {PASSWORD_CHARACTERS_MIN} characters")
    if len(password.encode(errors="replace")) > PASSWORD_BYTES_MAX:
        raise BadEntry(f"the password is longer than {PASSWORD_BYTES_MAX} bytes")


def _hasher() -> Any:
    from broker.security.password_hashes import hasher

    return hasher()


def _hash(password: str) -> str:
    return str(_hasher().hash(password))
