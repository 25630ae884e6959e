"""What an external store is told of: one value per configured backend.

The engine knows no rules and no actions, only what they need. Read next: `session.feed.recorder`.
"""

from typing import Final


class Feed:
    """What one backend wants."""

    __slots__ = ("filters", "kinds", "name")

    def __init__(self, name: str, filters: tuple[str, ...], kinds: int) -> None:
        """`kinds` has the bit 1 << kind for each kind of event (`storage.tables.feed_rows`)."""
        self.name: Final = name
        # It gets the messages with QoS 1 and 2 that match one of these, each once.
        self.filters: Final = filters
        self.kinds: Final = kinds

    def __repr__(self) -> str:
        return f"Feed({self.name!r}, {self.filters!r}, {self.kinds:#x})"
