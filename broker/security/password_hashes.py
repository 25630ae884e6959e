"""What a password file may hold for a user: argon2id, mosquitto's two, and SCRAM-SHA-256.

Must never put a hash or a password into a message. `parse` checks a line completely, so that a
damaged one is found when the file is read and not at a CONNECT. Read next:
`broker.security.password_file` (the file) and `broker.security.authenticators` (who verifies, and
where).
"""

import base64
import binascii
import hashlib
import hmac
from typing import TYPE_CHECKING, Final

from broker.security import scram

if TYPE_CHECKING:
    from argon2 import PasswordHasher

# OWASP's first recommendation for argon2id: 19 MiB, two passes, one lane. The library's default
# (64 MiB, four lanes) would let a storm of CONNECTs take gigabytes; this costs ~25 ms and 19 MiB.
MEMORY_KIB: Final = 19_456
TIME_COST: Final = 2
LANES: Final = 1

# A line beyond these is a mistake, and would occupy a thread (or take memory) for minutes.
ITERATIONS_MAX: Final = 10_000_000
MEMORY_KIB_MAX: Final = 1 << 20
TIME_COST_MAX: Final = 1000
LANES_MAX: Final = 16
SALT_BYTES_MAX: Final = 256
# SASLprep looks at each character of a password that is not ASCII; nobody types that many.
PREPARED_BYTES_MAX: Final = 1024

SHA512: Final = 0  # mosquitto's `$6$`: one SHA-512 of password and salt
PBKDF2: Final = 1  # mosquitto's `$7$`: PBKDF2-HMAC-SHA512
SCRAM: Final = 2  # PostgreSQL's shape of the keys of RFC 5802
ARGON2ID: Final = 3  # ours

EXPECTED: Final = (
    "a hash of `holdfast passwd` (argon2id or SCRAM-SHA-256) or of mosquitto_passwd ($7$ or $6$)"
)


class StoredHash:
    """One user's line, parsed."""

    __slots__ = ("cost", "key", "salt", "scheme", "server_key", "text")

    def __init__(
        self,
        text: str,
        scheme: int,
        cost: tuple[int, ...],
        salt: bytes,
        key: bytes,
        server_key: bytes = b"",
    ) -> None:
        self.text: str = text  # as it stands in the file
        self.scheme: int = scheme
        self.cost: tuple[int, ...] = cost  # (iterations) or (memory KiB, passes, lanes)
        self.salt: bytes = salt
        self.key: bytes = key  # SCRAM: StoredKey
        self.server_key: bytes = server_key  # SCRAM only

    def __repr__(self) -> str:
        return f"StoredHash(scheme={self.scheme}, cost={self.cost})"


def parse(text: str) -> StoredHash:
    """Return the hash written as `text`; raise `ValueError`, whose text is what was expected."""
    if text.startswith("$argon2id$"):
        return _parse_argon2id(text)
    if text.startswith("$7$"):
        return _parse_pbkdf2(text)
    if text.startswith("$6$"):
        return _parse_sha512(text)
    if text.startswith("SCRAM-SHA-256$"):
        return _parse_scram(text)
    raise ValueError(EXPECTED)


def verify(stored: StoredHash, password: bytes) -> bool:
    """Return whether `password` is the one behind `stored`.

    Takes as long as the line says (argon2id as we write it: 25 ms), mostly without the interpreter
    lock; the time does not depend on the answer.
    """
    if stored.scheme == ARGON2ID:
        return _verify_argon2id(stored, password)
    if stored.scheme == SCRAM:
        key, _ = scram.derive(_prepared(password), stored.salt, stored.cost[0])
    elif stored.scheme == PBKDF2:
        key = hashlib.pbkdf2_hmac("sha512", password, stored.salt, stored.cost[0])
    else:
        key = hashlib.sha512(password + stored.salt).digest()
    return hmac.compare_digest(key, stored.key)


def hasher() -> "PasswordHasher":
    """Return the hasher with our parameters; `verify` reads a hash's own parameters."""
    from argon2 import PasswordHasher, Type  # only where a password is hashed

    return PasswordHasher(
        time_cost=TIME_COST, memory_cost=MEMORY_KIB, parallelism=LANES, type=Type.ID
    )


def scram_line(password: bytes, salt: bytes) -> str:
    """Return what to store for a user of SCRAM-SHA-256.

    Raises `ValueError` for a password that clients would not prepare alike.
    """
    try:
        ready = scram.prepared(password.decode()).encode()
    except UnicodeDecodeError:
        raise ValueError("expected UTF-8 text") from None
    stored_key, server_key = scram.derive(ready, salt, scram.ITERATIONS)
    return (
        f"SCRAM-SHA-256${scram.ITERATIONS}:{_encoded(salt)}"
        f"${_encoded(stored_key)}:{_encoded(server_key)}"
    )


def _parse_argon2id(text: str) -> StoredHash:
    expected = "an argon2id hash, $argon2id$v=19$m=MEMORY,t=PASSES,p=LANES$SALT$HASH"
    parts = text.split("$")
    if len(parts) != 6 or parts[2] != "v=19":
        raise ValueError(expected)
    numbers: list[int] = []
    wanted = (("m=", MEMORY_KIB_MAX), ("t=", TIME_COST_MAX), ("p=", LANES_MAX))
    settings = parts[3].split(",")
    if len(settings) != len(wanted):
        raise ValueError(expected)
    for setting, (name, high) in zip(settings, wanted, strict=True):
        if not setting.startswith(name):
            raise ValueError(expected)
        numbers.append(_number(setting[2:], high, expected))
    if numbers[0] < 8 * numbers[2]:
        raise ValueError(f"{expected}; at least 8 KiB of memory for each lane")
    salt, key = _bytes(parts[4], expected, padded=False), _bytes(parts[5], expected, padded=False)
    if not 8 <= len(salt) <= SALT_BYTES_MAX or not 4 <= len(key) <= SALT_BYTES_MAX:
        raise ValueError(f"{expected}; a salt of 8 bytes and a hash of 4 at least")
    return StoredHash(text, ARGON2ID, tuple(numbers), salt, key)


def _parse_pbkdf2(text: str) -> StoredHash:
    expected = "a hash of mosquitto_passwd, $7$ITERATIONS$SALT$HASH"
    parts = text.split("$")
    if len(parts) != 5:
        raise ValueError(expected)
    iterations = _number(parts[2], ITERATIONS_MAX, expected)
    return _salted(text, PBKDF2, (iterations,), parts[3], parts[4], expected)


def _parse_sha512(text: str) -> StoredHash:
    expected = "a hash of mosquitto_passwd, $6$SALT$HASH"
    parts = text.split("$")
    if len(parts) != 4:
        raise ValueError(expected)
    return _salted(text, SHA512, (1,), parts[2], parts[3], expected)


def _salted(
    text: str, scheme: int, cost: tuple[int, ...], salt: str, key: str, expected: str
) -> StoredHash:
    raw_salt, raw_key = _bytes(salt, expected), _bytes(key, expected)
    if not 1 <= len(raw_salt) <= SALT_BYTES_MAX or len(raw_key) != 64:
        raise ValueError(f"{expected}; a hash of 64 bytes")
    return StoredHash(text, scheme, cost, raw_salt, raw_key)


def _parse_scram(text: str) -> StoredHash:
    expected = "SCRAM keys, SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY"
    parts = text.split("$")
    if len(parts) != 3:
        raise ValueError(expected)
    iterations, _, salt = parts[1].partition(":")
    stored_key, _, server_key = parts[2].partition(":")
    number = _number(iterations, ITERATIONS_MAX, expected)
    raw_salt = _bytes(salt, expected)
    keys = _bytes(stored_key, expected), _bytes(server_key, expected)
    if not 1 <= len(raw_salt) <= SALT_BYTES_MAX or {*map(len, keys)} != {scram.KEY_BYTES}:
        raise ValueError(f"{expected}; two keys of {scram.KEY_BYTES} bytes")
    return StoredHash(text, SCRAM, (number,), raw_salt, *keys)


def _verify_argon2id(stored: StoredHash, password: bytes) -> bool:
    from argon2 import exceptions, low_level

    memory_kib, passes, lanes = stored.cost
    try:
        key = low_level.hash_secret_raw(
            password,
            stored.salt,
            time_cost=passes,
            memory_cost=memory_kib,
            parallelism=lanes,
            hash_len=len(stored.key),
            type=low_level.Type.ID,
        )
    except exceptions.HashingError:
        return False  # no memory to check it: refused
    return hmac.compare_digest(key, stored.key)


def _prepared(password: bytes) -> bytes:
    """Return `password` as SCRAM hashes it: prepared, or as it is where that cannot be done.

    PostgreSQL and its clients do the same. ASCII is left as it is either way.
    """
    if password.isascii() or len(password) > PREPARED_BYTES_MAX:
        return password
    try:
        return scram.prepared(password.decode()).encode()
    except ValueError:  # of the bytes, or of the characters
        return password


def _number(text: str, high: int, expected: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or not 1 <= int(text) <= high:
        raise ValueError(f"{expected}; numbers from 1 to at most {high}")
    return int(text)


def _bytes(text: str, expected: str, *, padded: bool = True) -> bytes:
    """Return what base64 `text` stands for; it has to be written in the one canonical way."""
    padding = "" if padded else "=" * (-len(text) % 4)
    try:
        value = base64.b64decode(text + padding, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{expected}, in base64") from None
    if _encoded(value) != text + padding:
        raise ValueError(f"{expected}, in base64")
    return value


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()
