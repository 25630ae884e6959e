"""Appends to one partition of Kafka, and tells how that has ended.

The producer is idempotent and waits for all in-sync replicas: its own retries make no repeat and
change no order. When it has failed for good (its id was lost, its sequence does not fit) another
one takes its place. What the old one had on its way may still arrive, even after what the new one
sends; whoever reads must be able to tell (`storage.replicated.record.counts`).

Read next: `storage.replicated.kafka.inbox` (where the outcomes go).
"""

import functools
import threading
import time
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from storage.replicated.kafka import client
from storage.replicated.kafka.inbox import Inbox
from storage.replicated.log_port import Acked, Unknown

# The largest record. With what Kafka adds it is below the limit that a topic has by default; sets
# of records keep to it as well, as the limit is one of sets.
RECORD_BYTES_MAX: Final = 900_000
OVERHEAD_BYTES: Final = 4096
# After it the outcome is unknown, 0 = never: whoever waits decides. With a limit, what waits behind
# a record that was given up is sent anew under another id, so it may be in the log many times.
OUTCOME_MS: Final = 0
QUEUE_KIB: Final = 64 << 10
QUEUE_RECORDS: Final = 100_000
POLL_S: Final = 0.1
RETRY_S: Final = 1.0
# How long it takes until an append that has failed is told: it is sent again then, and with it all
# that was behind it.
AGAIN_S: Final = 0.25
FAILING_S: Final = 5.0  # for so long appends fail until an operator is told why
FAILED: Final = "the producer has failed for good"
UNANSWERED: Final = (
    "no acknowledgement for some seconds: are fewer servers in sync than min.insync.replicas?"
)
FULL: Final = "the queue to Kafka is full"
# Of a record that is sent again after its answer got lost, the servers may not know it any more.
NOWHERE: Final = "the servers do not say at which place it is"


class Sender:
    """One producer at a time, and the thread that hears it."""

    def __init__(
        self, access: client.Access, topic: str, inbox: Inbox, *, outcome_ms: int = OUTCOME_MS
    ) -> None:
        self._access: Final = access
        self._topic: Final = topic
        self._inbox: Final = inbox
        self._outcome_ms: Final = outcome_ms
        self._lock: Final = threading.Lock()
        self._producer: Producer | None = None
        self._number = 0  # of the producer: an old one's outcomes do not count
        self._waiting: set[int] = set()  # tokens
        self._waited_since = 0.0  # since when there are some, or one of them was acknowledged last
        self._refused: list[Unknown] = []  # to be told, some time after the first one
        self._refused_at = 0.0
        self._failing_since = 0.0  # 0 = the last append that has ended did not fail
        self._failure = ""  # of the last one that did
        self._is_broken = False
        self._why = FAILED  # it is
        self._said = "not connected"
        self._ending: Final = threading.Event()
        self._thread: Final = threading.Thread(
            target=self._run, name="replicated-log-sender", daemon=True
        )

    def start(self) -> None:
        """Connect, and start to listen."""
        self._connect()
        self._thread.start()

    def append(self, data: bytes, token: int | None) -> None:
        """Hand a record to the producer. Never blocks.

        That it could not be is told a while later, or once there is another producer.
        """
        with self._lock:
            why = self._produce(data, token)
            if why and token is not None:
                self._refuse(token, why)

    def _refuse(self, token: int, why: str) -> None:
        """Have it told that an append has failed: not at once, as the next try may fail like it."""
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        self._failure = why
        if not self._refused:
            self._refused_at = now
        self._refused.append(Unknown(token, why))

    @property
    def refusal(self) -> str:
        """Why no append of the last seconds was acknowledged, "" = one was, or none was made.

        The producer itself tries again for ever, without a word, while too few are in sync.
        """
        now, since = time.monotonic(), self._failing_since
        if since and now - since > FAILING_S:
            return self._failure
        return UNANSWERED if self._waiting and now - self._waited_since > FAILING_S else ""

    def _tell_refused(self) -> None:
        """Tell of what was refused a while ago."""
        with self._lock:
            is_due = time.monotonic() - self._refused_at >= AGAIN_S
            if not self._refused or not is_due:
                return
            refused, self._refused = self._refused, []
        self._inbox.put(refused)

    def _produce(self, data: bytes, token: int | None) -> str:
        """Return why it could not be handed over, "" = it was."""
        if self._producer is None:
            return self._said
        heard = functools.partial(self._hear, self._number, token)
        try:
            self._producer.produce(self._topic, data, partition=0, on_delivery=heard)
        except BufferError:
            return FULL
        except KafkaException as problem:
            self._is_broken |= problem.args[0].code() == KafkaError._FATAL
            return client.text(problem)
        if token is not None:
            if not self._waiting:
                self._waited_since = time.monotonic()
            self._waiting.add(token)
        return ""

    def _hear(
        self, number: int, token: int | None, error: KafkaError | None, message: Message
    ) -> None:
        """Note how an append has ended."""
        with self._lock:
            if number != self._number:
                return
            if error is not None and (error.fatal() or error.code() == KafkaError._FATAL):
                self._is_broken = True
            if token is None:
                return
            self._waiting.discard(token)
            if error is not None:
                self._refuse(token, client.text(error))
                return
            self._failing_since = 0.0
            self._waited_since = time.monotonic()
        place = message.offset()
        if place is None or place < 0:
            self._inbox.put([Unknown(token, NOWHERE)])
        else:
            self._inbox.put([Acked(token, place)])

    def renew(self, why: str) -> None:
        """Have another producer take the place of this one."""
        self._why = why
        self._is_broken = True

    # The thread

    def _run(self) -> None:
        while not self._ending.is_set():
            self._tell_refused()
            if self._producer is None:
                self._ending.wait(RETRY_S)
                self._connect()
                continue
            try:
                self._producer.poll(POLL_S)
            except (KafkaException, SystemError) as problem:
                self._replace(client.text(client.cause(problem)))
            else:
                if self._is_broken:
                    self._replace(self._why)

    def _connect(self) -> None:
        """Make a producer if one can be made."""
        try:
            producer = Producer(self._settings(), logger=client.UNHEARD)
        except (KafkaException, ValueError, OSError) as problem:
            self._said = client.text(problem)
            return
        with self._lock:
            self._producer = producer
            self._refused_at = 0.0
            self._is_broken = False
            self._why = FAILED

    def _settings(self) -> dict[str, Any]:
        return {
            **client.settings(self._access),
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "request.timeout.ms": self._access.timeout_ms,
            "message.timeout.ms": self._outcome_ms,
            "message.max.bytes": RECORD_BYTES_MAX + OVERHEAD_BYTES,
            "batch.size": RECORD_BYTES_MAX,
            "queue.buffering.max.kbytes": QUEUE_KIB,
            "queue.buffering.max.messages": QUEUE_RECORDS,
            "retry.backoff.ms": 50,
            "retry.backoff.max.ms": client.RECONNECT_MS_MAX,
            "error_cb": self._note,
        }

    def _note(self, error: KafkaError) -> None:
        self._said = client.text(error)

    def _replace(self, why: str) -> None:
        """Give up a producer, and with it what it has not told of. Then make another one."""
        self._give_up(why)
        self._connect()

    def _give_up(self, why: str) -> None:
        with self._lock:
            old, self._producer = self._producer, None
            self._number += 1
            self._said = why
            lost = sorted(self._waiting)
            self._waiting.clear()
            refused, self._refused = self._refused, []
        self._inbox.put([*refused, *(Unknown(token, why) for token in lost)])
        if old is not None:
            old.purge()
            try:
                old.flush(0)
            except (KafkaException, SystemError) as problem:
                self._said = client.text(client.cause(problem))

    def close(self, seconds: float) -> None:
        """End the thread; outcomes that were not heard are unknown."""
        self._ending.set()
        self._thread.join(seconds)
        self._give_up("closed")
