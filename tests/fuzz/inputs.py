"""Makes what a client of the fuzz sends: packets that make sense, that do not, and damaged bytes.

Mostly sense, so that histories get deep; everything from the random numbers it is given. Must know
nothing of the engine. Read next: `tests.fuzz.watcher`, which knows what would be right.
"""

from random import Random
from typing import Final

from mqtt.encoder import encode
from mqtt.packets import (
    Auth,
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
from session.settings import Settings
from tests.fuzz.watcher import RELEASED, Watcher

CLIENT_IDS: Final = ("one", "two", "three")
TOPICS: Final = ("a", "a/b", "a/b/c", "b", "$x/a", "a//b", "é/b")
# fmt: off
FILTERS: Final = (
    "a", "a/b", "a/+", "a/#", "#", "+/b", "+", "+/+/c", "b", "$x/#", "é/#",
    "$share/g/a/#", "$share/g/a/b", "$share/h/+/b", "$share/g/#",
)
# fmt: on
BAD_FILTERS: Final = ("a/#/b", "a+", "#b", "$share/g", "$share//a", "$share/+/a", "$share/g/")
PLACEHOLDER: Final = "BAD"  # the encoder sends no bad topic: it is put into the bytes
BAD_TOPICS: Final = (b"a/#", b"+/b", b"a\0b", b"a\xffb", b"$SY")
CONTENTS: Final = (b"", b"", b"\x01\x01", b"\x03\x00\x01t", b"\x26\x00\x01k\x00\x01v")
EXPIRIES: Final = (0, 0, 1, 3, 30, 0xFFFFFFFF)
IDS: Final = 6  # packet ids that clients use: few, so that they meet
BREAKS: Final = 0.01  # share of packets that ask for what CONNACK has ruled out


class Inputs:
    """The clients' side of one history."""

    def __init__(self, random: Random, settings: Settings) -> None:
        self._random = random
        self._settings = settings
        self._count = 0

    def next(self, watcher: Watcher) -> tuple[bytes, int]:
        """Return what the client of this connection sends next, and how many packets that are."""
        random = self._random
        version = watcher.version or random.choice((3, 4, 4, 5, 5, 5))
        packets: list[bytes] = []
        if watcher.connect is None and random.random() < 0.97:
            packets.append(encode(self._connect(version), version))
        for _ in range(random.choice((0, 1, 1, 1, 2, 4)) or (not packets)):
            packets.append(self._packet(watcher, version))
        data = b"".join(packets)
        data = data.replace(PLACEHOLDER.encode(), random.choice(BAD_TOPICS))
        if random.random() < 0.02:
            data = self._damaged(data)
        return data, len(packets)

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _payload(self) -> bytes:
        self._count += 1
        return b"%d" % self._count + b"x" * self._random.choice((0, 0, 0, 10, 200))

    def _connect(self, version: int) -> Connect:
        random = self._random
        five = version == 5
        clean_start = self._chance(0.3)
        client_id = random.choice(CLIENT_IDS)
        if version > 3 and self._chance(0.05):
            client_id = ""
            clean_start = clean_start or self._chance(0.9)
        will = None
        if self._chance(0.4):
            topic = random.choice(TOPICS[:4]) if self._chance(0.99) else PLACEHOLDER
            will = Will(topic, self._payload(), self._qos(), self._retain(0.3))
            if five:
                will.delay_interval = random.choice((0, 0, 1, 5))
                will.message_expiry_interval = random.choice((None, None, 0, 2))
                will.properties = random.choice(CONTENTS)
        keep_alive = random.choice((0, 0, 0, 0, 2, 5, 60))
        connect = Connect(client_id, version, clean_start, keep_alive, will)
        if self._chance(0.01):
            connect.username, connect.password = "user", b"secret"
        if five:
            connect.session_expiry_interval = random.choice(EXPIRIES)
            connect.receive_maximum = random.choice((1, 2, 5, 65_535, 65_535))
            connect.maximum_packet_size = random.choice((0, 0, 0, 0, 0, 0, 20, 100, 150))
            connect.topic_alias_maximum = random.choice((0, 0, 1, 3, 65_535))
            connect.request_problem_information = self._chance(0.7)
            if self._chance(0.01):
                connect.authentication_method = "UNKNOWN"
        return connect

    def _packet(self, watcher: Watcher, version: int) -> bytes:
        random = self._random
        kind = random.random()
        if kind < 0.38:
            return self._publish(watcher, version)
        if kind < 0.78:
            return self._answer(watcher, version)
        if kind < 0.89:
            return self._subscribe(version)
        if kind < 0.92:
            names = [random.choice(FILTERS) for _ in range(random.randint(1, 2))]
            return encode(Unsubscribe(self._id(), names), version)
        if kind < 0.95:
            return encode(Pingreq(), version)
        if kind < 0.96:
            return encode(self._goodbye(version), version)
        if kind < 0.997:
            released = watcher.to_release.pop(0) if watcher.to_release else self._id()
            return encode(Pubrel(released), version)
        return self._nonsense(version)

    def _qos(self) -> int:
        most = 2 if self._chance(BREAKS) else self._settings.maximum_qos
        return min(most, self._random.choice((0, 1, 2, 2)))

    def _retain(self, probability: float) -> bool:
        allowed = self._settings.retain_available or self._chance(BREAKS)
        return allowed and self._chance(probability)

    def _id(self) -> int:
        return self._random.randint(1, IDS) if self._chance(0.98) else 65_535

    def _publish(self, watcher: Watcher, version: int) -> bytes:
        random = self._random
        qos = self._qos()
        packet = Publish(random.choice(TOPICS), self._payload(), qos, self._retain(0.2))
        if self._chance(0.003):
            packet.topic = PLACEHOLDER
        if packet.retain and self._chance(0.3):
            packet.payload = b""
        if qos:
            packet.packet_id = self._id()
            packet.dup = self._chance(0.1)
        if version == 5:
            packet.properties = random.choice(CONTENTS)
            packet.message_expiry_interval = random.choice((-1, -1, -1, 0, 1, 60))
            most = self._settings.topic_alias_maximum
            if (most and self._chance(0.25)) or self._chance(0.002):
                packet.topic_alias = random.randint(1, 3 if self._chance(0.99) else 70)
                if packet.topic_alias in watcher.aliases and self._chance(0.7):
                    packet.topic = ""
                elif self._chance(0.01):
                    packet.topic = ""
        return encode(packet, version)

    def _answer(self, watcher: Watcher, version: int) -> bytes:
        """Return an acknowledgement, mostly one that the engine waits for."""
        random = self._random
        view = watcher.view
        code = 0
        if version == 5 and self._chance(0.08):
            code = random.choice((0x10, 0x80, 0x83, 0x97))
        here = [] if view is None else watcher.waiting()
        if self._chance(0.02) and view is not None:
            here = list(view.flows)
        if view is not None and here and self._chance(0.96):
            packet_id = random.choice(here)
            flow = view.flows[packet_id]
            answer: Packet = Puback(packet_id, code)
            if flow.state == RELEASED:
                answer = Pubcomp(packet_id)
            elif flow.packet.qos == 2:
                answer = Pubrec(packet_id, code)
            return encode(answer, version)
        if watcher.to_release and self._chance(0.8):
            return encode(Pubrel(watcher.to_release.pop(0)), version)
        if self._chance(0.97):
            return self._publish(watcher, version)
        return encode(random.choice((Puback, Pubrec, Pubcomp))(self._id()), version)

    def _subscribe(self, version: int) -> bytes:
        random = self._random
        settings = self._settings
        names = [random.choice(FILTERS) for _ in range(random.choice((1, 1, 2, 3)))]
        if self._chance(0.01):
            names.append(random.choice(BAD_FILTERS))
        wanted = [Subscription(name, random.choice((0, 1, 2, 2))) for name in names]
        packet = Subscribe(self._id(), wanted)
        if version == 5:
            if settings.subscription_identifiers or self._chance(BREAKS):
                packet.subscription_identifier = random.choice((0, 0, 1, 2, 268_435_455))
            for item in wanted:
                shared = item.topic_filter.startswith("$share")
                item.no_local = self._chance(0.005 if shared else 0.3)
                item.retain_as_published = self._chance(0.3)
                item.retain_handling = random.randrange(3)
        return encode(packet, version)

    def _goodbye(self, version: int) -> Packet:
        if self._chance(0.5):
            return Pingreq()
        packet = Disconnect()
        if version == 5:
            packet.reason_code = self._random.choice((0, 0, 4))
            if self._chance(0.3):
                packet.session_expiry_interval = self._random.choice(EXPIRIES)
        return packet

    def _nonsense(self, version: int) -> bytes:
        """Return a packet that no client may send now, or ever."""
        choices: list[Packet] = [
            self._connect(version),
            Connack(),
            Suback(self._id(), [0]),
            Unsuback(self._id(), [0] if version == 5 else []),
            Pingresp(),
        ]
        if version == 5:
            choices.append(Auth(0x18, "UNKNOWN", b"x"))
        return encode(self._random.choice(choices), version)

    def _damaged(self, data: bytes) -> bytes:
        random = self._random
        damaged = bytearray(data)
        place = random.randrange(len(damaged))
        kind = random.randrange(5)
        if kind == 0:
            damaged[place] ^= 1 << random.randrange(8)
        elif kind == 1:
            damaged[place] = random.randrange(256)
        elif kind == 2:
            del damaged[place:]
        elif kind == 3:
            damaged.insert(place, random.randrange(256))
        else:
            damaged += random.randbytes(random.randint(1, 8))
        return bytes(damaged)
