"""What every request may need, in one place: who is who, what can be asked, what is written down.

A change goes through `Services.change`, whoever offers it: it checks the role, and writes the admin
log before and after. Read next: `broker.admin.server`, which makes it.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final, TypeVar

from broker.admin.access.admin_log import AdminLog
from broker.admin.access.lockout import Lockout
from broker.admin.access.logins import Logins
from broker.admin.access.roles import Role, Who
from broker.admin.access.tokens import Tokens
from broker.admin.access.users import Users
from broker.admin.asking import Asking
from broker.admin.figures import Figures
from broker.admin.problems import EXPECTED, Refused, refused
from broker.configuration.config import Config
from broker.observe.structured_log import Log
from storage.time import machine_clocks

Result = TypeVar("Result")


class Services:
    """What one process of the HTTP API works with."""

    def __init__(self, config: Config, events: Log) -> None:
        """`events` is the log of this process, `log` the admin log."""
        data_dir = config.shell.data_dir
        self.config: Final = config
        self.events: Final = events
        self.has_tls: Final = config.shell.admin_tls_certificate is not None
        self.asking: Final = Asking(config)
        self.figures: Final = Figures(self.asking)
        self.tokens: Final = Tokens(data_dir)
        self.users: Final = Users(data_dir)
        self.logins: Final = Logins()
        self.lockout: Final = Lockout()
        self.log: Final = AdminLog(data_dir, machine_clocks.wall_ms, monotonic)

    def close(self) -> None:
        """Give everything back."""
        self.asking.close()

    async def change(
        self,
        who: Who,
        role: Role,
        what: str,
        details: dict[str, Any],
        work: Callable[[], Awaitable[Result]],
    ) -> Result:
        """Have `work` change something for somebody who has `role`, with its lines in the log.

        `details` say what is changed, as text; never a secret or a payload. Raises `Refused` for
        a lower role, `AdminLogError` before anything is done, and what `work` raises.
        """
        demand(who, role)
        by = {"name": who.name, "role": who.role.word, "how": who.how, "from": who.address}
        key = await asyncio.to_thread(self.log.asked, by, what, details)
        outcome = "not known: interrupted"
        try:
            result = await work()
            outcome = "done"
            return result
        except EXPECTED as problem:
            outcome = f"{refused(problem).status} {problem}"
            raise
        finally:
            end = functools.partial(self.log.ended, key, by, what, outcome)
            await asyncio.shield(asyncio.to_thread(end))


def demand(who: Who | None, role: Role) -> None:
    """Raise `Refused` unless somebody has this role, or a higher one."""
    if who is None:
        raise Refused(
            401,
            "log in, or send a token: Authorization: Bearer ...",
            headers={"WWW-Authenticate": "Bearer"},
        )
    if who.role < role:
        raise Refused(403, f"this is for the role {role.word}; {who.name!r} is {who.role.word}")


def demand_payloads(who: Who) -> None:
    """Raise `Refused` unless somebody may read what messages say."""
    if not who.payloads:
        raise Refused(403, f"{who.name!r} lacks the permission to read payloads")
