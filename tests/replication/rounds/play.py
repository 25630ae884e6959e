"""Play rounds: a misfortune or two under load, the way back, and what everybody saw of it.

Read next: `tests.replication.rounds.crowd` (the load and the oracle).
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.durability.process import POLL_SECONDS, BrokerProcess, http_get
from tests.replication.front import Front
from tests.replication.rounds.crowd import Crowd, Pauses
from tests.replication.rounds.machines import Machine, Machines
from tests.replication.rounds.misfortunes import (
    FOLLOWER,
    KAFKA_LEADER,
    KAFKA_OTHER,
    LEADER,
    Misfortune,
    rounds,
)
from tests.replication.rounds.town import Town

BACK_S: Final = 600.0  # until a service that must come back is back, on a busy machine
MESSAGES: Final = 40  # so many more acknowledged show that it is


@dataclass
class Outcome:
    """What the rounds were and what they showed."""

    rounds: Counter[str] = field(default_factory=Counter)
    takeovers_s: list[float] = field(default_factory=list)  # until another node was ready
    pauses_s: dict[str, list[float]] = field(default_factory=dict)  # by the kind of round
    taken: int = 0  # bytes and names by power cuts
    acknowledged: int = 0
    delivered: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Game:
    """A cluster under load, and its rounds."""

    def __init__(
        self, machines: Machines, seed: int, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        self.outcome: Final = Outcome()
        self._machines: Final = machines
        self._source: Final = random.Random(seed)
        self._tell: Final = tell
        self._front: Final = Front([node.process for node in machines.nodes])
        self._crowd: Final = Crowd(self._front, seed * 1000)
        self._pauses: Final = Pauses(self._crowd)

    def play(self, count: int, *, seconds: float = float("inf")) -> Outcome:
        """Play so many rounds, or as many as begin in so many seconds; return what they showed."""
        begun = time.monotonic()
        self._until_whole()
        self._crowd.start()
        self._pauses.start()
        try:
            for number, happens in enumerate(rounds(self._source), 1):
                if number > count or time.monotonic() - begun > seconds:
                    break
                self._round(number, happens)
        finally:
            self._pauses.close()
        outcome = self.outcome
        outcome.faults += self._crowd.finish()
        outcome.acknowledged = self._crowd.acknowledged()
        outcome.delivered = self._crowd.delivered()
        outcome.kept = self._crowd.kept()
        return outcome

    def close(self) -> None:
        """End the balancer."""
        self._front.close()

    def _round(self, number: int, happens: tuple[Misfortune, ...]) -> None:
        source = self._source
        name = " and ".join(str(each) for each in happens)
        self._tell(f"round {number}: {name}")
        targets = self._targets()
        leader = self._front.leader
        time.sleep(source.uniform(0.2, 1.0))
        self._pauses.begin()
        begun = time.monotonic()
        takeover_s = 0.0
        for each in happens:
            self.outcome.taken += each.happen(targets[each.who], source)
            if len(happens) > 1:
                time.sleep(source.choice((0.0, source.uniform(0.0, 2.0), source.uniform(0.0, 6.0))))
        if len(happens) == 1 and not happens[0].is_lasting:
            if happens[0].deposes:
                self._front.wait_for_leader(BACK_S, than=leader)
                takeover_s = time.monotonic() - begun
                self.outcome.takeovers_s.append(takeover_s)
            self._until_service(name)
        else:
            time.sleep(source.uniform(1.0, 6.0))
        self._machines.heal()
        self._until_whole()
        self._until_service(name)
        pause_s = self._pauses.longest_s()
        kind = name if len(happens) == 1 else "pairs"
        self.outcome.rounds[kind] += 1
        self.outcome.pauses_s.setdefault(kind, []).append(pause_s)
        took = time.monotonic() - begun
        self._tell(
            f"    took {took:.1f} s, takeover {takeover_s:.1f} s, pause {pause_s:.1f} s, "
            f"{self._crowd.acknowledged()} acknowledged"
        )
        for violation in self._crowd.violations():
            self._tell(f"    noticed: {violation}")

    def _targets(self) -> dict[str, Machine]:
        """Return who has which role now."""
        machines, source = self._machines, self._source
        leader = self._front.wait_for_leader(BACK_S)
        kafka = machines.cluster.leader(machines.topic)
        others = [each for number, each in machines.kafka.items() if number != kafka]
        return {
            LEADER: next(node for node in machines.nodes if node.process is leader),
            FOLLOWER: source.choice([n for n in machines.nodes if n.process is not leader]),
            KAFKA_LEADER: machines.kafka[kafka],
            KAFKA_OTHER: source.choice(others),
        }

    def _until_service(self, name: str) -> None:
        """Wait until messages are acknowledged again."""
        wanted = self._crowd.acknowledged() + MESSAGES
        self._until(lambda: self._crowd.acknowledged() >= wanted, f"no service after: {name}")

    def _until_whole(self) -> None:
        """Wait until one node leads, all others follow, and Kafka has all its replicas."""
        self._machines.cluster.until_whole()
        self._until(self._is_whole, "the cluster is not whole")

    def _is_whole(self) -> bool:
        leader = self._front.leader
        others = [n.process for n in self._machines.nodes if n.process is not leader]
        return leader is not None and all(_follows(each) for each in others)

    def _until(self, condition: Callable[[], bool], complaint: str) -> None:
        deadline = time.monotonic() + BACK_S
        while not condition():
            for node in self._machines.nodes:
                ended = not node.process.is_running() and not node.is_down
                assert not ended, f"{node.name} has ended\n{node.process.tail()}"
            if time.monotonic() > deadline:
                logs = "\n".join(node.process.tail(15) for node in self._machines.nodes)
                raise AssertionError(f"{complaint}\n{logs}")
            time.sleep(POLL_SECONDS * 10)


def _follows(node: BrokerProcess) -> bool:
    return "following" in http_get(node.metrics_port, "/readyz", timeout=2.0, host=node.host)[1]


def play(
    directory: Path,
    shim: Path,
    *,
    count: int,
    seed: int,
    nodes: int,
    seconds: float = float("inf"),
    tell: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Build a town with a cluster, play, and end everything. Needs a network namespace alone."""
    town = Town()
    try:
        machines = Machines(town, directory, shim, nodes=nodes)
        try:
            game = Game(machines, seed, tell)
            try:
                return game.play(count, seconds=seconds)
            finally:
                game.close()
        finally:
            machines.close()
    finally:
        town.close()
