"""The page of bans: who may not connect, until when, and why. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from broker.admin.pages.words import amounts, links
from broker.admin.records import Ban

KINDS: Final = (("client-id", "a client id"), ("user", "a user"), ("address", "an address"))
SHOWN_MAX: Final = 200


def context(found: Sequence[Ban]) -> dict[str, Any]:
    """Return what the list shows: those that end first."""
    words = dict(KINDS)
    first = sorted(found, key=lambda ban: ban.left_seconds)[:SHOWN_MAX]
    return {
        "bans": [
            {
                "kind": words.get(each.kind, each.kind),
                "value": each.value,
                "left": amounts.span(each.left_seconds),
                "until": each.until,
                "by": each.by,
                "reason": each.reason,
                "remove": links.url("/bans/remove", kind=each.kind, value=each.value)
                if links.is_short(each.value)
                else "",
            }
            for each in first
        ],
        "more": len(found) - len(first),
    }
