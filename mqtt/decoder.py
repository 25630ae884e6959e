"""Decode a byte stream into control packets: `receive(data)` returns the completed packets.

Must never raise for what the peer sent: a broken stream sets `error`, after the packets before the
fault were returned. Of the connection it knows only whether there was a CONNECT, so rules that need
more (aliases, quotas, capabilities) are checked by its callers. The usual PUBLISH and the
acknowledgements are decoded here, in one loop without a call per field; the rest is in
`mqtt.body_decoder`.
"""

import struct
from typing import Final, Literal, TypeAlias, cast

from mqtt import body_decoder, packets
from mqtt import properties as props
from mqtt.errors import MalformedPacket, MqttError, ProtocolError, UnsupportedProtocolVersion
from mqtt.packet_runs import PubackRun, PublishRun, Received
from mqtt.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from mqtt.reasons import PACKET_TOO_LARGE, TOPIC_NAME_INVALID
from mqtt.wire import VARINT_MAX, Reader

Role: TypeAlias = Literal["server", "client"]

PACKET_SIZE_MAX: Final = VARINT_MAX + 5  # bytes, fixed header included
# Room for client id, will payload, user name and password of full length. It limits what a client
# can send before it is authenticated.
CONNECT_SIZE_MAX: Final = 4 * 65_536
# User properties in one packet: each costs three objects, however small.
USER_PROPERTIES_MAX: Final = 1024

# Cache of validated topics by their raw bytes: a topic seen before costs one look-up. Entries and
# the size of a key are limited, because peers choose both; 8,192 x 256 bytes, twice, is 4 MiB at
# worst. With more topics than a processor's cache holds, a look-up costs more than to validate.
TOPICS_MAX: Final = 8_192
TOPIC_KEPT_SIZE_MAX: Final = 256
_topics: Final[dict[bytes, str]] = {}
# It is emptied when it is full and so many topics were not in it: if every topic is new, to keep
# them is of no use.
TOPICS_PASSED_MAX: Final = 16 * TOPICS_MAX
_passed: Final[list[int]] = [0]  # topics that were not kept since it was full

# The same for property blocks of PUBLISH: publishers often send the same block with every message.
BLOCKS_MAX: Final = 4_096
BLOCK_KEPT_SIZE_MAX: Final = 256
_blocks: Final[dict[bytes, props.PublishProperties]] = {}

# Packets in one run: a run is handled without a pause, so this bounds the work.
RUN_MAX: Final = 64

# First bytes of PUBLISHes that can be in a run: QoS 0 or 1, no DUP, no RETAIN.
_PLAIN_0: Final = 0x30
_PLAIN_1: Final = 0x32

# A PUBACK without a reason is two 16-bit words: this one, and the packet id.
_PUBACK_WORD: Final = 0x4002
_WORDS: Final[list[struct.Struct]] = [
    struct.Struct(f">{2 * count}H") for count in range(RUN_MAX + 1)
]
_PUBACK_WORDS: Final[list[tuple[int, ...]]] = [
    (_PUBACK_WORD,) * count for count in range(RUN_MAX + 1)
]

# What to do with a packet, by its first byte.
_FAULT: Final = 0
_PUBLISH: Final = 1
_PUBACK: Final = 2
_PUBREC: Final = 3
_PUBREL: Final = 4
_PUBCOMP: Final = 5
_OTHER: Final = 6

_KIND_ROUTES: Final[dict[int, int]] = {
    packets.PUBLISH: _PUBLISH,
    packets.PUBACK: _PUBACK,
    packets.PUBREC: _PUBREC,
    packets.PUBREL: _PUBREL,
    packets.PUBCOMP: _PUBCOMP,
}


def _routes(version: int, *, from_client: bool) -> bytes:
    """Return the table first byte -> route for one state of a decoder."""
    table = bytearray(256)
    for first in range(256):
        if body_decoder.header_fault(first, version, from_client=from_client) is None:
            table[first] = _KIND_ROUTES.get(first >> 4, _OTHER)
    return bytes(table)


_ROUTES: Final[dict[tuple[int, bool], bytes]] = {
    (0, True): _routes(0, from_client=True),
    (3, True): _routes(3, from_client=True),
    (4, True): _routes(4, from_client=True),
    (5, True): _routes(5, from_client=True),
    (3, False): _routes(3, from_client=False),
    (4, False): _routes(4, from_client=False),
    (5, False): _routes(5, from_client=False),
}


class Decoder:
    """Decodes the bytes received on one connection.

    `role` is that of the receiver. "server" decodes what clients send and takes the version from
    CONNECT (pass a `version` if CONNECT was already read). "client" decodes what a server sends and
    needs the `version`. `maximum_packet_size` is in bytes with the fixed header, 0 = only the limit
    of the format.
    """

    __slots__ = (
        "_from_client",
        "_needed",
        "_pending",
        "_rest",
        "_rest_at",
        "connect_size_max",
        "error",
        "holds_after_connect",
        "is_cut",
        "is_held",
        "maximum_packet_size",
        "peer_packet_size_max",
        "user_properties_max",
        "version",
    )

    def __init__(
        self,
        role: Role,
        maximum_packet_size: int,
        version: int = 0,
        *,
        connect_size_max: int = CONNECT_SIZE_MAX,
        holds_after_connect: bool = False,
    ) -> None:
        if role != "server" and role != "client":
            raise ValueError(f"role {role!r}: expected 'server' or 'client'")
        self._from_client: bool = role == "server"
        if (version, self._from_client) not in _ROUTES:
            raise ValueError(f"version {version}: expected 3, 4 or 5")
        if maximum_packet_size < 0:
            raise ValueError(f"maximum_packet_size {maximum_packet_size}: expected 0 or more")
        # 3, 4 or 5; 0 before CONNECT. Set as soon as the version byte of CONNECT is read, even if
        # the rest is broken: the form of the answer depends on it.
        self.version: int = version
        self.maximum_packet_size: int = maximum_packet_size
        # Maximum Packet Size of a CONNECT that is broken after it: limits the answer, 0 = none.
        self.peer_packet_size_max: int = 0
        self.connect_size_max: Final = connect_size_max  # bytes; the smaller of both limits holds
        self.user_properties_max: int = USER_PROPERTIES_MAX
        # If set, nothing after a CONNECT is decoded before `go_on`: the client is authenticated
        # first, and bytes are cheaper to keep than packets.
        self.holds_after_connect: Final = holds_after_connect
        self.is_held: bool = False
        # Is there more to decode, because the last call reached the limit of bytes it was given?
        # A packet takes up to a hundred times the memory of its bytes: what is handled later stays
        # as bytes.
        self.is_cut: bool = False
        self._rest: bytes = b""  # while it is cut: the last bytes, not decoded from `_rest_at` on
        self._rest_at: int = 0
        self.error: MqttError | None = None  # once set, nothing more is decoded
        self._pending: bytearray = bytearray()  # the packet not yet complete, from its first byte
        self._needed: int = 0  # size of `_pending` from which decoding can go on

    @property
    def pending_size(self) -> int:
        """Return the bytes kept in memory: an incomplete packet, and what is not decoded yet."""
        return len(self._pending) + len(self._rest) - self._rest_at

    def pending_bytes(self) -> bytes:
        """Return the bytes that no packet was decoded from yet, for who watches the stream."""
        return self._rest[self._rest_at :] + bytes(self._pending)

    @property
    def cut_size(self) -> int:
        """Return the bytes that are not decoded because of a limit."""
        return self.pending_size if self.is_cut else 0

    def receive(self, data: bytes) -> list[Packet]:
        """Decode the next bytes of the stream; return the packets they complete, in order.

        Check `error` after every call. Once it is set, later calls return nothing. The cost is
        linear in the bytes, however they are split: an incomplete packet is decoded only when as
        many bytes are there as its header requires.
        """
        return cast(list[Packet], self._receive(data, PACKET_SIZE_MAX, gathers=False))

    def receive_runs(self, data: bytes, limit: int = PACKET_SIZE_MAX) -> list[Received]:
        """Decode as `receive`, but join similar consecutive packets into runs.

        No packet that starts after the first `limit` bytes is decoded: if there are some, `is_cut`
        is set until `go_on_runs` has returned the last of them.
        """
        return self._receive(data, limit, gathers=True)

    def _receive(self, data: bytes, limit: int, *, gathers: bool) -> list[Received]:
        found: list[Received] = []
        if self.error is not None:
            return found
        if self.is_held or self.is_cut:
            self._pending += data
            return found
        if self._pending:
            self._pending += data
            if len(self._pending) < self._needed:
                return found
            data = bytes(self._pending)
            self._pending = bytearray()
        self._decode_all(data, 0, limit, found, gathers)
        return found

    def _decode_all(
        self, data: bytes, start: int, limit: int, found: list[Received], gathers: bool
    ) -> None:
        """Decode what is complete in `data` from `start` on, and keep the rest of it."""
        try:
            position = self._decode(data, start, start + limit, found, gathers)
        except MqttError as error:
            # The traceback's frames would keep `data` alive, also those of the cause.
            error.__cause__ = error.__context__ = None
            self.error = error.with_traceback(None)
            return
        if self.is_cut:
            self._rest = data
            self._rest_at = position
        elif position < len(data):
            self._pending += data[position:]

    def go_on(self) -> list[Packet]:
        """Decode what was held back after CONNECT, and hold nothing back from now on."""
        self.is_held = False
        self._needed = 0
        return self.receive(b"")

    def go_on_runs(self, limit: int = PACKET_SIZE_MAX) -> list[Received]:
        """Decode what was held back after CONNECT or after a limit, as `receive_runs`."""
        self.is_held = False
        if not self.is_cut:
            self._needed = 0
            return self._receive(b"", limit, gathers=True)
        found: list[Received] = []
        data, start = self._rest, self._rest_at
        later, self._pending = self._pending, bytearray()  # what came while this one waited
        self.is_cut = False
        self._rest, self._rest_at = b"", 0
        self._decode_all(data, start, limit, found, True)
        if later and self.error is None:
            self._pending += later
            if not self.is_cut and not self.is_held:
                self.is_cut = True
                self._rest = bytes(self._pending)
                self._pending = bytearray()
        return found

    def _decode(
        self, data: bytes, position: int, limit: int, found: list[Received], gathers: bool
    ) -> int:
        """Append the complete packets in `data` from `position` on to `found`.

        Returns where the incomplete packet starts, for which it sets `_needed`, or the first one
        that is not before `limit`: then it sets `is_cut`. A single long function on purpose: a call
        per packet or field would cost as much as the decoding itself.
        """
        append = found.append
        topics = _topics
        routes = _ROUTES[self.version, self._from_client]
        # CONNECT is the only packet before `version` is known, see `connect_size_max`.
        size_max = self._size_max()
        five = self.version == 5
        end = len(data)
        while True:
            if position >= limit and position < end:
                self.is_cut = True
                return position
            start = position + 2
            if start > end:
                return self._wait_for_header(data, position, end)
            first = data[position]
            length = data[position + 1]
            if length > 127:
                if start < end and 0 < data[start] < 128:
                    length = length & 127 | data[start] << 7
                    start += 1
                else:
                    start, length = self._long_length(data, position, end)
                    if start == 0:
                        return position
            stop = start + length
            if stop > end or stop - position > size_max:
                self._judge_incomplete(data, position, start, stop, end, size_max)
                return position
            route = routes[first]
            if route == _PUBLISH:
                if length < 2:
                    raise MalformedPacket("topic runs past the end")
                body = start + 2 + (data[start] << 8 | data[start + 1])
                raw = data[start + 2 : body]
                packet_id = 0
                if first & 6:
                    body += 2
                    if body > stop:
                        raise MalformedPacket("packet id runs past the end")
                    packet_id = data[body - 2] << 8 | data[body - 1]
                    if packet_id == 0:
                        # [MQTT-2.2.1-3], v4 [MQTT-2.3.1-1]
                        raise MalformedPacket("packet id 0: expected 1 to 65535")
                elif body > stop:
                    raise MalformedPacket("topic runs past the end")
                topic = topics.get(raw)
                if topic is None:
                    topic = _learn_topic(raw)
                if five:
                    if body == stop or data[body] or not raw:
                        append(self._publish(data, first, topic, packet_id, body, stop))
                        position = stop
                        continue
                    body += 1  # no properties
                elif not raw:
                    raise MalformedPacket("topic is empty", TOPIC_NAME_INVALID)  # [MQTT-4.7.3-1]
                publish = Publish(
                    topic,
                    data[body:stop],
                    first >> 1 & 3,
                    first & 1 == 1,
                    # DUP at QoS 0 is possible here in MQTT 3.1 only, where it means nothing.
                    first & 8 == 8 and first & 6 != 0,
                    packet_id,
                )
                append(publish)
                if gathers and stop < end and data[stop] == first:
                    if first == _PLAIN_0 or first == _PLAIN_1:
                        stop = self._gather(data, position, start, stop, end, size_max, found)
            elif _PUBACK <= route <= _PUBCOMP and length == 2:
                packet_id = data[start] << 8 | data[start + 1]
                if packet_id == 0:
                    raise MalformedPacket("packet id 0: expected 1 to 65535")
                if route == _PUBACK:
                    if gathers:
                        packet_ids = _packet_ids(data, position, end)
                        append(PubackRun(packet_ids))
                        stop = position + 4 * len(packet_ids)
                    else:
                        append(Puback(packet_id))
                elif route == _PUBREC:
                    append(Pubrec(packet_id))
                elif route == _PUBREL:
                    append(Pubrel(packet_id))
                else:
                    append(Pubcomp(packet_id))
            elif first >> 4 == packets.CONNECT and self.version == 0:
                append(self._connect(data, position, start, stop))
                if self.holds_after_connect:
                    self.is_held = True
                    return stop
                routes = _ROUTES[self.version, True]
                size_max = self._size_max()
                five = self.version == 5
            elif route == _FAULT:
                self._check_first(first)
            else:
                append(
                    body_decoder.read_body(
                        first >> 4,
                        Reader(data, start, stop),
                        self.version,
                        self._from_client,
                        self.user_properties_max,
                    )
                )
            position = stop

    def _gather(
        self,
        data: bytes,
        position: int,
        start: int,
        stop: int,
        end: int,
        size_max: int,
        found: list[Received],
    ) -> int:
        """Join the PUBLISH found last and the similar ones after it into a run; return its end.

        That PUBLISH is at `position` to `stop`, with its body from `start` on. The run ends before
        the first packet that is incomplete, malformed or not plain; `_decode` handles that one.
        """
        first = data[position]
        five = self.version == 5
        ids = 2 if first == _PLAIN_1 else 0
        topic = data[start : start + 2 + (data[start] << 8 | data[start + 1])]
        # Fixed header and topic are the same bytes as long as payload sizes are equal.
        head = data[position : start + len(topic)]
        size = stop - position
        run: PublishRun | None = None
        position = stop
        for _ in range(RUN_MAX - 1):
            if not data.startswith(head, position):
                start = position + 2
                if start >= end or data[position] != first:
                    break
                length = data[position + 1]
                if length > 127:
                    if data[start] > 127 or data[start] == 0:
                        break
                    length = length & 127 | data[start] << 7
                    start += 1
                if not data.startswith(topic, start):
                    break
                head = data[position : start + len(topic)]
                size = start + length - position
            body = position + len(head) + ids
            stop = position + size
            if stop > end or size > size_max or body + five > stop:
                break
            packet_id = data[body - 2] << 8 | data[body - 1] if ids else 0
            if (ids and packet_id == 0) or (five and data[body]):
                break
            if run is None:
                publish = found[-1]
                assert isinstance(publish, Publish)
                found[-1] = run = PublishRun(publish)
            run.add(packet_id, data[body + five : stop])
            position = stop
        return position

    def _size_max(self) -> int:
        """Return the size in bytes of the largest packet allowed now."""
        size_max = self.maximum_packet_size or PACKET_SIZE_MAX
        if self.version == 0 and self.connect_size_max < size_max:
            return self.connect_size_max
        return size_max

    def _check_first(self, first: int) -> None:
        """Raise if no packet may start with `first` now. Every path checks this first."""
        fault = body_decoder.header_fault(first, self.version, from_client=self._from_client)
        if fault is not None:
            raise fault

    def _check_start(self, first: int) -> None:
        """Check an incomplete packet as `_check_first`; a CONNECT waits for its version byte."""
        if self.version or first >> 4 != packets.CONNECT:
            self._check_first(first)

    def _wait_for_header(self, data: bytes, position: int, end: int) -> int:
        if position < end:
            self._check_start(data[position])
        self._needed = 2
        return position

    def _long_length(self, data: bytes, position: int, end: int) -> tuple[int, int]:
        """Read a Remaining Length of more than two bytes, or one that is incomplete or too long.

        Returns (start of the body, length), or (0, 0) and sets `_needed` if bytes are missing.
        """
        self._check_start(data[position])
        length = 0
        for index in range(4):
            at = position + 1 + index
            if at >= end:
                self._needed = index + 2
                return 0, 0
            byte = data[at]
            length |= (byte & 127) << 7 * index
            if byte < 128:
                if byte == 0 and index:
                    raise MalformedPacket("remaining length is not in its shortest form")
                return at + 1, length
        raise MalformedPacket("remaining length has more than four bytes")

    def _judge_incomplete(
        self, data: bytes, position: int, start: int, stop: int, end: int, size_max: int
    ) -> None:
        """Set `_needed` for an incomplete packet; raise if the packet is not allowed.

        A too large packet is refused by its fixed header, before any byte of the body is kept. Only
        CONNECT is first read up to seven bytes, which hold the version to answer in.
        """
        self._check_start(data[position])
        if stop - position <= size_max:
            self._needed = stop - position
            return
        if self.version == 0:
            protocol_stop = min(start + 7, stop)
            if protocol_stop > end:
                self._needed = protocol_stop - position
                return
            self.version = body_decoder.read_protocol(Reader(data, start, protocol_stop))
        raise ProtocolError(
            f"packet of {stop - position} bytes: expected at most {size_max}", PACKET_TOO_LARGE
        )

    def _connect(self, data: bytes, first: int, start: int, stop: int) -> Packet:
        """Read CONNECT. Its header flags are checked after the version, which the answer needs."""
        reader = Reader(data, start, stop)
        try:
            self.version = body_decoder.read_protocol(reader)
        except UnsupportedProtocolVersion as error:
            error.reads_as_five = self._reads_as_five(reader)
            raise
        fault = body_decoder.header_fault(data[first], 0, from_client=True)
        if fault is not None:
            raise fault
        found = props.Properties()
        try:
            return body_decoder.read_connect(reader, self.version, self.user_properties_max, found)
        except MqttError:
            self.peer_packet_size_max = found.numbers.get(props.MAXIMUM_PACKET_SIZE, 0)
            raise

    def _reads_as_five(self, reader: Reader) -> bool:
        """Return whether the rest of a CONNECT, from its flags on, has the form of v5."""
        try:
            body_decoder.read_connect(reader, 5, self.user_properties_max, props.Properties())
        except MqttError:
            return False
        return True

    def _publish(
        self, data: bytes, first: int, topic: str, packet_id: int, position: int, stop: int
    ) -> Publish:
        """Decode the rest of a v5 PUBLISH, from its property length on."""
        size = data[position] if position < stop else 128
        start = position + 1
        end = start + size
        if size > 127 or end > stop:
            block = Reader(data, position, stop).properties()
            start = block.position
            end = block.end
        raw = data[start:end]
        known = _blocks.get(raw)
        if known is None:
            known = _learn_block(raw, self.user_properties_max)
        if known.user_count > self.user_properties_max:
            raise props.too_many(self.user_properties_max)
        if known.subscription_identifiers and self._from_client:
            raise ProtocolError("subscription identifier from a client")  # [MQTT-3.3.4-6]
        if not topic and not known.topic_alias:
            raise ProtocolError("empty topic without topic alias")  # section 3.3.2.1
        return Publish(
            topic,
            data[end:stop],
            first >> 1 & 3,
            first & 1 == 1,
            first & 8 == 8,
            packet_id,
            known.forward,
            known.message_expiry_interval,
            known.topic_alias,
            known.subscription_identifiers,
        )


def _packet_ids(data: bytes, position: int, end: int) -> list[int]:
    """Return the packet ids of a four-byte PUBACK and of those directly after it."""
    count = min(end - position >> 2, RUN_MAX)
    words = _WORDS[count].unpack_from(data, position)
    if words[::2] == _PUBACK_WORDS[count] and 0 not in words:
        return list(words[1::2])
    packet_ids: list[int] = []
    for index in range(count):
        packet_id = words[2 * index + 1]
        if words[2 * index] != _PUBACK_WORD or packet_id == 0:
            break
        packet_ids.append(packet_id)
    return packet_ids


def _learn_topic(raw: bytes) -> str:
    """Validate the bytes of a topic and cache the result, unless it is empty or long."""
    topic = body_decoder.read_topic(raw)
    if raw and len(raw) <= TOPIC_KEPT_SIZE_MAX:
        if len(_topics) >= TOPICS_MAX:
            _passed[0] += 1
            if _passed[0] <= TOPICS_PASSED_MAX:
                return topic
            _passed[0] = 0
            _topics.clear()
        _topics[raw] = topic
    return topic


def _learn_block(raw: bytes, user_properties_max: int) -> props.PublishProperties:
    """Validate a property block of PUBLISH and cache the result, unless it is long."""
    known = props.read_publish(raw, user_properties_max)
    if len(raw) <= BLOCK_KEPT_SIZE_MAX:
        if len(_blocks) >= BLOCKS_MAX:
            _blocks.clear()
        _blocks[raw] = known
    return known


__all__ = ["CONNECT_SIZE_MAX", "PACKET_SIZE_MAX", "USER_PROPERTIES_MAX", "Decoder", "Role"]
