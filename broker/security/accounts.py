"""The users of one password file, and how names that do not exist are answered.

Must never let a client find out which names exist. An unknown name is treated like some user of the
file, always the same one for the same name. Its password is compared with that user's hash, so that
it takes as long, in a file of mixed hashes too; for SCRAM it gets a salt of its own and that user's
iterations. A secret key chooses user and salt: nobody outside can compute them, and they stay the
same after a restart. Immutable: a reload makes a new one. Read next:
`broker.security.authenticators`.
"""

import hmac
from collections.abc import Mapping
from typing import Final

from broker.security import password_hashes, scram
from broker.security.password_hashes import StoredHash

# Used where there is no user at all: what `holdfast passwd` would write.
_LONE: Final = StoredHash(
    "",
    password_hashes.ARGON2ID,
    (password_hashes.MEMORY_KIB, password_hashes.TIME_COST, password_hashes.LANES),
    bytes(16),
    bytes(32),
)
_LONE_SCRAM: Final = StoredHash(
    "", password_hashes.SCRAM, (scram.ITERATIONS,), bytes(scram.SALT_BYTES), bytes(32)
)


class Accounts:
    """The users and their stored passwords."""

    __slots__ = ("_by_cost", "_key", "_scram", "_scram_by_cost", "_users")

    def __init__(self, users: dict[str, StoredHash], key: bytes) -> None:
        """`users` as `password_file.load` returns them; `key` is secret and lasting."""
        self._users: dict[str, StoredHash] = users
        self._key: bytes = key
        self._scram: dict[str, str] = {
            scram.prepared(name): name
            for name, stored in users.items()
            if stored.scheme == password_hashes.SCRAM
        }
        # Sorted, so that the number of a name points at the same cost as long as the shares of
        # the costs are the same, whoever is added or removed.
        self._by_cost: list[StoredHash] = sorted(users.values(), key=_cost) or [_LONE]
        self._scram_by_cost: list[StoredHash] = [
            stored for stored in self._by_cost if stored.scheme == password_hashes.SCRAM
        ] or [_LONE_SCRAM]

    def __len__(self) -> int:
        return len(self._users)

    @property
    def offers_scram(self) -> bool:
        """Return whether any user can authenticate by SCRAM-SHA-256."""
        return bool(self._scram)

    @property
    def users(self) -> Mapping[str, StoredHash]:
        """The users and their stored passwords, as the file has them."""
        return self._users

    def stored(self, username: str) -> StoredHash | None:
        """Return what the file holds for a user."""
        return self._users.get(username)

    def revoked_by(self, newer: "Accounts") -> frozenset[str]:
        """Return the users who are not in `newer`, or not with the same line."""
        return frozenset(
            name
            for name, stored in self._users.items()
            if (other := newer.stored(name)) is None or other.text != stored.text
        )

    def to_verify(self, username: str) -> StoredHash:
        """Return the hash to verify: the user's, or another one for an unknown name.

        A match alone proves nothing: the user must also be `stored`.
        """
        # Computed for users too: else the time would tell them from unknown names.
        stand_in = self._pick(self._by_cost, self._digest(b"hash", username))
        return self._users.get(username, stand_in)

    def scram_account(self, name: str) -> scram.Account:
        """Return the account of a prepared name, or a made-up one that no proof fits.

        The latter also for a user whose password is kept in another form.
        """
        model = self._pick(self._scram_by_cost, self._digest(b"iterations", name))
        made_up = StoredHash(  # for users too, as above
            "",
            password_hashes.SCRAM,
            model.cost,
            self._salt(name, len(model.salt)),
            self._digest(b"stored key", name),
            self._digest(b"server key", name),
        )
        username = self._scram.get(name, "")
        stored = self._users.get(username, made_up)
        return scram.Account(
            username,
            iterations=stored.cost[0],
            salt=stored.salt,
            stored_key=stored.key,
            server_key=stored.server_key,
        )

    def _pick(self, candidates: list[StoredHash], digest: bytes) -> StoredHash:
        share = int.from_bytes(digest[:8])  # 0 to 2**64 - 1, spread evenly over the candidates
        return candidates[share * len(candidates) >> 64]

    def _salt(self, name: str, size: int) -> bytes:
        salt, block = b"", 0
        while len(salt) < size:
            salt += self._digest(b"salt %d" % block, name)
            block += 1
        return salt[:size]

    def _digest(self, purpose: bytes, name: str) -> bytes:
        return hmac.digest(self._key, purpose + b"\0" + name.encode(), "sha256")


def _cost(stored: StoredHash) -> tuple[int, tuple[int, ...], int]:
    return stored.scheme, stored.cost, len(stored.salt)
