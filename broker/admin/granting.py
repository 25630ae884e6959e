"""Who may do what: users and tokens are added, changed and removed, as the commands do it.

`holdfast user` and `holdfast token` use the same files by the same classes. Knows no HTTP, and must
never decide who may ask. Read next: `broker.admin.access.users`, `broker.admin.access.tokens`.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from broker.admin import records
from broker.admin.access.private_file import BadEntry
from broker.admin.access.roles import role_of
from broker.admin.access.tokens import EXPIRES_DAYS_MAX, Token, Tokens
from broker.admin.access.users import User, Users
from broker.admin.sources.reading import text_of


class Granting:
    """Grants and takes away. All raise `AccessFileError`; what they change is durable on return."""

    def __init__(self, users: Users, tokens: Tokens, wall_ms: Callable[[], int]) -> None:
        self._users: Final = users
        self._tokens: Final = tokens
        self._wall_ms: Final = wall_ms

    async def add_user(self, wanted: records.UserWanted) -> records.UserRow:
        """Add a user."""

        def work() -> None:
            self._users.add(
                wanted.name,
                role_of(wanted.role),
                payloads=wanted.payloads,
                password=wanted.password,
                now_ms=self._wall_ms(),
            )

        await asyncio.to_thread(work)
        return self._user(wanted.name)

    async def change_user(self, name: str, wanted: records.UserChange) -> records.UserRow:
        """Change a user, who has to log in again. The last one with the role admin keeps it."""

        def work() -> None:
            self._users.change(
                name,
                role=None if wanted.role is None else role_of(wanted.role),
                payloads=wanted.payloads,
                password=wanted.password,
                now_ms=self._wall_ms(),
                keep_admin=True,
            )

        await asyncio.to_thread(work)
        return self._user(name)

    async def remove_user(self, name: str) -> records.Granted:
        """Remove a user, but not the last one with the role admin."""
        await asyncio.to_thread(lambda: self._users.remove(name, keep_admin=True))
        return records.Granted(name)

    async def add_token(self, wanted: records.TokenWanted, expires_s: int) -> records.TokenMade:
        """Make a token; nobody is told of it again."""
        if expires_s > EXPIRES_DAYS_MAX * 86_400:
            raise BadEntry(f"expires: expected at most {EXPIRES_DAYS_MAX}d")

        def work() -> str:
            now_ms = self._wall_ms()
            return self._tokens.add(
                wanted.name,
                role_of(wanted.role),
                payloads=wanted.payloads,
                now_ms=now_ms,
                expires_ms=now_ms + 1000 * expires_s,
            )

        text = await asyncio.to_thread(work)
        made = self._tokens.named(wanted.name)
        assert made is not None
        row = token_row(made, self._wall_ms())
        return records.TokenMade(
            name=row.name,
            role=row.role,
            payloads=row.payloads,
            created_at=row.created_at,
            expires_at=row.expires_at,
            expired=row.expired,
            token=text,
        )

    async def remove_token(self, name: str) -> records.Granted:
        """Remove a token; it lets nobody in any more."""
        await asyncio.to_thread(self._tokens.remove, name)
        return records.Granted(name)

    async def set_password(self, name: str, password: str) -> User:
        """Give a user another password; all who are logged in by this name have to do so again."""
        now_ms = self._wall_ms()
        await asyncio.to_thread(lambda: self._users.change(name, password=password, now_ms=now_ms))
        found = self._users.find(name)
        assert found is not None
        return found

    def _user(self, name: str) -> records.UserRow:
        found = self._users.find(name)
        assert found is not None
        return user_row(found)


def token_row(token: Token, now_ms: int) -> records.TokenRow:
    """Return what is told of a token, never itself."""
    return records.TokenRow(
        name=token.name,
        role=token.role.word,  # type: ignore[arg-type]  # one of its words
        payloads=token.payloads,
        created_at=text_of(token.created_ms),
        expires_at=text_of(token.expires_ms),
        expired=token.expires_ms <= now_ms,
    )


def user_row(user: User) -> records.UserRow:
    """Return what is told of a user."""
    return records.UserRow(
        name=user.name,
        role=user.role.word,  # type: ignore[arg-type]  # one of its words
        payloads=user.payloads,
        changed_at=text_of(user.changed_ms),
    )
