"""What somebody may do: three roles, each with all that the one before it may, and payloads.

Decides nothing about a request. Read next: `broker.admin.web.gate`, which finds out who asks.
"""

import enum
import re
from typing import Final

# Names of users and tokens: they stand in logs and in the history.
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
NAME_EXPECTED: Final = "letters, digits and '._@-', at most 64 characters"


class Role(enum.IntEnum):
    """What somebody may do; a higher role may do all that a lower one may."""

    VIEWER = 1  # look
    OPERATOR = 2  # and act: kick, purge, delete, ban, publish, reclaim
    ADMIN = 3  # and see who may do what, and who did it

    @property
    def word(self) -> str:
        """The role as it is written."""
        return self.name.lower()


BY_WORD: Final = {role.word: role for role in Role}


def role_of(word: str) -> Role:
    """Return the role that is written so; raise `KeyError`."""
    return BY_WORD[word]


class Who:
    """Somebody who was let in, for one request."""

    __slots__ = ("address", "csrf", "how", "name", "payloads", "role")

    def __init__(
        self, name: str, role: Role, payloads: bool, how: str, address: str, csrf: str = ""
    ) -> None:
        self.name: str = name
        self.role: Role = role
        self.payloads: bool = payloads  # may read what messages say
        self.how: str = how  # "token" or "login"
        self.address: str = address  # the peer's, of the connection
        self.csrf: str = csrf  # what a form has to bring along; "" with a token
