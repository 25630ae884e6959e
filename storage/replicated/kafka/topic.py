"""The topic of a replicated log: makes it, and tells in a line each what is wrong with it.

A wrong setting would lose what was acknowledged, or stop the log: too few replicas, a leader that
was not in sync, records that are deleted by themselves, a size that is refused.
Read next: docs/cluster.md.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from storage.replicated.kafka import client
from storage.replicated.kafka.sender import OVERHEAD_BYTES, RECORD_BYTES_MAX

REPLICAS: Final = 3
SET_BYTES_MAX: Final = RECORD_BYTES_MAX + OVERHEAD_BYTES
NEW_SET_BYTES_MAX: Final = 1 << 20
TRIES: Final = 3  # a question may end with its connection
TIMEOUT_S: Final = 30.0
SOCKET_MS: Final = 10_000
AGAIN_S: Final = 0.1
REFUSED_S: Final = 3.0  # for another server to answer, when one does not let this node in
NOT_HEARD: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
RETRIED: Final = frozenset(
    {KafkaError._DESTROY_BROKER, KafkaError._TRANSPORT, KafkaError.NOT_CONTROLLER}
)

# What is the same in every topic, with why.
FIXED: Final[Mapping[str, tuple[str, str]]] = {
    "cleanup.policy": ("delete", "compaction would delete records that are needed"),
    "retention.ms": ("-1", "old records would be deleted by themselves"),
    "retention.bytes": ("-1", "old records would be deleted by themselves"),
    "unclean.leader.election.enable": ("false", "a leader may lack acknowledged records"),
}
IN_SYNC: Final = "min.insync.replicas"
SIZE: Final = "max.message.bytes"


class TopicError(Exception):
    """The topic could not be asked or made; the message is one line."""


def in_sync(replicas: int) -> int:
    """Return how many replicas must have a record: most of them."""
    return replicas // 2 + 1


def create_topic(
    access: client.Access, topic: str, replicas: int = REPLICAS, *, timeout_s: float = TIMEOUT_S
) -> bool:
    """Make the topic as it must be; return False if there is one. Raises `TopicError`."""
    settings = {key: value for key, (value, _) in FIXED.items()}
    settings[IN_SYNC] = str(in_sync(replicas))
    settings[SIZE] = str(NEW_SET_BYTES_MAX)
    new = NewTopic(topic, 1, replicas, config=settings)
    asking = _Asking(access, topic)
    try:
        asking.ask(lambda admin: admin.create_topics([new], request_timeout=timeout_s)[topic])
    except _Refused as problem:
        if problem.code == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise
    return True


def delete_topic(access: client.Access, topic: str, *, timeout_s: float = TIMEOUT_S) -> None:
    """Delete the topic. Raises `TopicError`."""
    asking = _Asking(access, topic)
    asking.ask(lambda admin: admin.delete_topics([topic], request_timeout=timeout_s)[topic])


def check_topic(
    access: client.Access,
    topic: str,
    replicas: int = REPLICAS,
    *,
    is_new: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> list[str]:
    """Return a line for each setting that is wrong. Raises `TopicError` if it cannot be asked.

    Of a topic that `is_new` not all servers may have heard yet: they are asked again for a while.
    """
    asking = _Asking(access, topic)
    deadline = time.monotonic() + (timeout_s if is_new else 0.0)
    while True:
        try:
            return _checked(asking, topic, replicas, timeout_s)
        except _Refused as problem:
            if problem.code not in NOT_HEARD or time.monotonic() >= deadline:
                raise
        time.sleep(AGAIN_S)


def _checked(asking: "_Asking", topic: str, replicas: int, timeout_s: float) -> list[str]:
    topics = TopicCollection([topic])
    found = asking.ask(
        lambda admin: admin.describe_topics(topics, request_timeout=timeout_s)[topic]
    )
    wanted = ConfigResource(ResourceType.TOPIC, topic)
    settings = asking.ask(
        lambda admin: admin.describe_configs([wanted], request_timeout=timeout_s)[wanted]
    )
    sizes = [len(each.replicas) for each in found.partitions]
    values = {key: str(entry.value) for key, entry in settings.items()}
    return [f"topic {topic}: {line}" for line in problems(sizes, values, replicas)]


def problems(sizes: list[int], values: Mapping[str, str], replicas: int) -> Iterator[str]:
    """Yield what is wrong; `sizes`: how many replicas each partition has."""
    if len(sizes) != 1:
        yield f"{len(sizes)} partitions: expected exactly 1, or records have no common order"
    fewest = min(sizes, default=0)
    if fewest < replicas:
        yield f"{fewest} replica(s): expected at least {replicas}"
    low, high = (2, fewest - 1) if fewest > 2 else (fewest, fewest)
    if not low <= _number(values, IN_SYNC) <= high:
        expected = f"{low} to {high}" if low < high else f"{low}"
        yield (
            f"{IN_SYNC} = {values.get(IN_SYNC)}: expected {expected} with {fewest} replica(s): so "
            "many have what is acknowledged, and with one broker away it must go on"
        )
    for key, (expected, why) in FIXED.items():
        if values.get(key) != expected:
            yield f"{key} = {values.get(key)}: expected {expected}: {why}"
    if _number(values, SIZE) < SET_BYTES_MAX:
        yield (
            f"{SIZE} = {values.get(SIZE)}: expected at least {SET_BYTES_MAX}: a record may be as "
            "large"
        )


def _number(values: Mapping[str, str], key: str) -> int:
    text = values.get(key, "")
    return int(text) if text.isdecimal() else 0


class _Refused(TopicError):
    """The servers have refused what they were asked."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code: Final = code


class _Asking:
    """A client that asks about one topic and waits for the answers."""

    def __init__(self, access: client.Access, topic: str) -> None:
        self._about: Final = f"{', '.join(access.servers)}: topic {topic}"
        self._said = ""
        self._refused_at: float | None = None  # when this node was not let in, if it was
        try:
            settings = client.settings(access)
            settings |= {"socket.timeout.ms": SOCKET_MS, "error_cb": self._note}
            self._admin: Final = AdminClient(settings, logger=client.UNHEARD)
        except (KafkaException, ValueError, OSError) as problem:
            raise TopicError(client.text(problem)) from None

    def _note(self, error: KafkaError) -> None:
        if client.is_refusal(error):
            self._refused_at = self._refused_at or time.monotonic()
        elif self._refused_at is not None:
            return  # what comes of that says less
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self._said:
            self._said = client.text(error)

    def ask(self, call: "Callable[[AdminClient], Future[Any]]") -> Any:
        """Return the answer. Raises `TopicError`."""
        for left in reversed(range(TRIES)):
            try:
                return self._result(call(self._admin))
            except KafkaException as problem:
                self._admin.poll(0)  # it may say why
                error = problem.args[0]
                if error.code() not in RETRIED or not left:
                    why = self._said if error.code() == KafkaError._TIMED_OUT else ""
                    raise _Refused(
                        f"{self._about}: {why or client.text(problem)}", error.code()
                    ) from None
        raise AssertionError("unreachable")

    def _result(self, future: "Future[Any]") -> Any:
        """Return the answer, or give up soon if no server lets this node in."""
        while True:
            try:
                return future.result(AGAIN_S)
            except TimeoutError:
                self._admin.poll(0)
            since = self._refused_at
            if since is not None and time.monotonic() - since > REFUSED_S:
                raise _Refused(f"{self._about}: {self._said}", KafkaError._AUTHENTICATION)
