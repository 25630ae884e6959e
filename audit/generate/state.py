"""The state of the broker of `audit.generate.model`: clients, sessions, filters, messages.

Pure data. Offsets in the log are stored as `slot << SLOT_BITS | number`: steady traffic is inserted
between the rounds (slots) of the model later, and only then the final offset is known.
"""

import zlib
from collections import deque
from typing import Any, Final

from storage.history import events

Row = dict[str, Any]

SLOT_BITS: Final = 40
SLOT_MASK: Final = (1 << SLOT_BITS) - 1
UNSTORED: Final = events.UNSTORED  # ids of messages no durable filter matched
NEVER: Final = 0xFFFFFFFF
SECOND: Final = 1_000_000  # all times are microseconds


class Will:
    """The will of a connection; `delay_s` counts from the end of the connection."""

    __slots__ = ("delay_s", "qos", "topic")

    def __init__(self, topic: str, qos: int, delay_s: int) -> None:
        self.topic = topic
        self.qos = qos
        self.delay_s = delay_s


class Client:
    """The values a client sends with every CONNECT."""

    __slots__ = ("client_id", "expiry_s", "proto", "rmax", "size_max", "tenant", "will")

    def __init__(
        self, client_id: str, tenant: str, proto: int, expiry_s: int, rmax: int = 65535
    ) -> None:
        self.client_id = client_id
        self.tenant = tenant
        self.proto = proto
        self.expiry_s = expiry_s
        self.rmax = rmax
        self.size_max = 0  # limit of payloads by Maximum Packet Size; 0 = none
        self.will: Will | None = None


class Message:
    """An accepted message; `stored` if a durable filter matched it."""

    __slots__ = ("accepted_at", "expiry_s", "id", "pub", "qos", "retain", "size", "stored", "topic")

    def __init__(self, id: int, topic: str, qos: int, size: int, at: int, pub: int) -> None:
        self.id = id
        self.topic = topic
        self.qos = qos
        self.size = size
        self.accepted_at = at
        self.pub = pub
        self.expiry_s: int | None = None
        self.retain = False
        self.stored = False

    def expired(self, now: int) -> bool:
        """Return whether it has expired."""
        return self.expiry_s is not None and now >= self.accepted_at + self.expiry_s * SECOND


class Subscription:
    """One subscription of one session."""

    __slots__ = ("no_local", "plain", "qos", "share", "since", "stream", "tfilter")

    def __init__(self, tfilter: str, qos: int, no_local: bool) -> None:
        self.tfilter = tfilter
        self.qos = qos
        self.no_local = no_local
        self.stream = 0
        self.since = 0
        self.share: str | None = None
        self.plain = tfilter
        if tfilter.startswith("$share/"):
            _, self.share, self.plain = tfilter.split("/", 2)


class Flight:
    """A message in flight to a session: its packet id is in use until the exchange ends."""

    __slots__ = ("group", "message", "qos", "released")

    def __init__(self, message: Message, qos: int, group: "Group | None") -> None:
        self.message = message
        self.qos = qos
        self.released = False  # PUBREC came
        self.group = group


class Session:
    """One incarnation of a session."""

    def __init__(self, number: int, client: Client) -> None:
        self.number = number
        self.client = client
        self.client_id = client.client_id
        self.tenant = client.tenant
        self.expiry_s = client.expiry_s
        self.conn = 0
        self.offline_at = 0
        self.subs: dict[str, Subscription] = {}
        self.flights: dict[int, Flight] = {}
        self.queue: deque[tuple[Message, int]] = deque()  # message, granted QoS
        self.next_pid = 0
        self.pub_pid = 0
        self.incoming: dict[int, int] = {}  # QoS 2 ids waiting for PUBREL -> message
        self.will: Will | None = None
        self.will_due = 0  # 0: no will waits for its delay
        self.position = 0  # as stored when the queue was last empty
        self.fresh_acks: list[tuple[int, int, Flight]] = []  # time, packet id, message
        self.exact_to = 0  # last message completed at QoS 2: its sending was on disk before
        self.crashed_at = 0  # time of a crash while connected, not recorded yet
        self.census_due = False
        self.steady = False  # part of the stamped traffic; the model does not use it

    @property
    def durable(self) -> bool:
        """Return whether it outlives its connection."""
        return self.expiry_s > 0

    @property
    def window(self) -> int:
        """Return how many messages may be in flight to it."""
        return min(self.client.rmax, 64)

    @property
    def expires_at(self) -> int | None:
        """Return when it expires, None if it is connected or never expires."""
        if self.conn or self.expiry_s == NEVER:
            return None
        return self.offline_at + self.expiry_s * SECOND

    @property
    def subs_check(self) -> int:
        """Return the checksum of its subscriptions."""
        return sum(zlib.crc32(f"{sub.tfilter}\0{sub.qos}".encode()) for sub in self.subs.values())

    def take_pid(self) -> int:
        """Return a packet id that is not in use."""
        while True:
            self.next_pid = self.next_pid % 65535 + 1
            if self.next_pid not in self.flights:
                return self.next_pid


class Group:
    """A shared subscription with its own cursor; each message goes to one member."""

    def __init__(self, share: str, plain: str) -> None:
        self.share = share
        self.plain = plain
        self.members: list[Session] = []
        self.queue: deque[Message] = deque()
        self.turn = 0


class Entry:
    """A distinct topic filter: its holders, and its stream while a durable session holds it."""

    def __init__(self, plain: str) -> None:
        self.plain = plain
        self.stream = 0
        self.sessions: dict[int, tuple[Session, Subscription]] = {}
        self.groups: dict[str, Group] = {}

    def held(self) -> bool:
        """Return whether a durable session holds it, so that messages are stored."""
        if any(s.durable and sub.qos for s, sub in self.sessions.values()):
            return True
        return any(m.durable for group in self.groups.values() for m in group.members)


def matches(tfilter: str, topic: str) -> bool:
    """Return whether a topic filter (without $share) matches a topic name, level by level."""
    wanted, levels = tfilter.split("/"), topic.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or (level != "+" and level != levels[index]):
            return False
    return len(wanted) == len(levels)
