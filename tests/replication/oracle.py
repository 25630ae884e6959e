"""What was released, told by nobody but the world, and whether a node still has it.

A leader must have what leaders of earlier epochs released; one that was stopped in time and is
behind another may lead as far as it knows, and releases nothing. Read next:
`tests.replication.world`.
"""

from typing import Final

from tests.replication.node import Node


class Failure(AssertionError):
    """A promise was broken."""


class Oracle:
    """What leaders have released."""

    def __init__(self) -> None:
        self.released: Final[list[int]] = []
        # By leader: one that was stopped may release late what counted before the next.
        self.by_epoch: Final[dict[int, list[int]]] = {}
        self.generations: Final[dict[int, str]] = {}  # of each command

    def take(self, epoch: int, command: int, generation: str) -> None:
        """Note that a leader has released a command."""
        if command in self.generations:
            raise Failure(f"command {command} was released twice")
        self.generations[command] = generation
        self.released.append(command)
        self.by_epoch.setdefault(epoch, []).append(command)

    def forget(self, node: Node) -> None:
        """Count as lost what this node does not have: an operator has accepted that."""
        has = set(node.disk.commands())
        for commands in self.by_epoch.values():
            commands[:] = [command for command in commands if command in has]
        self.released[:] = [command for command in self.released if command in has]

    def judge(self, name: str, node: Node, before: int) -> None:
        """A node has all that leaders before an epoch released, in order, once."""
        commands = node.disk.commands()
        if len(set(commands)) != len(commands):
            raise Failure(f"{name} has a command twice")
        places = {command: place for place, command in enumerate(commands)}
        dropped = set(node.disk.dropped())
        for epoch, released in self.by_epoch.items():
            if epoch >= before:
                continue
            kept = [each for each in released if self.generations[each] not in dropped]
            for command in kept:
                if command not in places:
                    raise Failure(f"{name} is without command {command} of epoch {epoch}")
            if sorted(kept, key=lambda command: places[command]) != kept:
                raise Failure(f"{name} has commands of epoch {epoch} in another order")

    def lacks(self, node: Node) -> bool:
        """Return whether a node has not applied yet all that was released."""
        has, dropped = set(node.disk.commands()), set(node.disk.dropped())
        return any(
            command not in has and self.generations[command] not in dropped
            for command in reversed(self.released)
        )


def judge_alike(nodes: dict[str, Node]) -> None:
    """Nodes that have applied as much have the same rows and families."""
    seen: dict[int, tuple[str, list[int], list[str]]] = {}
    for name, node in nodes.items():
        if node.disk.where().position.index == 0:
            continue
        index = node.disk.where().position.index
        commands, generations = node.disk.commands(), node.disk.generations()
        other, their_commands, their_generations = seen.setdefault(
            index, (name, commands, generations)
        )
        if (commands, generations) != (their_commands, their_generations):
            raise Failure(f"{name} and {other} differ at {index}")
