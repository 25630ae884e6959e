"""Files several brokers read: mosquitto's password and access control formats."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

# Few rounds: these passwords guard nothing, and the broker derives a key per connection.
_ROUNDS: Final = 101
_SALT: Final = b"conformance!"


def password_lines(users: Mapping[str, str]) -> str:
    """Return a password file: `name:$7$rounds$salt$key` (PBKDF2 with SHA-512) for each user."""
    lines = []
    for name, password in users.items():
        key = hashlib.pbkdf2_hmac("sha512", password.encode(), _SALT, _ROUNDS)
        salt, shown = base64.b64encode(_SALT).decode(), base64.b64encode(key).decode()
        lines.append(f"{name}:$7${_ROUNDS}${salt}${shown}\n")
    return "".join(lines)


def acl_lines(denied: Sequence[str]) -> str:
    """Return an ACL file that allows everything but the topics and filters in `denied`."""
    allowed = ["#", "$SYS/#", "$share/#"]
    return "".join(
        [f"topic deny {topic}\n" for topic in denied]
        + [f"topic readwrite {topic}\n" for topic in allowed]
    )
