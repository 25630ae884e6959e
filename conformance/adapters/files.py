"""mosquitto's password and ACL files, which Holdfast reads as well."""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from conformance.adapters.base import Option

# Few rounds: these passwords protect nothing, and the broker derives a key per connection.
_ROUNDS: Final = 101
_SALT: Final = b"conformance!"


def derived(users: Option) -> dict[str, tuple[int, str, str]]:
    """Return (rounds, salt, key) of every user: PBKDF2 with SHA-512, in base64."""
    salt = base64.b64encode(_SALT).decode()
    return {
        name: (
            _ROUNDS,
            salt,
            base64.b64encode(
                hashlib.pbkdf2_hmac("sha512", password.encode(), _SALT, _ROUNDS)
            ).decode(),
        )
        for name, password in (users.items() if isinstance(users, Mapping) else ())
    }


def password_lines(users: Mapping[str, str]) -> str:
    """Return a password file: `name:$7$rounds$salt$key` for each user."""
    return "".join(
        f"{name}:$7${rounds}${salt}${key}\n" for name, (rounds, salt, key) in derived(users).items()
    )


def acl_lines(denied: Iterable[str], users: Iterable[str]) -> str:
    """Return an ACL file: users may do everything, anonymous clients all but `denied`."""
    everything = ["topic readwrite #", "topic readwrite $SYS/#"]
    lines = [*(f"topic deny {topic}" for topic in denied), *everything]
    for user in users:
        lines += [f"user {user}", *everything]
    return "".join(f"{line}\n" for line in lines)


def listed(value: Option) -> list[str]:
    """Return an option that is a list, or an empty list."""
    return [] if value is None or isinstance(value, (bool, int, float, str)) else list(value)
