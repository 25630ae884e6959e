"""The life of one real broker in which everything happens, with several kill -9: `live`.

Publishers and subscribers of `tests.durability.load` under load, paho-mqtt, mosquitto_pub and
mosquitto_sub go through every kill; in between single clients do step by step what the others do
not: wills, takeovers, retained messages, shared groups, expiry, clean starts, refusals, and QoS 2
exchanges that are left open. Nothing goes wrong, so an audit of the history has nothing to find.
"""

from typing import Final

from mqtt.packets import Puback, Pubcomp, Pubrec, Pubrel, Will
from tests.audit.real_broker import MosquittoStream, Paho
from tests.durability.load import Publisher, Subscriber, finish
from tests.durability.process import READY_SECONDS, BrokerProcess
from tests.durability.rawclient import RawClient

KILLS: Final = 4
STREAMED: Final = 100  # messages that mosquitto_sub has before a kill
CARRIED: Final = 20  # messages that wait for sessions that are away
FINISH_SECONDS: Final = 60.0


def live(broker: BrokerProcess) -> None:
    """Let everything happen to a broker that is not started yet; it has ended in order then."""
    broker.start()
    port = broker.port
    subscribers = [Subscriber(port, f"s{n}", qos=1 + n, version=4 + n, seed=n) for n in range(2)]
    publishers = [
        Publisher(port, f"p{n}", qos=1 + n, version=5 - n, rate=100, own_topics=True)
        for n in range(2)
    ]
    for subscriber in subscribers:
        subscriber.start()
        assert subscriber.ready.wait(READY_SECONDS)
    for publisher in publishers:
        publisher.start()
    stream = MosquittoStream(broker, "mosquitto", "stream")
    readers = [Paho(port, f"reader{qos}", version=3 + qos).connect() for qos in (1, 2)]
    for qos, reader in enumerate(readers, 1):
        reader.subscribe("paho/#", qos)
    writer = Paho(port, "writer").connect()
    pahos = [*readers, writer]
    _first(port)
    for number in range(KILLS):
        _round(port, number)
        for qos in (2, 0, 1, 2):
            writer.publish("paho/x", b"%d" % number, qos)
        opener = Opener(port)
        if number % 2:
            with stream.flowing(STREAMED):
                opener.leave_open(broker)
        else:
            opener.leave_open(broker)
        for client in pahos:
            client.lost()
        broker.start()
        for client in pahos:
            client.reconnected()
        opener.take_up()
        writer.publish("paho/x", b"again %d" % number, 1)
    _last(port)
    finish(publishers, subscribers, seconds=FINISH_SECONDS)
    for reader in readers:
        reader.receive(2 * KILLS)
    for client in pahos:
        client.leave()
    assert broker.stop() == 0


def _first(port: int) -> None:
    """Leave sessions behind for which messages wait, and one that expires."""
    for name, qos in (("away1", 1), ("away2", 2)):
        client = RawClient(port, name)
        client.durable()
        client.subscribe("wait/#", qos=qos)
        client.disconnect()
    brief = RawClient(port, "brief")
    brief.durable(expiry=1)
    brief.subscribe("wait/#", qos=1)
    brief.disconnect()
    giver = RawClient(port, "giver")
    giver.connect()
    for number in range(CARRIED):
        expiry = 1 if number % 2 else -1
        giver.publish(f"wait/{number}", "x", qos=1 + number % 2, message_expiry_interval=expiry)
    giver.disconnect()


def _round(port: int, number: int) -> None:
    """Do what ends within one boot of the broker."""
    _retained(port, number)
    _wills(port, number)
    _shared(port, number)
    # A takeover, a changed subscription, a clean start.
    first, second = RawClient(port, "twice"), RawClient(port, "twice")
    first.durable()
    first.subscribe("both/#", qos=1)
    assert second.durable().session_present
    first.expect_closed()
    first.drop()
    second.subscribe("both/#", "both/+", qos=2)
    second.publish("both/x", "mine", qos=2)
    second.take_all(idle=0.2)
    second.unsubscribe("both/+")
    second.disconnect()
    third = RawClient(port, "twice")
    assert not third.connect(expiry=3600).session_present
    third.disconnect()
    # A message that is too large for its receiver, and one that is not.
    small = RawClient(port, "small")
    small.connect(maximum_packet_size=60, receive_maximum=1)
    small.subscribe("large/#", qos=2)
    for size in (200, 1, 1):
        small.publish("large/x", "x" * size, qos=1)
    small.take_all(idle=0.2)
    small.disconnect()
    _mixed(port)


def _retained(port: int, number: int) -> None:
    keeper = RawClient(port, "keeper")
    keeper.connect()
    for payload in ("old", f"new {number}"):
        keeper.publish("kept/a", payload, qos=2, retain=True)
    keeper.publish("kept/b", "gone", qos=2, retain=True)
    reader = RawClient(port, f"late{number}")
    reader.connect()
    reader.subscribe("kept/#", qos=2)
    reader.take(2)
    keeper.publish("kept/b", "", qos=1, retain=True)
    reader.take(1)
    reader.disconnect()
    # Copies of retained messages stay in flight over a reconnect.
    slow = RawClient(port, f"slow{number}")
    slow.durable()
    slow.subscribe("kept/#", "some/#", qos=2)
    copy = slow.expect_publish(acknowledge=False)
    keeper.publish("some/x", "second", qos=2)
    second = slow.expect_publish(acknowledge=False)
    slow.send(Pubrec(second.packet_id))
    slow.expect(Pubrel)
    slow.drop()
    slow.resume()
    slow.send(Pubrec(slow.expect_publish(acknowledge=False, dup=True).packet_id))
    for _ in range(2):
        slow.send(Pubcomp(slow.expect(Pubrel).packet_id))
    slow.disconnect()
    assert copy.packet_id != second.packet_id
    keeper.disconnect()


def _mixed(port: int) -> None:
    """One topic at every QoS to a client whose window is full: QoS 0 overtakes, as it may."""
    reader = RawClient(port, "narrow")
    reader.durable(receive_maximum=1)
    reader.subscribe("mixed/#", qos=2)
    giver = RawClient(port, "giver")
    giver.connect()
    for qos in (1, 0, 2, 0, 1, 0):
        giver.publish("mixed/x", "x", qos=qos)
    got = reader.take(6)
    assert sorted(publish.qos for publish in got) == [0, 0, 0, 1, 1, 2]
    giver.publish("mixed/x", "in flight", qos=1)
    first = reader.expect_publish(acknowledge=False)
    reader.drop()
    reader.resume(receive_maximum=1)
    again = reader.expect_publish(acknowledge=False, dup=True, packet_id=first.packet_id)
    reader.send(Puback(again.packet_id))
    reader.disconnect()
    giver.disconnect()


def _wills(port: int, number: int) -> None:
    """One will is published at once, one is cancelled by a DISCONNECT, one by a resume in time."""
    reader = RawClient(port, "mourner")
    reader.connect()
    reader.subscribe("will/#", qos=1)
    dying = RawClient(port, f"dying{number}")
    dying.connect(will=Will("will/now", b"x", qos=1, retain=False))
    dying.drop(reset=True)
    reader.take(1)
    calm = RawClient(port, "calm")
    calm.connect(will=Will("will/never", b"x", qos=1, retain=False))
    calm.disconnect()
    slow = RawClient(port, "slow")
    slow.durable(will=Will("will/late", b"x", qos=1, retain=False, delay_interval=600))
    slow.drop()
    slow.resume()
    slow.disconnect()
    reader.disconnect()


def _shared(port: int, number: int) -> None:
    """One of two members of a group leaves with what it did not acknowledge."""
    members = [RawClient(port, f"member{n}") for n in range(2)]
    for member in members:
        member.durable()
        member.subscribe("$share/group/work/#", qos=1)
    giver = RawClient(port, "giver")
    giver.connect()
    giver.publish_all([(f"work/{number}/{n}", b"x") for n in range(10)], qos=1)
    members[0].disconnect(expiry=0)
    members[1].take_all(idle=0.3)
    members[1].disconnect()
    giver.disconnect()


class Opener:
    """A publisher at QoS 2 that uses the same few packet identifiers again and again."""

    def __init__(self, port: int) -> None:
        self._client: Final = RawClient(port, "opener")
        self._begun: int = 0  # its PUBREC was received
        self._done: int = 0  # its PUBCOMP was received
        self._unsure: int = 0  # its PUBCOMP was received, and its next PUBLISH is on the way

    def leave_open(self, broker: BrokerProcess) -> None:
        """Leave exchanges at different steps, and kill the broker at once."""
        client = self._client
        client.durable()
        self._begun = client.publish_begin("open/x", "begun", qos=2)
        client.expect(Pubrec, lambda packet: packet.packet_id == self._begun)
        self._done = client.publish("open/x", "done", qos=2)
        self._unsure = client.publish("open/x", "done", qos=2)
        # The broker never reads this one: the client sends it again, as the standard asks.
        broker.freeze()
        client.publish_begin("open/x", "unread", qos=2, packet_id=self._unsure)
        broker.kill()
        client.drop()

    def take_up(self) -> None:
        """Go on as a client does after its connection was lost."""
        client = self._client
        client.resume()
        for packet_id, dup in (
            (self._begun, True),
            (self._unsure, True),
            # As paho after two attempts to reconnect: it has forgotten its PUBREL.
            (self._done, False),
        ):
            client.publish_begin("open/x", "again", qos=2, packet_id=packet_id, dup=dup)
            client.expect(Pubrec, lambda packet, wanted=packet_id: packet.packet_id == wanted)
        for packet_id in (self._begun, self._unsure, self._done):
            client.release(packet_id)
        client.disconnect()


def _last(port: int) -> None:
    """Take what waited for the sessions that were away."""
    for name in ("away1", "away2"):
        client = RawClient(port, name)
        client.resume()
        client.take_all(idle=0.5)
        client.disconnect()
