"""A broker without sockets, threads or time: the real engine, a store that can crash, a fake clock.

Its verbs: `connect`, `publish`, `subscribe`, `expect`, `expect_nothing`, `drop`, `disconnect`,
`crash`, `restart`, `advance`, `hold_commits`, `commit`. It checks the engine's invariants after
every step, and those of the store (`tests.session.store_audit`) whenever nothing is pending.
Deterministic: nothing happens that a test did not ask for. It must change the engine's state only
through the interface of a shell.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from broker.security.authenticators import AllowAll
from mqtt.decoder import Decoder
from mqtt.encoder import encode
from mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from session.counters import Counters
from session.engine import Engine
from session.feed.recorder import FeedRecorder
from session.history.history import History
from session.live.commit_gate import CommitGate
from session.live.connection import CLOSED, Connection
from session.live.damage import Damage
from session.live.tick import Tick
from session.ports import Authenticator, Exchange, Policy, Verdict
from session.recovery import Recovery
from session.settings import Settings
from storage.local.memory import MemoryStore
from storage.log.message_log import MessageLog
from tests.session.store_audit import audit

START_MS: Final = 1_700_000_000_000
TICKS_MAX: Final = 2000  # a broker that is not idle by then is in an endless loop
STEPPED_MS: Final = 30_000
NEVER: Final = 0xFFFFFFFF
OPTIONS: Final = {"no_local", "retain_as_published", "retain_handling"}


class Stream:
    """A client's transport as the engine sees it."""

    def __init__(self) -> None:
        self.data = b""
        self.is_closing = False  # close() was called: later writes are discarded
        self.is_read = True
        self.is_lost = False  # the engine was told that the connection is lost
        self.writes = 0

    def write(self, data: bytes) -> None:
        """Take bytes for the client."""
        if not self.is_closing and not self.is_lost:
            self.writes += 1
            self.data += data

    def close(self) -> None:
        """Close after everything written was sent."""
        self.is_closing = True

    def pause_reading(self) -> None:
        """Stop handing in bytes."""
        self.is_read = False

    def resume_reading(self) -> None:
        """Hand in bytes again."""
        self.is_read = True


class Rules:
    """A policy that allows everything except what a test forbids."""

    is_open: bool = False

    def __init__(self) -> None:
        self.forbidden: set[tuple[str, str]] = set()
        self.asked: list[tuple[str, str, str, str]] = []

    def forbid(self, action: str, topic: str) -> None:
        """Forbid "publish", "subscribe" or "receive" on a topic or filter for all clients."""
        self.forbidden.add((action, topic))

    def may_publish(self, identity: str, client_id: str, topic: str) -> bool:
        """Return whether the client may publish to `topic`."""
        return self._judge("publish", identity, client_id, topic)

    def may_subscribe(self, identity: str, client_id: str, topic: str) -> bool:
        """Return whether the client may hold a subscription to the topic filter `topic`."""
        return self._judge("subscribe", identity, client_id, topic)

    def may_receive(self, identity: str, client_id: str, topic: str) -> bool:
        """Return whether a stored message on `topic` may be delivered to the client."""
        return self._judge("receive", identity, client_id, topic)

    def _judge(self, action: str, identity: str, client_id: str, topic: str) -> bool:
        self.asked.append((action, identity, client_id, topic))
        return not {(action, topic), (f"{action} by {client_id}", topic)} & self.forbidden


class SlowAuthenticator:
    """An authenticator that answers when the test calls `answer`."""

    def __init__(self) -> None:
        self.waiting: dict[str, Callable[[Verdict], None]] = {}

    def authenticate(
        self,
        client_id: str,
        username: str | None,
        password: bytes | None,
        done: Callable[[Verdict], None],
    ) -> None:
        """Keep `done` until `answer`."""
        self.waiting[client_id] = done

    def exchange(self, method: str, client_id: str) -> Exchange | None:
        """Return None: no method is supported."""
        return None

    def answer(self, client_id: str, *, ok: bool = True, reason_code: int = 0) -> None:
        """Answer one CONNECT."""
        self.waiting.pop(client_id)(Verdict(ok=ok, reason_code=reason_code, identity=""))


class Client:
    """One connection of a client that does only what a test tells it."""

    def __init__(
        self, broker: "Broker", version: int, identity: str | None = None, remote: str = ""
    ) -> None:
        self.broker = broker
        self.version = version
        self.stream = Stream()
        self.connection: Connection = broker.engine.open(
            self.stream, broker.now, remote=remote, identity=identity
        )
        self.received: list[Packet] = []
        self.connack: Connack | None = None
        self._decoder = Decoder("client", 0, version)
        self._next_packet_id = 0

    # Sending

    def send(self, *packets: Packet) -> None:
        """Send packets in one write."""
        self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes."""
        assert not self.stream.is_lost, "the connection is gone"
        self.broker.engine.receive(self.connection, data, self.broker.now)
        self.broker.settle()

    def packet_id(self) -> int:
        """Return an id that this connection has not used yet."""
        self._next_packet_id += 1
        return self._next_packet_id

    def publish(
        self, topic: str, payload: bytes = b"x", qos: int = 0, **fields: Any
    ) -> Packet | None:
        """Publish and complete the exchange; return the last answer."""
        answer = self.start_publish(topic, payload, qos, **fields)
        if isinstance(answer, Pubrec) and answer.reason_code < 0x80:
            self.send(Pubrel(answer.packet_id))
            return self.answer(Pubcomp)
        return answer

    def start_publish(
        self, topic: str, payload: bytes = b"x", qos: int = 0, **fields: Any
    ) -> Packet | None:
        """Publish and return PUBACK or PUBREC, None at QoS 0 or while commits are held."""
        packet_id = fields.pop("packet_id", 0) or (self.packet_id() if qos else 0)
        self.send(Publish(topic, payload, qos, packet_id=packet_id, **fields))
        if qos and not self.broker.commits_are_held and not self.stream.is_lost:
            return self.answer(Puback, Pubrec)
        return None

    def subscribe(self, *topic_filters: str, qos: int = 0, **options: Any) -> list[int]:
        """Subscribe and return the reason codes (none yet while commits are held)."""
        identifier = options.pop("identifier", 0)
        assert set(options) <= OPTIONS, options
        subscriptions = [Subscription(name, qos, **options) for name in topic_filters]
        self.send(Subscribe(self.packet_id(), subscriptions, identifier))
        if self.broker.commits_are_held or self.stream.is_lost:
            return []
        suback = self.answer(Suback)
        assert isinstance(suback, Suback)
        return list(suback.reason_codes)

    def unsubscribe(self, *topic_filters: str) -> list[int]:
        """Unsubscribe and return the reason codes."""
        self.send(Unsubscribe(self.packet_id(), list(topic_filters)))
        if self.broker.commits_are_held:
            return []
        unsuback = self.answer(Unsuback)
        assert isinstance(unsuback, Unsuback)
        return list(unsuback.reason_codes)

    def ping(self) -> None:
        """Send PINGREQ and take its answer."""
        self.send(Pingreq())
        self.answer(Pingresp)

    def disconnect(self, reason_code: int = 0, session_expiry_interval: int | None = None) -> None:
        """Send DISCONNECT."""
        self.send(Disconnect(reason_code, session_expiry_interval))

    def drop(self) -> None:
        """Lose the network connection."""
        self.lose()
        self.broker.settle()

    def lose(self) -> None:
        """Tell the engine, once, that the connection is gone."""
        if not self.stream.is_lost:
            self.stream.is_lost = True
            self.broker.engine.transport_lost(self.connection, self.broker.now)

    def stop_taking(self) -> None:
        """Take no more bytes: the transport's buffer is above its high-water mark."""
        self.broker.engine.pause_writing(self.connection)

    def go_on_taking(self) -> None:
        """Take bytes again."""
        self.broker.engine.resume_writing(self.connection, self.broker.now)
        self.broker.settle()

    # Receiving

    def collect(self) -> list[Packet]:
        """Return the packets that have arrived and were not taken yet."""
        data, self.stream.data = self.stream.data, b""
        self.received += self._decoder.receive(data)
        assert self._decoder.error is None, self._decoder.error
        return self.received

    def take(self) -> list[Packet]:
        """Take everything that has arrived."""
        packets = self.collect()
        self.received = []
        return packets

    def answer(self, *kinds: type) -> Packet:
        """Take the first packet of one of these types, leaving the others."""
        for index, packet in enumerate(self.collect()):
            if isinstance(packet, kinds):
                return self.received.pop(index)
        raise AssertionError(f"no {[kind.__name__ for kind in kinds]} in {self.received}")

    def expect(self, *packets: Packet) -> None:
        """Take all packets that have arrived; they must be these, in this order."""
        assert self.take() == list(packets)

    def expect_nothing(self) -> None:
        """Check that nothing has arrived."""
        assert self.collect() == []

    def messages(self) -> list[Publish]:
        """Take the messages that have arrived, leaving other packets."""
        found = [packet for packet in self.collect() if isinstance(packet, Publish)]
        self.received = [packet for packet in self.received if not isinstance(packet, Publish)]
        return found

    def payloads(self) -> list[bytes]:
        """Take the messages that have arrived; return their payloads."""
        return [message.payload for message in self.messages()]

    def message(self) -> Publish:
        """Take the one message that has arrived."""
        messages = self.messages()
        assert len(messages) == 1, messages
        return messages[0]

    def acknowledge(self, *messages: Publish) -> None:
        """Complete the exchange of each received message."""
        for message in messages:
            if message.qos == 1:
                self.send(Puback(message.packet_id))
            elif message.qos == 2:
                self.send(Pubrec(message.packet_id))
                self.answer(Pubrel)
                self.send(Pubcomp(message.packet_id))

    def receive_all(self) -> list[bytes]:
        """Take and acknowledge messages until no more come; return their payloads."""
        found: list[bytes] = []
        for _ in range(TICKS_MAX):
            messages = self.messages()
            if not messages:
                return found
            found += [message.payload for message in messages]
            self.acknowledge(*messages)
        raise AssertionError("messages without end")

    @property
    def is_closed(self) -> bool:
        """Return whether the broker has closed the connection."""
        return self.stream.is_closing

    def expect_closed(self, reason_code: int | None = None) -> None:
        """Check that the broker has closed; a v5 client got DISCONNECT before, v3.1.1 nothing."""
        assert self.is_closed, "still open"
        packets = self.take()
        if reason_code is None or self.version < 5:
            assert packets == []
        else:
            assert packets == [Disconnect(reason_code)]


class Broker:
    """The engine, its store and its clients."""

    def __init__(
        self,
        *,
        authenticator: Authenticator | None = None,
        policy: Policy | None = None,
        linger: bool = False,
        **settings: Any,
    ) -> None:
        self.now = START_MS
        self.store = MemoryStore()
        self.settings = Settings()
        for name, value in settings.items():
            assert hasattr(self.settings, name), name
            setattr(self.settings, name, value)
        self.authenticator: Authenticator = authenticator or AllowAll()
        self.rules = Rules()
        self.policy: Policy = policy or self.rules
        self.linger = linger  # peers do not close at once after we did
        self.clients: list[Client] = []
        self.commits_are_held = False
        self.is_audited = True  # False: the test has damaged a row on purpose
        self._collecting = False
        self._ids = 0
        self._instances = 0
        # What the engine told of: action, client, user, topic.
        self.denied: list[tuple[str, str, str, str]] = []
        self.start()

    # The process

    def start(self, *, alive_ms: int = 0, told_of: int = 0) -> Recovery:
        """Start the engine on the store."""
        self.counters = Counters()
        self.engine = Engine(
            self.store,
            self.settings,
            authenticator=self.authenticator,
            policy=self.policy,
            new_client_id=self._new_client_id,
            counters=self.counters,
            denied=self._note_denied,
            new_instance=self._new_instance,
        )
        recovery = self.engine.start(self.now, alive_ms=alive_ms, told_of=told_of)
        self.settle()
        return recovery

    def _note_denied(self, action: str, client_id: str, identity: str, topic: str) -> None:
        self.denied.append((action, client_id, identity, topic))

    def _new_client_id(self) -> str:
        self._ids += 1
        return f"auto-{self._ids}"

    def _new_instance(self) -> str:
        self._instances += 1
        return f"{self._instances:016x}"

    def crash(self, keep: int | None = None) -> None:
        """End the process; of the batches not synced only the first `keep` survive."""
        self.store = self.store.crash(keep)
        for client in self.clients:
            client.stream.is_lost = True
        self.clients = []
        self.commits_are_held = False
        self._collecting = False

    def restart(self, *, keep: int | None = None, after_ms: int = 0) -> Recovery:
        """Crash and start again `after_ms` later."""
        self.crash(keep)
        self.now += after_ms
        return self.start()

    # Time and commits

    def settle(self) -> None:
        """Let the broker do all work that is due now."""
        if self._collecting:
            return
        for _ in range(TICKS_MAX):
            more = self.engine.end_tick(self.now)
            self._report_closed()
            if not self.commits_are_held and self.engine.durable < self.engine.written:
                self.store.sync()
                self.engine.committed(self.engine.written, self.now)
                more = True
            self._check()
            if not more:
                self._check_store()
                return
        raise AssertionError("the broker is never quiet")

    def _report_closed(self) -> None:
        for client in list(self.clients):
            if client.stream.is_closing and not self.linger:
                client.lose()
            if client.connection.state == CLOSED:
                self.clients.remove(client)

    def _check(self) -> None:
        problems = list(self.engine.invariants())
        assert not problems, problems
        may_read = self.engine._pauses.may_read
        for client in self.clients:
            assert client.stream.is_read or not may_read(client.connection), "never read again"

    def _check_store(self) -> None:
        if self.is_audited and self.engine.refused_by is None and not self.store.full:
            problems = list(audit(self.store, set(self.engine._sessions.live)))
            assert not problems, problems

    @contextmanager
    def one_tick(self) -> Iterator[None]:
        """Let everything inside happen in one tick."""
        assert not self._collecting
        self._collecting = True
        yield
        self._collecting = False
        self.settle()

    def hold_commits(self) -> None:
        """Let no commit become durable until `commit`."""
        self.commits_are_held = True

    def commit(self) -> None:
        """Make everything written durable and commit at once from now on."""
        self.commits_are_held = False
        self.settle()

    def advance(self, ms: int = 0, *, s: int = 0) -> None:
        """Let time pass, and let the broker do what becomes due on time.

        Only the end of a long time runs step by step; before it the process counts as suspended.
        """
        end = self.now + ms + s * 1000
        self.now = max(self.now, end - STEPPED_MS)
        for _ in range(TICKS_MAX):
            deadline = self.engine.next_deadline()
            if deadline is None or deadline > end:
                self.now = end
                return
            self.now = max(self.now, deadline)
            self.engine.handle_timeout(self.now)
            self.settle()
        raise AssertionError(f"deadline {deadline} never passes, now {self.now}")

    # Clients

    def open(self, version: int = 5, *, identity: str | None = None, remote: str = "") -> Client:
        """Open a connection and send nothing."""
        client = Client(self, version, identity, remote)
        self.clients.append(client)
        return client

    def connect(self, client_id: str, **fields: Any) -> Client:
        """Connect and take the CONNACK, which must accept (unless commits are held).

        `version` is 4 or 5, `expiry` is in seconds for v5. `clean_start` defaults to False for a
        durable session (v5 with `expiry`, v3.1.1 with `durable`), else True.
        """
        client = self.request(client_id, **fields)
        if not self.commits_are_held:
            client.connack = self._connack(client)
            assert client.connack.reason_code == 0, client.connack
        return client

    def refused(self, client_id: str, **fields: Any) -> int:
        """Connect, which must fail; return the code (-1 if there is no CONNACK in v3.1.1)."""
        client = self.request(client_id, **fields)
        assert client.is_closed
        packets = client.take()
        if not packets:
            return -1
        (connack,) = packets
        assert isinstance(connack, Connack) and not connack.session_present
        assert connack.reason_code != 0
        return connack.reason_code

    def request(self, client_id: str, **fields: Any) -> Client:
        """Open a connection and send CONNECT."""
        version = fields.pop("version", 5)
        client = self.open(version)
        client.send(connect_packet(client_id, version, **fields))
        return client

    def _connack(self, client: Client) -> Connack:
        first = client.collect().pop(0)
        assert isinstance(first, Connack), first
        return first

    def durable(self, client_id: str, *topic_filters: str, qos: int = 1, **fields: Any) -> Client:
        """Connect with a session that never expires, and subscribe."""
        version = fields.get("version", 5)
        fields.setdefault(*(("expiry", NEVER) if version >= 5 else ("durable", True)))
        client = self.connect(client_id, **fields)
        if topic_filters:
            assert client.subscribe(*topic_filters, qos=qos) == [qos] * len(topic_filters)
        return client

    def clean(self, client_id: str, *topic_filters: str, qos: int = 0, **fields: Any) -> Client:
        """Connect with a session in memory, and subscribe."""
        client = self.connect(client_id, **fields)
        if topic_filters:
            assert client.subscribe(*topic_filters, qos=qos) == [qos] * len(topic_filters)
        return client

    def publish(self, topic: str, payload: bytes = b"x", qos: int = 1, **fields: Any) -> None:
        """Publish with a new client, which then disconnects."""
        client = self.connect("publisher")
        answer = client.publish(topic, payload, qos, **fields)
        assert answer is None or getattr(answer, "reason_code", 0) < 0x80, answer
        client.disconnect()

    def rows(self, family: str) -> list[tuple[bytes, bytes]]:
        """Return all rows of one family of the store."""
        return self.store.scan(family, b"", count=1_000_000)


def with_reader(qos: int = 1, **settings: object) -> tuple[Broker, Client]:
    """Return a broker with an offline durable subscriber of `t`, and a publisher; hold commits."""
    broker = Broker(**settings)
    broker.durable("reader", "t", qos=qos).drop()
    publisher = broker.connect("p")
    broker.hold_commits()
    return broker, publisher


def connect_packet(client_id: str, version: int, **fields: Any) -> Connect:
    """Return a CONNECT; `expiry` and `durable` choose the kind of session, see `Broker.connect`."""
    expiry = fields.pop("expiry", 0)
    durable = fields.pop("durable", False)
    assert version >= 5 or not expiry
    fields.setdefault("clean_start", not expiry and not durable)
    fields.setdefault("keep_alive", 0)
    for name in ("will", "username", "password"):
        fields.setdefault(name, None)
    if version >= 5:
        fields["session_expiry_interval"] = expiry
    return Connect(client_id, version, **fields)


def untold_history(tick: Tick, log: MessageLog, settings: Settings, counters: Counters) -> History:
    """Return a history beside which no store is told of anything."""
    feed = FeedRecorder(tick, log, Damage(counters), (), settings.progress_delay_ms)
    return History(tick, log, settings, {}, feed)


def idle_gate(settings: Settings, counters: Counters) -> CommitGate:
    """Return a gate for tests that send nothing or only one connection's output."""
    return CommitGate(
        settings,
        counters,
        send_pending=lambda connection: None,
        send_shared=lambda connection: None,
        resume_reading=lambda connection: None,
    )


def will(topic: str, payload: bytes = b"will", qos: int = 1, **fields: Any) -> Will:
    """Return a will; `delay` is its delay interval in seconds."""
    delay = fields.pop("delay", 0)
    return Will(topic, payload, qos, fields.pop("retain", False), delay, **fields)
