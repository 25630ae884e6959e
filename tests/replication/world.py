"""A world of a few nodes and one log, driven by a seed; an oracle outside counts what was released.

Processes are killed, stopped and continued, cut off from the log and without power; appends get
lost, or their answers; the log loses what it did not promise. `run` ends with everything healed and
raises `Failure` if a released command is missing, doubled or out of order anywhere, or if nobody
leads. Read next: `tests.replication.node`, `tests.replication.log`.
"""

from collections import Counter
from random import Random
from typing import Final

from storage.replicated.replica import BROKEN, DEPOSED, Deposed, Leads, Replica, Settings
from tests.replication.log import SharedLog
from tests.replication.node import Node

NAMES: Final = ("ann", "bob", "cyd")
STEP_MS: Final = 20
HEAL_MS: Final = 60_000


class Failure(AssertionError):
    """A promise was broken."""


class World:
    """One run."""

    def __init__(self, seed: int, replica_type: type[Replica] = Replica) -> None:
        self.seed: Final = seed
        self.random: Final = Random(seed)
        self.now: int = 1_000_000
        self.log: Final = SharedLog()
        self.trouble: float = self.random.choice((0.0, 0.02, 0.1, 0.3))
        names = NAMES[: self.random.choice((2, 2, 3))]
        self.nodes: Final[dict[str, Node]] = {}
        for name in names:
            settings = Settings(
                name,
                names,
                takeover_ms=self.random.choice((1200, 3000)),
                part_bytes=64,
                anchor_every=3,
                trim_ms=2000,
            )
            node = Node(settings, self.log, self.random)
            node.replica_type = replica_type
            self.nodes[name] = node
        self.issued: int = 0
        self.released: Final[list[int]] = []
        # The same by leader: one that was stopped may release late what counted before the next.
        self._by_leader: Final[dict[tuple[str, int], list[int]]] = {}
        self.seen: Final[Counter[str]] = Counter()  # what happened, for the tests of the worlds
        self._taken: Final[dict[str, int]] = dict.fromkeys(names, 0)

    # One step.

    def run(self, steps: int = 1500) -> None:
        """Run, heal, judge."""
        for node in self.nodes.values():
            node.start(self.now)
        for _ in range(steps):
            self._misfortune()
            self._step()
        self._heal()
        self._judge_all()

    def _step(self) -> None:
        self.now += self.random.choice((1, STEP_MS, STEP_MS, 3 * STEP_MS))
        for node in self.nodes.values():
            self._network(node)
        for name, node in self.nodes.items():
            if node.replica is None or node.is_paused:
                continue
            self._tail(node)
            if node.is_leading and self.random.random() < 0.4:
                self.issued += 1
                node.write(self.issued)
            self._told(name, node)

    def _network(self, node: Node) -> None:
        line, random = node.line, self.random
        if line is None or line.is_cut:
            return
        for _ in range(random.randint(0, 3)):
            line.deliver(self.trouble)
        if not node.is_paused:
            line.answer(random.randint(0, 3))
            line.read(random.choice((0, 1, 5, 50)))

    def _tail(self, node: Node) -> None:
        if self.random.random() < 0.6:
            node.tail.sync_begin()
        if self.random.random() < 0.6:
            synced = node.tail.sync_end()
            assert node.replica is not None
            node.replica.tail_synced(synced)
        if self.random.random() < 0.1:
            node.disk.store.sync()
            assert node.replica is not None
            node.replica.synced(node.disk.where().position.index)

    def _told(self, name: str, node: Node) -> None:
        for each in node.run(self.now):
            if isinstance(each, Leads):
                self.seen["elections"] += 1
                self._judge(name, node)
                self._taken[name] = 0
            elif isinstance(each, Deposed):
                self.seen["deposed"] += 1
        for command in node.acked[self._taken[name] :]:
            self.released.append(command)
            self._by_leader.setdefault((name, node.elections), []).append(command)
        self._taken[name] = len(node.acked)
        assert node.replica is not None
        if node.replica.role == DEPOSED:
            node.kill(power_cut=False)
            node.start(self.now)
        elif node.replica.role == BROKEN:
            self._replace(name, node)

    def _replace(self, name: str, node: Node) -> None:
        """A node that was away for longer than the log reaches back copies another's database."""
        assert node.replica is not None
        if node.replica.place >= self.log.first:
            raise Failure(f"{name} is broken: {node.troubles[-1:]}")
        self.seen["copied"] += 1
        others = [each for each in self.nodes.values() if each is not node]
        node.kill(power_cut=False)
        node.copy(max(others, key=lambda each: each.disk.where().position.index))
        node.start(self.now)

    # Misfortune.

    def _misfortune(self) -> None:
        random = self.random
        if random.random() > 0.03:
            return
        leaders = [name for name, node in self.nodes.items() if node.is_leading]
        name = random.choice(leaders if leaders and random.random() < 0.4 else list(self.nodes))
        node = self.nodes[name]
        what = random.choice(("kill", "cut", "pause", "power", "lose", "heal", "heal"))
        if node.replica is None:
            node.start(self.now)
            return
        assert node.line is not None
        if what == "kill":
            node.kill(power_cut=False)
        elif what == "power":
            node.kill(power_cut=True)
        elif what == "cut":
            node.line.is_cut = True
        elif what == "pause":
            node.is_paused = True
        elif what == "lose":
            self.seen["lost"] += self.log.lose(random.randint(1, 5)) > 0
        else:
            node.is_paused = node.line.is_cut = False
        self.seen[what] += 1

    def _heal(self) -> None:
        """Let everything work again, until a new command is released and applied by all."""
        self.trouble = 0.0
        for node in self.nodes.values():
            if node.replica is None:
                node.start(self.now)
            assert node.line is not None
            node.is_paused = node.line.is_cut = False
        deadline = self.now + HEAL_MS
        healed = len(self.released) + 5
        while self.now < deadline:
            self._step()
            if len(self.released) >= healed and self._agree():
                return
        roles = {name: node.replica and node.replica.role for name, node in self.nodes.items()}
        raise Failure(f"no agreement {HEAL_MS} ms after everything was healed: {roles}")

    def _agree(self) -> bool:
        applied = [node.disk.commands() for node in self.nodes.values()]
        return all(set(self.released) <= set(each) for each in applied)

    # The oracle.

    def _judge(self, name: str, node: Node) -> None:
        """A node that leads has all that was released, in order, once."""
        commands = node.disk.commands()
        if len(set(commands)) != len(commands):
            raise Failure(f"{name} has a command twice")
        places = {command: place for place, command in enumerate(commands)}
        for command in self.released:
            if command not in places:
                raise Failure(f"{name} leads without command {command}, which was released")
        for released in self._by_leader.values():
            if sorted(released, key=lambda command: places[command]) != released:
                raise Failure(f"{name} has commands in another order")

    def _judge_all(self) -> None:
        if len(set(self.released)) != len(self.released):
            raise Failure("a command was released twice")
        longest: list[int] = []
        for name, node in self.nodes.items():
            self._judge(name, node)
            commands = node.disk.commands()
            short, long = sorted((longest, commands), key=len)
            if long[: len(short)] != short:
                raise Failure(f"{name} has other commands than the others")
            longest = long
