"""The page of those who are connected. Pure. Read next: `broker.admin.records`."""

from typing import Any

from broker.admin.pages.views.owed import shown
from broker.admin.pages.words import links
from broker.admin.records import Client, Page


def context(page: Page[Client] | None, *, match: str, cursor: str, may_act: bool) -> dict[str, Any]:
    """Return what the page shows."""
    nobody = f"No connected client matches {match!r}." if match else "No client is connected."
    return {
        "clients": [] if page is None else page.items,
        "notes": [] if page is None else page.notes,
        "title": f"Clients that match {match!r}" if match else "All clients",
        "match": match,
        "empty": "The clients are being listed." if page is None else nobody,
        "shown": "" if page is None else shown(len(page.items), page.as_of),
        "may_act": may_act,
        "address": links.url("/connections", match=match, cursor=cursor),
        "links": {
            "first": links.url("/connections", match=match) if cursor else "",
            "next": links.url("/connections", match=match, cursor=page.next)
            if page is not None and page.next
            else "",
        },
    }
