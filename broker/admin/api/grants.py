"""Who may do what, changed over the API: users, tokens, and one's own password.

Must never log a password or a token. Read next: `broker.admin.granting`,
`broker.admin.api.table`.
"""

from typing import Any

from broker.admin import records
from broker.admin.access.roles import Role
from broker.admin.api.endpoints import Call
from broker.admin.api.values import duration_s
from broker.admin.services import change_of_user, token_details, user_details


async def add_user(call: Call) -> Any:
    """Add a user."""
    wanted: records.UserWanted = call.body
    return await call.services.change(
        call.who,
        Role.ADMIN,
        "add user",
        user_details(wanted),
        lambda: call.services.granting.add_user(wanted),
    )


async def change_user(call: Call) -> Any:
    """Change a user."""
    name, wanted = call.values["name"], call.body
    return await call.services.change(
        call.who,
        Role.ADMIN,
        "change user",
        change_of_user(name, wanted),
        lambda: call.services.granting.change_user(name, wanted),
    )


async def remove_user(call: Call) -> Any:
    """Remove a user."""
    name = call.values["name"]
    return await call.services.change(
        call.who,
        Role.ADMIN,
        "remove user",
        {"user": name},
        lambda: call.services.granting.remove_user(name),
    )


async def add_token(call: Call) -> Any:
    """Make a token."""
    wanted: records.TokenWanted = call.body
    expires_s = duration_s(wanted.expires)
    return await call.services.change(
        call.who,
        Role.ADMIN,
        "add token",
        token_details(wanted),
        lambda: call.services.granting.add_token(wanted, expires_s),
    )


async def remove_token(call: Call) -> Any:
    """Remove a token."""
    name = call.values["name"]
    return await call.services.change(
        call.who,
        Role.ADMIN,
        "remove token",
        {"token": name},
        lambda: call.services.granting.remove_token(name),
    )


async def change_password(call: Call) -> Any:
    """Give who asks another password; all sessions of that user end."""
    wanted: records.PasswordChange = call.body
    user = await call.services.change_password(call.who, wanted.old, wanted.new)
    return records.Granted(user.name)
