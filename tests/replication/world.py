"""A world of a few nodes and one log, driven by a seed; an oracle outside counts what was released.

Processes are killed, stopped and continued, cut off from the log and without power, alone and
together; appends and answers get lost, come late or twice; the log loses what it did not promise,
and in a power cut of everything also what it did. Disks are lost and copied. A run ends with
everything healed and raises `Failure` if a released command is missing, doubled or out of order
anywhere, or if nobody leads. Read next: `tests.replication.run`, `tests.replication.node`.
"""

from collections import Counter
from random import Random
from typing import Final

from storage.replicated.record import Position
from storage.replicated.replica import Replica
from storage.replicated.roles.terms import (
    BROKEN,
    CLAIMS,
    DEPOSED,
    Committed,
    Deposed,
    Leads,
    Settings,
)
from tests.replication.log import Line, SharedLog
from tests.replication.node import Node
from tests.replication.oracle import Failure, Oracle, judge_alike

NAMES: Final = ("ann", "bob", "cyd")
STEP_MS: Final = 20
HEAL_MS: Final = 90_000
SETTLE_MS: Final = 5000
SENT_MAX: Final = 25  # batches of a leader that are not committed
CALM_STEPS: Final = 150
# Kinds of worlds: everything but the log's promise may break; the log may lose what it promised,
# with the power of all nodes, and no disk is lost; a node may have a twin of the same name.
PLAIN: Final = "plain"
SITE: Final = "site"
TWINS: Final = "twins"


class World:
    """One run."""

    def __init__(
        self,
        seed: int,
        kind: str | None = None,
        replica: type[Replica] = Replica,
        node: type[Node] = Node,
        line: type[Line] = Line,
    ) -> None:
        self.node_type: Final = node
        self.line_type: Final = line
        self.seed: Final = seed
        self.random: Final = Random(seed)
        random = self.random
        self.kind: Final = kind or random.choice((PLAIN, PLAIN, SITE, SITE, TWINS))
        self.now: int = 1_000_000
        gaps, hesitation = random.choice((0.0, 0.0, 0.1)), random.choice((0.0, 0.9))
        self.log: Final = SharedLog(random, gaps, hesitation)
        self.log.on_delete = self._judge_deletion
        self.trouble: float = random.choice((0.0, 0.02, 0.1, 0.3))
        self.lateness: float = random.choice((0.0, 0.0, 0.5, 0.9))  # of answers
        self.slowness: float = random.choice((0.0, 0.0, 0.5))  # of reads
        self.tail_pace: float = random.choice((0.6, 0.6, 0.04))
        self.badness: float = random.choice((0.01, 0.03, 0.06))
        self.names: Final = NAMES[: random.choice((2, 2, 3))]
        self.nodes: Final[dict[str, Node]] = {}
        for name in self.names:
            self._add(name, name, replica)
        self.issued: int = 0
        self.oracle: Final = Oracle()
        self.seen: Final[Counter[str]] = Counter()  # what happened, for the tests of the worlds
        self.quiet_until: int = 0  # nothing goes wrong before
        self.site_due: int = 0  # when the site is to lose power, 0 = not now
        self.gone: Final[set[str]] = set()  # who must not be started
        self._taken: Final[dict[str, int]] = dict.fromkeys(self.nodes, 0)
        self._generations: Final[dict[int, str]] = {}

    def settings(self, name: str) -> Settings:
        """Draw the settings of a node."""
        return Settings(
            name,
            self.names,
            takeover_ms=self.random.choice((1200, 3000)),
            part_bytes=64,
            anchor_every=3,
            trim_ms=2000,
            keep_ms=(0, 0, 0, 5000)[self.seed % 4],
        )

    def _add(self, key: str, name: str, replica: type[Replica]) -> None:
        node = self.node_type(self.settings(name), self.log, self.random)
        node.replica_type = replica
        node.line_type = self.line_type
        self.nodes[key] = node

    def twin(self, name: str) -> None:
        """Start another process of the same name, with a copy of the disk."""
        node = self.nodes[name]
        self._add(f"{name}-twin", name, node.replica_type)
        twin = self.nodes[f"{name}-twin"]
        self._taken[f"{name}-twin"] = 0
        twin.copy(node)
        twin.start(self.now)
        self.seen["twin"] += 1

    # One step.

    def step(self) -> None:
        """Let a little time pass."""
        self.now += self.random.choice((1, STEP_MS, STEP_MS, 3 * STEP_MS))
        self.turn()

    def turn(self) -> None:
        """Let everything happen that does so now."""
        if self.log.late and self.random.random() < 0.02:
            self.log.arrive()
        if self.log.unkept and self.random.random() < 0.1:
            self.log.keep_some()
        for node in self.nodes.values():
            self._network(node)
        for name, node in list(self.nodes.items()):
            if node.replica is None or node.is_paused:
                continue
            self._tail(node)
            if node.is_leading:
                self.use(node)
            self._told(name, node)

    def use(self, leader: Node) -> None:
        """Give a leader something to do."""
        if len(leader.sent) < SENT_MAX and self.random.random() < 0.4:
            self.issued += 1
            self._generations[self.issued] = leader.write(self.issued)

    def _network(self, node: Node) -> None:
        line, random = node.line, self.random
        if line is None or line.is_cut:
            return
        for _ in range(random.randint(0, 3)):
            line.deliver(self.trouble)
        if node.is_paused:
            return
        if random.random() >= self.lateness:
            line.answer(random.randint(0, 3))
        if self.now >= node.reads_from_ms and random.random() >= self.slowness:
            line.read(random.choice((0, 1, 5, 50)))

    def _tail(self, node: Node) -> None:
        random, replica = self.random, node.replica
        assert replica is not None
        if random.random() < self.tail_pace:
            node.tail.sync_begin()
        if random.random() < self.tail_pace:
            replica.tail_synced(node.tail.sync_end())
        if random.random() < 0.1:
            node.disk.store.sync()
            replica.synced(node.disk.where().position.index)

    def _told(self, name: str, node: Node) -> None:
        assert node.replica is not None
        was = node.replica.role
        for each in node.run(self.now):
            if isinstance(each, Leads):
                self.seen["elections"] += 1
                self.leads(name, node, each)
                self._after_an_election()
            elif isinstance(each, Deposed):
                self.seen["deposed"] += 1
            elif isinstance(each, Committed):
                self._judge_commit(name, node, each.position)
        self.take_acked(name, node)
        role = node.replica.role
        if role == CLAIMS and was != CLAIMS:
            self.seen["claims"] += 1
            self.seen["claims against a live leader"] += self._is_led(node)
        if role == DEPOSED:
            node.kill(power_cut=False)
            node.start(self.now, has_led=True)
        elif role == BROKEN:
            self._replace(name, node)

    def leads(self, name: str, node: Node, leads: Leads) -> None:
        """Judge a node that begins to lead."""
        self.oracle.judge(name, node, leads.epoch)
        self._taken[name] = 0

    def take_acked(self, name: str, node: Node) -> None:
        """Note what a node has released."""
        for command in node.acked[self._taken[name] :]:
            self.oracle.take(node.epoch, command, self._generations[command])
        self._taken[name] = len(node.acked)

    def _after_an_election(self) -> None:
        """Now an old leader that goes on is most dangerous, and so is a power cut of the site."""
        luck = self.random.random()
        if luck < 0.3:
            for node in self.nodes.values():
                node.is_paused = False
                node.reads_from_ms = self.now + self.random.choice((0, 300))
                if node.line is not None:
                    node.line.is_cut = False
        elif luck < 0.45:
            self.site_due = self.now + self.random.choice((50, 200, 600))

    def _judge_commit(self, name: str, node: Node, position: Position) -> None:
        """What is released is kept: by the log, where it counts, and by the leader's own tail."""
        if not self.log.keeps(position):
            raise Failure(f"{name} releases {position.index}, which the log does not keep")
        if node.tail.synced < position.index:
            raise Failure(f"{name} releases {position.index}, its tail is at {node.tail.synced}")

    def _is_led(self, but: Node) -> bool:
        """Return whether somebody else leads and can be heard."""
        leaders = [node for node in self.nodes.values() if node.is_leading and node is not but]
        return any(not node.is_paused and node.line and not node.line.is_cut for node in leaders)

    def _replace(self, name: str, node: Node) -> None:
        """A node that cannot go on with the log copies another's database."""
        assert node.replica is not None
        # Rightly so if the log has lost what it promised, and others have gone on without that.
        is_right = self.kind == SITE and self._is_on_a_lost_branch(node.replica)
        if node.replica.place >= self.log.first and not is_right:
            raise Failure(f"{name} is broken: {node.troubles[-1:]}")
        self.seen["broken" if node.replica.place >= self.log.first else "copied"] += 1
        self.renew(name, node)

    def _is_on_a_lost_branch(self, replica: Replica) -> bool:
        lost = self.log.lost_positions
        return replica.end in lost or replica.log_end in lost

    def renew(self, name: str, node: Node) -> None:
        """Give a node a copy of the database that has most."""
        others = [each for each in self.nodes.values() if each is not node]
        node.kill(power_cut=False)
        node.copy(max(others, key=_reach))
        node.start(self.now)

    # The end.

    def settle(self) -> None:
        """Wait until a new command is released and applied by all; then nothing may change."""
        began = self.now
        while self.now < began + SETTLE_MS:  # who was stopped learns that it does not lead
            self.step()
        deadline = self.now + HEAL_MS
        healed = len(self.oracle.released) + 5
        while self.now < deadline:
            self.step()
            if len(self.oracle.released) >= healed and not self._lag():
                break
        else:
            said = {name: node.troubles[-1:] for name, node in self.nodes.items()}
            raise Failure(f"no agreement after everything was healed: {self.roles()}, {said}")
        if self.kind != TWINS:
            self._stay_calm()
        for name, node in self.nodes.items():
            if name in self.gone:
                continue
            self.oracle.judge(name, node, before=1 << 63)
            position = node.disk.where().position
            if all(each != position for _, each in reversed(self.log.chain)):
                raise Failure(f"{name} is at {position.index}, where the log never was")
        judge_alike({name: node for name, node in self.nodes.items() if name not in self.gone})

    def _stay_calm(self) -> None:
        elections = self.seen["elections"]
        for _ in range(CALM_STEPS):
            self.step()
        if self.seen["elections"] != elections:
            raise Failure(f"an election although all is well: {self.roles()}")
        leaders = [node for node in self.nodes.values() if node.is_leading]
        assert len(leaders) == 1, self.roles()
        deadline = self.now + HEAL_MS
        while self._lag():
            self.step()
            if self.now > deadline:
                raise Failure(f"what was released is not applied by all: {self.roles()}")

    def _lag(self) -> bool:
        nodes = [node for name, node in self.nodes.items() if name not in self.gone]
        return any(self.oracle.lacks(node) for node in nodes)

    def roles(self) -> dict[str, str]:
        """Return the role of each node, "" = no process."""
        return {n: each.replica.role if each.replica else "" for n, each in self.nodes.items()}

    def _judge_deletion(self, place: int) -> None:
        """The log may lose only what two nodes have in a synced database."""
        last = max((end.index for at, end in self.log.chain if at < place), default=0)
        has = sorted(node.disk.synced_to() for node in self.nodes.values())
        is_told = not any(self.seen[what] for what in ("disk", "copied", "broken"))
        if self.kind != SITE and last > has[-2] and is_told:
            raise Failure(f"the log is deleted up to {last}; nodes have {has}")
        self.seen["trimmed"] += 1


def _reach(node: Node) -> tuple[int, int]:
    position = node.disk.where().position
    return position.epoch, position.index
