"""What the parts share that handle clients, their packets and their sessions.

Decides nothing. Read next: `session.lifetime.connect`, `session.packets.dispatch`.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from session.history.history import History
from session.live.connection import Connection
from session.live.core import Core, Database
from session.ports import Authenticator, Policy

# Told of what happens to a connection: event, connection, detail in words. Must not call back.
Observe: TypeAlias = Callable[[str, Connection, str], None]
# Told of what the rules deny a client: what it wanted to do (publish, subscribe, will), its client
# identifier, its user name ("" = anonymous), the topic or topic filter. Must not call back.
Denied: TypeAlias = Callable[[str, str, str, str], None]


class Ports:
    """What surrounds the engine, as far as its parts ask it."""

    __slots__ = (
        "authenticator",
        "denied",
        "new_client_id",
        "new_instance",
        "observe",
        "policy",
    )

    def __init__(
        self,
        authenticator: Authenticator,
        policy: Policy,
        new_client_id: Callable[[], str],
        observe: Observe,
        denied: Denied,
        new_instance: Callable[[], str],
    ) -> None:
        self.authenticator: Final = authenticator
        self.policy: Final = policy
        self.new_client_id: Final = new_client_id
        self.observe: Final = observe
        self.denied: Final = denied
        self.new_instance: Final = new_instance


class ClientContext:
    """The tick, the gate, the timers, the settings, the ports, the counters and the history."""

    def __init__(
        self,
        core: Core,
        database: Database,
        ports: Ports,
        history: History,
        settle: Callable[[], bool],
        settle_for: Callable[[str], bool],
    ) -> None:
        """Share these parts.

        `settle` writes the open batch, so that loads see it; False if the store refused it.
        `settle_for` does so only if the batch may hold rows of this client.
        """
        self.tick: Final = core.tick
        self.gate: Final = core.gate
        self.due: Final = database.due
        self.settings: Final = core.settings
        self.ports: Final = ports
        self.policy: Final = ports.policy
        self.counters: Final = core.counters
        self.damage: Final = core.damage
        self.losses: Final = core.losses
        self.history: Final = history
        self.settle: Final = settle
        self.settle_for: Final = settle_for
        self.observe: Final = ports.observe
        self.denied: Final = ports.denied
