"""Clients of Kafka that say what a test tells them to, on the threads that the real ones use."""

import queue
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import pytest

from storage.replicated.log_port import Event

watch: Any = pytest.importorskip("storage.replicated.kafka.watch")
PATIENCE_S: Final = 30.0


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


class StandInProducer:
    """A producer; `acts` are done on the thread that polls, one a poll."""

    made: Final[list["StandInProducer"]] = []

    def __init__(self, settings: dict[str, Any], logger: Any = None) -> None:
        self.settings = settings
        self.sent: list[tuple[bytes, Callable[[Any, Any], None]]] = []
        self.acts: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.refusal: Exception | None = None
        self.is_purged = False
        self.made.append(self)

    def produce(self, topic: str, data: bytes, partition: int, on_delivery: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.sent.append((data, on_delivery))

    def poll(self, seconds: float) -> int:
        try:
            act = self.acts.get(timeout=seconds)
        except queue.Empty:
            return 0
        act()
        return 1

    def purge(self) -> None:
        self.is_purged = True

    def flush(self, seconds: float) -> int:
        return 0

    def answers(self, number: int, error: Any = None, place: int = 0) -> None:
        """Have the outcome of an append told."""
        heard = self.sent[number][1]
        self.acts.put(lambda: heard(error, StandInMessage(place)))

    def fails(self, problem: Exception) -> None:
        """Have the next poll raise."""

        def act() -> None:
            raise problem

        self.acts.put(act)


class StandInMessage:
    """A record, or an error in its place."""

    def __init__(self, place: int, data: bytes = b"", epoch: int = 0, error: Any = None) -> None:
        self._found = place, data, epoch, error

    def offset(self) -> int:
        return self._found[0]

    def value(self) -> bytes:
        return self._found[1]

    def leader_epoch(self) -> int:
        return self._found[2]

    def error(self) -> Any:
        return self._found[3]


class StandInConsumer:
    """A consumer, which gives what `messages` holds."""

    made: Final[list["StandInConsumer"]] = []

    def __init__(self, settings: dict[str, Any], logger: Any = None) -> None:
        self.messages: deque[StandInMessage] = deque()
        self.assigned: list[Any] = []
        self.is_closed = False
        self.made.append(self)

    def assign(self, places: list[Any]) -> None:
        self.assigned = places

    def poll(self, seconds: float) -> StandInMessage | None:
        return self.messages.popleft() if self.messages else None

    def consume(self, count: int, seconds: float) -> list[StandInMessage]:
        found = list(self.messages)[:count]
        for _ in found:
            self.messages.popleft()
        return found

    def close(self) -> None:
        self.is_closed = True


class Found:
    """An answer of a server."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class StandInAdmin:
    """What the servers say of the topic; None = they do not answer."""

    def __init__(self) -> None:
        self.start: int = 0
        self.end: int | None = 0
        self.epoch: int | None = 0
        self.id = "first"
        self.deleted: list[int] = []
        self.refusal: Exception | None = None
        self.waiting: list[tuple[Future[Any], Any]] | None = None  # None = answers at once

    def list_offsets(self, wanted: dict[Any, Any], request_timeout: float) -> dict[Any, Any]:
        ((partition, spec),) = wanted.items()
        if self.end is None:
            return {partition: self._answer(Found(offset=-1001, leader_epoch=None))}
        place = self.start if spec is watch.EARLIEST else self.end
        return {partition: self._answer(Found(offset=place, leader_epoch=self.epoch))}

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[Any, Any]:
        (name,) = topics.topic_names
        return {name: self._answer(Found(topic_id=self.id))}

    def delete_records(self, wanted: list[Any], request_timeout: float) -> dict[Any, Any]:
        self.deleted.append(wanted[0].offset)
        return {wanted[0]: self._answer(None)}

    def _answer(self, found: Any) -> Any:
        future: Future[Any] = Future()
        if self.refusal is not None:
            future.set_exception(self.refusal)
        elif self.waiting is None:
            future.set_result(found)
        else:
            self.waiting.append((future, found))
        return future

    def answer(self) -> None:
        """Answer what waits."""
        waiting, self.waiting = self.waiting or [], None
        for future, found in waiting:
            future.set_result(found)


def kinds(events: list[Event]) -> list[str]:
    """Return the names of events."""
    return [type(event).__name__ for event in events]
