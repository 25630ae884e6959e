"""Clients that note what the broker promised them, beside the messages that `load` follows.

Each one is a thread that lives through any number of crashes and writes what a correct broker would
not have done into `violations`. What an answer promises counts from the moment it is read; what was
asked and not answered may have happened or not.

`Rivals` and `Sleeper` are subscribers of `load` whose connections are taken over, and that stay
away. `Joiner` comes to a shared group and leaves it. `WillMaker` leaves wills, `Keeper` retained
messages; `Fickle` subscribes and unsubscribes, `Mortal` lets its session expire.
"""

import random
import threading
import time
from abc import ABC, abstractmethod
from typing import Final

from mqtt.packets import Connack, Connect, Disconnect, Puback, Publish, Will
from mqtt.reasons import USE_ANOTHER_SERVER
from tests.durability.load import GONE, RETRY_SECONDS, SESSION_SECONDS, Gone, Subscriber
from tests.durability.rawclient import Closed, RawClient, Silence

STORM: Final = 3  # connections of one client id at once
POLL_SECONDS: Final = 0.02
# How far a client may be from the broker about when its connection ended: the heartbeat that dates
# a crash, and a busy machine.
EARLY_SECONDS: Final = 2.0
LATE_SECONDS: Final = 6.0
END_SECONDS: Final = 30.0  # for what a client does before it ends
MANY: Final = 1_000_000_000


class Rivals(Subscriber):
    """A subscriber whose connection is taken over by the winner of several at once."""

    def _connect(self) -> bool:
        packet = Connect(
            client_id=self.name,
            protocol_version=self._client.version,
            clean_start=False,
            keep_alive=0,
            session_expiry_interval=SESSION_SECONDS,
            username=None,
            password=None,
        )
        storm = [RawClient(self._client.port, self.name) for _ in range(STORM)]
        for client in storm:
            client.open()
        for client in storm:
            client.send(packet)
        while len(storm) > 1:
            for client in list(storm):
                try:
                    client.expect_closed(POLL_SECONDS)
                except Silence:
                    continue
                storm.remove(client)
                client.drop()
        if not storm:
            raise Closed(f"{self.name}: no connection is left", None)
        self._client.drop()  # taken over by now
        self._client = storm[0]
        connack = self._client.expect(Connack)
        if connack.reason_code == USE_ANOTHER_SERVER:
            raise Closed(f"{self.name}: sent away: {connack!r}", None)
        assert connack.reason_code == 0, f"refused: {connack!r}"
        return connack.session_present


class Sleeper(Subscriber):
    """A subscriber that stays away for seconds between two connections."""

    def _converse(self) -> None:
        try:
            super()._converse()
        finally:
            self._finish.wait(self._random.uniform(0.0, 3.0))


class Joiner(Subscriber):
    """A member of a shared group that leaves it, by UNSUBSCRIBE or with its session."""

    def _converse(self) -> None:
        if self._random.random() < 0.3:
            self._client.connect(clean_start=True)
            self._client.disconnect()
        self.ready.clear()
        self._client.durable(expiry=SESSION_SECONDS)
        self._client.subscribe(self.topic_filter, qos=self.qos)
        self.ready.set()
        leave_at = time.monotonic() + self._random.uniform(0.2, 2.0)
        while time.monotonic() < leave_at:
            try:
                packet = self._client.receive(POLL_SECONDS)
            except Silence:
                continue
            answer = self._on_packet(packet, set())
            if answer is not None:
                self._client.send(answer)
        if self._random.random() < 0.5:
            self._client.unsubscribe(self.topic_filter)
        self._client.drop(reset=self._random.random() < 0.5)
        self._finish.wait(self._random.uniform(0.0, 1.0))


class Party(threading.Thread, ABC):
    """A client in a thread of its own, until finished."""

    def __init__(self, port: int, name: str, *, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.violations: list[str] = []
        self.kept: int = 0  # promises that were seen kept
        self.gone: Gone = GONE
        self.retry_s: float = RETRY_SECONDS
        self.end_s: float = END_SECONDS
        self._port = port
        self._random = random.Random(seed)
        self._finish = threading.Event()

    def finish(self) -> None:
        """End the thread and wait for it."""
        self._finish.set()
        self.join(2 * self.end_s)
        if self.is_alive():
            self.violations.append(f"{self.name}: did not finish")

    def run(self) -> None:
        """Do one turn after the other until finished."""
        while not self._finish.is_set():
            self.turn()
        self.end()

    def turn(self) -> None:
        """Do one turn; a broker that goes away ends it."""
        try:
            self._turn()
        except self.gone:
            time.sleep(self.retry_s)
        except AssertionError as error:
            self.violations.append(f"{self.name}: {error}")
            self._finish.set()

    def end(self) -> None:
        """Do what is to do before the thread ends."""

    @abstractmethod
    def _turn(self) -> None:
        """Do one turn; raises `Closed`, `OSError` or, for a promise not kept, `AssertionError`."""


class Life:
    """One connection with a will."""

    def __init__(self, number: int, delay: int, qos: int) -> None:
        self.number: Final = number
        self.delay: Final = delay
        self.qos: Final = qos
        self.least = 0  # how often its will is to come
        self.most = 1 if qos == 2 else MANY
        self.ended_at = 0.0


class WillMaker(Party):
    """Leaves a will with each connection; what a watcher received must be what is due."""

    early_s: float = EARLY_SECONDS
    late_s: float = LATE_SECONDS

    def __init__(self, port: int, name: str, *, seed: int) -> None:
        super().__init__(port, name, seed=seed)
        self.lives: list[Life] = []
        self.topic: str = f"will/{name}"

    def unpaid(self, received: dict[int, int]) -> list[int]:
        """Return the wills that are due and did not come; `received` counts those that did."""
        return [life.number for life in self.lives if received.get(life.number, 0) < life.least]

    def verdict(self, received: dict[int, int]) -> list[str]:
        """Return each will that came too often or not at all."""
        return [
            f"{self.name}: will {life.number} (delay {life.delay}, QoS {life.qos}) came "
            f"{received.get(life.number, 0)} times, not {life.least} to {life.most}"
            for life in self.lives
            if not life.least <= received.get(life.number, 0) <= life.most
        ]

    def _turn(self) -> None:
        rng = self._random
        before = self.lives[-1] if self.lives else None
        life = Life(len(self.lives) + 1, rng.choice((0, 0, 2, 8)), rng.choice((1, 2)))
        self.lives.append(life)
        clean_start = rng.random() < 0.3
        if before is not None and before.delay:
            # It may stop the delay, whether it is answered or not.
            expected, before.least = before.least, 0
        will = Will(self.topic, b"%d" % life.number, life.qos, False, life.delay)
        client = RawClient(self._port, self.name)
        control = RawClient(self._port, f"{self.name}-control")
        try:
            control.connect()
            client.connect(clean_start=clean_start, expiry=60, will=will)
            life.least = 1
            if before is not None and before.delay:
                waited = time.monotonic() - before.ended_at
                if clean_start or waited > before.delay + self.late_s:
                    before.least = expected
                elif waited < before.delay - self.early_s:
                    before.most = 0
                    self.kept += 1
            time.sleep(rng.uniform(0.0, 0.5))
            life.ended_at = time.monotonic()
            self._leave(client, control, life)
        finally:
            life.ended_at = life.ended_at or time.monotonic()
            control.drop()
            client.drop()
        time.sleep(rng.choice((0.0, 0.0, rng.uniform(0.0, 1.0), rng.uniform(0.0, 4.0))))

    def _leave(self, client: RawClient, control: RawClient, life: Life) -> None:
        rng = self._random
        how = rng.randrange(4)
        if how == 0:
            life.least = 0
            client.disconnect()
            control.ping()  # it was the broker that closed, not its end
            life.most = 0
        elif how == 1:
            client.send(Disconnect(0x04))
            client.expect_closed()
        else:
            client.drop(reset=how == 2)
        self.kept += 1


class Keeper(Party):
    """Publishes, replaces and removes retained messages of its own, and reads what is kept."""

    TOPICS: Final = 6

    def __init__(self, port: int, name: str, *, seed: int) -> None:
        super().__init__(port, name, seed=seed)
        # What a topic may hold: the last acknowledged payload and those sent since.
        self._may_hold: list[list[bytes]] = [[b""] for _ in range(self.TOPICS)]
        self._number = 0

    def end(self) -> None:
        """Look once more at what is kept."""
        deadline = time.monotonic() + self.end_s
        while True:
            try:
                self._look()
                return
            except self.gone as problem:
                if time.monotonic() > deadline:
                    self.violations.append(f"{self.name}: cannot look at what is kept: {problem}")
                    return
                time.sleep(self.retry_s)

    def _turn(self) -> None:
        rng = self._random
        client = RawClient(self._port, self.name, version=rng.choice((4, 5)))
        try:
            client.connect()
            for _ in range(rng.randrange(1, 20)):
                self._number += 1
                topic = rng.randrange(self.TOPICS)
                payload = b"" if rng.random() < 0.3 else b"%d" % self._number
                self._may_hold[topic].append(payload)
                qos = rng.choice((1, 2))
                client.publish(f"kept/{self.name}/{topic}", payload, qos=qos, retain=True)
                self._may_hold[topic] = [payload]
            self._look()
        finally:
            client.drop()
        time.sleep(rng.uniform(0.0, 0.2))

    def _look(self) -> None:
        reader = RawClient(self._port, f"{self.name}-reader")
        try:
            reader.connect()
            reader.subscribe(f"kept/{self.name}/#", qos=0)
            reader.ping()
            held = {
                int(packet.topic.rpartition("/")[2]): packet.payload
                for packet in reader.take_all(idle=0.1)
            }
            reader.ping()  # still the same broker
        finally:
            reader.drop()
        for topic, may_hold in enumerate(self._may_hold):
            found = held.get(topic, b"")
            if found not in may_hold:
                self.violations.append(
                    f"{self.name}: topic {topic} has {found!r}, not one of {may_hold}"
                )
            self.kept += 1


class Fickle(Party):
    """Subscribes and unsubscribes; receives what it must, and nothing that it must not."""

    FILTERS: Final = 4

    def __init__(self, port: int, name: str, *, seed: int) -> None:
        super().__init__(port, name, seed=seed)
        self._has: list[bool | None] = [False] * self.FILTERS  # None: asked, not answered
        self._must: dict[int, int] = {}  # message -> its filter
        self._may: set[int] = set()
        self._number = 0
        self._begun = False

    def end(self) -> None:
        """Receive the rest."""
        deadline = time.monotonic() + self.end_s
        while self._must and time.monotonic() < deadline and not self.violations:
            try:
                self._receive(idle=1.0)
            except self.gone:
                time.sleep(self.retry_s)
        if self._must:
            self.violations.append(f"{self.name}: did not get {sorted(self._must)}")

    def _turn(self) -> None:
        rng = self._random
        client = self._receive(idle=0.0)
        feeder = RawClient(self._port, f"{self.name}-feeder")
        try:
            for _ in range(rng.randrange(1, 4)):
                number = rng.randrange(self.FILTERS)
                wanted = rng.random() < 0.6
                self._has[number] = None
                if wanted:
                    client.subscribe(f"fickle/{self.name}/{number}", qos=1)
                else:
                    # What waits for the session may be dropped with the subscription.
                    self._must = {m: f for m, f in self._must.items() if f != number}
                    client.unsubscribe(f"fickle/{self.name}/{number}")
                self._has[number] = wanted
            if rng.random() < 0.5:
                client.drop(reset=rng.random() < 0.5)
            feeder.connect()
            for _ in range(rng.randrange(1, 10)):
                self._feed(feeder, rng.randrange(self.FILTERS))
        finally:
            feeder.drop()
            client.drop()
        if rng.random() < 0.5:
            self._receive(idle=0.1).drop()

    def _feed(self, feeder: RawClient, number: int) -> None:
        self._number += 1
        message = self._number
        if self._has[number] is not False:
            self._may.add(message)
        feeder.publish(f"fickle/{self.name}/{number}", b"%d" % message, qos=1)
        if self._has[number]:
            self._must[message] = number

    def _receive(self, *, idle: float) -> RawClient:
        """Connect, take what comes, and return the connection."""
        client = RawClient(self._port, self.name)
        connack = client.durable(expiry=SESSION_SECONDS)
        assert connack.session_present or not self._begun, "session lost"
        self._begun = True
        while idle:
            try:
                packet = client.receive(idle)
            except Silence:
                break
            if not isinstance(packet, Publish):
                raise Closed(f"sent away: {packet!r}", packet)
            message = int(packet.payload)
            assert message in self._may, f"{message} on {packet.topic} came without subscription"
            if message in self._must:
                del self._must[message]
                self.kept += 1
            client.send(Puback(packet.packet_id))
        return client


class Mortal(Party):
    """Lets its session expire, or comes back in time; the CONNACK must tell which it was."""

    EXPIRY: Final = 5

    def __init__(self, port: int, name: str, *, seed: int) -> None:
        super().__init__(port, name, seed=seed)
        self._ended_at = 0.0  # 0: nothing is promised

    def _turn(self) -> None:
        rng = self._random
        client = RawClient(self._port, self.name)
        expiry = self.EXPIRY
        try:
            packet_sent = time.monotonic()
            ended_at, self._ended_at = self._ended_at, 0.0
            connack = client.connect(clean_start=False, expiry=expiry)
            answered = time.monotonic()
            if ended_at and answered - ended_at < expiry - EARLY_SECONDS:
                assert connack.session_present, f"expired after {answered - ended_at:.2f} s"
                self.kept += 1
            if ended_at and packet_sent - ended_at > expiry + LATE_SECONDS:
                late = packet_sent - ended_at
                assert not connack.session_present, f"not expired after {late:.2f} s"
                self.kept += 1
            self._ended_at = time.monotonic()
            client.subscribe("load/#", qos=1)
            time.sleep(rng.uniform(0.0, 0.3))
            self._ended_at = time.monotonic()
            if rng.random() < 0.5:
                client.disconnect()
        finally:
            client.drop()
        self._finish.wait(rng.choice((0.1, 1.0, expiry + LATE_SECONDS + 1.0)))
