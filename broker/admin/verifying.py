"""Whether a password is right: few are hashed at once, and who fails too often has to wait.

Must never say whether a name is known: a wrong name costs the work of a wrong password, and is
answered alike. Read next: `broker.admin.access.lockout`, `broker.admin.web.signing_in`.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from broker.admin.access.admin_log import AdminLog
from broker.admin.access.lockout import Lockout
from broker.admin.access.users import User, Users
from broker.admin.problems import Refused

HASHING_MAX: Final = 2  # at once: 19 MiB each
HASHING_WAITING_MAX: Final = 8
WRONG: Final = "name or password is wrong"


class Verifying:
    """Verifies the passwords of one data directory. All methods are the loop's."""

    def __init__(
        self, users: Users, lockout: Lockout, log: AdminLog, clock: Callable[[], float]
    ) -> None:
        """`clock` is monotonic, s."""
        self._users: Final = users
        self._lockout: Final = lockout
        self._log: Final = log
        self._clock: Final = clock
        self._hashing: Final = asyncio.Semaphore(HASHING_MAX)
        self._waiting = 0

    async def verify(
        self, name: str, password: str, address: str, *, what: str = "log in", wrong: str = WRONG
    ) -> User:
        """Return the user whose password this is; each failure is in the admin log.

        Raises `Refused`, `AccessFileError`, `AdminLogError`.
        """
        wait_s = self._lockout.wait_s(name, address, self._clock())
        if wait_s:
            await asyncio.to_thread(self._log.failed, what, name, address, "locked out")
            raise Refused(
                429, "too many failures: wait before you try again", retry_s=int(wait_s) + 1
            )
        user = await self._find(name, password)
        if user is None:
            self._lockout.failed(name, address, self._clock())
            await asyncio.to_thread(self._log.failed, what, name, address, "refused")
            raise Refused(401 if what == "log in" else 403, wrong)
        return user

    def succeeded(self, name: str) -> None:
        """Forget the failures of a name, once what the password was for is in the admin log."""
        self._lockout.succeeded(name)

    async def _find(self, name: str, password: str) -> User | None:
        if self._waiting >= HASHING_WAITING_MAX:
            raise Refused(503, "too many log in at once", retry_s=2)
        self._waiting += 1
        try:
            async with self._hashing:
                return await asyncio.to_thread(self._users.verify, name, password)
        finally:
            self._waiting -= 1
