"""The nodes of a world and their log, with all that goes wrong with them.

It is a world of `tests.replication` whose leaders have a broker in place of commands, driven by the
clock of the simulation. Read next: `tests.simulation.cluster.world`.
"""

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final, cast

from storage.replicated.roles.terms import Leads, Settings
from tests.replication import misfortune
from tests.replication.node import Node
from tests.replication.world import PLAIN, SITE
from tests.replication.world import World as Replicas
from tests.simulation.cluster.node import BrokerNode, HeardLine
from tests.simulation.verdict import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.world import ClusterWorld

DAY_MS: Final = 86_400_000


class Machines(Replicas):
    """The nodes and their log."""

    def __init__(self, world: "ClusterWorld") -> None:
        self.world: Final = world
        dice = Random(world.seed * 2 + 13)
        self._part_bytes: Final = dice.choice((300, 4_000, 100_000))
        kind = dice.choice((PLAIN, PLAIN, SITE))
        super().__init__(world.seed * 2 + 11, kind, node=BrokerNode, line=HeardLine)
        self.every_ms: Final = dice.choice((700, 1_500, 4_000))  # how often something goes wrong
        self.now = world.now
        for name, node in self.brokers.items():
            node.world = world
            node.wall_offset = int(dice.uniform(-9, 9) * DAY_MS)
            self._taken[name] = 0

    @property
    def brokers(self) -> dict[str, BrokerNode]:
        """Return the nodes by their names."""
        return cast("dict[str, BrokerNode]", self.nodes)

    def settings(self, name: str) -> Settings:
        """Draw the settings of a node."""
        settings = super().settings(name)
        takeover_ms = min(settings.takeover_ms, 2_000)
        return replace(settings, part_bytes=self._part_bytes, takeover_ms=takeover_ms)

    def start(self) -> None:
        """Start all nodes."""
        for node in self.nodes.values():
            if node.replica is None:
                node.start(self.now)

    def misfortune(self) -> None:
        """Let something go wrong."""
        misfortune.happen(self)

    def pass_time(self, now: int) -> None:
        """Let happen what does until now."""
        self.now = now
        if self.site_due and now >= self.site_due:
            self.site_due = 0
            if self.world.faults:
                misfortune.site(self)
        for node in self.brokers.values():
            if node.process is not None and not node.is_paused:
                node.process.go_on()
        self.turn()

    def use(self, leader: Node) -> None:
        """Do nothing: clients give a leader what it does."""

    def leads(self, name: str, node: Node, leads: Leads) -> None:
        """Do nothing: the world judges who begins to lead."""

    def take_acked(self, name: str, node: Node) -> None:
        """Do nothing: clients take what is released."""

    def calm(self) -> None:
        """Let nothing go wrong any more."""
        misfortune.heal(self)
        self.tail_pace = 0.6
        self.site_due = 0

    def is_calm(self) -> bool:
        """Return whether one node leads and the others have all that it has."""
        if any(node.replica is None or node.is_paused for node in self.nodes.values()):
            return False
        leaders = [node for node in self.brokers.values() if node.process is not None]
        if len(leaders) != 1 or not leaders[0].is_leading:
            return False
        position = leaders[0].disk.where().position
        store = leaders[0].disk.written
        assert store is not None
        return not store.pending and all(
            node.disk.where().position == position for node in self.nodes.values()
        )

    def judge_alike(self) -> None:
        """Every node has the same rows."""
        rows: dict[str, dict[str, dict[bytes, bytes]]] = {}
        for name, node in self.nodes.items():
            rows[name] = {
                family: {
                    key: value
                    for key, value in node.disk.store.scan(family, b"", count=1 << 30)
                    if not key.startswith(b"replica")
                }
                for family in node.disk.store.families()
            }
        first, *others = rows
        for other in others:
            for family in rows[first].keys() | rows[other].keys():
                if rows[first].get(family) != rows[other].get(family):
                    raise Violation(
                        "nodes_agree", f"{first} and {other} differ in {family!r} at the end"
                    )
