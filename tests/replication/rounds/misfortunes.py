"""What happens in a round: one misfortune of one machine, or two at once of two.

A misfortune alone may stop the service only for a while: it goes on before anything is healed. Of
a pair it is asked that nothing is lost, and that everything goes on by itself once all machines
run and are connected again. Read next: `tests.replication.rounds.play`.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.replication.rounds.machines import Machine
from tests.replication.rounds.town import CLIENTS, LOG

# Who: roles, as they are when the round begins.
LEADER: Final = "leader"
FOLLOWER: Final = "follower"
KAFKA_LEADER: Final = "Kafka leader"  # of the partition
KAFKA_OTHER: Final = "Kafka follower"
NODES: Final = (LEADER, FOLLOWER)
# What.
KILL: Final = "killed"
STOP: Final = "stopped"
CUT: Final = "cut off"
CUT_LOG: Final = "cut off from Kafka"
CUT_CLIENTS: Final = "cut off from clients"
POWER: Final = "without power"
EVERYWHERE: Final = (KILL, STOP, CUT, POWER)


@dataclass(frozen=True, slots=True)
class Misfortune:
    """Something that happens to a machine."""

    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.who} {self.what}"

    @property
    def is_lasting(self) -> bool:
        """Return whether the service goes on only when it is healed.

        Nobody follows a leader that is in the log and that only clients do not reach.
        """
        return self.who == LEADER and self.what == CUT_CLIENTS

    @property
    def deposes(self) -> bool:
        """Return whether another node has to take over."""
        return self.who == LEADER and self.what != CUT_CLIENTS

    def happen(self, machine: Machine, source: random.Random) -> int:
        """Let it happen; return how much a power cut took."""
        if self.what == KILL:
            machine.kill()
        elif self.what == STOP:
            machine.stop()
        elif self.what == CUT:
            machine.cut()
        elif self.what == CUT_LOG:
            machine.cut(LOG)
        elif self.what == CUT_CLIENTS:
            machine.cut(CLIENTS)
        else:
            return machine.cut_power(source)
        return 0


ALONE: Final = (
    *(Misfortune(who, what) for who in NODES for what in EVERYWHERE),
    *(Misfortune(who, CUT_LOG) for who in NODES),
    Misfortune(LEADER, CUT_CLIENTS),
    *(Misfortune(who, what) for who in (KAFKA_LEADER, KAFKA_OTHER) for what in EVERYWHERE),
)
PAIRS: Final = tuple(
    (one, two)
    for one in ALONE
    for two in ALONE
    # The promise is for the power of one machine at a time.
    if one.who != two.who and not one.what == two.what == POWER
)


def rounds(source: random.Random) -> Iterator[tuple[Misfortune, ...]]:
    """Yield what happens, without end: everything alone in turn, and about as many pairs."""
    pairs: list[tuple[Misfortune, Misfortune]] = []
    while True:
        deck = list(ALONE)
        source.shuffle(deck)
        for alone in deck:
            yield (alone,)
            if source.random() < 0.8:
                if not pairs:
                    pairs = list(PAIRS)
                    source.shuffle(pairs)
                yield pairs.pop()
