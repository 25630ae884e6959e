"""Writes rows to Apache Kafka.

The producer is idempotent and waits for all in-sync replicas, so rows of one key stay in order and
no retry of its own makes a repeat. The cursor is the broker's: a batch whose end was not heard of
is sent again, so every row arrives at least once. Read next: `broker.backends.kafka_rows` (what is
sent), `broker.backends.json_rows`.

A row that Kafka refuses is sent once more alone, as it may have been refused for its neighbours;
then it is a dead letter. A topic that is not there, or not for us, makes the rows wait if it is the
configured one. If rows choose their topic, it is theirs: a dead letter, unless no topic is for us.
"""

import functools
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from broker.backends.json_rows import JsonRow, JsonRows
from broker.backends.kafka_rows import KafkaRows
from broker.backends.rows import RowBatch
from broker.backends.sink import UNKNOWN, Fence, Options, Poison, Refusal, Unavailable

TOPICS_MAX: Final = 5000  # that a producer may know; it keeps them all in memory
MESSAGE_BYTES_MAX: Final = 1_000_000_000  # the servers decide; this is the client's largest limit
# One message may be larger than a set of them, which must be below the limit of most servers.
SET_BYTES: Final = 900_000

ABOUT_THE_ROW: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError._INVALID_DIFFERENT_RECORD,
    }
)
ABOUT_THE_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
    }
)

# Its errors are heard by `error_cb`. Without a logger it writes the fatal ones to stderr, too.
UNHEARD: Final = logging.Logger("librdkafka", logging.CRITICAL + 1)


class KafkaSink:
    """One Kafka cluster."""

    def __init__(self, options: Options) -> None:
        self._options: Final = options
        self._values: Final = options.values
        self._rows: Final = JsonRows(options)
        self._as: Final = KafkaRows(
            options.node,
            self._values["topic"],
            self._values.get("key", "topic"),
            self._values.get("value", "json"),
        )
        self._timeout_s: Final = self._values.get("timeout_ms", 5000) / 1000
        self._producer: Producer | None = None
        self._topics: set[str] = set()
        self._may_write = False  # is known: a message was taken, or its producer got an id
        self._said = ""  # what the client said last of its connections

    # The interface of a sink

    def open(self) -> Fence | None:
        """Connect, and see that the topic is there."""
        self.close()
        self._said = ""
        try:
            self._producer = Producer(self._settings(), logger=UNHEARD)
        except (KafkaException, ValueError) as problem:
            raise self._unavailable(_text(problem)) from None
        self._look_at_topic()
        return UNKNOWN

    def start(self, fence: Fence, *, is_rewind: bool) -> None:
        """Nothing: the cursor is the broker's."""

    def apply(self, batch: RowBatch, instance: str) -> list[Poison]:
        """Send the rows of a batch; when it returns, all are acknowledged or refused."""
        rows, poisons = self._rows.of(batch, instance)
        for row, error in self._send(rows):
            if len(rows) > 1 and isinstance(error, KafkaError) and error.code() in ABOUT_THE_ROW:
                alone = self._send([row])
                if not alone:
                    continue
                error = alone[0][1]
            poisons.append(Poison(row.index, row.rule.number, _text(error)))
        return poisons

    def refusals(self, instance: str) -> list[Refusal]:
        """Return nothing: Kafka remembers none."""
        return []

    def look(self) -> Fence | None:
        """Say that the cursor is the broker's, and take what the client has to say."""
        self._hear(functools.partial(self._opened().poll, 0))
        return UNKNOWN

    def health(self) -> dict[str, Any]:
        """Return what the cluster is, and what an operator should change."""
        found = self._look_at_topic()
        return {
            "server": "Kafka",
            "version": f"cluster {found.cluster_id}, {len(found.brokers)} broker(s)",
            "writable": True,
            "problems": self._problems(found),
        }

    def create(self) -> list[str]:
        """Make nothing: there are no tables."""
        return []

    def close(self) -> None:
        """End the producer; what it still had is sent again by the next one."""
        producer, self._producer = self._producer, None
        self._topics.clear()
        self._may_write = False
        if producer is not None:
            producer.purge()
            try:
                producer.flush(0)
            except (KafkaException, SystemError) as problem:
                self._said = _text(_fatal(problem))

    # Sending

    def _send(self, rows: Sequence[JsonRow]) -> list[tuple[JsonRow, KafkaError | ValueError]]:
        """Send rows and wait for their ends; return those that were refused, in their order."""
        if len(self._topics) > TOPICS_MAX:
            self.open()
        producer = self._opened()
        failed: dict[int, KafkaError | ValueError] = {}
        for row in rows:
            try:
                topic = self._as.topic(row)
                self._topics.add(topic)
                producer.produce(
                    topic,
                    self._as.value(row),
                    self._as.key(row),
                    headers=list(self._as.headers(row)),
                    timestamp=row.fields["timestamp"],
                    on_delivery=functools.partial(_note, failed, row.index),
                )
            except ValueError as problem:
                failed[row.index] = problem
            except KafkaException as problem:
                failed[row.index] = problem.args[0]
            except BufferError as problem:
                raise self._unavailable(str(problem)) from None
        self._wait(producer)
        self._may_write |= len(failed) < len(rows)
        for error in failed.values():
            if isinstance(error, KafkaError) and not self._is_refusal(error):
                raise self._unavailable(_text(error))
            if _is_forbidden(error) and not self._may_write:
                self._ask_for_id()
        return [(row, failed[row.index]) for row in rows if row.index in failed]

    def _wait(self, producer: Producer) -> None:
        """Wait until everything was answered, for as long as answers come."""
        waiting = len(producer)
        while waiting:
            left = self._hear(functools.partial(producer.flush, self._timeout_s))
            if left >= waiting:
                raise self._unavailable(self._said or f"no answer for {left} row(s)")
            waiting = left

    def _ask_for_id(self) -> None:
        """See that a producer of ours gets an id. Raises `Unavailable` if it gets none.

        Without a right to write anywhere it gets none, but a topic may be refused before that is
        known. Only statistics say that it has one, and they are dear once topics are known.
        """
        states: list[str] = []
        settings = {
            **self._settings(),
            "statistics.interval.ms": 10,
            "stats_cb": lambda text: states.append(json.loads(text)["eos"]["idemp_state"]),
        }
        producer = Producer(settings, logger=UNHEARD)
        deadline = time.monotonic() + self._timeout_s
        while "Assigned" not in states:
            if time.monotonic() > deadline:
                raise self._unavailable(self._said or "no answer to a request for a producer's id")
            self._hear(functools.partial(producer.poll, 0.05))
        self._may_write = True

    def _hear(self, call: Callable[[], int]) -> int:
        """Take what the client says. Raises `Unavailable` if its producer has failed for good."""
        try:
            return call()
        except (KafkaException, SystemError) as problem:
            raise self._unavailable(_text(_fatal(problem))) from None

    def _is_refusal(self, error: KafkaError) -> bool:
        if error.code() in ABOUT_THE_TOPIC:
            return self._as.fixed is None
        return error.code() in ABOUT_THE_ROW

    # Connecting

    def _opened(self) -> Producer:
        if self._producer is None:
            raise Unavailable("not connected")
        return self._producer

    def _look_at_topic(self) -> Any:
        """Return what the cluster says of itself. Raises `Unavailable`."""
        producer = self._opened()
        fixed = self._as.fixed
        try:
            if fixed is None:
                return producer.list_topics(timeout=self._timeout_s)
            found = producer.list_topics(fixed, timeout=self._timeout_s)
        except KafkaException as problem:
            self._hear(functools.partial(producer.poll, 0))  # it may say why
            raise self._unavailable(self._said or _text(problem)) from None
        error = found.topics[fixed].error
        if error is not None:
            raise self._unavailable(f"topic {fixed}: {_text(error)}")
        return found

    def _settings(self) -> dict[str, Any]:
        values = self._values
        timeout_ms = int(self._timeout_s * 1000)
        username = values.get("username")
        protocol = "SSL" if values.get("tls") else "PLAINTEXT"
        settings: dict[str, Any] = {
            "bootstrap.servers": ",".join(values["servers"]),
            "client.id": f"holdfast-{self._options.name}",
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",  # the same partitions as Java clients
            "message.timeout.ms": 0,  # whoever waits decides; so no row overtakes an earlier one
            "message.max.bytes": MESSAGE_BYTES_MAX,
            "batch.size": SET_BYTES,
            "socket.timeout.ms": max(timeout_ms, 1000),
            "socket.connection.setup.timeout.ms": max(timeout_ms, 1000),
            "topic.metadata.propagation.max.ms": timeout_ms // 2,
            "security.protocol": f"SASL_{protocol}" if username is not None else protocol,
            "log_level": 0,
            "error_cb": self._note_error,
        }
        if username is not None:
            settings |= {
                "sasl.mechanism": values.get("sasl_mechanism") or "PLAIN",
                "sasl.username": username,
                "sasl.password": self._password(),
            }
        if values.get("tls"):
            settings |= {
                "ssl.ca.location": values.get("tls_ca") or "probe",
                "enable.ssl.certificate.verification": bool(values.get("tls_verify", True)),
            }
            if values.get("tls_certificate") is not None:
                settings["ssl.certificate.location"] = values["tls_certificate"]
                settings["ssl.key.location"] = values.get("tls_key") or values["tls_certificate"]
        return settings

    def _password(self) -> str:
        """Return the password; a file is read again at each connect, so that it can be changed."""
        path = self._values.get("password_file")
        if path is None:
            return str(self._values.get("password") or "")
        try:
            with open(path, encoding="utf-8") as file:
                return file.readline().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as problem:
            raise Unavailable(f"password_file {path}: {problem}") from None

    def _note_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self._said:
            self._said = _text(error)

    def _problems(self, found: Any) -> list[str]:
        problems: list[str] = []
        fixed = self._as.fixed
        if fixed is not None:
            partitions = found.topics[fixed].partitions.values()
            if any(len(each.replicas) < 2 for each in partitions):
                problems.append(f"topic {fixed} has one replica: with its disk, rows are lost")
        if self._values.get("username") is not None and not self._values.get("tls"):
            problems.append("rows are not encrypted on their way: tls = true")
        if self._values.get("tls") and not self._values.get("tls_verify", True):
            problems.append("tls_verify is false: whoever is on the way may read and change rows")
        return problems

    def _unavailable(self, why: str) -> Unavailable:
        """Close, and return the error to raise."""
        self.close()
        return Unavailable(f"{', '.join(self._values['servers'])}: {why}")


def _note(
    failed: dict[int, KafkaError | ValueError], index: int, error: KafkaError | None, _: object
) -> None:
    """Note how the sending of a row has ended."""
    if error is not None:
        failed[index] = error


def _is_forbidden(error: KafkaError | ValueError) -> bool:
    return isinstance(error, KafkaError) and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def _fatal(problem: KafkaException | SystemError) -> KafkaException:
    """Return the error that ended a producer, e.g. of a user who may write nowhere.

    confluent-kafka raises it from whatever call hears of it. If that call then also hears the ends
    of messages, it is the cause of a `SystemError`.
    """
    if isinstance(problem, KafkaException):
        return problem
    if isinstance(problem.__cause__, KafkaException):
        return problem.__cause__
    raise problem


def _text(error: KafkaError | KafkaException | ValueError) -> str:
    """Return an error in one line."""
    if isinstance(error, KafkaException):
        error = error.args[0]
    text = error.str() if isinstance(error, KafkaError) else str(error)
    return "".join(filter(str.isprintable, " ".join(text.split())))
