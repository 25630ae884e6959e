"""Two members of a cluster on one event loop, and what they told.

Read next: `tests.broker.cluster.shared`.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from broker.cluster.member import Member
from broker.observe.structured_log import Log as Lines
from storage.local.memory import MemoryStore
from storage.replicated.roles.terms import Deposed, Leads, Settings
from storage.tables.tables import FAMILIES
from tests.broker.cluster.shared import Kept, Line, Log

NAMES: Final = ("ann", "bob")
FAMILY: Final = FAMILIES[-1]


class Town:
    """Two members, and what they told."""

    takeover_ms: Final = 400

    def __init__(self) -> None:
        self.log = Log()
        self.stores = {name: MemoryStore(FAMILIES) for name in NAMES}
        self.members: dict[str, Member] = {}
        self.led: asyncio.Queue[tuple[str, Leads]] = asyncio.Queue()
        self.deposed: asyncio.Queue[tuple[str, Deposed]] = asyncio.Queue()

    def start(self, name: str) -> Member:
        """Start a member."""
        settings = Settings(
            name,
            NAMES,
            address=f"{name}:1883",
            takeover_ms=self.takeover_ms,
            heartbeat_ms=50,
            presence_ms=50,
        )
        member = Member(settings, self.stores[name], self.log.open, Kept, log=Lines(level="error"))
        member.led = lambda told: self.led.put_nowait((name, told))
        member.deposed = lambda told: self.deposed.put_nowait((name, told))
        member.broker_ms = lambda: 5_000
        member.attach(asyncio.get_running_loop())
        self.members[name] = member
        return member

    async def elect(self) -> str:
        """Start all; return who leads once everybody has heard everybody."""
        for name in NAMES:
            self.start(name)
        async with asyncio.timeout(30):
            name, _ = await self.led.get()
            members = self.members.values()
            await until(lambda: all(list(each.replica.members) for each in members))
        return name

    def line(self, name: str) -> Line:
        """Return a member's line to the log."""
        at = list(self.members).index(name)
        return self.log.lines[at]

    def close(self) -> None:
        """End all."""
        for member in self.members.values():
            member.close()


async def until(condition: Callable[[], bool]) -> None:
    """Return once something holds, while the loop goes on; a caller bounds the time."""
    while not condition():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)
