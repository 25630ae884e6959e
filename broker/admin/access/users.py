"""Users who log in with a browser: names, roles and argon2id hashes of their passwords.

They are not the users of MQTT. An unknown name costs as much work as a known one. Must never keep a
password. Read next: `broker.admin.access.private_file`, `broker.admin.access.logins`.
"""

from pathlib import Path
from typing import Any, Final

from broker.admin.access.private_file import AccessFileError, PrivateFile
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

    def put(
        self, name: str, role: Role, *, payloads: bool, password: str | None, now_ms: int
    ) -> bool:
        """Add a user, or change one; return whether it is new. That is durable on return.

        Without a password the old one stays. Raises `AccessFileError`.
        """
        if NAME.fullmatch(name) is None:
            raise AccessFileError(f"name {name!r}: expected {NAME_EXPECTED}")
        if password is not None and len(password) < PASSWORD_CHARACTERS_MIN:
            raise AccessFileError(
                f"the password is too short: expected {PASSWORD_CHARACTERS_MIN} characters"
            )
        if password is not None and len(password.encode()) > PASSWORD_BYTES_MAX:
            raise AccessFileError(f"the password is longer than {PASSWORD_BYTES_MAX} bytes")
        with self._file.change() as entries:
            old = next((entry for entry in entries if entry["name"] == name), None)
            if old is None and password is None:
                raise AccessFileError(f"no user {name!r}: a new one needs a password")
            if old is None and len(entries) >= USERS_MAX:
                raise AccessFileError(f"there are {USERS_MAX} users already")
            new = {
                "name": name,
                "role": role.word,
                "payloads": payloads,
                "argon2id": old["argon2id"] if old and password is None else _hash(password or ""),
                "changed_ms": now_ms,
            }
            entries[:] = [entry for entry in entries if entry["name"] != name] + [new]
        return old is None

    def remove(self, name: str) -> None:
        """Remove a user; that is durable on return. Raises `AccessFileError`."""
        with self._file.change() as entries:
            left = [entry for entry in entries if entry["name"] != name]
            if len(left) == len(entries):
                raise AccessFileError(f"no user {name!r}")
            entries[:] = left


def _hasher() -> Any:
    from broker.security.password_hashes import hasher

    return hasher()


def _hash(password: str) -> str:
    return str(_hasher().hash(password))
