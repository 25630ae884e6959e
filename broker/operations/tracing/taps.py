"""Taps: what a trace sees of connections, at the streams of their clients.

`broker.loop.client_stream` tells a tap what it reads and writes; the engine is not asked, so a
connection without a tap costs one test for each read and write. Streams that are open when a trace
begins get their taps a slice at a time. Must never change what the broker does. Used on the loop's
thread only. Read next: `broker.process.desks.tracing`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from broker.loop.client_stream import ClientStream
from broker.loop.driver import Driver, Tap
from broker.operations.tracing import packets
from broker.operations.tracing.cutting import Cut
from broker.operations.tracing.packets import Direction, Fields, Publication
from broker.operations.tracing.traces import TOPIC, Trace, Traces, cut_names
from mqtt.packets import CONNACK, CONNECT, PUBLISH
from session.live.connection import Connection
from storage.time.machine_clocks import wall_ms

SLICE: Final = 256  # streams in one turn: about 1 ms
HELD_MAX: Final = 16  # lines of a client that has no name yet

IN: Final = "in"
OUT: Final = "out"


class ConnectionTap:
    """Tells the traces what one connection does."""

    __slots__ = ("_held", "_in", "_is_lagging", "_is_named", "_out", "_taps", "_when", "connection")

    def __init__(self, taps: "Taps", connection: Connection) -> None:
        self._taps: Final = taps
        self.connection: Final = connection
        outgoing = {alias: topic for topic, alias in connection.aliases_out.items()}
        self._in: Final = Direction(connection.version, dict(connection.aliases_in), is_in=True)
        self._out: Final = Direction(connection.version, outgoing, is_in=False)
        self._in.skip(connection.decoder.pending_bytes())
        self._is_named = bool(connection.client_id)
        # What is told once the client has a name: an empty client identifier is assigned one.
        self._held: list[tuple[Cut, int]] = []
        self._when: Final[dict[tuple[bool, int, int], int]] = {}  # packets that are not answered
        self._is_lagging = connection.is_lagging

    @property
    def client_id(self) -> str:
        """The client identifier; "" before CONNECT."""
        return self.connection.client_id

    @property
    def remote(self) -> str:
        """The address of the client."""
        return self.connection.remote

    # What the stream calls.

    def received(self, data: bytes) -> None:
        """Tell what the client has sent; the engine has not handled it yet."""
        now_ms = self._taps.now_ms()
        for cut in self._in.feed(data):
            if packets.kind(cut) == CONNECT and not self._is_named:
                self._in.packet(cut)  # it says which version follows
                self._out.version = self._in.version
            if self._is_named:
                self._tell(cut, self._in, now_ms)
            elif len(self._held) < HELD_MAX:
                self._held.append((cut, now_ms))

    def sent(self, data: bytes) -> None:
        """Tell what was written to the client."""
        now_ms = self._taps.now_ms()
        if not self._is_named:
            self._name()
        for cut in self._out.feed(data):
            self._tell(cut, self._out, now_ms)
        connection = self.connection
        if connection.is_lagging != self._is_lagging:
            self._is_lagging = connection.is_lagging
            self.said(
                "reads what it is owed from the disk" if self._is_lagging else "is live again"
            )

    def said(self, what: str) -> None:
        """Tell of something that is no packet."""
        if not self._is_named and self.connection.client_id:
            self._name()
        now_ms = self._taps.now_ms()
        for trace in self._taps.traces:
            if trace.wants_client(self.client_id, self.remote) and trace.has_room(now_ms):
                self._add(trace, "", {"text": what}, now_ms)

    def closed(self, what: str) -> None:
        """Tell that the connection has ended, and forget it."""
        if not self._is_named:
            self._name()
        self.said(what)
        self._taps.forget(self)

    # Lines

    def _name(self) -> None:
        """From now on the client has its name; tell what it said before."""
        self._is_named = True
        self._taps.named(self)
        held, self._held = self._held, []
        for cut, now_ms in held:
            self._tell(cut, self._in, now_ms)

    def _tell(self, cut: Cut, direction: Direction, now_ms: int) -> None:
        if packets.kind(cut) == PUBLISH:
            self._tell_publish(cut, direction, now_ms)
            return
        wanting = self._wanting()
        packet = None
        if wanting or packets.kind(cut) in (CONNECT, CONNACK):
            packet = direction.packet(cut)
        if not wanting:
            return
        fields = packets.fields(cut, packet)
        self._time(packets.kind(cut), fields, direction, now_ms)
        for trace in wanting:
            if trace.has_room(now_ms):
                self._add(trace, IN if direction.is_in else OUT, fields, now_ms)

    def _tell_publish(self, cut: Cut, direction: Direction, now_ms: int) -> None:
        publication = direction.publish(cut) or Publication("", 0, cut.data[0], cut.size, b"")
        wanting = self._wanting()
        if publication.packet_id and wanting:
            self._when[direction.is_in, PUBLISH, publication.packet_id] = now_ms
        topic = publication.topic
        wanting += [trace for trace in self._taps.traces if trace.wants_topic(topic)]
        for trace in wanting:
            if trace.has_room(now_ms):
                fields = publication.fields(trace.payload_bytes)
                self._add(trace, IN if direction.is_in else OUT, fields, now_ms)

    def _wanting(self) -> list[Trace]:
        """Return the traces of this client."""
        client_id, remote = self.client_id, self.remote
        return [each for each in self._taps.traces if each.wants_client(client_id, remote)]

    def _time(self, kind: int, fields: Fields, direction: Direction, now_ms: int) -> None:
        """Note when a packet came that wants an answer; of an answer say how long it took."""
        packet_id = fields.get("packet_id", 0)
        asked = packets.ASKED_BY.get(kind)
        if asked is not None:
            began = self._when.pop((not direction.is_in, asked, packet_id), None)
            if began is not None:
                fields["after_ms"] = max(0, now_ms - began)
        if kind in packets.ASKING:
            self._when[direction.is_in, kind, packet_id] = now_ms

    def _add(self, trace: Trace, direction: str, fields: Fields, now_ms: int) -> None:
        line = {"at_ms": now_ms, "client_id": self.client_id, "direction": direction}
        trace.add(cut_names({**line, **fields}))


class Taps:
    """Gives streams their taps while there are traces, and takes them away."""

    def __init__(
        self, traces: Traces, driver: Driver, *, clock_ms: Callable[[], int] = wall_ms
    ) -> None:
        """`clock_ms` is wall time, for the lines."""
        self.traces: Final = traces
        self.now_ms: Final = clock_ms
        self._driver: Final = driver
        self._names: Final[dict[str, ConnectionTap]] = {}

    def new(self, connection: Connection) -> Tap | None:
        """Return the tap of a connection that has just come: nobody knows whose it is."""
        return ConnectionTap(self, connection)

    def settle(self) -> None:
        """Give every open stream its tap, or take them all away, as there are traces; in slices."""
        self._driver.new_tap = self.new if self.traces else None
        self._settle_some(iter(list(self._driver.streams)))

    def _settle_some(self, streams: "Iterator[object]") -> None:
        for _ in range(SLICE):
            stream = next(streams, None)
            if stream is None:
                return
            if isinstance(stream, ClientStream):
                self._settle_one(stream)
        self._driver.loop.call_soon(self._settle_some, streams)

    def _settle_one(self, stream: ClientStream) -> None:
        connection = stream.connection
        if connection is None:
            return
        tap = stream.tap
        if not self._is_wanted(connection):
            if isinstance(tap, ConnectionTap):
                self.forget(tap)
            stream.tap = None
        elif tap is None:
            made = stream.tap = ConnectionTap(self, connection)
            if connection.client_id:
                self._names[connection.client_id] = made

    def _is_wanted(self, connection: Connection) -> bool:
        """Return whether a trace may want to know of a connection."""
        for trace in self.traces:
            if trace.kind == TOPIC or not connection.client_id:
                return True
            if trace.wants_client(connection.client_id, connection.remote):
                return True
        return False

    def named(self, tap: ConnectionTap) -> None:
        """Take note of a client's name; a tap that no trace wants goes."""
        connection = tap.connection
        if self._is_wanted(connection):
            self._names[tap.client_id] = tap
        elif isinstance(connection.transport, ClientStream):
            connection.transport.tap = None

    def forget(self, tap: ConnectionTap) -> None:
        """Forget a connection."""
        if self._names.get(tap.client_id) is tap:
            del self._names[tap.client_id]

    # What the engine tells.

    def observed(self, event: str, connection: Connection, detail: str) -> None:
        """Tell that a client has connected, was refused or has gone."""
        transport = connection.transport
        if isinstance(transport, ClientStream) and isinstance(transport.tap, ConnectionTap):
            transport.tap.said(f"{event}: {detail}" if detail else event)

    def denied(self, action: str, client_id: str, topic: str) -> None:
        """Tell that the rules deny a client something."""
        self._tell_all(client_id, topic, f"denied: {action}, not authorized")

    def lost(self, client_id: str, topic: str, what: str, count: int) -> None:
        """Tell that a session does not get messages."""
        messages = "a message" if count == 1 else f"{count} messages"
        self._tell_all(client_id, topic, f"does not get {messages}: {what}")

    def _tell_all(self, client_id: str, topic: str, text: str) -> None:
        tap = self._names.get(client_id)
        remote = "" if tap is None else tap.remote
        now_ms = self.now_ms()
        fields: Fields = {"text": text}
        if topic:
            fields["topic"] = topic
        for trace in self._interested(client_id, remote, topic):
            if trace.has_room(now_ms):
                line = {"at_ms": now_ms, "client_id": client_id, "direction": ""}
                trace.add(cut_names({**line, **fields}))

    def _interested(self, client_id: str, remote: str, topic: str) -> Iterable[Trace]:
        for trace in self.traces:
            if trace.wants_client(client_id, remote) or trace.wants_topic(topic):
                yield trace
