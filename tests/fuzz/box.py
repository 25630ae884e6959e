"""A broker in a box for the fuzz: the engine, a store that forgets, three clients' connections.

One seed is one history: which settings, who sends what in which pieces, when ticks end and syncs
complete, who is cut off or does not read, when the disk is full and when the process dies. After
every event the engine's invariants must hold, whatever it sends is judged by `tests.fuzz.watcher`,
and no exception may come out of it. Must only do what a shell may do. Read next:
`tests.fuzz.command`.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from broker.security.authenticators import AllowAll, AllowAllPolicy
from mqtt.decoder import Decoder
from session.counters import Counters
from session.engine import Engine
from session.live.connection import ACTIVE, CLOSED, CLOSING, Connection
from session.settings import Settings
from storage.errors import WriteStalled
from storage.local.memory import MemoryStore
from tests.fuzz.inputs import Inputs
from tests.fuzz.watcher import Fault, Published, Watcher
from tests.session.store_audit import audit

START_MS: Final = 1_700_000_000_000
SLOTS: Final = 3
TICKS_MAX: Final = 500
REST_SHARE: Final = 0.02  # of the events: everything is brought to rest and looked at


class Stream:
    """One connection: the engine's transport, the client's socket, and who watches it."""

    def __init__(self, box: "Box", number: int) -> None:
        self.number = number
        self.data: list[bytes] = []
        self.is_closing = False  # close() was called
        self.is_lost = False  # transport_lost() was called
        self.is_read = True
        self.is_paused = False  # pause_writing() was called
        self.connection: Connection = box.engine.open(
            self, box.now, remote=f"192.0.2.{number % 3}:1"
        )
        decoder = self.connection.decoder
        mirror = Decoder(
            "server", decoder.maximum_packet_size, connect_size_max=decoder.connect_size_max
        )
        mirror.user_properties_max = decoder.user_properties_max
        self.watcher = Watcher(box.published, number, mirror)

    def write(self, data: bytes) -> None:
        """The engine sends."""
        if self.is_closing:
            raise Fault(f"connection {self.number} is written to after its close")
        if not self.is_lost:
            self.data.append(data)

    def close(self) -> None:
        """The engine closes once everything is out."""
        self.is_closing = True

    def pause_reading(self) -> None:
        """Stop handing in bytes."""
        self.is_read = False

    def resume_reading(self) -> None:
        """Hand in bytes again."""
        self.is_read = True


class Box:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = START_MS
        self.published = Published()
        self.settings = self._draw_settings()
        self.published.is_lossy = bool(self.settings.total_bytes_max)
        self.inputs = Inputs(self.random, self.settings)
        self.store = MemoryStore()
        self.streams: list[Stream] = []  # those whose end the engine was not told, oldest first
        self.opened = 0
        self.packets = 0  # sent by clients
        self.received = 0  # by them
        self.token: tuple[int, int] | None = None  # of the sync that runs, and what it covers
        self.start()
        random = self.random
        self._actions: list[tuple[Callable[[], object], float]] = [
            (self._send, 60.0),
            (self._open, 5.0),
            (self._drop, 1.5),
            (self._stop_taking, 1.0),
            (self._take_again, 2.0),
            (self._tick, 20.0),
            (self._sync, 14.0),
            (self._wait, 3.0),
            (self._crash, 0.25 * random.choice((0, 1, 2))),
            (self._fill_disk, 0.3 * random.choice((0, 0, 1))),
            (self._stall, 0.3 * random.choice((0, 0, 1))),
            (self._rotate, 0.3),
            (self.rest, 1.5),
        ]
        # Some histories tick after every event, some gather.
        self._eager = random.choice((1.0, 0.7, 0.3))

    def _draw_settings(self) -> Settings:
        choice = self.random.choice
        settings = Settings()
        settings.sys_interval_s = 0
        settings.receive_maximum = choice((2, 5, 1024))
        settings.max_inflight = choice((1, 2, 5, 256))
        settings.pending_messages_max = choice((1, 3, 1000))
        settings.clean_queue_messages_max = choice((1, 3, 1000))
        settings.maximum_packet_size = choice((300, 1 << 20))
        settings.topic_alias_maximum = choice((0, 3, 64))
        settings.outbound_topic_alias_maximum = choice((0, 2, 64))
        settings.maximum_qos = choice((2, 2, 2, 2, 1, 0))
        settings.retain_available = choice((True, True, True, False))
        settings.wildcard_subscriptions = choice((True, True, True, True, True, False))
        settings.shared_subscriptions = choice((True, True, True, True, True, False))
        settings.subscription_identifiers = choice((True, True, True, False))
        settings.session_expiry_max_s = choice((None, None, 2, 20))
        settings.keep_alive_max_s = choice((0, 0, 0, 0, 0, 0, 30))
        settings.subscriptions_per_session_max = choice((10_000, 4))
        settings.retained_messages_max = choice((0, 0, 3))
        settings.max_connections = choice((0, 0, 0, 2))
        settings.publish_rate = choice((0, 0, 0, 20))
        settings.on_rate = choice(("throttle", "disconnect"))
        settings.topic_levels_max = choice((201, 201, 201, 2))
        settings.out_buffer_bytes_max = choice((100, 1 << 20))
        settings.held_bytes_max = choice((100, 4 << 20))
        settings.expiry_slice = choice((1, 256))
        settings.store_qos0 = choice((False, True))
        settings.store = choice(("durable", "durable", "all"))
        settings.layout = choice(("blocks", "filters", "timeline"))
        settings.generation_size_bytes = choice((300, 256 << 20))
        settings.max_offline_messages = choice((0, 0, 0, 3))
        settings.max_offline_bytes = choice((0, 0, 0, 200))
        settings.total_bytes_max = choice((0, 0, 0, 2000))
        settings.on_limit = choice(("drop_oldest", "drop_new", "reject"))
        problems = settings.problems()
        assert not problems, problems
        return settings

    # The process

    def start(self) -> None:
        """Start the engine on what is in the store."""
        self.counters = Counters()
        self.engine = Engine(
            self.store,
            self.settings,
            authenticator=AllowAll(),
            policy=AllowAllPolicy(),
            new_client_id=lambda: f"auto-{self.opened}",
            counters=self.counters,
        )
        self.engine.start(self.now)
        self.rest()

    def run(self, packets: int) -> None:
        """Let things happen until the clients have sent so many packets. Raises what it finds."""
        actions = [action for action, _ in self._actions]
        weights = [weight for _, weight in self._actions]
        while self.packets < packets:
            self.random.choices(actions, weights)[0]()
            if self.random.random() < self._eager:
                self._tick()
        self.rest()

    def _tick(self) -> bool:
        more = self.engine.end_tick(self.now)
        self._look()
        return more

    def _look(self) -> None:
        """Judge what came, and what the engine thinks of itself."""
        # Of one client's connections the one that was taken over had its bytes first.
        for stream in sorted(self.streams, key=lambda stream: stream.watcher.order):
            if stream.data:
                data = b"".join(stream.data)
                stream.data.clear()
                self.received += len(stream.watcher.got(data))
        for problem in self.engine.invariants():
            raise Fault(problem)

    # Events

    def _open(self) -> None:
        if len(self.streams) < SLOTS:
            self.opened += 1
            self.streams.append(Stream(self, self.opened))

    def _pick(self) -> Stream | None:
        streams = [stream for stream in self.streams if not stream.is_closing]
        return self.random.choice(streams) if streams else None

    def _send(self) -> None:
        """A client sends a few packets, in pieces of any size."""
        stream = self._pick()
        if stream is None:
            self._open()
            return
        if not stream.is_read:
            return
        data, count = self.inputs.next(stream.watcher)
        self.packets += count
        while data:
            size = self.random.choice((1, 3, 10, len(data), len(data), len(data)))
            self._hand_in(stream, data[:size])
            data = data[size:]

    def _hand_in(self, stream: Stream, data: bytes) -> None:
        connection = stream.connection
        if connection.state >= CLOSING:
            return
        packets = stream.watcher.sent(data)
        self.engine.receive(connection, data, self.now)
        stream.watcher.took(packets, is_over=connection.state >= CLOSING)

    def _drop(self) -> None:
        """A connection is lost, with what was under way to the client."""
        if self.streams:
            self._lose(self.random.choice(self.streams))

    def _lose(self, stream: Stream) -> None:
        stream.is_lost = True
        self.streams.remove(stream)
        self.engine.transport_lost(stream.connection, self.now)
        if stream.connection.state != CLOSED:
            raise Fault(f"connection {stream.number} is lost, but in state not closed")

    def _stop_taking(self) -> None:
        stream = self._pick()
        if stream is not None and not stream.is_paused:
            stream.is_paused = True
            self.engine.pause_writing(stream.connection)

    def _take_again(self) -> None:
        for stream in self.streams:
            if stream.is_paused:
                stream.is_paused = False
                self.engine.resume_writing(stream.connection, self.now)

    def _wait(self) -> None:
        """Time passes; what is due in it comes late or in time."""
        end = self.now + self.random.choice((1, 50, 300, 1100, 6000))
        for _ in range(TICKS_MAX):
            deadline = self.engine.next_deadline()
            if deadline is None or deadline > end:
                break
            self.now = max(self.now, deadline)
            self.engine.handle_timeout(self.now)
            self._tick()
            if self.random.random() < 0.3:
                self._sync()
        self.now = max(self.now, end)
        self._close_some()

    def _close_some(self) -> None:
        for stream in list(self.streams):
            if stream.is_closing and self.random.random() < 0.8:
                self._lose(stream)

    def _sync(self) -> None:
        """The sync that runs is done, and the next one begins."""
        if self.token is not None:
            token, serial = self.token
            self.token = None
            self.store.sync_end(token)
            self.engine.committed(serial, self.now)
        elif self.engine.written > self.engine.durable:
            self.token = self.store.sync_begin(), self.engine.written

    def _rotate(self) -> None:
        if not self.store.full and self.store.fail_writes is None:
            self.engine.rotate(self.now)

    def _fill_disk(self) -> None:
        if self.store.full:
            self.store.full = False
            self.engine.note_disk_space(is_low=False)
        else:
            self.engine.note_disk_space(is_low=self.random.random() < 0.5)
            self.store.full = self.random.random() < 0.7

    def _stall(self) -> None:
        stalled = self.store.fail_writes is not None
        self.store.fail_writes = None if stalled else WriteStalled("write stall")

    def _crash(self) -> None:
        """The process dies: what was not synced survives in part, connections do not."""
        keep = self.random.choice((0, self.store.unsynced, self.random.randint(0, 50)))
        self.store = self.store.crash(min(keep, self.store.unsynced))
        self.streams.clear()
        self.token = None
        for view in self.published.views.values():
            view.crashed()
        self.now += self.random.choice((1, 500, 4000))
        self.start()

    # Rest

    def rest(self) -> None:
        """Let everything that can be done be done; then nothing that was asked for is missing."""
        self.store.full = False
        self.store.fail_writes = None
        self.engine.note_disk_space(is_low=False)
        self._take_again()
        for _ in range(TICKS_MAX):
            self.now += 100  # a refused batch is tried again
            self.engine.handle_timeout(self.now)
            more = self._tick()
            closing = [stream for stream in self.streams if stream.is_closing]
            for stream in closing:
                self._lose(stream)
            is_durable = self.token is None and self.engine.durable == self.engine.written
            if is_durable and not more and not closing:
                break
            self._sync()
        else:
            raise Fault("the engine is never at rest")
        for stream in self.streams:
            if stream.connection.state == ACTIVE and stream.is_read:
                stream.watcher.judge_rest()
        for problem in audit(self.store, set(self.engine._sessions.live)):
            raise Fault(f"in the store: {problem}")
