"""Every point at which a leader can end, in one short life of a few clients.

The life is always the same: sessions begin, subscribe, publish at QoS 1 and 2, acknowledge, leave.
`Case.point` numbers the steps of the broker in it (`tests.takeover.nodes`); there the leader ends,
by one of `ENDINGS`, and the life is lived to its end against who leads then. `judge` wants all that
was acknowledged, QoS 2 exactly once, in order. Read next: `tests.takeover.test_points`.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from mqtt.packets import (
    Connack,
    Packet,
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
)
from tests.session.harness import NEVER, Client, connect_packet, will
from tests.takeover.nodes import FATES, LOST, Cluster

GONE: Final = "the machine is gone"
KILLED: Final = "kill -9"
POWER: Final = "power cut"
ENDINGS: Final = (GONE, KILLED, POWER)
# Topic, payload, QoS, retained.
MESSAGES: Final = (
    ("t/a", b"1 once", 1, False),
    ("t/a", b"2 once", 2, False),
    ("t/kept", b"3 kept", 1, True),
    ("t/b", b"4 exact", 2, False),
    ("t/b", b"5 at least", 1, False),
)
WHILE_AWAY: Final = (("t/a", b"6 away", 1, False), ("t/a", b"7 away", 2, False))
ROUNDS_MAX: Final = 50


class Ended(Exception):
    """The leader ends here."""


@dataclass(frozen=True)
class Case:
    """Where the leader ends, how, and what is under way then."""

    point: int = 0  # 0 = it never does
    ending: str = GONE
    fate: str = LOST  # of what it has sent to the log
    lags: bool = False  # the other node has read nothing since the first session began
    log_is_first: bool = False  # the log is faster than the disk of the tail
    arrives: bool = True  # what it has sent to clients
    cluster: type[Cluster] = Cluster


class Person:
    """A client over all its connections; `client` is the present one."""

    def __init__(self, name: str, **fields: Any) -> None:
        self.name: Final = name
        self.fields: Final = {"expiry": NEVER, **fields}
        self.client: Client | None = None
        self.has_session: bool = False  # it was told so
        self.is_there: bool = False  # connected, and told so

    def come(self, cluster: Cluster) -> None:
        """Connect."""
        self.is_there = False
        self.client = cluster.open(5)
        self.client.send(connect_packet(self.name, 5, **self.fields))
        self.listen()
        assert self.is_there, f"{self.name} gets no CONNACK"

    def listen(self, *, can_answer: bool = True) -> bool:
        """Take what has come, and answer it; return whether anything has."""
        assert self.client is not None
        packets = self.client.take()
        answers: list[Packet] = []
        for packet in packets:
            if isinstance(packet, Connack):
                assert packet.reason_code == 0, packet
                had, self.has_session = self.has_session, True
                assert packet.session_present or not had, f"the session of {self.name} is gone"
                self.is_there = True
            else:
                answers += self.take(packet)
        if can_answer:
            for answer in answers:
                self.client.send(answer)
        return bool(packets)

    def take(self, packet: Packet) -> Iterable[Packet]:
        """Take a packet; return the answers."""
        raise AssertionError(f"{self.name} gets {packet}")

    def end(self, *, arrives: bool) -> None:
        """The broker is gone; what it sent may have come."""
        if self.client is not None and arrives:
            self.listen(can_answer=False)
        self.client = None


class Publisher(Person):
    """Sends messages, and sends again what was not acknowledged."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.waiting: Final[dict[int, Publish]] = {}  # by packet id
        self.received: Final[set[int]] = set()  # packet ids with a PUBREC
        self.repeated: Final[set[bytes]] = set()
        self.done: Final[list[bytes]] = []  # acknowledged
        self._next: int = 0

    def say(self, messages: Iterable[tuple[str, bytes, int, bool]]) -> None:
        """Send messages in one write, those that were not sent yet."""
        packets: list[Packet] = []
        for topic, payload, qos, retain in messages:
            self._next += 1
            publish = Publish(topic, payload, qos, retain=retain, packet_id=self._next)
            self.waiting[self._next] = publish
            packets.append(publish)
        if packets:
            assert self.client is not None
            self.client.send(*packets)
            self.listen()

    def go_on(self) -> None:
        """Send again what the session still has, in order."""
        assert self.client is not None
        for packet_id, publish in sorted(self.waiting.items()):
            if packet_id in self.received:
                self.client.send(Pubrel(packet_id))
            else:
                self.repeated.add(publish.payload)
                publish.dup = True
                self.client.send(publish)
            self.listen()

    def take(self, packet: Packet) -> Iterator[Packet]:
        """Take an answer."""
        assert isinstance(packet, Puback | Pubrec | Pubcomp), packet
        is_known = packet.reason_code < 0x80
        # A PUBCOMP that was lost has freed the id: the PUBREL that comes again finds none.
        assert is_known or (isinstance(packet, Pubcomp) and packet.reason_code == 0x92), packet
        if isinstance(packet, Pubrec):
            self.received.add(packet.packet_id)
            yield Pubrel(packet.packet_id)
        else:
            self.received.discard(packet.packet_id)
            self.done.append(self.waiting.pop(packet.packet_id).payload)


class Subscriber(Person):
    """Takes messages; a QoS 2 message with an id that it holds is the same one again."""

    def __init__(self, name: str, topic_filter: str) -> None:
        super().__init__(name)
        self.topic_filter: Final = topic_filter
        self.is_subscribed: bool = False
        self.has_left: bool = False
        self.messages: Final[list[Publish]] = []
        self._held: Final[set[int]] = set()

    def subscribe(self) -> None:
        """Subscribe and wait for SUBACK."""
        assert self.client is not None
        self.client.send(Subscribe(9000, [Subscription(self.topic_filter, 2)], 0))
        self.listen()
        assert self.is_subscribed

    def unsubscribe(self) -> None:
        """Unsubscribe and wait for UNSUBACK."""
        assert self.client is not None
        self.client.send(Unsubscribe(9001, [self.topic_filter]))
        self.listen()
        assert self.has_left

    def take(self, packet: Packet) -> Iterator[Packet]:
        """Take a message, or the next step of one."""
        if isinstance(packet, Suback):
            self.is_subscribed = True
        elif isinstance(packet, Unsuback):
            self.has_left = True
        elif isinstance(packet, Pubrel):
            self._held.discard(packet.packet_id)
            yield Pubcomp(packet.packet_id)
        else:
            assert isinstance(packet, Publish), packet
            assert not self.has_left, f"{packet} behind UNSUBACK"
            if packet.qos == 2:
                assert packet.dup or packet.packet_id not in self._held, packet
                if packet.packet_id not in self._held:
                    self.messages.append(packet)
                self._held.add(packet.packet_id)
                yield Pubrec(packet.packet_id)
            else:
                self.messages.append(packet)
                yield Puback(packet.packet_id)


class Life:
    """What happens, up to the point and behind it."""

    def __init__(self, case: Case) -> None:
        self.case: Final = case
        names = ("ann", "bob") if case.ending == GONE else ("ann",)
        self.cluster: Final = case.cluster(names=names)
        self.cluster.log_is_first = case.log_is_first
        self.steps: Final[list[str]] = []
        self.reader: Final = Subscriber("reader", "t/#")
        self.leaver: Final = Subscriber("leaver", "t/#")
        self.writer: Final = Publisher("writer")
        self.mortal: Final = Person("mortal", will=will("t/will", b"will", 1))
        self.people: Final = (self.reader, self.leaver, self.writer, self.mortal)
        self._said: Final[set[bytes]] = set()

    def run(self) -> None:
        """Live to the end, and judge."""
        self.cluster.follower_lags = self.case.lags
        self.cluster.on_step = self._step
        try:
            self._live()
        except Ended:
            self._go_on()
        else:
            assert not self.case.point, f"there is no point {self.case.point}"
            self._go_on()
        self._judge()

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if len(self.steps) == self.case.point:
            raise Ended

    def _live(self) -> None:
        for person in self.people:
            person.come(self.cluster)
        self.reader.subscribe()
        self.leaver.subscribe()
        self.leaver.unsubscribe()
        for message in MESSAGES[:3]:
            self._say(message)
        self._say(*MESSAGES[3:])
        assert self.reader.client is not None
        self.reader.client.drop()
        self._say(*WHILE_AWAY)
        self.reader.come(self.cluster)
        self._hear()

    def _say(self, *messages: tuple[str, bytes, int, bool]) -> None:
        fresh = [each for each in messages if each[1] not in self._said]
        self._said.update(payload for _, payload, _, _ in fresh)
        self.writer.say(fresh)
        self._hear()

    def _hear(self) -> None:
        """Let all take what comes, until nothing does."""
        for _ in range(ROUNDS_MAX):
            there = [each for each in self.people if each.client is not None and each.is_there]
            if not any([each.listen() for each in there if not each.client.stream.is_lost]):
                return
        raise AssertionError("messages without end")

    def _go_on(self) -> None:
        """The leader has ended: live the rest against the next one."""
        cluster, case = self.cluster, self.case
        cluster.on_step = lambda name: None
        for person in self.people:
            person.end(arrives=case.arrives)
        if case.ending == GONE:
            cluster.take_over(case.fate)
        else:
            cluster.come_back(case.fate, power_cut=case.ending == POWER)
        self._meet_again()
        self._say(*MESSAGES, *WHILE_AWAY)

    def _meet_again(self) -> None:
        was_there = self.mortal.has_session
        for person in (self.reader, self.leaver, self.writer):
            person.is_there = False
            person.come(self.cluster)
        if not self.reader.is_subscribed:
            self.reader.subscribe()
        if not self.leaver.has_left:
            self.leaver.subscribe()
            self.leaver.unsubscribe()
        self.writer.go_on()
        self.mortal.client = None
        self.cluster.advance(2000)  # the end of a connection counts late by a heartbeat
        self._hear()
        self._owes_will = was_there and self.reader.is_subscribed

    def _judge(self) -> None:
        reader = self.reader
        self._hear()
        assert not self.writer.waiting, f"never acknowledged: {self.writer.waiting}"
        got = Counter(each.payload for each in reader.messages)
        wanted = [*MESSAGES, *WHILE_AWAY]
        for _, payload, qos, _ in wanted:
            assert got[payload] >= 1, f"{payload!r} is lost; got {got}"
            assert qos < 2 or got[payload] == 1, f"{payload!r} comes {got[payload]} times"
        for publish in reader.messages:
            again = got[publish.payload] > 1 and publish.payload != b"will"
            assert (
                not again
                or publish.dup
                or publish.payload in self.writer.repeated
                or (
                    next(each for each in reader.messages if each.payload == publish.payload)
                    is publish
                )
            ), f"{publish} again without DUP"
        for qos in (1, 2):
            first = list(dict.fromkeys(each.payload for each in reader.messages if each.qos == qos))
            first = [payload for payload in first if payload != b"will"]
            assert first == [payload for _, payload, each, _ in wanted if each == qos], first
        self._judge_will(got[b"will"])
        late = self.cluster.clean("late", "t/kept", qos=1)
        assert [(each.payload, each.retain) for each in late.messages()] == [(b"3 kept", True)]

    def _judge_will(self, times: int) -> None:
        """It is owed once to who subscribed before; it may come to who subscribed later."""
        if self.reader.is_subscribed and self.mortal.has_session and self.had_suback:
            assert times == 1, f"the will comes {times} times"
        else:
            assert times <= 1, f"the will comes {times} times"

    @property
    def had_suback(self) -> bool:
        """Return whether the reader was told of its subscription before the leader ended."""
        return self._owes_will


def steps(case: Case) -> list[str]:
    """Return the steps of a life that nobody ends."""
    life = Life(case)
    life.run()
    return life.steps


def cases(ending: str, points: int, first: int = 1, *, every: int = 1) -> Iterator[Case]:
    """Yield a case for every so many points, with one of all combinations of the rest by turns."""
    rest = list(itertools.product(FATES, (False, True), (False, True), (False, True)))
    for point in range(first, points + 1, every):
        fate, lags, log_is_first, arrives = rest[point * 7 % len(rest)]
        yield Case(point, ending, fate, lags and ending == GONE, log_is_first, arrives)


def all_cases(ending: str, points: int) -> Iterator[Case]:
    """Yield every case of an ending."""
    for point in range(1, points + 1):
        for fate, lags, log_is_first, arrives in itertools.product(
            FATES, (False, True), (False, True), (False, True)
        ):
            if ending == GONE or not lags:
                yield Case(point, ending, fate, lags, log_is_first, arrives)
