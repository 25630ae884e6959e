"""Reads one partition of Kafka in order, and tells what it knows of its end.

The consumer sees what all in-sync replicas have, and nothing else. Whether that is everything is
asked of the partition's leader (`storage.replicated.kafka.watch`): `CaughtUp` says that at a moment
which is not long ago nothing more was in the log. A leader that was cut off from its cluster and
does not know it yet may say so for some seconds although its successor has more; nothing can be
appended through it, so whoever wants to be sure appends and reads that back.

After a change of the leader the consumer compares what was read last with the log of the new one;
until it has, `CaughtUp` is not told.

When what was to be read next is not there, the bounds of the log are looked at twice before it is
told: `Missing` if it was deleted, and then nothing more is read; `Shrunk` if the log has lost what
was read, and then reading goes on from its `end`; where it cannot be told what was lost, from the
end of the log, and whoever reads must go back to what it knows.

Read next: `storage.replicated.kafka_log`.
"""

import re
import threading
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from storage.replicated.kafka import client
from storage.replicated.kafka.inbox import FRESH_MS, Inbox
from storage.replicated.kafka.watch import End, Watch
from storage.replicated.log_port import Event, Missing, Read, Shrunk

POLL_S: Final = 0.05
BATCH: Final = 500
RETRY_S: Final = 0.5
LOOK_AGAIN_S: Final = 0.5
# A consumer that reads nothing for so long, although there is something, is made anew.
STUCK_MS: Final = 5000
# What a new leader adds shows that it has what was read before. If it adds nothing for so long, a
# new consumer is asked to compare.
CHECK_MS: Final = 1000
# So long no server answers, and one has refused this node, until it comes with new clients.
REFUSED_MS: Final = 3000
NO_EPOCH: Final = -1
WHERE_UNKNOWN: Final = -1  # of a cut: who reads on finds out, by the records that are there

# `auto.offset.reset` makes the first one of the others.
LOST: Final = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError._LOG_TRUNCATION,
    }
)
# In the text of the first one, if it is of the last one; it may say where the log was cut off.
TRUNCATED: Final = re.compile(r"truncat(?:.*end offset is (\d+))?")


class Reader:
    """One consumer at a time, and the thread that it runs on."""

    def __init__(
        self, access: client.Access, topic: str, place: int, inbox: Inbox,
        clock: Callable[[], int], renew: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._access: Final = access
        self._topic: Final = topic
        self._inbox: Final = inbox
        self._clock: Final = clock
        self._renew: Final = renew  # has another producer appended, and told why
        self._lock: Final = threading.Lock()  # for what answers of the watch change
        self._position = place  # of the next record
        self._epoch = NO_EPOCH  # the newest that a record or an answer had
        self._read_epoch = NO_EPOCH  # of the last record
        self._wanted: int | None = None  # `read_from`: the consumer is at another place yet
        self._checks_epoch = False  # there is a new leader, which may have less than was read
        self._epoch_ms = clock()  # since when there is
        self._checking = NO_EPOCH  # for which of them the consumer was made anew
        self._end: End | None = None  # answered, and not yet reached
        self._is_wrong = False  # something does not fit: the bounds must be looked at
        self._cut: int | None = None  # where the log was cut off, and went on
        self._is_other = False  # another topic has the name now
        self._is_behind = False  # there was something to read
        self._is_over = False  # `Missing` was told
        self._moved_ms = clock()  # when a record was read, or nothing was there to be read
        self._said = ""
        self._refusal = ""  # why a server has not let this node in, if none has answered since
        self._answered_ms = clock()  # when a server has answered last, or all clients were made
        self._consumer: Consumer | None = None
        self.watch: Final = Watch(access, topic, clock, self._hear_end)
        self._ending: Final = threading.Event()
        self._thread: Final = threading.Thread(
            target=self._run, name="replicated-log-reader", daemon=True
        )

    def start(self) -> None:
        """Start to read."""
        self._thread.start()

    def read_from(self, place: int) -> None:
        """Read on from `place`. Never blocks; nothing from elsewhere is put from now on."""
        with self._lock:
            self._wanted = self._position = place
            self._read_epoch = NO_EPOCH
            self._checks_epoch = False
            self._end = None
            self._inbox.forget_reads()

    def close(self, seconds: float) -> None:
        """End the thread."""
        self._ending.set()
        self._thread.join(seconds)

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    @property
    def said(self) -> str:
        """What is wrong, in a line; "" = nothing is known to be."""
        return self._refusal or self.watch.said or self._said

    # The thread

    def _run(self) -> None:
        while not self._ending.is_set():
            self.step()
        self._disconnect()

    def step(self) -> None:
        """Read, ask what is due, act on what was answered; the thread does so again and again."""
        if self._wanted is not None:
            self._disconnect()
            with self._lock:
                self._wanted = None
                self._is_over = self._is_wrong = self._is_behind = False
                self._cut = None
        if not self._is_over and self._consumer is None and not self._connect():
            self._ending.wait(RETRY_S)
        elif self._is_over or self._inbox.is_full():
            self._moved_ms = self._clock()
            self._ending.wait(POLL_S)
        elif not self._is_wrong:
            self._read()
        if self._refusal and self._clock() - self._answered_ms > REFUSED_MS:
            self._come_again()
        self.watch.ask(self._position, is_wrong=self._is_wrong)
        if self._is_over:
            return
        self._is_other |= self.watch.is_other_topic()
        if self._is_other or self._is_wrong:
            self._look()
        elif self._checks_epoch and self._checking != self._epoch:
            if self._clock() - self._epoch_ms > CHECK_MS:
                self._checking = self._epoch
                self._disconnect()
        elif self._is_behind and self._clock() - self._moved_ms > STUCK_MS:
            self._moved_ms = self._clock()
            self._disconnect()

    def _come_again(self) -> None:
        """Make all clients anew: no server lets this node in, and its password is read for each.

        As long as one of them answers, a wrong certificate of another one changes nothing.
        """
        self._answered_ms = self._clock()
        self._renew(self._refusal)
        self._disconnect()
        self.watch.renew()

    def _connect(self) -> bool:
        try:
            consumer = Consumer(self._settings(), logger=client.UNHEARD)
            consumer.assign([self._next()])
        except (KafkaException, ValueError, OSError) as problem:
            self._said = client.text(problem)
            return False
        self._consumer = consumer
        return True

    def _next(self) -> TopicPartition:
        """Return the place that is read next; with an epoch Kafka tells if it was cut off since."""
        if self._read_epoch == NO_EPOCH:
            return TopicPartition(self._topic, 0, self._position)
        return TopicPartition(self._topic, 0, self._position, leader_epoch=self._read_epoch)

    def _settings(self) -> dict[str, Any]:
        return {
            **client.settings(self._access),
            "group.id": f"holdfast-{self._topic}-{self._access.node}",  # nothing is kept under it
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 500,
            "fetch.queue.backoff.ms": 5,
            "fetch.error.backoff.ms": 50,
            "queued.max.messages.kbytes": 16 << 10,
            "max.poll.interval.ms": 86_400_000,
            "error_cb": self._note,
        }

    def _note(self, error: KafkaError) -> None:
        self._said = client.text(error)
        if client.is_refusal(error):
            self._refusal = self._said

    def _disconnect(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        try:
            consumer.close()
        except (KafkaException, RuntimeError, SystemError) as problem:
            self._said = client.text(problem)

    def _read(self) -> None:
        consumer = self._consumer
        assert consumer is not None
        try:
            first = consumer.poll(POLL_S)
            messages = [] if first is None else [first, *consumer.consume(BATCH - 1, 0)]
        except (KafkaException, SystemError) as problem:
            self._said = client.text(client.cause(problem))
            self._disconnect()
            return
        if messages:
            with self._lock:
                if self._wanted is None and not self._is_wrong:
                    self._take(messages)
                    self._tell_if_caught_up()

    def _take(self, messages: list[Message]) -> None:
        events: list[Event] = []
        for message in messages:
            error, place = message.error(), message.offset()
            if error is None and place is not None:
                if place < self._position:
                    continue
                events.append(Read(place, _data(message)))
                self._position = place + 1
                epoch = message.leader_epoch()
                self._read_epoch = NO_EPOCH if epoch is None else epoch
                self._see_epoch(self._read_epoch)
                self._checks_epoch &= self._read_epoch < self._epoch
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                self._position = max(self._position, place or 0)
                self._checks_epoch &= self._checking != self._epoch
            elif error is not None:
                self._take_error(error)
        if events:
            self._said = ""
            self._moved_ms = self._clock()
            self._inbox.put(events)

    def _take_error(self, error: KafkaError) -> None:
        self._said = client.text(error)
        if error.code() in LOST:
            self._is_wrong = True
            if found := TRUNCATED.search(self._said):
                self._cut = int(found[1] or WHERE_UNKNOWN)

    # The end of the log

    def _hear_end(self, end: End) -> None:
        """Take an answer of the leader. Runs on a thread of the watch."""
        self._answered_ms = self._clock()
        if self._refusal:
            self._said = self._refusal = ""
        with self._lock:
            if end.epoch < self._epoch:
                self._is_wrong |= end.offset < self._position
                return
            self._see_epoch(end.epoch)
            if end.offset < end.position:
                self._is_wrong = True
                return
            self._is_behind = end.offset > self._position
            if not self._is_behind:
                self._moved_ms = self._clock()
            self._end = end
            self._tell_if_caught_up()

    def _see_epoch(self, epoch: int) -> None:
        """Note a new leader: whether its log has what was read before is to be checked."""
        if epoch > self._epoch:
            self._checks_epoch = self._read_epoch != NO_EPOCH
            self._epoch = epoch
            self._epoch_ms = self._clock()

    def _tell_if_caught_up(self) -> None:
        end = self._end
        if end is None or self._position < end.offset or self._is_wrong or self._is_over:
            return
        if self._checks_epoch:
            return
        self._end = None
        if self._clock() - end.asked_ms <= FRESH_MS:
            self._inbox.put_caught_up(self._position, end.asked_ms)

    def _look(self) -> None:
        """Find out what became of the place that is read next, and go on from there."""
        first = self._verdict()
        if first is None or self._ending.wait(0 if self._is_other else LOOK_AGAIN_S):
            self._ending.wait(RETRY_S)
            return
        second = first if self._is_other else self._verdict()
        if second is None or second[0] != first[0]:
            return
        event, place, epoch = second
        if self._is_other:
            self._renew(f"topic {self._topic} was deleted and made again")
        with self._lock:
            if self._wanted is not None:
                return
            self._position = place
            self._end = None
            if self._is_other or event is not None:
                self._epoch = epoch
                self._read_epoch = NO_EPOCH
                self._checks_epoch = False
            self._is_over = isinstance(event, Missing)
            self._is_wrong = self._is_other = self._is_behind = False
            self._cut = None
            if event is not None:
                self._inbox.put([event])
        self._said = ""
        self._disconnect()

    def _verdict(self) -> tuple[Event | None, int, int] | None:
        """Return what is to be told, where reading goes on, and the epoch; None = not known yet."""
        position = self._position
        bounds = self.watch.bounds(position)
        if bounds is None:
            return None
        start, end = bounds
        if self._is_other:
            has_read = position > start.offset  # of the other one
            event = Shrunk(start.offset, start.offset) if has_read else None
            return event, start.offset, end.epoch
        if end.epoch < self._epoch:
            return None  # of a leader that was deposed, or of another topic
        if position < start.offset:
            return Missing(start.offset), position, end.epoch
        if position > end.offset:
            return Shrunk(end.offset, start.offset), end.offset, end.epoch
        if self._cut is not None:
            cut = end.offset if self._cut == WHERE_UNKNOWN else max(self._cut, start.offset)
            return Shrunk(cut, start.offset), cut, end.epoch
        return None, position, end.epoch


def _data(message: Message) -> bytes:
    value = message.value()
    return value if isinstance(value, bytes) else b""
