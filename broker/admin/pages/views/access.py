"""The page of users, tokens and the admin log, and what its forms say. Pure.

Must never show a password. Read next: `broker.admin.access.admin_log`, `broker.admin.granting`.
"""

import re
from typing import Any, Final, TypeVar

import msgspec

from broker.admin.access.admin_log import Place
from broker.admin.access.roles import BY_WORD, NAME, NAME_EXPECTED
from broker.admin.access.tokens import Token
from broker.admin.access.users import User
from broker.admin.api.values import duration_s
from broker.admin.pages.words import amounts, links
from broker.admin.records import Password, TokenWanted, UserChange, UserWanted

ROLES: Final = tuple(BY_WORD)
PASSWORD_EXPECTED: Final = "the password: expected 12 to 1024 characters"
EXPIRES: Final = "90d"
PLACE: Final = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
Wanted = TypeVar("Wanted")

# Fields of a line that have a column of their own, or that no person needs.
OWN: Final = frozenset({"at", "change", "from", "how", "name", "outcome", "role", "what"})


def context(
    users: list[User],
    tokens: list[Token],
    log: list[tuple[Place, dict[str, Any]]],
    *,
    cursor: str,
    limit: int,
    now_ms: int,
) -> dict[str, Any]:
    """Return what the page shows."""
    return {
        "users": [
            {
                "name": each.name,
                "role": each.role.word,
                "payloads": each.payloads,
                "change": links.url("/access/user", name=each.name),
                "remove": links.url("/access/user/remove", name=each.name),
            }
            for each in users
        ],
        "tokens": [
            {
                "name": each.name,
                "role": each.role.word,
                "payloads": each.payloads,
                "expires": amounts.of_ms(each.expires_ms).isoformat(),
                "is_expired": each.expires_ms <= now_ms,
                "remove": links.url("/access/token/remove", name=each.name),
            }
            for each in tokens
        ],
        "log": [_line(line) for _, line in log[:limit]],
        "log_shown": amounts.plural(min(len(log), limit), "line"),
        "links": {
            "first": "/access#log" if cursor else "",
            "next": f"{links.url('/access', cursor=_cursor(log[limit - 1][0]))}#log"
            if len(log) > limit
            else "",
        },
    }


def _line(line: dict[str, Any]) -> dict[str, Any]:
    outcome = str(line.get("outcome", ""))
    details = [
        f"{name} {value}"
        for name, value in line.items()
        if name not in OWN and value not in ("", 0)
    ]
    kind = "good" if outcome == "done" else "idle" if outcome == "asked" else "bad"
    return {
        "at": str(line["at"]),
        "who": str(line.get("name", "")),
        "role": str(line.get("role", "")),
        "source": str(line.get("from", "")),
        "what": ", ".join([str(line.get("what", "")), *details]),
        "outcome": outcome,
        "kind": kind,
    }


def _cursor(found: Place) -> str:
    return f"{found[0]}-{found[1]}"


def place(cursor: str) -> Place | None:
    """Return the place in the log that an address names; it fits `PLACE`, or is empty."""
    if not cursor:
        return None
    number, _, offset = cursor.partition("-")
    return int(number), int(offset)


class NewPassword(msgspec.Struct):
    """One's own new password."""

    password: Password


def fields(sent: dict[str, str]) -> dict[str, Any]:
    """Return what the form of a user or a token shows again."""
    return {
        "name": sent.get("name", ""),
        "role": sent.get("role", ROLES[0]),
        "payloads": bool(sent.get("payloads")),
        "expires": sent.get("expires", EXPIRES),
    }


def user_wanted(sent: dict[str, str]) -> UserWanted:
    """Return the user that a form describes. Raises `ValueError`."""
    return _wanted(UserWanted, {**_named(sent), "password": sent.get("password", "")})


def user_change(sent: dict[str, str]) -> UserChange:
    """Return what a form changes of a user; no password means the old one. Raises `ValueError`."""
    password = sent.get("password") or None
    return _wanted(UserChange, {**_rights(sent), "password": password})


def token_wanted(sent: dict[str, str]) -> TokenWanted:
    """Return the token that a form describes. Raises `ValueError`."""
    expires = sent.get("expires", "")
    try:
        duration_s(expires)
    except ValueError as problem:
        raise ValueError(f"expires after {expires[:40]!r}: {problem}") from None
    return _wanted(TokenWanted, {**_named(sent), "expires": expires})


def _named(sent: dict[str, str]) -> dict[str, Any]:
    name = sent.get("name", "")
    if NAME.fullmatch(name) is None:
        raise ValueError(f"name {name[:80]!r}: expected {NAME_EXPECTED}")
    return {"name": name, **_rights(sent)}


def _rights(sent: dict[str, str]) -> dict[str, Any]:
    role = sent.get("role", "")
    if role not in BY_WORD:
        raise ValueError(f"role {role[:40]!r}: expected {', '.join(ROLES)}")
    return {"role": role, "payloads": bool(sent.get("payloads"))}


def _wanted(kind: type[Wanted], found: dict[str, Any]) -> Wanted:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as problem:
        text = str(problem)
        raise ValueError(PASSWORD_EXPECTED if "$.password" in text else text) from None
