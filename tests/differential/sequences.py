"""Sequences of raw packets for two brokers: what is usual at random, with an oddity here and there.

A sequence has its own topics and client ids, so that many can be played at a time. The same number
is the same sequence, whatever it is played against. Must never depend on what a broker answers.
Read next: `tests.differential.player`.
"""

from random import Random
from typing import Final, NamedTuple

from conformance import wire
from tests.differential.oddities import FIRST, LATER, Oddity, Place

SEND: Final = "send"
OPEN: Final = "open"  # a new connection, then send; one of that name stays open beside it
DROP: Final = "drop"  # close without DISCONNECT
ACKNOWLEDGE: Final = "acknowledge"  # answer everything the broker waits for

# Which of the topics that are used a filter matches.
MATCHED: Final[dict[str, set[str]]] = {
    "a": {"a"},
    "b": {"b"},
    "w": {"w"},
    "c": set(),
    "+/c": {"a/c"},
    "a/#": {"a", "a/c"},
    "+": {"a", "b", "w"},
    "#": {"a", "b", "w", "a/c"},
}
TOPICS: Final = ("a", "b", "a/c")

STEPS_MAX: Final = 9
FIRST_EVERY: Final = 4  # one sequence of so many begins with something odd
ODD_SHARE: Final = 0.75  # of the others have something odd in them
# Of the sequences may have what brokers treat differently for long afterwards. A step's name says
# so in braces, from there on.
OVERLAP_SHARE: Final = 0.15  # two filters of one client that match one topic
AGAIN_SHARE: Final = 0.1  # a filter that is subscribed to again
SHARED_SHARE: Final = 0.15
TAKEOVER_SHARE: Final = 0.3
AWAY_SHARE: Final = 0.5  # of the ends: the other client publishes before it comes back

# Every oddity in every version it is for: they come in turn.
FIRST_IN_TURN: Final = [(oddity, version) for oddity in FIRST for version in oddity.versions]
LATER_IN_TURN: Final = [(oddity, version) for oddity in LATER for version in oddity.versions]


class Step(NamedTuple):
    """One thing that one client does."""

    name: str
    action: str
    connection: str
    version: int
    data: bytes = b""
    is_odd: bool = False  # perhaps the broker closes
    is_partial: bool = False


class Sequence(NamedTuple):
    """Steps, in order. All topics and client ids begin with `prefix`."""

    number: int
    prefix: str
    steps: list[Step]

    def __str__(self) -> str:
        return "\n".join(
            f"  {step.connection} v{step.version} {step.name}: {step.data[:60].hex()}"
            for step in self.steps
        )


def sequence(number: int, attempt: int = 0) -> Sequence:
    """Return the sequence of this number; another attempt has other topics and client ids."""
    draft = _Draft(number, attempt)
    return Sequence(number, draft.prefix, draft.steps)


class _Client:
    """What a sequence knows of one of its clients."""

    def __init__(self, name: str, version: int, client_id: str) -> None:
        self.name = name
        self.version = version
        self.client_id = client_id
        self.is_durable = False
        self.has_will = False
        self.packet_id = 0
        self.filters: set[str] = set()


class _Draft:
    """A sequence in the making."""

    def __init__(self, number: int, attempt: int) -> None:
        self.random = Random(number)
        self.prefix = f"d{number}{'abcdef'[attempt]}"
        self.steps: list[Step] = []
        self.notes: set[str] = set()
        self.clients: list[_Client] = []
        self.may_overlap = self.chance(OVERLAP_SHARE)
        self.may_repeat = self.chance(AGAIN_SHARE)
        self.may_share = self.chance(SHARED_SHARE)
        self.may_take_over = self.chance(TAKEOVER_SHARE)
        turn, is_later = divmod(number, FIRST_EVERY)
        if not is_later:
            self._odd_first(*FIRST_IN_TURN[turn % len(FIRST_IN_TURN)])
            return
        turn = number - turn - 1  # how many of this kind come before
        oddity, version = LATER_IN_TURN[turn % len(LATER_IN_TURN)]
        self.clients.append(self._client("A", version))
        if oddity.is_end or self.chance(0.5):
            other = version if self.chance(0.7) else 9 - version
            self.clients.append(self._client("B", other))
        for client in self.clients:
            self._connect(client, must_have_will=oddity.is_end and client.name == "A")
        if oddity.is_end:
            self._subscribe_to(self.clients[1], [("#", 1)])  # what becomes of the will is seen
        count = self.random.randint(2, STEPS_MAX)
        odd = self.random.randrange(count) if self.chance(ODD_SHARE) else -1
        for position in range(count):
            if position == odd:
                self._odd(self.clients[0], oddity)
            else:
                self._usual(self.random.choice(self.clients))

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < probability

    def _client(self, name: str, version: int) -> _Client:
        return _Client(name, version, f"{self.prefix}{name}")

    def _topic(self) -> str:
        return f"{self.prefix}/{self.random.choice(TOPICS)}"

    def _filter(self, client: _Client) -> str | None:
        """Return a filter of `MATCHED` for a client to subscribe to, None if none may be."""
        choices = list(MATCHED)
        if not self.may_repeat:
            choices = [name for name in choices if name not in client.filters]
        if not self.may_overlap:
            held = {topic for name in client.filters for topic in MATCHED[name]}
            choices = [
                name for name in choices if name in client.filters or not MATCHED[name] & held
            ]
        if not choices:
            return None
        name = self.random.choice(choices)
        if name in client.filters:
            self.notes.add("again")
        if any(MATCHED[name] & MATCHED[other] for other in client.filters - {name}):
            self.notes.add("overlap")
        client.filters.add(name)
        return name

    def _add(self, client: _Client, name: str, data: bytes, action: str = SEND) -> None:
        self.steps.append(Step(self._named(name), action, client.name, client.version, data))

    def _named(self, name: str) -> str:
        return f"{name} {{{', '.join(sorted(self.notes))}}}" if self.notes else name

    # Odd

    def _odd_first(self, oddity: Oddity, version: int) -> None:
        client = self._client("A", version)
        place = Place(version, client.client_id, f"{self.prefix}/a")
        data = oddity.build(place)
        self.steps.append(Step(oddity.name, OPEN, "A", version, data, True, oddity.is_partial))

    def _odd(self, client: _Client, oddity: Oddity) -> None:
        place = Place(client.version, client.client_id, f"{self.prefix}/a")
        data = oddity.build(place)
        if oddity.name.startswith("DISCONNECT"):
            self.notes.add("odd goodbye")
        elif oddity.name.startswith("PUBLISH qos 2 twice"):
            self.notes.add("unreleased")
        elif oddity.name in ("SUBSCRIBE a good and a bad filter", "SUBSCRIBE shared, no local"):
            self.notes.add("overlap")  # it may be for a filter that is held already
        elif oddity.name == "second CONNECT":
            self.notes.add("second CONNECT")
        elif oddity.is_partial:
            self.notes.add("half a packet")
        name = self._named(oddity.name)
        step = Step(name, SEND, client.name, client.version, data, True, oddity.is_partial)
        self.steps.append(step)

    # Usual

    def _connect(self, client: _Client, how: str = "CONNECT", must_have_will: bool = False) -> None:
        random = self.random
        if how != "CONNECT" and client.has_will:
            self.notes.add("will taken over")
        five = client.version == 5
        clean = self.chance(0.5)
        # A takeover finds the session that is there, whatever its expiry.
        if clean or (not client.is_durable and how == "CONNECT"):
            client.filters.clear()
        client.is_durable = self.chance(0.5) if five else not clean
        properties: list[tuple[int, int]] = []
        if five and client.is_durable:
            properties.append((0x11, 600))
        if five and self.chance(0.3):
            properties.append((0x22, random.choice((1, 10))))
        if five and self.chance(0.2):
            properties.append((0x21, random.choice((1, 5))))
        will = None
        client.has_will = must_have_will or self.chance(0.4)
        if client.has_will:
            topic = f"{self.prefix}/{random.choice(('a', 'w'))}"
            will = wire.Will(topic, b"will", random.randrange(3), self.chance(0.3))
        data = wire.connect(
            client.client_id, version=client.version, clean=clean, will=will, properties=properties
        )
        words = [how, "clean" if clean else "", "durable" if client.is_durable else ""]
        words.append("will" if will else "")
        self._add(client, " ".join(word for word in words if word), data, OPEN)

    def _usual(self, client: _Client) -> None:
        kind = self.random.random()
        if kind < 0.33:
            self._publish(client)
        elif kind < 0.58:
            self._subscribe(client)
        elif kind < 0.65:
            level = self.random.choice(list(MATCHED))
            client.filters.discard(level)
            name = f"{self.prefix}/{level}"
            data = wire.unsubscribe(self._next_id(client), [name], version=client.version)
            self._add(client, "UNSUBSCRIBE", data)
        elif kind < 0.75:
            self._add(client, "acknowledge", b"", ACKNOWLEDGE)
        elif kind < 0.81:
            self._add(client, "PUBREL", wire.pubrel(max(1, client.packet_id)))
        elif kind < 0.85:
            self._goodbye(client)
            self._away(client)
            self._connect(client)
        elif kind < 0.92:
            self._add(client, "drop", b"", DROP)
            self._away(client)
            self._connect(client)
        elif self.may_take_over:
            self._connect(client, "takeover")
        else:
            self._publish(client)

    def _away(self, client: _Client) -> None:
        """Let the other client publish, perhaps, while this one is away."""
        for other in self.clients:
            if other is not client and self.chance(AWAY_SHARE):
                for _ in range(self.random.randint(1, 2)):
                    self._publish(other)

    def _next_id(self, client: _Client) -> int:
        client.packet_id += 1
        return client.packet_id

    def _publish(self, client: _Client) -> None:
        random = self.random
        qos = random.randrange(3)
        properties: list[tuple[int, int | tuple[str, str]]] = []
        if client.version == 5:
            if self.chance(0.2):
                properties.append((0x23, random.randint(1, 10)))
            if self.chance(0.2):
                properties.append((0x26, ("k", "v")))
        retain = self.chance(0.25)
        packet_id = self._next_id(client) if qos else None
        data = wire.publish(
            self._topic(),
            b"" if self.chance(0.1) else b"%d" % len(self.steps),
            version=client.version,
            qos=qos,
            retain=retain,
            packet_id=packet_id,
            properties=properties,
        )
        name = f"PUBLISH qos {qos}{' retain' if retain else ''}"
        if packet_id is not None and qos == 2 and self.chance(0.95):
            # With its PUBREL: when a receiver hands the message on is up to it.
            data += wire.pubrel(packet_id)
            name += " and PUBREL"
        elif qos == 2:
            self.notes.add("unreleased")
        self._add(client, name, data)

    def _subscribe(self, client: _Client) -> None:
        random = self.random
        filters: list[tuple[str, int]] = []
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            name, options = self._filter(client), random.randrange(3)
            if name is None:
                continue
            if self.may_share and self.chance(0.5):
                name = f"$share/g/{self.prefix}/{name}"
                self.notes.add("shared")
            else:
                name = f"{self.prefix}/{name}"
                if client.version == 5:
                    options |= random.choice((0, 4)) | random.choice((0, 8))
                    options |= random.choice((0, 16, 32))
            filters.append((name, options))
        if filters:
            self._send_subscribe(client, filters)
        else:
            self._publish(client)

    def _subscribe_to(self, client: _Client, names: list[tuple[str, int]]) -> None:
        """Subscribe to these of `MATCHED`, the first that the client holds."""
        client.filters.update(name for name, _ in names)
        self._send_subscribe(client, [(f"{self.prefix}/{name}", qos) for name, qos in names])

    def _send_subscribe(self, client: _Client, filters: list[tuple[str, int]]) -> None:
        properties = []
        if client.version == 5 and self.chance(0.3):
            properties.append((0x0B, self.random.choice((1, 300))))
        number = self._next_id(client)
        data = wire.subscribe(number, filters, version=client.version, properties=properties)
        self._add(client, "SUBSCRIBE", data)

    def _goodbye(self, client: _Client) -> None:
        reason = None
        if client.version == 5:
            reason = self.random.choice((None, None, None, 4, 0x80))
        if reason == 0x80 and client.has_will:
            self.notes.add("odd goodbye")
        name = "DISCONNECT" if reason is None else f"DISCONNECT {reason:02x}"
        self._add(client, name, wire.disconnect(reason))
