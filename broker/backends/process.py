"""The process that writes to one store, started by a broker.

Reads frames on stdin, answers with lines of JSON on stdout. A thread reads, so that the store may
take its time; this one applies. It is a process of its own so that drivers, their threads and their
memory stay away from the broker. It ends at once when stdin ends. A batch is repeated until the
store has answered for it: after a failure it connects again, tells where the store is, and waits
for the next run. Read next: `broker.backends.sink`, `broker.backends.rows`.
"""

import base64
import importlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final, NoReturn, TextIO

from broker.backends.backoff import Backoff
from broker.backends.inbox.questions import Page, Question
from broker.backends.rows import (
    BATCH,
    CHANGED,
    CONFIG,
    FETCH,
    HEAD,
    QUESTION,
    START,
    Row,
    RowBatch,
    decode_batch,
    decode_start,
    decode_wire_rows,
    encode_wire_row,
)
from broker.backends.sink import (
    UNKNOWN,
    Fence,
    FenceRefused,
    Fetching,
    Listening,
    Options,
    Poison,
    Refused,
    Rule,
    Sink,
    Unavailable,
    Unusable,
    place_of,
)
from storage.errors import CorruptRecord
from storage.tables.feed_rows import AGAIN, FeedEvent

FRAMES_MAX: Final = 8  # read ahead; the broker sends no more than four batches
LOOK_S: Final = 5.0  # between looks at an idle store
EXIT_FAILED: Final = 1
REFUSALS_MAX: Final = 100  # dead letters with their rows, of one answer
Frame = tuple[bytes, bytes]
HEALTH: Final = "health"
CREATE: Final = "create"
# By type: module and class of the sink, imported in this process only, and the extra it needs.
SINKS: Final = {
    "redis": ("broker.backends.redis.sink", "RedisSink", "redis"),
    "cassandra": ("broker.backends.cassandra_sink", "CassandraSink", "cassandra"),
    "dynamodb": ("broker.backends.dynamodb_sink", "DynamodbSink", "dynamodb"),
    "kafka": ("broker.backends.kafka_sink", "KafkaSink", "kafka"),
    "webhook": ("broker.backends.webhook_sink", "WebhookSink", "webhook"),
}
CLUSTER_SINK: Final = ("broker.backends.redis.cluster_sink", "ClusterSink", "redis")


class Worker:
    """Applies frames to a sink."""

    def __init__(
        self,
        sink: Sink,
        instance: str,
        frames: "queue.Queue[Frame]",
        say: Callable[[dict[str, Any]], None],
        options: Options,
    ) -> None:
        """`options` are those of the sink: a row that is sent again is for one of its rules."""
        self._options: Final = options
        self._sink: Final = sink
        self._changes: Final = sink.listen(say) if isinstance(sink, Listening) else None
        self._instance: Final = instance
        self._frames: Final = frames
        self._say: Final = say
        self._run = 0  # the one whose batches are applied
        self._fence: Fence | None = None  # as the store last had it
        self._is_open = False
        self._backoff: Final = Backoff(options.values)
        self._retry_at = 0.0
        self._state = ""

    def work(self) -> NoReturn:
        """Work until the process ends."""
        if self._changes is not None:
            self._changes.start()
        while True:
            if not self._is_open:
                self._open()
            self._take(self._next())

    # Connecting

    def _open(self) -> None:
        """Connect, or wait a while and answer questions meanwhile."""
        if time.monotonic() < self._retry_at:
            return
        if self._state != "disconnected":
            self._tell_state("connecting", "")
        try:
            self._connect()
        except Unavailable as problem:
            self._lost(problem)

    def _connect(self) -> None:
        self._fence = self._sink.open()
        self._is_open = True
        self._tell_state("connected", "")
        self._tell_cursor()

    def _lost(self, problem: Unavailable) -> None:
        self._is_open = False
        self._run = 0
        self._retry_at = time.monotonic() + max(problem.retry_s, self._backoff.failed())
        self._tell_state("disconnected", str(problem))

    def _tell_state(self, state: str, why: str) -> None:
        if state != self._state or state == "disconnected":
            self._say({"state": state, "why": why})
        self._state = state

    def _tell_cursor(self) -> None:
        """Tell where the store is; batches are ignored until the next run begins.

        A store that keeps no cursor has none of ours: the instance without a cursor.
        """
        self._run = 0
        if self._fence is UNKNOWN:
            self._say({"cursor": None, "instance": self._instance, "refused": []})
            return
        fence = self._fence
        refusals = [] if fence is None else self._sink.refusals(self._instance)
        self._say(
            {
                "cursor": None if fence is None else list(fence.cursor),
                "instance": None if fence is None else fence.instance,
                "refused": [
                    {"upto": each.upto, "at": each.at, "rule": each.rule, "why": each.why}
                    for each in refusals
                ],
            }
        )

    # Frames

    def _next(self) -> Frame | None:
        """Return the next frame, None if it is time to do something else."""
        wait_s = LOOK_S if self._is_open else max(0.0, self._retry_at - time.monotonic())
        try:
            return self._frames.get(timeout=wait_s)
        except queue.Empty:
            return None

    def _take(self, frame: Frame | None) -> None:
        try:
            if frame is None:
                self._look()
            elif frame[0] == START:
                self._start(frame[1])
            elif frame[0] == BATCH:
                self._apply(decode_batch(frame[1]))
            elif frame[0] == FETCH:
                self._fetch(Question(json.loads(frame[1])))
            elif frame[0] == QUESTION:
                self._answer(json.loads(frame[1]))
            elif frame[0] == CHANGED and self._changes is not None:
                self._changes.answered(json.loads(frame[1]))
        except Unavailable as problem:
            self._lost(problem)

    def _look(self) -> None:
        """Notice a store that is gone, or that has lost rows, also while there is nothing to do."""
        if not self._is_open:
            return
        fence = self._sink.look()
        self._backoff.worked()
        if fence is UNKNOWN:
            fence = self._fence  # as far as anybody knows
        if (fence and fence.encode()) != (self._fence and self._fence.encode()):
            self._fence = fence
            self._tell_cursor()
        elif self._run:
            self._say({"alive": True})

    def _start(self, body: bytes) -> None:
        if not self._is_open:
            return  # it gets another one when the store is there again
        start = decode_start(body)
        fence = Fence(self._instance, start.cursor)
        if self._fence is None or self._fence.encode() != fence.encode() or start.is_rewind:
            self._sink.start(fence, is_rewind=start.is_rewind)
        self._fence = fence
        self._run = start.run

    def _apply(self, batch: RowBatch) -> None:
        if batch.run != self._run or not self._is_open:
            return
        began = time.perf_counter()
        dead: list[dict[str, Any]] = []
        try:
            for part in split(batch):
                dead += self._apply_part(part)
                self._fence = Fence(self._instance, part.upto)
        except FenceRefused:
            self._fence = self._sink.look()
            self._tell_cursor()
            return
        self._backoff.worked()
        self._say(
            {
                "done": list(batch.upto),
                "run": batch.run,
                "rows": len(batch.rows),
                "ms": round((time.perf_counter() - began) * 1000, 3),
                "dead": dead,
            }
        )

    def _fetch(self, question: Question) -> None:
        """Answer for a session, unless the store is not where the broker believes it to be."""
        if question.run != self._run or not self._is_open or self._fence is None:
            return  # it is asked again
        assert isinstance(self._sink, Fetching)
        try:
            page = self._sink.fetch(question, self._fence)
        except FenceRefused:
            self._fence = self._sink.look()
            self._tell_cursor()
            return
        except Refused as problem:
            page = Page(question.after)
            page.why = str(problem)
        self._say(page.as_answer(question))

    def _apply_part(self, part: RowBatch) -> list[dict[str, Any]]:
        """Apply rows, or one dead letter for its rule alone; return what was refused."""
        again = part.rows[0] if len(part.rows) == 1 else None
        if not isinstance(again, FeedEvent) or again.kind != AGAIN:
            poisons = self._sink.apply(part, self._instance)
            return [_dead_letter(part, part.rows[each.row], each) for each in poisons]
        (row,) = decode_wire_rows(again.body)
        others = [rule for rule in self._options.rules if again.text not in ("0", str(rule.number))]
        for rule in others:
            rule.is_muted = True
        try:
            rows = [row] if self._wants(row) else []
            inner = RowBatch(part.run, part.after, part.upto, rows)
            poisons = self._sink.apply(inner, self._instance)
        finally:
            for rule in others:
                rule.is_muted = False
        if not rows:
            poisons = [Poison(0, 0, "the rule does not want this row any more")]
        # Rule and row are those of the letter.
        return [{**_dead_letter(part, row, each), "rule": again.text} for each in poisons]

    def _wants(self, row: Row) -> bool:
        return any(rule.takes(row, self._options.type) for rule in self._options.rules)

    def _answer(self, question: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"id": question.get("id")}
        try:
            if question.get("what") == CREATE:
                answer[CREATE] = self._sink.create()
            else:
                if not self._is_open:
                    self._connect()
                answer[HEALTH] = self._sink.health()
        except Unavailable as problem:
            self._lost(problem)
            answer["error"] = str(problem)
        self._say(answer)


def split(batch: RowBatch) -> Iterator[RowBatch]:
    """Yield the parts of a batch; each dead letter that is sent again is a part of its own."""
    after = batch.after
    rows: list[Row] = []
    for row in batch.rows:
        if not isinstance(row, FeedEvent) or row.kind != AGAIN:
            rows.append(row)
            continue
        before = (max(after[0], row.end), row.seq - 1)
        if rows or before != after:
            yield RowBatch(batch.run, after, before, rows)
        after = (before[0], row.seq)
        rows = []
        yield RowBatch(batch.run, before, after, [row])
    if rows or after != batch.upto or batch.after == batch.upto:
        yield RowBatch(batch.run, after, batch.upto, rows)


def _dead_letter(batch: RowBatch, row: Row, poison: Poison) -> dict[str, Any]:
    told = batch.rows[poison.row]
    return {
        "at": list(place_of(told, batch)),
        "rule": poison.rule,
        "why": poison.why,
        "row": base64.b64encode(encode_wire_row(row)).decode(),
    }


def read_frame(source: BinaryIO) -> Frame | None:
    """Return the next frame, None at the end, perhaps in the middle of one."""
    head = source.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    kind, size = HEAD.unpack(head)
    body = source.read(size)
    return (kind, body) if len(body) == size else None


def read_frames(source: BinaryIO, frames: "queue.Queue[Frame]") -> None:
    """Put frames into the queue until there are no more; then end the process.

    At once, in the middle of a batch as well: the broker is gone, or has left us, and the process
    that follows us must not meet us at the store.
    """
    while (frame := read_frame(source)) is not None:
        frames.put(frame)
    os._exit(0)


def make_sink(options: Options) -> Sink:
    """Return the sink of a type. Raises `Unusable`."""
    if options.type not in SINKS:
        raise Unusable(
            f"backend {options.name}: type {options.type!r}, expected one of {', '.join(SINKS)}"
        )
    is_cluster = options.values.get("mode") == "cluster"
    module, name, extra = CLUSTER_SINK if is_cluster else SINKS[options.type]
    try:
        made: Callable[[Options], Sink] = getattr(importlib.import_module(module), name)
    except ImportError as problem:
        if problem.name == module:
            raise Unusable(
                f"backend {options.name}: this build cannot write to the type {options.type!r}"
            ) from None
        raise Unusable(
            f"{problem}; pip install '.[{extra}]' in a checkout of Holdfast, or "
            f"'FILE.whl[{extra}]' with its wheel"
        ) from None
    return made(options)


def serve(source: BinaryIO, answers: TextIO) -> int:
    """Work through the frames of `source` until it ends; return the exit status."""

    speaking = threading.Lock()

    def say(answer: dict[str, Any]) -> None:
        line = json.dumps(answer) + "\n"
        with speaking:
            answers.write(line)
            answers.flush()

    first = read_frame(source)
    if first is None:
        return 0
    try:
        if first[0] != CONFIG:
            raise Unusable(f"frame of type {first[0]!r}, expected the configuration first")
        told = json.loads(first[1])
        rules = [Rule(rule) for rule in told["rules"]]
        options = Options(told["name"], told["type"], told["node"], told["options"], rules)
        sink = make_sink(options)
        frames: queue.Queue[Frame] = queue.Queue(FRAMES_MAX)
        reader = threading.Thread(target=read_frames, args=(source, frames), daemon=True)
        reader.start()
        Worker(sink, told["instance"], frames, say, options).work()
    except (Unusable, CorruptRecord) as problem:
        say({"error": str(problem)})
        return EXIT_FAILED


def end_with_thread(failed: threading.ExceptHookArgs) -> None:
    """End the process: a thread that has died would not be missed. The broker starts another."""
    sys.excepthook(failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback)
    sys.stderr.flush()
    os._exit(EXIT_FAILED)


def main() -> int:
    """Run the process; return its exit status."""
    threading.excepthook = end_with_thread
    # Signals are for the broker; it ends this process by closing stdin.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return serve(sys.stdin.buffer, sys.stdout)
    except BrokenPipeError:
        return 0  # the broker is gone
    except MemoryError:
        sys.stdout.write(json.dumps({"error": "not enough memory for a batch"}) + "\n")
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
