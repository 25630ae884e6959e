"""What every request may need, in one place: who is who, what can be asked, what is written down.

A change goes through `Services.change`, whoever offers it: it checks the role, and writes the admin
log before and after. Read next: `broker.admin.server`, which makes it.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from itertools import islice
from time import monotonic
from typing import Any, Final, TypeVar

import msgspec

from broker.admin.access.admin_log import AdminLog
from broker.admin.access.lockout import Lockout
from broker.admin.access.logins import Logins
from broker.admin.access.roles import Role, Who
from broker.admin.access.tokens import Tokens
from broker.admin.access.users import User, Users
from broker.admin.acting import Acting
from broker.admin.asking import Asking, cursor_of, place_of
from broker.admin.counts import Counts
from broker.admin.figures import Figures
from broker.admin.granting import Granting, token_row, user_row
from broker.admin.problems import EXPECTED, Refused, refused
from broker.admin.records import (
    LogLine,
    Page,
    TokenRow,
    TokenWanted,
    UserChange,
    UserRow,
    UserWanted,
)
from broker.admin.sources.reading import now_text
from broker.admin.verifying import Verifying
from broker.configuration.config import Config
from broker.observe.structured_log import Log
from storage.time import machine_clocks

LOG_FIELDS: Final = ("at", "what", "outcome", "name", "role", "how", "from", "change")

Result = TypeVar("Result")


class Services:
    """What one process of the HTTP API works with."""

    def __init__(self, config: Config, events: Log, clock: Callable[[], float] = monotonic) -> None:
        """`events` is the log of this process, `log` the admin log; `clock` is monotonic, s."""
        data_dir = config.shell.data_dir
        self.config: Final = config
        self.events: Final = events
        self.clock: Final = clock
        self.asking: Final = Asking(config)
        self.acting: Final = Acting(self.asking)
        self.figures: Final = Figures(self.asking)
        self.counts: Final = Counts(self.figures)
        self.tokens: Final = Tokens(data_dir)
        self.users: Final = Users(data_dir)
        self.logins: Final = Logins()
        self.lockout: Final = Lockout()
        self.log: Final = AdminLog(
            data_dir,
            machine_clocks.wall_ms,
            clock,
            file_bytes=config.shell.admin_log_file_bytes,
            files=config.shell.admin_log_files,
        )
        self.verifying: Final = Verifying(self.users, self.lockout, self.log, clock)
        self.granting: Final = Granting(self.users, self.tokens, machine_clocks.wall_ms)

    def close(self) -> None:
        """Give everything back."""
        self.asking.close()

    async def admin_log(self, cursor: str | None, limit: int) -> "Page[LogLine]":
        """Return a page of the admin log, the newest lines first.

        Raises `BadCursor`, `AdminLogError`.
        """
        before = place_of(cursor, tuple[int, int]) if cursor else None
        found = await asyncio.to_thread(lambda: list(islice(self.log.newest(before), limit + 1)))
        following = cursor_of(found[limit - 1][0]) if len(found) > limit else None
        lines = [_log_line(line) for _, line in found[:limit]]
        return Page(lines, following, now_text(), [])

    def token_rows(self) -> list[TokenRow]:
        """Return the tokens, never themselves. Raises `AccessFileError`."""
        now_ms = machine_clocks.wall_ms()
        return [token_row(each, now_ms) for each in self.tokens.all()]

    def user_rows(self) -> list[UserRow]:
        """Return the users. Raises `AccessFileError`."""
        return [user_row(each) for each in self.users.all()]

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

    async def change_password(self, who: Who, old: str, new: str) -> User:
        """Give who asks another password, for the one that they have.

        Raises `Refused` for a token, for a wrong password and for one too many.
        """
        if who.how != "login":
            raise Refused(409, "a token has no password: make another one")
        what = "change password"
        await self.verifying.verify(
            who.name, old, who.address, what=what, wrong="the old password is wrong"
        )

        async def work() -> User:
            return await self.granting.set_password(who.name, new)

        user = await self.change(who, Role.VIEWER, what, {}, work)
        self.verifying.succeeded(who.name)
        return user


def _log_line(line: dict[str, Any]) -> LogLine:
    known = {name: line[name] for name in LOG_FIELDS if isinstance(line.get(name), str)}
    details = {name: value for name, value in line.items() if name not in LOG_FIELDS}
    return msgspec.convert({"what": "", "outcome": "", **known, "details": details}, LogLine)


# What the admin log says of changes of rights.


def user_details(wanted: UserWanted) -> dict[str, Any]:
    """Return what is said of a new user."""
    return {"user": wanted.name, "as": wanted.role, "payloads": wanted.payloads}


def change_of_user(name: str, wanted: UserChange) -> dict[str, Any]:
    """Return what is said of a change of a user."""
    details: dict[str, Any] = {"user": name}
    if wanted.role is not None:
        details["as"] = wanted.role
    if wanted.payloads is not None:
        details["payloads"] = wanted.payloads
    if wanted.password is not None:
        details["password"] = "another one"
    return details


def token_details(wanted: TokenWanted) -> dict[str, Any]:
    """Return what is said of a new token."""
    details = {"token": wanted.name, "as": wanted.role, "payloads": wanted.payloads}
    return {**details, "expires": wanted.expires}


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
