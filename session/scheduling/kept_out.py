"""Clients that are kept out while an operator's work on their sessions is not done.

In memory only: after a restart nobody is kept out, and the work is over. Read next:
`session.purging`, which keeps clients out, and `session.lifetime.connect`, which refuses them.
"""

from typing import Final


class KeptOut:
    """Client identifiers that may not connect just now."""

    def __init__(self) -> None:
        self._works: Final[dict[str, int]] = {}  # pieces of work by client identifier

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._works

    def __len__(self) -> int:
        return len(self._works)

    def keep(self, client_id: str) -> None:
        """Keep a client out until `release` was called as often."""
        self._works[client_id] = self._works.get(client_id, 0) + 1

    def release(self, client_id: str) -> None:
        """One piece of work on its session is over."""
        left = self._works[client_id] - 1
        if left:
            self._works[client_id] = left
        else:
            del self._works[client_id]
