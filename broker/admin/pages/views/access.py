"""The page of users, tokens and the admin log. Pure. Read next: `broker.admin.access.admin_log`."""

from typing import Any, Final

from broker.admin.access.tokens import Token
from broker.admin.access.users import User
from broker.admin.pages.words import amounts, links

# Fields of a line that have a column of their own, or that no person needs.
OWN: Final = frozenset({"at", "change", "from", "how", "name", "outcome", "role", "what"})


def context(
    users: list[User],
    tokens: list[Token],
    log: list[tuple[int, dict[str, Any]]],
    *,
    cursor: str,
    limit: int,
    now_ms: int,
) -> dict[str, Any]:
    """Return what the page shows."""
    return {
        "users": [
            {"name": each.name, "role": each.role.word, "payloads": each.payloads} for each in users
        ],
        "tokens": [
            {
                "name": each.name,
                "role": each.role.word,
                "payloads": each.payloads,
                "expires": amounts.of_ms(each.expires_ms).isoformat(),
                "is_expired": each.expires_ms <= now_ms,
            }
            for each in tokens
        ],
        "log": [_line(line) for _, line in log[:limit]],
        "log_shown": amounts.plural(min(len(log), limit), "line"),
        "links": {
            "first": "/access#log" if cursor else "",
            "next": f"{links.url('/access', cursor=log[limit - 1][0])}#log"
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
