"""Which clients an operator has banned: who must be refused, and who may be.

A ban holds at once, and over a crash if it was durable. It ends by broker time, or when it is
removed; a crash may undo either, and set broker time back to before the end. Read next:
`tests.simulation.operator`.
"""

from typing import TYPE_CHECKING, Final

from session.engine import Engine
from storage.tables.ban_rows import ADDRESS, CLIENT_ID
from tests.simulation.verdict import Violation

if TYPE_CHECKING:
    from tests.simulation.client import Client
    from tests.simulation.process import BrokerProcess
    from tests.simulation.world import World

TIMES_MS: Final = (300, 1_000, 3_000)  # shorter than a world may need to drain
REMOVALS: Final = 0.4
ADDRESSES: Final = 0.5


class Change:
    """A ban, or its removal: with which batch of which engine it is durable."""

    __slots__ = ("_serial", "engine")

    def __init__(self, engine: Engine) -> None:
        self.engine: Final = engine
        self._serial: Final = engine.settled_by

    def holds(self, engine: Engine) -> bool:
        """Is it certain that this engine knows it? A crash may have undone it otherwise."""
        return engine is self.engine or self.engine.durable >= self._serial


class Ban:
    """One ban of a client."""

    __slots__ = ("key", "made", "removed", "until_ms")

    def __init__(self, key: tuple[bytes, str], made: Change, until_ms: int) -> None:
        self.key: Final = key
        self.made: Final = made
        self.until_ms: Final = until_ms  # broker time
        self.removed: Change | None = None  # or replaced

    def must_hold(self, engine: Engine) -> bool:
        """Is it certain that it is there, if it is not over?"""
        return self.removed is None and self.made.holds(engine)

    def may_hold(self, engine: Engine) -> bool:
        """May it be there, if it is not over?"""
        return self.removed is None or not self.removed.holds(engine)


class Banned:
    """All bans of a world."""

    def __init__(self, world: "World") -> None:
        self._world: Final = world
        self._bans: Final[dict[str, list[Ban]]] = {}  # by client

    def change(self, process: "BrokerProcess", client: "Client") -> str:
        """Ban a client, or remove a ban of any; return what was done."""
        random, now = self._world.random, process.broker_now()
        there = [
            ban
            for bans in self._bans.values()
            for ban in bans
            if ban.removed is None and ban.until_ms > now
        ]
        administration = process.engine.administer(now)
        if there and random.random() < REMOVALS:
            ban = random.choice(there)
            administration.unban(*ban.key, "operator", "")
            ban.removed = Change(process.engine)
            return "pardoned"
        is_address = random.random() < ADDRESSES
        key = (ADDRESS, client.address()) if is_address else (CLIENT_ID, client.name)
        made = administration.ban(*key, random.choice(TIMES_MS), "operator", "why")
        change = Change(process.engine)
        bans = self._bans.setdefault(client.name, [])
        for old in bans:
            if old.key == key and old.removed is None:
                old.removed = change
        bans.append(Ban(key, change, made.until_ms))
        if not is_address and client.name in administration.connections():
            raise Violation("the_banned_are_kept_out", f"{client.name} is still connected")
        if client.attempt is not None:
            client.attempt.may_be_banned = True
        return "banned"

    def opening(self, process: "BrokerProcess", client: "Client") -> None:
        """A client connects: note what is against it already."""
        attempt = client.attempt
        assert attempt is not None
        now = process.broker_now()
        known = [ban for ban in self._bans.get(client.name, ()) if ban.until_ms > now]
        attempt.bans = tuple(ban for ban in known if ban.must_hold(process.engine))
        attempt.may_be_banned = any(ban.may_hold(process.engine) for ban in known)

    def accepted(self, process: "BrokerProcess", client: "Client") -> None:
        """A client got its CONNACK; judge that nothing was against it."""
        attempt = client.attempt
        assert attempt is not None
        for ban in attempt.bans:
            if ban.must_hold(process.engine) and self._world.latest() < ban.until_ms:
                raise Violation(
                    "the_banned_are_kept_out",
                    f"{client.name} is connected, and {ban.key} is banned until {ban.until_ms}",
                )

    def may_refuse(self, client: "Client", reason_code: int) -> bool:
        """May the CONNECT of a client be refused because of a ban?"""
        attempt = client.attempt
        if attempt is None or not attempt.may_be_banned:
            return False
        if reason_code != (0x8A if client.version == 5 else 5):
            return False
        process = self._world.process
        engine = None if process is None else process.engine
        is_old = any(ban.made.engine is not engine for ban in attempt.bans)
        self._world.operator.done["kept out after a crash" if is_old else "kept out"] += 1
        return True
