"""Asks the servers where a partition ends and which topic it is of, without waiting for answers.

A consumer alone cannot tell "there is nothing more" from "I am cut off": either way it says
nothing. So the leader of the partition is asked for its end, again and again; only an answer is
one. An answer of a leader that was deposed, e.g. one that was stopped for a while, is told by its
epoch. A topic that was deleted and made again is told by its id.

Read next: `storage.replicated.kafka.reader`.
"""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from storage.replicated.kafka import client

EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]

ASK_MS: Final = 100  # between two questions for the end
ASK_ID_MS: Final = 5000  # between two for the topic's id
ASK_ID_SOON_MS: Final = 500  # the same while something is wrong


@dataclass(frozen=True, slots=True)
class End:
    """What the leader has answered: `offset` was the end of the log, not before `asked_ms`."""

    offset: int
    epoch: int  # of the leader
    asked_ms: int
    position: int  # of whoever asked, then


class Watch:
    """Questions to the servers, one of each kind at a time; answers come on another thread."""

    def __init__(
        self, access: client.Access, topic: str, clock: Callable[[], int],
        heard: Callable[[End], None],
    ) -> None:  # fmt: skip
        self._access: Final = access
        self._partition: Final = TopicPartition(topic, 0)
        self._topic: Final = topic
        self._clock: Final = clock
        self._heard: Final = heard
        self._timeout_s: Final = access.timeout_ms / 1000
        self._admin: AdminClient | None = None
        self._lock: Final = threading.Lock()
        self._is_asking = False
        self._asked_ms = -ASK_MS
        self._is_asking_id = False
        self._asked_id_ms = -ASK_ID_MS
        self._ids: list[str] = []  # of topics of this name, the present one last
        self._is_other = False
        self._delete_to = 0
        self._deleted_to = 0
        self._is_deleting = False
        self._delete_ms = 0
        self.said = ""  # what went wrong last, "" = nothing since the last good answer

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(client.settings(self._access), logger=client.UNHEARD)
        return self._admin

    def renew(self) -> None:
        """Ask by another client from now on; what this one was asked may never be answered."""
        self._admin = None
        self._is_asking = self._is_asking_id = self._is_deleting = False

    def ask(self, position: int, *, is_wrong: bool) -> None:
        """Ask what is due. `position`: what is read next. `is_wrong`: something does not fit."""
        now = self._clock()
        try:
            if not self._is_asking and now - self._asked_ms >= ASK_MS:
                self._ask_end(now, position)
            pause_ms = ASK_ID_SOON_MS if is_wrong else ASK_ID_MS
            if not self._is_asking_id and now - self._asked_id_ms >= pause_ms:
                self._ask_id(now)
            if not self._is_deleting and self._delete_to > self._deleted_to:
                self._ask_deletion(now)
        except (KafkaException, OSError) as problem:
            self.said = client.text(problem)

    def _ask_end(self, now: int, position: int) -> None:
        self._asked_ms = now
        future = self._offset(LATEST)
        self._is_asking = True
        future.add_done_callback(functools.partial(self._hear_end, now, position))

    def _offset(self, spec: OffsetSpec) -> "Future[Any]":
        wanted = {self._partition: spec}
        found = self._client().list_offsets(wanted, request_timeout=self._timeout_s)
        return found[self._partition]

    def _hear_end(self, asked_ms: int, position: int, future: "Future[Any]") -> None:
        end = self._end(future, asked_ms, position)
        self._is_asking = False
        if end is not None:
            self.said = ""
            self._heard(end)

    def _end(self, future: "Future[Any]", asked_ms: int, position: int) -> End | None:
        try:
            found = future.result()
        except KafkaException as problem:
            self.said = client.text(problem)
            return None
        if found.offset < 0:  # as an error of the partition is told
            self.said = "the leader of the partition does not answer"
            return None
        epoch = -1 if found.leader_epoch is None else found.leader_epoch
        return End(found.offset, epoch, asked_ms, position)

    def bounds(self, position: int) -> tuple[End, End] | None:
        """Return where the log begins and ends; None = it cannot be had. Waits for it."""
        now = self._clock()
        try:
            futures = [self._offset(spec) for spec in (EARLIEST, LATEST)]
        except (KafkaException, OSError) as problem:
            self.said = client.text(problem)
            return None
        start, end = (self._end(future, now, position) for future in futures)
        return None if start is None or end is None else (start, end)

    # The id

    def _ask_id(self, now: int) -> None:
        self._asked_id_ms = now
        found = self._client().describe_topics(
            TopicCollection([self._topic]), request_timeout=self._timeout_s
        )
        self._is_asking_id = True
        found[self._topic].add_done_callback(self._hear_id)

    def _hear_id(self, future: "Future[Any]") -> None:
        try:
            id = str(future.result().topic_id)
        except KafkaException as problem:
            self.said = f"topic {self._topic}: {client.text(problem)}"
        else:
            with self._lock:
                if id not in self._ids:  # a server that was away may still tell an old one
                    self._is_other |= bool(self._ids)
                    self._ids.append(id)
        self._is_asking_id = False

    def is_other_topic(self) -> bool:
        """Return, once, whether the topic was deleted and another one has its name."""
        with self._lock:
            is_other, self._is_other = self._is_other, False
        return is_other

    # Deletion

    def delete_before(self, place: int) -> None:
        """Have the records before `place` deleted, some time."""
        self._delete_to = max(self._delete_to, place)

    def _ask_deletion(self, now: int) -> None:
        if now < self._delete_ms:
            return
        self._delete_ms = now + ASK_ID_SOON_MS
        place = self._delete_to
        wanted = TopicPartition(self._topic, 0, place)
        future = self._client().delete_records([wanted], request_timeout=self._timeout_s)[wanted]
        self._is_deleting = True
        future.add_done_callback(functools.partial(self._hear_deletion, place))

    def _hear_deletion(self, place: int, future: "Future[Any]") -> None:
        try:
            future.result()
        except KafkaException as problem:
            self.said = f"deletion of records: {client.text(problem)}"
        else:
            self._deleted_to = place
        self._is_deleting = False
