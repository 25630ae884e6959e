"""The broker as a function of (state, event, now): bytes and time in, bytes and batches out.

Shells feed it: `open`, `receive`, `transport_lost`, `handle_timeout`, then once per loop iteration
`end_tick`, which writes everything that changed as one un-synced batch and hands the out-buffers to
the transports. Replies that promise something wait for `committed(serial)`. No I/O but the store
and the transports it is given, no clock, no randomness: the simulation runs this very class. Read
next: `session.packets.inbound` (packets), `session.lifetime.lifecycle` (connections),
`session.delivery.delivery` (messages).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Final

from mqtt import reasons
from mqtt.decoder import Decoder
from mqtt.errors import MqttError, ProtocolError, UnsupportedProtocolVersion
from mqtt.message import NEVER, Message
from mqtt.packet_runs import PubackRun, PublishRun, Received
from mqtt.packets import (
    PUBACK,
    PUBLISH,
    Auth,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from session.assembly import Hooks, Parts
from session.counters import Counters
from session.history.outbox import Outbox
from session.lifetime.lifecycle import Observe
from session.live.commit_gate import CommitGate
from session.live.connection import (
    ACTIVE,
    AUTHENTICATING,
    AWAITING_CONNECT,
    CLOSED,
    CLOSING,
    Connection,
)
from session.live.gauges import count_live
from session.live.tick import CONNECT_WORK, LOSS_WORK, UNIT_SHIFT, Tick
from session.ports import Authenticator, Policy, Transport
from session.scheduling.admission import Admission
from session.scheduling.keep_alive import Silence
from session.scheduling.work_budget import Turns
from session.settings import Settings
from storage.api import Store
from storage.errors import Recoverable, WriteStalled
from storage.tables.tables import (
    BOOT_KEY,
    CONNECTIONS,
    FAMILIES,
    META,
    Totals,
    check_format,
    encode_boot,
    load_boot,
    load_totals,
    scan_all,
)
from storage.time.broker_clock import HEARTBEAT_KEY, Heartbeat

# Bytes sent behind a CONNECT that one connection may have waiting until it is judged: what one read
# of a socket may bring.
EARLY_BYTES_MAX: Final = 256 << 10
SLOW_PACKET_BYTES: Final = 1024  # a packet of which so much is there may take its time
RETRY_MS: Final = 100  # how long after a refused write the same batch is tried again
STALL_RETRY_MS: Final = 10
# Changes an unwritten batch may have before whoever adds to it is not read from any more.
STALLED_CHANGES_MAX: Final = 4096
STALLED_BYTES_MAX: Final = 8 << 20  # the same, received since the store refused a batch first
# Connections that one tick ends when all have to go; 50 microseconds each.
DEPARTURES_MAX: Final = 256
RECOVER_SLICE: Final = 1000  # connections that one batch of the recovery settles

_DISCONNECTS: Final = {
    reasons.MALFORMED_PACKET: "malformed_packet",
    reasons.KEEP_ALIVE_TIMEOUT: "keep_alive_timeout",
    reasons.SESSION_TAKEN_OVER: "taken_over",
    reasons.SERVER_SHUTTING_DOWN: "shutting_down",
    reasons.QUOTA_EXCEEDED: "quota_exceeded",
    reasons.MESSAGE_RATE_TOO_HIGH: "rate_exceeded",
    reasons.UNSPECIFIED_ERROR: "server_error",
}


class Recovery:
    """What a start found."""

    __slots__ = ("filters", "retained", "sessions", "were_connected")

    def __init__(self, sessions: int, filters: int, retained: int, were_connected: int) -> None:
        self.sessions = sessions
        self.filters = filters
        self.retained = retained
        self.were_connected = were_connected  # clients that a crash had disconnected


class Engine:
    """One broker."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        authenticator: Authenticator,
        policy: Policy,
        new_client_id: Callable[[], str],
        counters: Counters,
        heartbeat: Callable[[int], bytes] | None = None,
        observe: Observe | None = None,
    ) -> None:
        """Take the parts; nothing is opened before `start`.

        `heartbeat` returns the row that says when the broker was last alive
        (`storage.time.broker_clock`), for the broker time it is given; without one, broker time is
        taken for all clocks. `observe` is told when a client connects, is refused or goes; it must
        not call back.
        """
        self._observe: Final = observe or _unobserved
        self._heartbeat: Final = heartbeat or _plain_heartbeat
        self.settings: Final = settings
        self.counters: Final = counters
        self.written: int = 0  # serial of the last written batch
        self.durable: int = 0  # serial up to which the shell reported commits
        self._store: Final = store
        self._authenticator: Final = authenticator
        self._policy: Final = policy
        self._new_client_id: Final = new_client_id
        self._tick: Final = Tick(settings.progress_delay_ms)
        self._gate: Final = CommitGate(settings, counters, self._go_on, self._resume_reading)
        self._connections: dict[Connection, None] = {}
        self._next_number = 1
        self._silence: Final = Silence(settings, self._connections)
        self._lost: dict[Connection, None] = {}  # their transports are gone, the rest is to do
        # Who has to go, and why: the reason code, and the word it is counted under.
        self._departures: deque[tuple[Connection, int, str]] = deque()
        self._heartbeat_ms = 0
        self._retry_ms: int | None = None  # a batch was refused; when to try it again
        # What the store said to the last batch, None if it took it. Until then nothing is lost and
        # nothing is acknowledged; a shell may free space or reopen the store meanwhile.
        self.refused_by: Recoverable | None = None
        self._stalled: dict[Connection, None] = {}  # not read from until the batch is written
        self._is_low = False
        self._is_draining = False
        self._end_written: int = 0  # end of the log when a batch was written last
        self._refused_at: int = 0  # bytes received when the store refused a batch
        self._admission: Final = Admission(settings, self._resume_reading)
        self._turns: Final = Turns(self._tick, settings.tick_work_max, self._handle_later)
        self._totals: Totals = Totals()
        self._boot = 0  # starts of the broker on this store, this one included

    def _build(self) -> None:
        """Put the parts together around the opened store."""
        parts = Parts(
            self._tick,
            self._gate,
            self._store,
            self.settings,
            self._policy,
            self.counters,
            self._totals,
            self._boot,
            self._authenticator,
            self._new_client_id,
            Hooks(
                self.settle,
                self.settle_for,
                self._silence.watch,
                self._observe,
                self._resume_reading,
            ),
        )
        self._log = parts.log
        self._due = parts.due
        self._routes = parts.routes
        self._retained = parts.retained
        self._quota = parts.quota
        self._ledger = parts.ledger
        self.outbox: Outbox = parts.outbox  # the history, for whoever exports it
        self._receipts = parts.receipts
        self._delivery = parts.delivery
        self._groups = parts.delivery.groups
        self._sessions = parts.sessions
        self._publishing = parts.publishing
        self._lifecycle = parts.lifecycle
        self._inbound = parts.inbound
        self._housekeeping = parts.housekeeping
        self._chronicle = parts.chronicle

    # Start

    def start(self, now: int, *, alive_ms: int = 0, told_of: int = 0) -> Recovery:
        """Open what is in the store and settle what a crash left; call it first, once.

        Clients that were connected count as disconnected when the broker was dead at the latest, by
        its last heartbeat, or by `alive_ms` if a shell knows of a later sign of life. `told_of` is
        the newest boot that somebody has the history of: a database that was set back does not use
        its numbers again. On return everything is written; it is durable with the next commit.
        Raises `StorageError`, and `CorruptRecord` for rows that everything depends on.
        """
        store = self._store
        existing = set(store.families())
        for family in FAMILIES:
            if family not in existing:
                store.create_family(family)
        self._tick.now = now
        check_format(store, self._tick.batch)
        self._totals = load_totals(store)
        self._boot = max(load_boot(store)[0], told_of) + 1
        self._tick.batch.append((META, BOOT_KEY, encode_boot(self._boot, 0)))
        self._build()
        self._ledger.begin(self._boot, now, store)
        self._log.open(now)
        self._receipts.begin(self._log.end)
        self._chronicle.booted(store)
        self._due.open()
        self._sessions.open()
        self._groups.open()
        self._drop_deserted_groups()
        heartbeat = store.get(META, HEARTBEAT_KEY)
        if heartbeat is not None:
            alive_ms = max(alive_ms, Heartbeat.decode(heartbeat).broker_ms)
        were_connected = 0
        for key, value in scan_all(store, CONNECTIONS, b"", None):
            self._lifecycle.recover(key.decode(), value, alive_ms)
            were_connected += 1
            if were_connected % RECOVER_SLICE == 0:
                self._write()
        self._housekeeping.open()
        self._beat(now)
        self._write()
        return Recovery(
            self._totals.sessions, len(self._routes), self._totals.retained, were_connected
        )

    def _drop_deserted_groups(self) -> None:
        for group in self._groups.all():
            if not group.stored_members:
                self._sessions.end_if_deserted(group)

    # Connections

    def open(
        self,
        transport: Transport,
        now: int,
        *,
        listener: str = "tcp",
        remote: str = "",
        identity: str | None = None,
        waited_ms: int = 0,
    ) -> Connection:
        """Take note of a new transport; its CONNECT has to come within the connect timeout.

        An `identity` that the transport has proved is the client's user name: no password is asked.
        `waited_ms` of the timeout have gone to what came before MQTT (a TLS handshake).
        """
        self._tick.now = now
        settings = self.settings
        decoder = Decoder("server", settings.maximum_packet_size)
        decoder.connect_size_max = settings.connect_size_max
        decoder.holds_after_connect = True
        connection = Connection(
            self._next_number, transport, decoder, now - waited_ms, listener, remote, identity
        )
        self._next_number += 1
        self._connections[connection] = None
        self.counters.connections_accepted += 1
        self._silence.watch(connection)
        is_welcome = self._admission.enter(connection, len(self._connections), now)
        if self._is_draining or not is_welcome:
            connection.state = CLOSING
            self._gate.close(connection)
        return connection

    def receive(self, connection: Connection, data: bytes, now: int) -> None:
        """Handle bytes from a client. Never raises for anything that a client can send."""
        self._tick.now = now
        self.counters.bytes_received += len(data)
        if connection.state >= CLOSING:
            return
        decoder = connection.decoder
        waiting = self._turns.waiting
        if waiting and connection in waiting:
            waiting[connection] += decoder.receive_runs(data)  # what a transport still had
            return
        self._handle(connection, decoder.receive_runs(data), len(data), now)
        if decoder.is_held and decoder.pending_size > EARLY_BYTES_MAX:
            mistake = ProtocolError("too much before CONNACK", reasons.QUOTA_EXCEEDED)
            self._fail(connection, mistake)

    def _handle(self, connection: Connection, packets: list[Received], size: int, now: int) -> None:
        """Handle the packets that the last `size` bytes have completed."""
        decoder = connection.decoder
        inbound = self._inbound
        tick = self._tick
        work_max = self._turns.work_max
        spared = self._turns.spared
        received = self.counters.packets_received
        published = received[PUBLISH]
        tick.work += size >> UNIT_SHIFT
        if connection.state == AWAITING_CONNECT and packets and size and self._turns.is_full():
            self._turns.postpone(connection, packets)
            return
        # A packet is a sign of life [MQTT-3.1.2-22], and so are the bytes of one too large for a
        # slow link; single bytes of one that never ends are not.
        if packets or decoder.pending_size > SLOW_PACKET_BYTES:
            connection.last_received_ms = now
        try:
            while packets:
                handled = 0
                for packet in packets:
                    # The two packets that make the traffic go straight to their handlers.
                    if connection.state != ACTIVE:
                        self._begin(connection, packet)
                    elif type(packet) is Publish:
                        received[PUBLISH] += 1
                        inbound.publish(connection, packet)
                    elif type(packet) is PublishRun:
                        if inbound.publish_run(connection, packet):
                            received[PUBLISH] += len(packet.payloads)
                        else:
                            self._publish_each(connection, packet)
                    elif type(packet) is PubackRun:
                        received[PUBACK] += len(packet.packet_ids)
                        inbound.puback_run(connection, packet)
                    elif not self._dispatch(connection, packet):
                        self._turns.postpone(connection, packets[handled:])  # it is under way
                        break
                    if connection.state >= CLOSING:
                        return
                    handled += 1
                    if tick.work > work_max and spared <= handled < len(packets):
                        if connection.state != ACTIVE:
                            continue
                        self._turns.postpone(connection, packets[handled:])
                        break
                if not decoder.is_held or not (
                    connection.state == ACTIVE or connection.handshake is not None
                ):
                    break
                packets = decoder.go_on_runs()  # behind a CONNECT that was judged at once
        except MqttError as error:
            self._fail(connection, error)
            return
        if decoder.error is not None:
            if connection not in self._turns.waiting:
                self._fail(connection, decoder.error)
        elif self._retry_ms is not None and self._is_stuffed():
            self._stalled[connection] = None
            connection.transport.pause_reading()
        else:
            self._turns.read_enough(connection, size)
        if connection.meters is not None and connection.state < CLOSING:
            messages = received[PUBLISH] - published
            if not self._admission.measure(connection, messages, size, now):
                if self.settings.on_rate == "disconnect":
                    reason = reasons.MESSAGE_RATE_TOO_HIGH
                    self._fail(connection, ProtocolError("too fast", reason))

    def _read_after_turn(self, connection: Connection) -> None:
        """Read on from a client that had to wait for its turn."""
        if connection.state == AUTHENTICATING and connection.handshake is not None:
            connection.transport.resume_reading()
        self._resume_reading(connection)

    def _handle_later(self, connection: Connection, packets: list[Received]) -> None:
        self._handle(connection, packets, 0, self._tick.now)

    def _is_stuffed(self) -> bool:
        """Is there enough already that the store does not take?"""
        accepted = self._log.end - self._end_written
        if len(self._tick.batch) + accepted > STALLED_CHANGES_MAX:
            return True
        return self.counters.bytes_received - self._refused_at > STALLED_BYTES_MAX

    def _publish_each(self, connection: Connection, run: PublishRun) -> None:
        for packet in run.packets():
            self.counters.packets_received[PUBLISH] += 1
            self._inbound.publish(connection, packet)
            if connection.state >= CLOSING:
                return

    @staticmethod
    def _is_stall(refusal: Recoverable) -> bool:
        return isinstance(refusal, WriteStalled)

    def _resume_reading(self, connection: Connection) -> None:
        """Read on, unless something else holds the connection back."""
        if connection.state == ACTIVE and not connection.reading_paused:
            if connection not in self._stalled and not connection.throttled_until_ms:
                if connection not in self._turns.waiting:
                    connection.transport.resume_reading()

    def _go_on(self, connection: Connection, was_full: bool) -> None:
        """Replies of a connection were released: send what has waited for room."""
        self._delivery.window.send_waiting(connection)  # it stops when too much waits
        if was_full and connection.group_keys:
            self._delivery.shared.send_waiting(connection)

    def _begin(self, connection: Connection, packet: Received) -> None:
        """Handle a packet of a connection that was not accepted yet."""
        if connection.state == AWAITING_CONNECT:
            self.counters.packets_received[packet.kind] += 1
            self._tick.work += CONNECT_WORK
            if not isinstance(packet, Connect):
                raise ProtocolError("first packet is not CONNECT")
            self._lifecycle.connect(connection, packet, lambda: self._handle_early(connection))
            if connection.state == AUTHENTICATING and connection.handshake is None:
                connection.transport.pause_reading()
        elif connection.handshake is not None:
            self._converse(connection, packet)

    def _converse(self, connection: Connection, packet: Received) -> None:
        """Handle a packet that came before the CONNACK of an enhanced authentication."""
        self.counters.packets_received[packet.kind] += 1
        if isinstance(packet, Auth):
            self._lifecycle.authentication.receive(connection, packet)
        elif isinstance(packet, Disconnect):
            connection.state = CLOSING
            self._gate.close(connection)
        else:
            raise ProtocolError("expected AUTH or DISCONNECT before CONNACK")  # [MQTT-3.1.2-30]

    def _handle_early(self, connection: Connection) -> None:
        """The authenticator answered: go on with what came after the CONNECT [MQTT-3.1.4-5]."""
        if connection.state == ACTIVE:
            connection.transport.resume_reading()
            self._handle(connection, connection.decoder.go_on_runs(), 0, self._tick.now)

    def _dispatch(self, connection: Connection, packet: Received) -> bool:
        """Handle a packet; False if it is a long one, of which more is to be done."""
        inbound = self._inbound
        if connection not in inbound.under_way:
            self.counters.packets_received[packet.kind] += 1
        if isinstance(packet, Publish):
            inbound.publish(connection, packet)
        elif isinstance(packet, Puback):
            inbound.puback(connection, packet)
        elif isinstance(packet, Pubrec):
            inbound.pubrec(connection, packet)
        elif isinstance(packet, Pubrel):
            inbound.pubrel(connection, packet)
        elif isinstance(packet, Pubcomp):
            inbound.pubcomp(connection, packet)
        elif isinstance(packet, Pingreq):
            inbound.ping(connection)
        elif isinstance(packet, Subscribe):
            return inbound.subscribe(connection, packet)
        elif isinstance(packet, Unsubscribe):
            return inbound.unsubscribe(connection, packet)
        elif isinstance(packet, Disconnect):
            mistake = self._lifecycle.disconnect(connection, packet)
            if mistake:
                raise ProtocolError("session expiry interval raised from 0", mistake)
        elif isinstance(packet, Auth):
            self._lifecycle.authentication.receive(connection, packet)
        else:
            raise ProtocolError("second CONNECT")  # [MQTT-3.1.0-2]
        return True

    def _fail(self, connection: Connection, error: MqttError) -> None:
        """A client broke the protocol: say why where the version can, and close."""
        if connection.state in (AWAITING_CONNECT, AUTHENTICATING):
            self._refuse(connection, error)
            return
        self.counters.disconnects[_DISCONNECTS.get(error.reason_code, "protocol_error")] += 1
        self._lifecycle.end(connection, error.reason_code)

    def _refuse(self, connection: Connection, error: MqttError) -> None:
        """Answer a broken CONNECT: v5 with the reason, v3.1.1 only where a code exists for it."""
        connection.version = connection.decoder.version
        connection.maximum_packet_size = connection.decoder.peer_packet_size_max
        if isinstance(error, UnsupportedProtocolVersion):
            # Below 5 nobody can understand v5's form of CONNACK, whatever their CONNECT looks like.
            is_five = error.reads_as_five and error.protocol_version >= 5
            connection.version = 5 if is_five else 4
        elif connection.version < 5:
            connection.version = 0  # malformed: no CONNACK at all [MQTT-3.1.4-1]
        self._lifecycle.refuse(connection, error.reason_code)

    def transport_lost(self, connection: Connection, now: int) -> None:
        """The transport is closed, by whomever. Idempotent."""
        self._tick.now = now
        if connection.state == CLOSED:
            return
        if self._turns.is_full():
            self._lost[connection] = None  # a whole network may be gone
            return
        self._tick.work += LOSS_WORK
        # What it sent before, perhaps a DISCONNECT, has arrived: it only waited for its turn.
        while packets := self._turns.waiting.pop(connection, None):
            if connection.state >= CLOSING:
                break
            self._handle(connection, packets, 0, now)
        self._inbound.under_way.pop(connection, None)
        self._lifecycle.lost(connection)
        self._connections.pop(connection, None)
        self._turns.waiting.pop(connection, None)
        self._stalled.pop(connection, None)
        self._admission.leave(connection)

    def pause_writing(self, connection: Connection) -> None:
        """The client takes less than we have for it: send nothing more for now."""
        connection.writable = False

    def resume_writing(self, connection: Connection, now: int) -> None:
        """The transport's buffer has drained."""
        self._tick.now = now
        connection.writable = True
        if connection.state == ACTIVE:
            self._delivery.window.send_waiting(connection)
            self._delivery.shared.send_waiting(connection)

    # Ticks

    def settle(self) -> bool:
        """Write the open batch now, so that loads see it; False if the store refused it."""
        if self._retry_ms is not None and self._tick.now < self._retry_ms:
            return False  # a CONNECT must not try the whole batch again
        tick = self._tick
        if tick.batch or tick.dirty or tick.dirty_groups or self._log.is_pending:
            return self._write()
        return self._retry_ms is None

    def settle_for(self, client_id: str) -> bool:
        """Settle if the store may not have the newest of this client; False as for `settle`.

        A thousand clients that come in one tick are then one batch and not a thousand.
        """
        if self._retry_ms is None and client_id not in self._tick.parted:
            if client_id not in self._sessions.live:
                return True
        return self.settle()

    def _write(self) -> bool:
        tick = self._tick
        self._sessions.write_dirty(tick.now)
        batch = tick.batch
        self._log.seal(batch)
        if not batch and not self._ledger.is_due(tick.now):
            return True
        if self._ledger.is_on:
            self._ledger.seal(batch, tick.now)
        if not batch:
            return True
        try:
            self._store.write(batch)
        except Recoverable as refusal:
            # Nothing was applied; the batch stays and grows. A full disk: refuse what needs it.
            # A stall: stop reading from those whose messages make the batch grow.
            self._retry_ms = tick.now + (STALL_RETRY_MS if self._is_stall(refusal) else RETRY_MS)
            if self.refused_by is None:
                self._refused_at = self.counters.bytes_received
            self.refused_by = refusal
            self._publishing.refuses_writes = self._is_low or not self._is_stall(refusal)
            return False
        tick.batch = []
        self._end_written = self._log.end
        self.written += 1
        self.counters.batch_records.add(len(batch))
        tick.parted.clear()
        if tick.ending:
            tick.ended.update(dict.fromkeys(tick.ending, self.written))
            tick.ending.clear()
        if self._retry_ms is not None:
            self._retry_ms = None
            self.refused_by = None
            self._publishing.refuses_writes = self._is_low
            stalled, self._stalled = self._stalled, {}
            for connection in stalled:
                self._resume_reading(connection)
        self._due.written()
        self._retained.written()
        if self._housekeeping.reclaim_serial < 0:
            self._housekeeping.reclaim_serial = self.written
        return True

    def end_tick(self, now: int) -> bool:
        """Write the tick's batch and hand every connection its output; True = call again soon.

        On return replies that need no commit are with their transports; the shell asks for a commit
        of `written` if it grew. Raises `Unrecoverable` when the process must end.
        """
        tick = self._tick
        tick.now = now
        more = False
        if self._retry_ms is None or self._retry_ms <= now:
            if self._write():
                self._receipts.attach(self.written, self.durable, self._end_written, now)
                self._gate.batch_written(self.written, self.durable, now)
                # What is read now was written just before; what it changes is the next batch.
                reading = self._delivery.backlog.read() if tick.readers else False
                sharing = self._delivery.shared.read() if tick.group_readers else False
                more = reading or sharing
        self._gate.flush()
        tick.work = 0
        if self._lost:
            self._part()
            more = True
        if self._turns.waiting and not (self._retry_ms is not None and self._is_stuffed()):
            self._turns.go_on(self._read_after_turn)
            more = True
        if self._departures:
            self._depart()
            more = True
        is_changed = bool(tick.batch or tick.dirty or tick.dirty_groups)
        is_changed = is_changed or self._gate.has_unwritten() or self._log.is_pending
        return more or (is_changed and self._retry_ms is None)

    def committed(self, serial: int, now: int) -> None:
        """Everything up to batch `serial` is durable: release what waited for it."""
        self._tick.now = now
        if serial <= self.durable:
            return
        self.durable = serial
        ended = self._tick.ended
        if ended:
            self._tick.ended = {name: at for name, at in ended.items() if at > serial}
        self._receipts.release(serial, now)
        self._gate.release(serial, now)
        self._housekeeping.reclaim(serial)

    # Time

    def next_deadline(self) -> int | None:
        """Return when `handle_timeout` has something to do, broker ms; None = nothing is known."""
        times = [self._heartbeat_ms + self.settings.heartbeat_ms]
        silence_ends = self._silence.next_deadline()
        if silence_ends is not None:
            times.append(silence_ends)
        throttled_until = self._admission.next_deadline()
        if throttled_until is not None:
            times.append(throttled_until)
        if self._retry_ms is not None:
            times.append(self._retry_ms)  # all else waits until the store takes writes again
            return min(times)
        times.append(self._housekeeping.next_deadline())
        told_by = self._ledger.next_deadline()
        if told_by is not None:
            times.append(told_by)
        if self._tick.late_due_ms is not None:
            times.append(self._tick.late_due_ms)
        return min(times)

    def handle_timeout(self, now: int) -> None:
        """Do what time has made due, one bounded slice; call `end_tick` after it."""
        self._tick.now = now
        for connection in self._silence.come(now):
            self._look_after(connection, now)
        self._admission.run(now)
        if now >= self._heartbeat_ms + self.settings.heartbeat_ms:
            self._heartbeat_ms = now
            if self._sessions.live:
                self._beat(now)
        self._housekeeping.run(now)

    def _beat(self, now: int) -> None:
        """Put the heartbeat row into the batch: the crash time of every connected client."""
        self._tick.batch.append((META, HEARTBEAT_KEY, self._heartbeat(now)))

    def _look_after(self, connection: Connection, now: int) -> None:
        deadline = self._silence.ends(connection)
        if not deadline:
            return
        if deadline > now:
            self._silence.watch_until(connection, deadline)
        elif (
            connection.reading_paused
            or connection.throttled_until_ms
            or connection.connack_waits()
            or connection in self._stalled
            or connection in self._turns.waiting
        ):
            # It is us who do not listen, or owe the CONNACK: the client's silence says nothing.
            connection.last_received_ms = now
            self._silence.watch(connection)
        elif connection.state < ACTIVE:
            self.counters.connects["timeout"] += 1
            connection.state = CLOSING
            self._gate.close(connection)
        elif connection.state == ACTIVE:
            self.counters.disconnects["keep_alive_timeout"] += 1
            self._lifecycle.end(connection, reasons.KEEP_ALIVE_TIMEOUT)

    # Operation

    def refuse_writes(self, refused: bool) -> None:
        """The disk is below its low-water mark (or above it again): refuse new durable state."""
        self._is_low = refused
        full = self.refused_by is not None and not self._is_stall(self.refused_by)
        self._publishing.refuses_writes = refused or full  # a stall only delays

    def publish_system(self, topic: str, payload: bytes, now: int) -> None:
        """Publish a `$SYS` message: live, and retained in memory only."""
        self._tick.now = now
        message = Message(topic, payload, 0, True, b"", "", now, NEVER)
        self._retained.set_system(message)
        route = self._routes.match(topic)
        live = Message(topic, payload, 0, False, b"", "", now, NEVER)
        if route.targets:
            self._delivery.live.publish(live, route.targets)

    def drain(self, now: int) -> None:
        """End every connection with 0x8B; wills fire or wait in the store. Then commit and exit."""
        self._tick.now = now
        self._is_draining = True
        self._housekeeping.stop()
        farewell = self._admission.farewell()
        for connection in self._connections:
            self._departures.append((connection, farewell, "shutting_down"))
        self._depart()

    def finish(self, now: int) -> None:
        """Everybody is gone and everything durable: say so in the history, and commit that."""
        self._tick.now = now
        self._chronicle.shut_down()
        self._ledger.hurry()

    def _part(self) -> None:
        """Part from lost connections, as far as the budget of this tick goes."""
        lost = self._lost
        while lost and not self._turns.is_full():
            connection = next(iter(lost))
            del lost[connection]
            self.transport_lost(connection, self._tick.now)

    def _depart(self) -> None:
        """End the next slice of connections that have to go."""
        departures = self._departures
        for _ in range(min(len(departures), DEPARTURES_MAX)):
            connection, reason_code, word = departures.popleft()
            if connection.state < CLOSING:
                self.counters.disconnects[word] += 1
                self._lifecycle.end(connection, reason_code)

    def send_away(self, identities: Collection[str], now: int) -> None:
        """End with 0x87 the connections of users whose password is not what it was.

        Not those a transport has proved. Sessions stay, wills do what they do; the shell ticks.
        """
        self._tick.now = now
        for connection in self._connections:
            session = connection.session
            if session is None or connection.identity is not None or connection.state >= CLOSING:
                continue
            if session.identity in identities:
                self._departures.append((connection, reasons.NOT_AUTHORIZED, "not_authorized"))
        self._depart()

    def rotate(self, now: int, layout: str | None = None) -> None:
        """Begin a new generation of the message log, with another layout if one is named."""
        self._tick.now = now
        self._housekeeping.rotate(now, layout)

    def stats(self) -> dict[str, int]:
        """Return what metrics and `$SYS` report beside the counters. Cheap; loop thread only."""
        online = count_live(self._sessions.live)
        totals = self._totals
        return {
            **online,
            "connections": len(self._connections),
            "sessions_offline": totals.sessions - online["sessions_stored_online"],
            "sessions_stored": totals.sessions,
            "subscriptions_stored": totals.subscriptions,
            "filters": len(self._routes),
            "shared_groups": len(self._groups.all()),
            "retained_messages": totals.retained,
            "log_end": self._log.end,
            "log_bytes": self._quota.total_bytes(),
            "generations": len(self._log.list_generations()),
            "waiting_replies": len(self._gate),
            "batches_unsynced": self.written - self.durable,
        }

    def invariants(self) -> Iterator[str]:
        """Yield what must hold between two events and does not; for tests and the simulation."""
        for client_id, connection in self._sessions.live.items():
            session = connection.session
            if session is None or session.client_id != client_id:
                yield f"{client_id}: its connection has session {session}"
                continue
            yield from session.invariants()
            yield from self._delivery.window.invariants(connection)
        yield from self._groups.invariants()
        yield from self._gate.invariants()


def _plain_heartbeat(now: int) -> bytes:
    """Return a heartbeat of a world whose only clock is broker time."""
    return Heartbeat(now, now, "", now).encode()


def _unobserved(event: str, connection: Connection, detail: str) -> None:
    """Tell nobody."""
