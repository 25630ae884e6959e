"""Hears what applications tell of subscriptions in Redis: on a channel, and in a stream.

Each has a thread and a connection of its own. A channel forgets: what is published while nobody
listens is lost. A stream does not: a change is acknowledged to the consumer group once the broker
has made it durable, and what was not is read again at the next start. Read next:
`broker.backends.inbox.changes`.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Final, cast

import redis
import redis.exceptions

from broker.backends.backoff import Backoff
from broker.backends.inbox.changes import Tell, Window
from broker.backends.sink import Options, Unavailable

BLOCK_MS: Final = 500
SILENCE_S: Final = 10.0  # after which a server is asked whether it is there
FIELD: Final = b"change"  # of an entry of the stream


class RedisChanges:
    """Listens for one backend."""

    def __init__(self, options: Options, connect: Callable[[], redis.Redis], tell: Tell) -> None:
        """`connect` makes a client with the options of the backend."""
        self._connect: Final = connect
        self._tell: Final = tell
        self._window: Final = Window(tell)
        self._channel: Final[str | None] = options.values.get("channel")
        self._stream: Final[str] = options.values.get("stream") or ""
        self._group: Final = f"holdfast:{options.name}"
        self._consumer: Final = options.node
        self._acknowledged: Final[list[bytes]] = []  # entries that are to be acknowledged
        self._lock: Final = threading.Lock()
        self._values: Final = options.values
        self._threads: Final[list[threading.Thread]] = []
        self._is_over: Final = threading.Event()
        # Less than the connection waits for an answer.
        self._block_ms: Final = min(BLOCK_MS, options.values.get("timeout_ms", 5000) // 2)

    def start(self) -> None:
        """Begin to listen."""
        for is_wanted, listen in (
            (self._channel, self._listen_to_channel),
            (self._stream, self._read_stream),
        ):
            if is_wanted:
                thread = threading.Thread(target=self._go_on, args=(listen,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def close(self) -> None:
        """Listen no more; returns once the threads have ended."""
        self._is_over.set()
        self._window.close()
        for thread in self._threads:
            thread.join()

    def answered(self, numbers: list[int]) -> None:
        """Take the answers of the broker."""
        self._window.answered(numbers)

    def _go_on(self, listen: Callable[[redis.Redis], None]) -> None:
        """Listen, and begin again whenever the connection is lost."""
        backoff = Backoff(self._values)
        while not self._is_over.is_set():
            began = time.monotonic()
            try:
                client = self._connect()
                try:
                    listen(client)
                finally:
                    client.close()
            except (redis.exceptions.RedisError, OSError, Unavailable) as problem:
                if time.monotonic() - began > backoff.max_s:
                    backoff.worked()
                if not backoff.is_failing:
                    what = " ".join(str(problem).split()) or type(problem).__name__
                    self._tell({"unheard": what})
                self._is_over.wait(backoff.failed())

    # The channel

    def _listen_to_channel(self, client: redis.Redis) -> None:
        listener: Any = cast(Any, client).pubsub()
        listener.subscribe(self._channel)
        heard = time.monotonic()
        is_asked = False
        while not self._is_over.is_set():
            message = listener.get_message(timeout=self._block_ms / 1000)
            now = time.monotonic()
            if message is not None:
                heard, is_asked = now, False
            elif now - heard > SILENCE_S and not is_asked:
                listener.ping()
                heard, is_asked = now, True
            elif now - heard > SILENCE_S:
                raise redis.exceptions.ConnectionError("the server does not answer")
            if message is None:
                continue
            if message["type"] == "subscribe":
                self._tell({"listening": f"the channel {self._channel}"})
            elif message["type"] == "message":
                self._window.wait_for_room()
                self._window.tell(message["data"], _nothing)

    # The stream

    def _read_stream(self, client: redis.Redis) -> None:
        self._make_group(client)
        self._tell({"listening": f"the stream {self._stream}"})
        after = "0"  # what was read before and is not acknowledged; then ">": what is new
        while not self._is_over.is_set():
            room = self._window.wait_for_room()
            self._acknowledge(client)
            streams: Any = {self._stream: after}
            found: Any = client.xreadgroup(
                self._group, self._consumer, streams, count=max(1, room), block=self._block_ms
            )
            entries = found[0][1] if found else []
            if after != ">":
                after = entries[-1][0].decode() if entries else ">"
            for name, fields in entries:
                self._window.tell((fields or {}).get(FIELD, b""), self._mark(name))

    def _make_group(self, client: redis.Redis) -> None:
        try:
            client.xgroup_create(self._stream, self._group, id="0", mkstream=True)
        except redis.exceptions.ResponseError as problem:
            if "BUSYGROUP" not in str(problem):
                raise

    def _mark(self, name: bytes) -> Callable[[], None]:
        def mark() -> None:
            with self._lock:
                self._acknowledged.append(name)

        return mark

    def _acknowledge(self, client: redis.Redis) -> None:
        with self._lock:
            names = self._acknowledged[:]
        if not names:
            return
        client.xack(self._stream, self._group, *names)
        with self._lock:
            del self._acknowledged[: len(names)]


def _nothing() -> None:
    """Do nothing: a channel is acknowledged to nobody."""
