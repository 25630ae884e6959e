"""The broker as a function of (state, event, now): bytes and time in, bytes and batches out.

A shell calls `open`, `receive`, `transport_lost` and `handle_timeout`, then once per loop iteration
`end_tick`, which writes all changes as one un-synced batch and passes the output to the transports.
Replies that promise something wait for `committed(serial)`. No I/O but the given store and
transports, no clock, no randomness: the simulation runs the same class. Read next:
`session.packets.dispatch` (packets), `session.lifetime.connect` (connections),
`session.delivery.delivery` (messages).
"""

from collections.abc import Callable, Collection, Iterator
from typing import Final

from mqtt import reasons
from mqtt.decoder import Decoder
from mqtt.errors import MqttError, ProtocolError, UnsupportedProtocolVersion
from mqtt.packet_runs import PubackRun, PublishRun, Received
from mqtt.packets import (
    AUTH,
    CONNECT,
    DISCONNECT,
    PUBACK,
    PUBLISH,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Auth,
    Connect,
    Disconnect,
    Publish,
)
from session.administration import Administration
from session.assembly import Assembly
from session.counters import Counters
from session.delivery.fetching.inbox import Inbox
from session.delivery.fetching.requests import Requests
from session.feed.backfill import Backfill
from session.feed.kept import KeptRows
from session.feed.outlet import FeedOutlet
from session.history.outbox import Outbox
from session.lifetime.context import Denied, Observe, Ports
from session.live.commit_gate import CommitGate
from session.live.connection import (
    ACTIVE,
    AUTHENTICATING,
    AWAITING_CONNECT,
    CLOSED,
    CLOSING,
    Connection,
)
from session.live.connection_states import (
    CONNECT_TIMEOUT,
    DISCONNECT_RECEIVED,
    KEEP_ALIVE_TIMEOUT,
    PROTOCOL_ERROR,
    TURNED_AWAY,
    move,
)
from session.live.core import Core
from session.live.damage import TellDamage
from session.live.losses import TellLoss
from session.live.tick import AUTH_WORK, CONNECT_WORK, LOSS_WORK, UNIT_SHIFT, Tick
from session.maintenance import Maintenance
from session.packets.proxy import ProxyHandler
from session.ports import Authenticator, Policy, Transport
from session.publish.store_health import NO_LIMIT
from session.recovery import Recovery, open_database, recover
from session.routing.loading import FilterLoad
from session.settings import CHANGEABLE, Settings
from storage.api import Store
from storage.errors import Recoverable
from storage.tables.tables import META
from storage.time.broker_clock import HEARTBEAT_KEY, Heartbeat

# Bytes that one connection may send after its CONNECT before it is accepted: one read of a socket.
EARLY_BYTES_MAX: Final = 256 << 10
ACKS_SHIFT: Final = 2  # four PUBACKs of a run are a unit of work
# Packets that may be much work, whatever their size: the others need no budget at all.
MAY_BE_DEAR: Final = frozenset((CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, AUTH))
SLOW_PACKET_BYTES: Final = 1024  # bytes of an incomplete packet that count as a sign of life

_DISCONNECTS: Final = {
    reasons.MALFORMED_PACKET: "malformed_packet",
    reasons.KEEP_ALIVE_TIMEOUT: "keep_alive_timeout",
    reasons.SESSION_TAKEN_OVER: "taken_over",
    reasons.SERVER_SHUTTING_DOWN: "shutting_down",
    reasons.QUOTA_EXCEEDED: "quota_exceeded",
    reasons.MESSAGE_RATE_TOO_HIGH: "rate_exceeded",
    reasons.UNSPECIFIED_ERROR: "server_error",
}


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
        denied: Denied | None = None,
        damaged: TellDamage | None = None,
        new_instance: Callable[[], str] | None = None,
        filters: FilterLoad | None = None,
    ) -> None:
        """Take the surroundings of the broker; nothing is opened before `start`.

        `heartbeat` returns the row that says when the broker was last alive
        (`storage.time.broker_clock`), for a given broker time; without it broker time is used for
        all clocks. `observe` is called when a client connects, is refused or disconnects, `denied`
        when the policy denies a client a PUBLISH, a subscription or its will, `damaged` when rows
        were found that cannot be read; they must not call the engine. `new_instance` makes the mark
        of a new backend: one that no other database has. `filters` are those of the store, as far
        as they are loaded.
        """
        self.settings: Final = settings
        self.counters: Final = counters
        self.durable: int = 0  # serial up to which the shell reported commits
        self._store: Final = store
        self._ports: Final = Ports(
            authenticator,
            policy,
            new_client_id,
            observe or _unobserved,
            denied or _untold,
            new_instance or new_client_id,
        )
        self._filters: Final = filters or FilterLoad()
        self._heartbeat: Final = heartbeat or _plain_heartbeat
        self._heartbeat_ms = 0
        self._tick: Final = Tick(settings.progress_delay_ms)
        self._gate: Final = CommitGate(
            settings,
            counters,
            send_pending=self._send_pending,
            send_shared=self._send_shared,
            resume_reading=self._resume_reading,
        )
        self._core: Final = Core(self._tick, self._gate, settings, counters)
        if damaged is not None:
            self._core.damage.tell = damaged
        self._next_number = 1
        self._lost: dict[Connection, None] = {}  # lost transports that are not handled yet
        # The reference of the settings while `drain` names another one.
        self._configured: tuple[str | None, bool] | None = None

    # Start

    def start(self, now: int, *, alive_ms: int = 0, told_of: int = 0) -> Recovery:
        """Open what is in the store and clean up after a crash; call it first, once.

        Clients that were connected count as disconnected at the last heartbeat, or at `alive_ms` if
        the shell knows of a later sign of life. `told_of` is the newest boot of the exported
        history: a database restored from a backup does not use its numbers again. On return
        everything is written; it is durable with the next commit.
        Raises `StorageError`, and `DamagedRows` for rows that everything depends on.
        """
        self._tick.now = now
        database = open_database(self._store, self._core, told_of)
        assembly = Assembly(self._core, database, self._ports, self._filters)
        self._take(assembly)
        recovery = recover(assembly, now, alive_ms)
        self._beat(now)
        self._writer.write()
        return recovery

    def _take(self, assembly: Assembly) -> None:
        """Keep the parts that events go to."""
        self._connections = assembly.connections
        self._log = assembly.database.log
        self._routes = assembly.routes
        self._retained = assembly.retained
        self._recorder = assembly.history.recorder
        self.feeds: FeedOutlet = assembly.outlet  # for the shells of external stores
        self.backfill: Backfill = assembly.backfill  # for what an operator asks
        self.kept: KeptRows = assembly.kept  # for the same
        # For them, too: what they are asked, and what they answer.
        self.requests: Requests = assembly.delivery.requests
        self.inbox: Inbox = assembly.delivery.inbox
        self.proxy: ProxyHandler = assembly.proxy
        self._feed = assembly.feed
        self.outbox: Outbox = assembly.history.outbox  # the history, for its exporter
        self._publish_events = assembly.history.publishes
        self._delivery = assembly.delivery
        self._groups = assembly.delivery.groups
        self._sessions = assembly.sessions
        self._publishing = assembly.publishing
        self._connects = assembly.connects
        self._connects.decided = self._handle_early
        self._awaited = assembly.delivery.proxies.awaited
        self._disconnects = assembly.disconnects
        self._dispatcher = assembly.dispatcher
        self._housekeeping = assembly.housekeeping
        self._collection = assembly.collection
        self._health = assembly.health
        self._writer = assembly.writer
        self._turns = assembly.turns
        self._pauses = assembly.pauses
        self._admission = assembly.admission
        self._silence = assembly.silence
        self._maintenance = Maintenance(assembly)
        self._administration = Administration(assembly)

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
        """Open a connection on a new transport; its CONNECT must arrive within the connect timeout.

        An `identity` that the transport has proved is the client's user name: no password is asked.
        `waited_ms` of the timeout are used up by what came before MQTT (a TLS handshake).
        """
        self._tick.now = now
        settings = self.settings
        decoder = Decoder(
            "server",
            settings.maximum_packet_size,
            connect_size_max=settings.connect_size_max,
            holds_after_connect=True,
        )
        connection = Connection(
            self._next_number, transport, decoder, now - waited_ms, listener, remote, identity
        )
        self._next_number += 1
        self._connections[connection] = None
        self.counters.connections_accepted += 1
        self._silence.watch(connection)
        is_welcome = self._admission.enter(connection, len(self._connections), now)
        if self._maintenance.is_draining or not is_welcome:
            move(connection, TURNED_AWAY)
            self._gate.close(connection)
        return connection

    def receive(self, connection: Connection, data: bytes, now: int) -> None:
        """Handle bytes from a client. Never raises for anything that a client can send."""
        self._tick.now = now
        self.counters.bytes_received += len(data)
        if connection.state >= CLOSING:
            return
        decoder = connection.decoder
        turns = self._turns
        waiting = turns.waiting
        if waiting and connection in waiting:
            # The transport had read it before the pause.
            turns.add(connection, decoder.receive_runs(data, turns.slice_bytes()))
            if not decoder.is_cut:
                self._tick.work += len(data) >> UNIT_SHIFT
            return
        self._handle(connection, decoder.receive_runs(data, turns.slice_bytes()), len(data), now)
        if decoder.is_held and decoder.pending_size > EARLY_BYTES_MAX:
            mistake = ProtocolError("too much before CONNACK", reasons.QUOTA_EXCEEDED)
            self._fail(connection, mistake)

    def _handle(self, connection: Connection, packets: list[Received], size: int, now: int) -> None:
        """Handle the packets that the last `size` bytes have completed."""
        decoder = connection.decoder
        turns = self._turns
        tick = self._tick
        received = self.counters.packets_received
        published = received[PUBLISH]
        # Bytes count when they are decoded.
        undecoded = decoder.cut_size
        tick.work += (size - undecoded) >> UNIT_SHIFT if size else 0
        if connection.state == AWAITING_CONNECT and packets and size and turns.is_full():
            turns.postpone(connection, packets)
            return
        # A packet is a sign of life [MQTT-3.1.2-22], and so are bytes of a large one on a slow
        # link; single bytes of a packet that never ends are not.
        if packets or decoder.pending_size > SLOW_PACKET_BYTES:
            connection.last_received_ms = now
        try:
            while packets or decoder.is_cut:
                if not self._handle_slice(connection, packets, turns.spared if size else 1):
                    break
                if connection.state >= CLOSING:
                    return
                if decoder.is_cut:
                    if tick.work > tick.work_max:
                        turns.postpone(connection, [])
                        break
                elif not decoder.is_held or not (
                    connection.state == ACTIVE or connection.handshake is not None
                ):
                    break  # else a CONNECT was answered at once
                packets = decoder.go_on_runs(turns.slice_bytes())
                left = decoder.cut_size
                if undecoded > left:
                    tick.work += (undecoded - left) >> UNIT_SHIFT
                undecoded = left
        except MqttError as error:
            self._fail(connection, error)
            return
        if decoder.error is not None:
            if connection not in self._turns.waiting:
                self._fail(connection, decoder.error)
        elif self._health.retry_ms is not None and self._writer.is_overfull():
            self._pauses.stall(connection)
        else:
            self._turns.read_enough(connection, size)
        if connection.meters is not None and connection.state < CLOSING:
            messages = received[PUBLISH] - published
            if not self._admission.measure(connection, messages, size, now):
                if self.settings.on_rate == "disconnect":
                    reason = reasons.MESSAGE_RATE_TOO_HIGH
                    self._fail(connection, ProtocolError("too fast", reason))

    def _handle_slice(self, connection: Connection, packets: list[Received], spared: int) -> bool:
        """Handle packets; False if the rest of them is postponed to the next tick.

        The first `spared` of them are handled even if the budget of this tick is used up.
        """
        publishes = self._dispatcher.publishes
        acknowledgements = self._dispatcher.acknowledgements
        received = self.counters.packets_received
        tick = self._tick
        ceiling = self._turns.ceiling
        handled = 0
        while handled < len(packets):
            packet = packets[handled]
            if tick.work > tick.work_max and connection.state == ACTIVE:
                if handled >= spared or (tick.work > ceiling and packet.kind in MAY_BE_DEAR):
                    self._turns.postpone(connection, packets[handled:])
                    return False
            # The two most frequent packets go directly to their handlers.
            if connection.state != ACTIVE:
                self._begin(connection, packet)
            elif type(packet) is Publish:
                tick.work += 1
                received[PUBLISH] += 1
                publishes.publish(connection, packet)
            elif type(packet) is PublishRun:
                count = len(packet.payloads)
                done = publishes.publish_run(connection, packet)
                received[PUBLISH] += done
                if not done:
                    packets[handled : handled + 1] = packet.packets()
                    continue
                if done < count:
                    spared -= 1
                    continue
            elif type(packet) is PubackRun:
                count = len(packet.packet_ids)
                tick.work += 1 + (count >> ACKS_SHIFT)
                received[PUBACK] += count
                acknowledgements.puback_run(connection, packet)
            else:
                tick.work += 1
                if not self._dispatcher.dispatch(connection, packet):
                    self._turns.postpone(connection, packets[handled:])  # it is not finished
                    return False
            if connection.state >= CLOSING:
                return True
            handled += 1
        return True

    def _handle_later(self, connection: Connection, packets: list[Received]) -> None:
        self._handle(connection, packets, 0, self._tick.now)

    def _begin(self, connection: Connection, packet: Received) -> None:
        """Handle a packet of a connection that is not accepted yet."""
        if connection.state == AWAITING_CONNECT:
            self.counters.packets_received[packet.kind] += 1
            self._tick.work += CONNECT_WORK
            if not isinstance(packet, Connect):
                raise ProtocolError("first packet is not CONNECT")
            self._connects.connect(connection, packet)
            if connection.state == AUTHENTICATING and connection.handshake is None:
                connection.transport.pause_reading()
        elif connection.authentication_method is not None:
            self._converse(connection, packet)

    def _converse(self, connection: Connection, packet: Received) -> None:
        """Handle a packet before the CONNACK of an enhanced authentication."""
        self.counters.packets_received[packet.kind] += 1
        if isinstance(packet, Auth):
            self._tick.work += AUTH_WORK
            self._connects.authentication.receive(connection, packet)
        elif isinstance(packet, Disconnect):
            self._connects.forget(connection)
            move(connection, DISCONNECT_RECEIVED)
            self._gate.close(connection)
        else:
            raise ProtocolError("expected AUTH or DISCONNECT before CONNACK")  # [MQTT-3.1.2-30]

    def _handle_early(self, connection: Connection) -> None:
        """Handle what was sent after a CONNECT, once that is answered [MQTT-3.1.4-5]."""
        if connection.state == ACTIVE:
            self._pauses.resume(connection)
            self._handle(connection, connection.decoder.go_on_runs(), 0, self._tick.now)

    def _fail(self, connection: Connection, error: MqttError) -> None:
        """End a connection for a protocol error, with the reason if the version can tell it."""
        if connection.state >= CLOSING:
            return  # it is ending already, and that was counted
        if connection.state in (AWAITING_CONNECT, AUTHENTICATING):
            self._refuse(connection, error)
            return
        self.counters.disconnects[_DISCONNECTS.get(error.reason_code, "protocol_error")] += 1
        self._disconnects.end(connection, PROTOCOL_ERROR, error.reason_code)

    def _refuse(self, connection: Connection, error: MqttError) -> None:
        """Refuse a broken CONNECT: v5 with the reason, v3.1.1 only if a code exists for it."""
        connection.version = connection.decoder.version
        connection.maximum_packet_size = connection.decoder.peer_packet_size_max
        if isinstance(error, UnsupportedProtocolVersion):
            # A client below 5 cannot read the v5 form of CONNACK, whatever its CONNECT looks like.
            is_five = error.reads_as_five and error.protocol_version >= 5
            connection.version = 5 if is_five else 4
        elif connection.version < 5:
            connection.version = 0  # malformed: no CONNACK at all [MQTT-3.1.4-1]
        self._connects.refuse(connection, error.reason_code)

    def transport_lost(self, connection: Connection, now: int) -> None:
        """Handle the end of a transport, closed by either side. Idempotent."""
        self._tick.now = now
        if connection.state == CLOSED:
            return
        if self._turns.is_full() or self._has_turn(connection):
            self._lost[connection] = None  # many may be lost at once
            return
        self._tick.work += LOSS_WORK
        self._dispatcher.subscriptions.forget(connection)
        self._connects.forget(connection)
        self._disconnects.lost(connection)
        self._connections.pop(connection, None)
        self._turns.forget(connection)
        self._pauses.forget(connection)
        self._admission.leave(connection)

    def _has_turn(self, connection: Connection) -> bool:
        """Are there postponed packets to handle first? A DISCONNECT may be among them."""
        return connection.state < CLOSING and connection in self._turns.waiting

    def _part(self) -> bool:
        """Handle lost transports within the budget of this tick; False if it could handle none."""
        lost = self._lost
        before = len(lost)
        for connection in list(lost):
            if self._turns.is_full():
                break
            if not self._has_turn(connection):
                del lost[connection]
                self.transport_lost(connection, self._tick.now)
        return len(lost) < before

    def pause_writing(self, connection: Connection) -> None:
        """Stop sending messages to a client whose transport buffer is full."""
        connection.writable = False

    def resume_writing(self, connection: Connection, now: int) -> None:
        """Send waiting messages: the transport's buffer has drained."""
        self._tick.now = now
        connection.writable = True
        if connection.state == ACTIVE:
            self._delivery.window.send_waiting(connection)
            self._delivery.shared.send_waiting(connection)

    # Ticks

    def end_tick(self, now: int) -> bool:
        """Write the tick's batch and the output of every connection; True = call again soon.

        On return replies that need no commit are with their transports; the shell requests a commit
        of `written` if it grew. Raises `Unrecoverable` when the process must end.
        """
        tick = self._tick
        tick.now = now
        more = False
        health = self._health
        writer = self._writer
        if health.retry_ms is None or health.retry_ms <= now:
            if writer.write():
                self._publish_events.attach(writer.written, self.durable, writer.end_written, now)
                self._gate.batch_written(writer.written, self.durable, now)
                # Reads see the batch just written; what they change goes into the next one.
                reading = self._delivery.backlog.read() if tick.readers else False
                sharing = self._delivery.shared.read() if tick.group_readers else False
                more = reading or sharing
        self._gate.flush()
        tick.work = 0
        if self._lost and self._part():
            more = True
        if self._turns.waiting and not (health.retry_ms is not None and writer.is_overfull()):
            self._turns.go_on(self._handle_later, self._pauses.resume)
            more = True
        if self._maintenance.end_departures():
            more = True
        is_changed = bool(tick.batch or tick.dirty or tick.dirty_groups)
        is_changed = is_changed or self._gate.has_unwritten() or self._log.is_pending
        return more or (is_changed and health.retry_ms is None)

    def committed(self, serial: int, now: int) -> None:
        """Release what waited for the commit of batch `serial`, which is durable now."""
        self._tick.now = now
        if serial <= self.durable:
            return
        self.durable = serial
        self._tick.batch_committed(serial)
        self._publish_events.release(serial, now)
        self.feeds.committed(serial)
        self._gate.release(serial, now)
        self._collection.reclaim(serial)

    def _send_pending(self, connection: Connection) -> None:
        self._delivery.window.send_waiting(connection)

    def _send_shared(self, connection: Connection) -> None:
        self._delivery.shared.send_waiting(connection)

    def _resume_reading(self, connection: Connection) -> None:
        self._pauses.resume(connection)

    # Time

    def next_deadline(self) -> int | None:
        """Return when `handle_timeout` has something to do, broker ms; None = never."""
        times = [self._heartbeat_ms + self.settings.heartbeat_ms]
        silence_ends = self._silence.next_deadline()
        if silence_ends is not None:
            times.append(silence_ends)
        throttled_until = self._admission.next_deadline()
        if throttled_until is not None:
            times.append(throttled_until)
        waited_until = self._awaited.next_deadline()
        if waited_until is not None:
            times.append(waited_until)
        if self._health.retry_ms is not None:
            times.append(self._health.retry_ms)  # nothing else runs until the store takes writes
            return min(times)
        times.append(self._housekeeping.next_deadline())
        times.append(self._administration.next_deadline())
        told_by = self._recorder.next_deadline()
        if told_by is not None:
            times.append(told_by)
        told_by = self._feed.next_deadline()
        if told_by is not None:
            times.append(told_by)
        if self._tick.late_due_ms is not None:
            times.append(self._tick.late_due_ms)
        return min(times)

    def handle_timeout(self, now: int) -> None:
        """Do a bounded slice of what is due; call `end_tick` after it."""
        self._tick.now = now
        work_max = self._tick.work + self._turns.work_max
        for connection in self._silence.come(now):
            if self._tick.work > work_max:
                self._silence.watch_until(connection, now)  # wills may match very much
            else:
                self._look_after(connection, now)
        self._admission.run(now)
        self._awaited.run(now)
        if now >= self._heartbeat_ms + self.settings.heartbeat_ms:
            self._heartbeat_ms = now
            if self._sessions.live:
                self._beat(now)
        self._housekeeping.run(now)
        self._administration.run()

    def _beat(self, now: int) -> None:
        """Add the heartbeat row to the batch: the time of disconnection after a crash."""
        self._tick.batch.append((META, HEARTBEAT_KEY, self._heartbeat(now)))

    def _look_after(self, connection: Connection, now: int) -> None:
        deadline = self._silence.ends(connection)
        if not deadline:
            return
        if deadline > now:
            self._silence.watch_until(connection, deadline)
        elif connection.connack_waits() or self._pauses.is_paused(connection):
            # The client is not read from, or must wait for its CONNACK: it is not silent.
            connection.last_received_ms = now
            self._silence.watch(connection)
        elif connection.state < ACTIVE:
            self.counters.refuse(connection.listener, "timeout")
            move(connection, CONNECT_TIMEOUT)
            self._gate.close(connection)
        elif connection.state == ACTIVE:
            self.counters.disconnects["keep_alive_timeout"] += 1
            self._disconnects.end(connection, KEEP_ALIVE_TIMEOUT, reasons.KEEP_ALIVE_TIMEOUT)

    # Operation

    @property
    def written(self) -> int:
        """The serial of the last written batch."""
        return self._writer.written

    @property
    def settled_by(self) -> int:
        """The serial of the batch with which everything that was done up to now is durable."""
        tick = self._tick
        is_open = tick.batch or tick.dirty or tick.dirty_groups or self._log.is_pending
        return self._writer.written + bool(is_open)

    @property
    def refused_by(self) -> Recoverable | None:
        """The error of the store for the last batch, None if it took it.

        While it is set nothing is lost and nothing is acknowledged; a shell may free space or
        reopen the store.
        """
        return self._health.refused_by

    def note_disk_space(self, *, is_low: bool, room_bytes: int = NO_LIMIT) -> None:
        """Refuse new state while the disk is below its low-water mark.

        `room_bytes` is what is free above it: a generation of the log takes a quarter of it.
        """
        self._health.note_disk_space(is_low=is_low, room_bytes=room_bytes)
        self._collection.note_room()

    def publish_system(self, topic: str, payload: bytes, now: int) -> None:
        """Publish a `$SYS` message to connected clients, and retain it in memory."""
        self._tick.now = now
        self._publishing.publish_system(topic, payload)

    def change(self, settings: Settings, now: int) -> None:
        """Take over what may change of `settings`; the shell ends the tick.

        Limits hold for what comes from now on: no connection or session is ended by a lower one.
        The level of detail of the history changes among those that have books.
        """
        self._tick.now = now
        for name in CHANGEABLE:
            setattr(self.settings, name, getattr(settings, name))
        self._admission.settings_changed()
        self._publishing.settings_changed()
        self.outbox.detail_changed()

    def watch_losses(self, tell: TellLoss | None) -> None:
        """From now on tell of each message that a session does not get; None = tell nobody."""
        self._core.losses.tell = tell

    def send_away(self, identities: Collection[str], now: int) -> None:
        """End with 0x87 the connections of users whose password was changed.

        Except those whose identity the transport has proved. Sessions are kept and wills are
        published; the shell ends the tick.
        """
        self._tick.now = now
        self._maintenance.send_away(identities)

    def administer(self, now: int) -> Administration:
        """Return what carries out an operator's commands at this moment; the shell ends the tick.

        What they change is durable with the commit of `settled_by`. Raises `Recoverable` when the
        broker ends: nothing follows the shutdown in the history.
        """
        if self._maintenance.is_draining:
            raise Recoverable("the broker is shutting down")
        self._tick.now = now
        return self._administration

    def rotate(self, now: int, layout: str | None = None) -> None:
        """Begin a new generation of the message log, with another layout if one is given."""
        self._tick.now = now
        self._collection.rotate(now, layout)

    def drain(self, now: int, server: str = "") -> None:
        """End every connection; the shell then commits and exits.

        With 0x8B, or if another broker serves from now on with 0x9C and its address, `server`
        ("host:port") before the one of the settings. Wills are published or wait in the store.
        """
        self._tick.now = now
        if server:
            settings = self.settings
            self._configured = settings.server_reference, settings.server_moved
            settings.server_reference, settings.server_moved = server, False
        self._administration.stop()
        self._maintenance.drain()

    def finish(self, now: int) -> None:
        """Record the shutdown in the history, after the last connection; the shell commits it."""
        self._tick.now = now
        if self._configured is not None:  # this process may serve again, with the same settings
            self.settings.server_reference, self.settings.server_moved = self._configured
            self._configured = None
        self._maintenance.finish()

    def stats(self) -> dict[str, int]:
        """Return the gauges for metrics and `$SYS`. Cheap; loop thread only."""
        return self._maintenance.stats(self.durable)

    def invariants(self) -> Iterator[str]:
        """Return the invariants between two events that do not hold, for tests and simulation."""
        return self._maintenance.invariants()


def _plain_heartbeat(now: int) -> bytes:
    """Return a heartbeat with broker time in place of all clocks."""
    return Heartbeat(now, now, "", now).encode()


def _unobserved(event: str, connection: Connection, detail: str) -> None:
    """Do nothing: nobody observes clients."""


def _untold(action: str, client_id: str, identity: str, topic: str) -> None:
    """Do nothing: nobody asks what is denied."""
