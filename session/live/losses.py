"""Tells who watches a session of each message that it does not get.

Must never decide or count: who drops messages does that, and calls here besides. While nobody
watches, a drop costs one test more. Read next: `session.delivery.outgoing`.
"""

from collections.abc import Callable
from typing import TypeAlias

# Told of messages that a session does not get: client identifier, topic or "", why (a reason of
# `session.counters`, or "expired"), how many. Must not call back.
TellLoss: TypeAlias = Callable[[str, str, str, int], None]


class Losses:
    """Who is told; None = nobody is."""

    __slots__ = ("tell",)

    def __init__(self) -> None:
        self.tell: TellLoss | None = None
