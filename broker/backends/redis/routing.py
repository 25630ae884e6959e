"""Sends commands to the servers of a Redis cluster that have their keys.

Commands of one server go in one pipeline, in their order. A slot that has moved or is moving is
followed, so commands that share a key are carried out in their order all the time. A server that
does not answer is an error of the whole: the caller connects again, and sends everything again.
Read next: `broker.backends.redis.cluster_sink`.
"""

import time
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import redis.exceptions

# How often commands follow slots that move, and how long they wait before: servers learn of a move
# one after another.
ROUNDS_MAX: Final = 16
ROUND_PAUSE_S: Final = 0.05
# Answers that mean that the server does not take the command now.
TRANSIENT: Final = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
)
TRANSIENT_PREFIXES: Final = ("MISCONF ", "NOREPLICAS ", "BUSY ")
REDIRECTED: Final = (redis.exceptions.AskError, redis.exceptions.TryAgainError)  # MOVED is an ASK

# Commands with a second word, which is not for the driver unless it is text.
TWO_WORDS: Final = frozenset({"XGROUP", "XINFO", "OBJECT", "MEMORY"})

Arguments: TypeAlias = Sequence[bytes | str | int]


class Misrouted(Exception):
    """A command has no server: its keys are on several, or it is none."""


class Router:
    """One cluster."""

    def __init__(self, client: Any) -> None:
        """`client` is a `RedisCluster`."""
        self._client: Final = client
        self.moves: int = 0  # how often slots were found elsewhere

    def slot(self, key: bytes) -> int:
        """Return the slot of a key."""
        return int(self._client.keyslot(key))

    def slot_of(self, command: Sequence[bytes]) -> int:
        """Return the slot of any command. Raises `Misrouted`, and what the client does."""
        name = command[0].decode("utf-8", "replace")
        words: list[Any] = [name, *command[1:]]
        if name.upper() in TWO_WORDS and len(words) > 1:
            words[1] = command[1].decode("utf-8", "replace")
        server = self._client.get_default_node().redis_connection
        try:
            keys = self._client.commands_parser.get_keys(server, *words) or ()
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
            raise
        except redis.exceptions.RedisError as problem:  # the servers do not know it
            raise Misrouted(str(problem)) from None
        except IndexError:
            raise Misrouted(f"wrong number of arguments for {name}") from None
        slots = {self.slot(key) for key in keys}
        if len(slots) > 1:
            raise Misrouted("CROSSSLOT the keys of the command are in several slots")
        return slots.pop() if slots else 0  # without a key any server will do

    def masters(self) -> list[tuple[str, Any]]:
        """Return name and client of each server that has slots."""
        return [
            (node.name, self._client.get_redis_connection(node))
            for node in self._client.get_primaries()
        ]

    def master_of(self, slot: int) -> str:
        """Return the name of the server that has a slot."""
        return str(self._client.nodes_manager.get_node_from_slot(slot).name)

    def run(self, commands: Sequence[tuple[int, Arguments]]) -> list[Any]:
        """Carry out commands, each with its slot; return their answers, errors among them.

        Raises what the client does, and the error of a server that takes nothing now: then nobody
        knows which commands were carried out.
        """
        answers: list[Any] = [None] * len(commands)
        left = list(range(len(commands)))
        for number in range(ROUNDS_MAX):
            if number:
                time.sleep(ROUND_PAUSE_S)
            left = self._round(commands, left, answers)
            if not left:
                return answers
            self.moves += 1
            self._client.nodes_manager.initialize()
        raise answers[left[0]]

    def _round(
        self, commands: Sequence[tuple[int, Arguments]], wanted: list[int], answers: list[Any]
    ) -> list[int]:
        """Carry out some commands where they are believed to belong; return those to try again."""
        nodes: dict[str, tuple[Any, list[int]]] = {}
        for index in wanted:
            node = self._client.nodes_manager.get_node_from_slot(commands[index][0])
            nodes.setdefault(node.name, (node, []))[1].append(index)
        left: list[int] = []
        for node, indexes in nodes.values():
            told = [commands[index][1] for index in indexes]
            for index, answer in zip(indexes, self._tell(node, told), strict=True):
                answers[index] = answer
                if isinstance(answer, REDIRECTED):
                    left.append(index)
        left.sort()
        return self._follow(commands, left, answers)

    def _follow(
        self, commands: Sequence[tuple[int, Arguments]], wanted: list[int], answers: list[Any]
    ) -> list[int]:
        """Ask the servers that slots are moving to; return the commands that are to be tried again.

        One by one, and no further in a slot with one that is left: the order stays as it is.
        """
        left: list[int] = []
        stuck: set[int] = set()
        for index in wanted:
            slot, command = commands[index]
            asked = answers[index]
            is_moving = type(asked) is redis.exceptions.AskError and slot not in stuck
            node = self._client.get_node(host=asked.host, port=asked.port) if is_moving else None
            if node is not None:
                _, answers[index] = self._tell(node, [("ASKING",), command])
            if isinstance(answers[index], REDIRECTED):
                left.append(index)
                stuck.add(slot)
        return left

    def _tell(self, node: Any, commands: list[Arguments]) -> list[Any]:
        client = self._client.get_redis_connection(node)
        with client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            found: list[Any] = pipeline.execute(raise_on_error=False)
        for answer in found:
            if isinstance(answer, TRANSIENT) or (
                isinstance(answer, redis.exceptions.ResponseError)
                and str(answer).startswith(TRANSIENT_PREFIXES)
            ):
                raise answer
        return found
