"""What somebody types to find client ids. Pure."""

import glob

SPECIAL = frozenset("*?[")


def wanted(typed: str) -> str | None:
    """Return the pattern for what was typed, None = all. Without `*?[` it is a part of a name."""
    if not typed:
        return None
    return typed if SPECIAL & set(typed) else f"*{typed}*"


def beginning(start: str) -> str:
    """Return the pattern of what begins so."""
    return f"{glob.escape(start)}*"
