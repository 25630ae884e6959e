"""Which brokers a page is about, and the classes by which it hides all but one of them. Pure.

A radio button for each broker and a rule of CSS for each button: the page needs no script for it.
"""

from collections.abc import Iterable
from typing import Final

from audit.report.summary import Picture

NODES_MAX: Final = 40  # that can be chosen; the page shows no more of them either


def of(picture: Picture) -> list[str]:
    """Return the names of the brokers, sorted: those that can be chosen."""
    found = {boot.node for boot in picture.boots} | {span.node for span in picture.coverage}
    return sorted(found)[:NODES_MAX]


def classes(picture: Picture) -> dict[str, str]:
    """Return the classes of what is about one broker; none if there is no choice."""
    names = of(picture)
    if len(names) < 2:
        return {}
    return {node: f"of n{number}" for number, node in enumerate(names)}


def rules(names: Iterable[str]) -> str:
    """Return the CSS that hides what is not about the broker that was chosen."""
    return "\n".join(
        f"body:has(#node-{number}:checked) .of:not(.n{number}) {{ display: none; }}"
        for number, _ in enumerate(names)
    )
