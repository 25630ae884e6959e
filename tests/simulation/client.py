"""A simulated MQTT client: publisher, subscriber or both, with exact session state.

It sends real packets over a fake connection, keeps the session state of a sender and a receiver
across connections, has only the faults of networks and impatient programs, and tells the oracle
what it saw. Must never look at the broker's state. Read next: `tests.simulation.receiver` (the
checks of what it receives), `tests.simulation.sender` (its publishing half).
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from mqtt.decoder import Decoder
from mqtt.encoder import encode
from mqtt.packets import (
    CONNACK,
    DISCONNECT,
    NAMES,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
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
from mqtt.packets import Will as WillPacket
from tests.simulation.behaviour import Behaviour
from tests.simulation.inbox import TOPICS
from tests.simulation.network import Link
from tests.simulation.observer import near_the_wrap, note_connect, note_resume
from tests.simulation.plans import ACK_LATE, ACK_NOW, Plan, draw_subscription
from tests.simulation.presence import NEVER, Attempt, Ended, Presence, Will
from tests.simulation.profiles import EXPIRY_NEVER
from tests.simulation.rare import sometimes
from tests.simulation.receiver import WRAP_HIGH, WRAP_LOW, Receiver
from tests.simulation.retained_inbox import MARK, RETAINED
from tests.simulation.sender import Sender
from tests.simulation.verdict import Violation
from tests.simulation.view import Filter, Option, SessionView

if TYPE_CHECKING:
    from tests.simulation.oracle import Sent
    from tests.simulation.process import BrokerProcess
    from tests.simulation.world import World

CONNACK_TIMEOUT_MS: Final = 9_000
CLOSE_TIMEOUT_MS: Final = 9_000
# Reasons a broker gives for its own troubles; any other would accuse a client that did no wrong.
KIND_REASONS: Final = frozenset((0x00, 0x80, 0x83, 0x89, 0x8B, 0x8D, 0x8E, 0x97, 0x98))

OFFLINE: Final = 0
CONNECTING: Final = 1
ONLINE: Final = 2
LEAVING: Final = 3  # DISCONNECT is sent, waiting for the end


class Client:
    """One client program, over all its connections."""

    def __init__(self, world: "World", plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.name = plan.name
        self.oracle = world.oracle
        self.state = OFFLINE
        self.link: Link | None = None
        self.old_link: Link | None = None  # taken over by ourselves, still read
        self.old_decoder: Decoder | None = None
        self.version = plan.version  # of the present or last connection
        self.decoder = Decoder("client", 1 << 20, plan.version)
        self.view: SessionView | None = None
        self.receiver = Receiver(self.name)
        self.sender = Sender(self)
        self.behaviour = Behaviour(self)
        self.presence = Presence(self.name)
        self.oracle.presences[self.name] = self.presence
        self.attempt: Attempt | None = None
        self.expiry_ms = 0
        self.must_clean = False  # a clean start was sent and not answered, or is called for
        self.requests: dict[int, tuple[Any, ...]] = {}  # packet id -> SUBSCRIBE or UNSUBSCRIBE
        self.held: list[tuple[int, int]] = []  # (packet kind, packet id) still to be sent
        self.aliases: dict[int, str] = {}
        self.found: dict[str, int] | None = None  # an auditor's: what is retained
        self.packet_size_max = 0  # of the present or last connection; 0 = any
        self.connects = 0  # CONNECTs sent
        self.subscribes = 0  # topic filters asked for, ever
        self.stopped = False  # no more connecting
        self.last_process: BrokerProcess | None = None
        self.handlers: dict[int, Callable[[Any], None]] = {
            PUBLISH: self._on_publish,
            PUBACK: self.sender.on_puback,
            PUBREC: self.sender.on_pubrec,
            PUBREL: self._on_pubrel,
            PUBCOMP: self.sender.on_pubcomp,
            SUBACK: self._on_suback,
            UNSUBACK: self._on_unsuback,
            CONNACK: self._on_connack,
            PINGRESP: self._on_pingresp,
            DISCONNECT: self._on_disconnect,
        }

    # Life

    def begin(self) -> None:
        """Start the program."""
        self.world.after(int(self.world.random.random() * 60), self.connect)
        if not self.plan.faithful:
            self.world.after(int(self.world.random.random() * 400), self.behaviour.act)

    def connect(self) -> None:
        """Open a connection, unless there is one or the broker is down."""
        world = self.world
        if self.link is not None or self.stopped:
            return
        process = world.up()
        if process is None or not (world.witness_ready or self.plan.faithful):
            world.after(20 + int(world.random.random() * 150), self.connect)
            return
        packet = self._draw_connect()
        self._open(process, packet)

    def connect_again(self) -> None:
        """Open a second connection while the first one is fine; the first is still read."""
        process, old = self.world.up(), self.link
        assert process is not None and old is not None
        self.old_link, self.old_decoder = old, self.decoder
        self.link = None
        self._open(process, self._draw_connect())

    def _open(self, process: "BrokerProcess", packet: Connect) -> None:
        world = self.world
        self.connects += 1
        link = self.link = Link(world, self, process)
        self.decoder = Decoder("client", packet.maximum_packet_size or 1 << 20, self.version)
        self.state = CONNECTING
        self.aliases.clear()
        self.requests.clear()
        self.held.clear()
        expiry = packet.session_expiry_interval
        if self.version == 4:
            expiry = 0 if packet.clean_start else EXPIRY_NEVER
        self.expiry_ms = NEVER if expiry == EXPIRY_NEVER else expiry * 1000
        attempt = Attempt(packet.clean_start, self.expiry_ms, process.broker_now())
        if packet.will is not None:
            attempt.will = self._arm_will(packet.will)
        if packet.clean_start:
            self.must_clean = True
            self.oracle.weaken_view(self.name)
        self.attempt = link.attempt = attempt
        world.mirror.proxied.opening(self)
        world.operator.banned.opening(process, self)
        note_connect(process, self.name)
        self.packet_size_max = packet.maximum_packet_size
        if self.view is not None:
            self.view.connecting(self.version, self.packet_size_max, self.oracle.sent)
        self.presence.connecting(attempt)
        self.receiver.receive_maximum = packet.receive_maximum
        self.send(packet)
        world.after(CONNACK_TIMEOUT_MS, self._give_up, link)
        if world.faults and world.chance(world.profile.impatient):
            world.after(int(world.random.random() * 80), self._give_up, link)

    def address(self) -> str:
        """Return the network address that it has, and nobody else."""
        return f"10.0.0.{1 + self.world.clients.index(self)}"

    def _draw_connect(self) -> Connect:
        world, plan = self.world, self.plan
        random = world.random
        self.version = self._draw_version()
        version4 = self.version == 4
        self.must_clean = self.must_clean or self.presence.may_be_another()
        if version4:
            clean_start = not plan.durable or self.must_clean
        else:
            clean_start = self.must_clean or (
                not plan.shared and not plan.faithful and world.chance(world.profile.clean_start)
            )
            clean_start = clean_start and (world.faults or self.must_clean)
        expiry = 0 if version4 else self._draw_expiry()
        if version4 and plan.durable and world.faults and not plan.faithful:
            # A v3.1.1 client ends its durable session by connecting with Clean Session 1.
            clean_start = clean_start or (
                not plan.shared and world.chance(world.profile.clean_start / 2)
            )
        return Connect(
            self.name,
            protocol_version=self.version,
            clean_start=clean_start,
            keep_alive=plan.keep_alive_s,
            will=self._draw_will(),
            session_expiry_interval=expiry,
            receive_maximum=65_535 if version4 else random.choice(plan.receive_maximums),
            maximum_packet_size=0 if version4 else self._draw_packet_size(),
            topic_alias_maximum=0 if version4 else plan.aliases,
        )

    def _draw_version(self) -> int:
        world, plan = self.world, self.plan
        if world.faults and not (plan.shared or plan.faithful):
            if world.chance(world.profile.other_version):
                sometimes("version_changed")
                return 9 - plan.version
        return plan.version

    def _draw_expiry(self) -> int:
        world, plan = self.world, self.plan
        if plan.durable and world.faults and not (plan.shared or plan.faithful):
            if world.chance(world.profile.other_expiry):
                return world.random.choice((0, 1, 5, 7200))
        return plan.expiry_s

    def _draw_packet_size(self) -> int:
        world, plan = self.world, self.plan
        if plan.shared or plan.faithful or not world.chance(world.profile.packet_size_maximum):
            return 0
        return 40 + int(world.random.random() * 15)  # the largest messages have 55 bytes or more

    def _draw_will(self) -> WillPacket | None:
        world = self.world
        if not world.faults or not world.chance(self.plan.will):
            return None
        random = world.random
        qos = random.choice((0, 1, 2, 2, 2, 2))
        topic = f"will/{self.name}"
        sent = self.oracle.new_message(self.name, topic, qos)
        sent.is_will = True
        sent.attempts = 1
        delay = 0 if self.version == 4 else random.choice((0, 0, 1, 2, 4))
        sent.retain = world.chance(world.profile.retained_wills)
        return WillPacket(topic, b"%d." % sent.index, qos, sent.retain, delay_interval=delay)

    def _arm_will(self, packet: WillPacket) -> Will:
        index = int(packet.payload[:-1])
        will = self.oracle.wills[index] = Will(
            index, packet.qos, packet.delay_interval * 1000, self.world.starts, self.connects
        )
        return will

    def send(self, packet: Packet) -> None:
        """Send a packet on the present connection."""
        link = self.link
        if link is None or self.state == LEAVING:  # nothing follows a DISCONNECT
            return
        self.world.note(self.name, ">", packet.kind, getattr(packet, "packet_id", 0))
        link.send(encode(packet, self.version))

    def _give_up(self, link: Link) -> None:
        if link is self.link and self.state == CONNECTING:
            link.leave(self.world.notice())

    # What the network tells

    def receive(self, link: Link, data: bytes) -> None:
        """Bytes arrived from the broker."""
        if link is not self.link:
            if link is self.old_link:
                self._receive_old(data)
            return
        decoder = self.decoder
        for packet in decoder.receive(data):
            self.world.note(self.name, "<", packet.kind, getattr(packet, "packet_id", 0))
            handler = self.handlers.get(packet.kind)
            if handler is None:
                raise Violation("protocol", f"{self.name} got {packet!r}")
            handler(packet)
            if self.world.trap is not None:
                self.world.passing("got " + NAMES[packet.kind])
            if link is not self.link:
                return
        if decoder.error is not None:
            raise Violation("protocol", f"{self.name} cannot read the broker: {decoder.error}")

    def _receive_old(self, data: bytes) -> None:
        decoder = self.old_decoder
        assert decoder is not None
        for packet in decoder.receive(data):
            reasons = KIND_REASONS | self.world.reasons
            if isinstance(packet, Disconnect) and packet.reason_code not in reasons:
                raise Violation("protocol", f"{self.name} was taken over with {packet!r}")

    def lost(self, link: Link) -> None:
        """A connection is over for us."""
        if link is self.old_link:
            self.old_link = None
            return
        if link is not self.link:
            return
        world = self.world
        world.note(self.name, "lost")
        self.link = None
        was = self.state
        self.state = OFFLINE
        if was == LEAVING and link.engine_closed:
            world.passing("got the end")
        self.held.clear()
        if self.expiry_ms == 0 and was != CONNECTING:
            self.oracle.end_view(self.name)
            self.view = None
        if self.stopped:
            return
        if not world.faults:
            world.after(5 + int(world.random.random() * 20), self.connect)
        elif world.chance(world.profile.absent) and not self.plan.faithful:
            least, most = world.profile.absent_ms
            world.after(least + int(world.random.random() * (most - least)), self.connect)
        else:
            most = world.profile.reconnect_ms
            world.after(5 + int(world.random.random() * most), self.connect)

    def closed_at_broker(self, link: Link) -> None:
        """The broker's side of a connection ended: a clean member's messages may be dropped."""
        attempt = link.attempt
        if self.plan.shared and attempt is not None and attempt.expiry_ms == 0:
            self.oracle.member_ended(self.plan.filters)

    def session_ended(self, ended: Ended) -> None:
        """An operator has ended this client's session."""
        self.presence.ended(ended)
        if self.plan.shared:
            self.oracle.member_ended(self.plan.filters)

    def broker_crashed(self, process: "BrokerProcess") -> None:
        """Note what a crash may have undone."""
        self.receiver.crashed(process.durable_ms)

    def broker_now(self) -> int:
        """Return the time of the broker that this client is connected to."""
        assert self.link is not None
        return self.link.process.broker_now()

    def is_online(self) -> bool:
        """May packets be sent?"""
        return self.state == ONLINE

    def is_deceived(self) -> bool:
        """Is it connected to a broker that does not know that another one has its sessions?"""
        return self.link is not None and self.link.process.is_superseded

    def is_connecting(self) -> bool:
        """Is CONNECT sent and not answered?"""
        return self.state == CONNECTING

    def _on_pingresp(self, packet: Packet) -> None:
        pass

    def _on_disconnect(self, packet: Disconnect) -> None:
        if self.version == 4:
            raise Violation("protocol", f"{self.name} speaks 3.1.1 and got DISCONNECT")
        if packet.reason_code not in KIND_REASONS | self.world.reasons:
            raise Violation("protocol", f"{self.name} was told {packet!r}")

    def _on_connack(self, packet: Connack) -> None:
        attempt, world = self.attempt, self.world
        if self.state != CONNECTING or attempt is None:
            raise Violation("protocol", f"{self.name} got a second CONNACK")
        if packet.reason_code:
            if packet.session_present:
                raise Violation("session_present_tells_the_truth", f"{packet!r}")
            may_refuse = world.mirror.proxied.may_refuse(self.version, packet.reason_code)
            may_refuse = may_refuse or world.refusing_seen or world.unavailable_seen
            may_refuse = may_refuse or world.operator.banned.may_refuse(self, packet.reason_code)
            if not (may_refuse or self._is_damaged(packet)):
                raise Violation("protocol", f"{self.name} was refused: {packet!r}")
            self.presence.refused(attempt)
            self.attempt = None
            return
        self.state = ONLINE
        assert self.link is not None
        world.operator.banned.accepted(self.link.process, self)
        self._note_expiry(attempt, packet)
        self.presence.connected(attempt, packet.session_present, world.latest())
        self.must_clean = False
        if not packet.session_present:
            world.mirror.inbox.session_begun(self.name)
        if not packet.session_present or self.view is None:
            if attempt.clean_start and self.view is not None and self.view.durable:
                sometimes("clean_start_over_a_session")
            self.view = self.oracle.new_view(self.name)
        self.view.durable = self.expiry_ms > 0
        size_max = self.view.packet_size_max()
        self.view.connected(self.version, self.packet_size_max, world.step, attempt.sent_ms)
        self.receiver.begin(
            session_present=packet.session_present, receive_maximum=self.receiver.receive_maximum
        )
        if world.lossy:
            self.receiver.forgive_all()
        self._forgive_too_large(size_max)
        self._note_resume(packet)
        world.mirror.proxied.session_begun(self)
        if self.plan.keep_alive_s:
            self._ping(self.link)
        self.sender.connected(packet)
        self._subscribe_missing(self.link)

    def _is_damaged(self, packet: Connack) -> bool:
        """May the CONNECT be refused because rows of the session cannot be read?"""
        if self.name not in self.world.damages.clients:
            return False
        sometimes("refused_for_damage")
        return packet.reason_code == (3 if self.version == 4 else 0x88)

    def _forgive_too_large(self, size_max: int) -> None:
        """What is in flight and too large for a CONNECT since then need not come again."""
        view, sent = self.view, self.oracle.sent
        assert view is not None
        if not size_max:
            return
        for packet_id, arrival in list(self.receiver.must.items()):
            size = 0 if arrival.index < 0 else view.packet_size(sent[arrival.index])
            if size > size_max and not arrival.released:
                sometimes("resume_with_smaller_packet_size")
                self.receiver.forgive(packet_id)

    def _note_size(self, packet: Publish) -> None:
        """Count a PUBLISH about as large as this client takes, as it was on the wire."""
        left = self.packet_size_max - len(encode(packet, self.version))
        if left == 1:
            sometimes("packet_below_the_maximum_size")
        elif left == 0:
            sometimes("packet_of_the_maximum_size")
            if packet.dup:
                sometimes("packet_of_the_maximum_size_again")
            if packet.subscription_identifiers:
                sometimes("packet_of_the_maximum_size_with_identifier")
            if packet.topic_alias:
                sometimes("packet_of_the_maximum_size_with_alias")

    def _note_expiry(self, attempt: Attempt, packet: Connack) -> None:
        process = self.world.process
        view = self.view
        if packet.session_present or attempt.clean_start or view is None or not view.durable:
            return
        assert process is not None
        ends = self.presence.latest_end()
        sometimes(
            "session_expired_while_down"
            if ends < process.started_ms
            else "session_expired_while_up"
        )

    def _note_resume(self, packet: Connack) -> None:
        world, process = self.world, self.world.process
        assert process is not None
        if packet.session_present:
            if self.last_process is not None and self.last_process is not process:
                sometimes("resume_after_crash")
                if world.boots:
                    sometimes("resume_after_reboot")
            self._note_wrap("resume_across_the_wrap", self.receiver.must)
            self._note_wrap("publisher_resume_across_the_wrap", self.sender.flights)
            if len(self.receiver.must) > self.receiver.receive_maximum:
                sometimes("resume_with_smaller_receive_maximum")
            note_resume(process, self.name)
        elif world.wrap:
            near_the_wrap(process, self.name)
        self.last_process = process

    def _note_wrap(self, name: str, resent: Collection[int]) -> None:
        if resent and min(resent) < WRAP_LOW and max(resent) > WRAP_HIGH:
            sometimes(name)
            if self.last_process is not self.world.process:
                sometimes(name + "_after_crash")

    def _holds(self, name: str) -> bool:
        item = self.view.filters.get(name) if self.view is not None else None
        return item is not None and item.held_since > 0

    # Subscribing

    def subscribe(self, names: list[str]) -> None:
        """SUBSCRIBE to these filters with drawn options."""
        view, world = self.view, self.world
        assert view is not None
        if world.faults and not self.plan.faithful and world.chance(0.03):
            names = [*names, names[0]]  # the same filter twice: the last one counts
        drawn = [draw_subscription(world.random, self.plan, self.version, name) for name in names]
        identifier = drawn[0][1]
        packet_id = self.sender.free_id()
        items: list[tuple[Filter, Option, int]] = []
        for asked, _ in drawn:
            known = self._holds(asked.topic_filter)
            item = view.subscribing(asked, identifier, world.step, self.oracle.sent)
            world.mirror.proxied.subscribing(self, asked.topic_filter, asked.qos)
            if known and view.owed:
                sometimes("resubscribed")
            replays = asked.retain_handling == 0 or (asked.retain_handling == 1 and not known)
            if replays:
                if not self.is_deceived():
                    self.oracle.subscribing_to_retained(view, item, asked.retain_handling)
                self._looks_up(asked)
            certain = asked.retain_handling == 0 or (not known and len(item.options) == 1)
            items.append((item, item.options[-1], world.step if replays and certain else 0))
        self.subscribes += len(items)
        self.requests[packet_id] = (SUBACK, items)
        self.send(Subscribe(packet_id, [asked for asked, _ in drawn], identifier))

    def _on_suback(self, packet: Suback) -> None:
        kind, items = self.requests.pop(packet.packet_id, (0, []))
        if kind != SUBACK or len(items) != len(packet.reason_codes):
            raise Violation("protocol", f"{self.name} got an unexpected {packet!r}")
        view, world = self.view, self.world
        assert view is not None
        for (item, option, asked_step), code in zip(items, packet.reason_codes, strict=True):
            if code >= 0x80:
                if not world.refusing_seen:
                    raise Violation("protocol", f"{self.name}: {item.name} got {code:#x}")
                option.to_step = world.step
                world.mirror.proxied.acknowledged(self, item.name, is_done=False)
                world.after(200, self._subscribe_missing, self.link)
                continue
            if code != option.qos:
                raise Violation("subscriptions_survive", f"{self.name}: {item.name} got {code}")
            view.subscribed(item, option, world.step, code)
            world.mirror.proxied.acknowledged(self, item.name)
            if item.share is not None:
                self.oracle.join_group(item, self.name, view.durable)
            elif asked_step:
                self.oracle.subscribed_to_retained(view, item, asked_step)
        if self.plan.faithful and max(packet.reason_codes) < 0x80:
            world.witness_ready = True

    def _subscribe_missing(self, link: Link | None) -> None:
        if link is None or link is not self.link or self.state != ONLINE or self.requests:
            return
        missing = [f for f in self.plan.first_filters if not self._holds(f)]
        if missing and not self.world.settled:
            self.subscribe(missing)

    def unsubscribe(self, name: str) -> None:
        """UNSUBSCRIBE from a filter."""
        view, world = self.view, self.world
        assert view is not None
        packet_id = self.sender.free_id()
        item = view.unsubscribing(name)
        world.mirror.inbox.unsubscribed(self.name, name)
        world.mirror.proxied.unsubscribing(self, name)
        if item is not None and item.share is not None:
            self.oracle.leave_group(item, self.name)
        if self.receiver.must or any(not a.acked for a in self.receiver.arrivals.values()):
            sometimes("unsubscribed_with_messages_in_flight")
        self.requests[packet_id] = (UNSUBACK, item, name)
        self.send(Unsubscribe(packet_id, [name]))
        world.after(400 + int(world.random.random() * 800), self._subscribe_missing, self.link)

    def _on_unsuback(self, packet: Unsuback) -> None:
        kind, item, name = self.requests.pop(packet.packet_id, (0, None, ""))
        if kind != UNSUBACK:
            raise Violation("protocol", f"{self.name} got an unexpected {packet!r}")
        if self.view is None:
            return
        is_done = all(code < 0x80 for code in packet.reason_codes)
        if item is not None and is_done:
            self.view.unsubscribed(item, self.world.step)
        self.world.mirror.proxied.acknowledged(self, name, is_done=is_done)

    # Receiving messages

    def _on_publish(self, packet: Publish) -> None:
        world, view = self.world, self.view
        if self.state == CONNECTING or view is None:
            raise Violation("protocol", f"{self.name} got {packet!r} before CONNACK")
        if self.packet_size_max:
            self._note_size(packet)
        if packet.topic_alias:
            self._resolve_alias(packet)
        now = self.broker_now()
        self.oracle.deliveries += 1
        if packet.topic in TOPICS or packet.payload[:1] == MARK:
            self._on_fetched(packet)
            return
        index = -1
        sent: Sent | None = None
        if packet.payload:
            index = int(packet.payload.partition(b".")[0])
            sent = self.oracle.sent[index]
        if self.found is not None:
            self.found[packet.topic] = index
        elif world.settled and not (sent is not None and sent.is_will):
            if not world.mirror.proxied.may_replay(self, packet):
                raise Violation(
                    "a_settled_session_stays_settled", f"{self.name} got message {index} once more"
                )
        if packet.topic == RETAINED:
            world.mirror.inbox.retained.received_ours(self.name, sent, packet)
        world.note(self.name, "gets", index, packet.qos, packet.dup, packet.retain)
        apply = True
        refuse = False
        if packet.qos:
            apply = self.receiver.publish(packet, index, now, self.plan.shared)
            refuse = apply and self._refuses()
        elif packet.dup:
            raise Violation("protocol", f"{self.name} got DUP at QoS 0")
        if sent is not None:
            self._judge(sent, packet, view, now, apply and not refuse)
        self._settle(packet, refuse)

    def _settle(self, packet: Publish, refuse: bool) -> None:
        if refuse:
            self._refuse(packet)
        elif packet.qos == 1:
            self._acknowledge(PUBACK, packet.packet_id)
        elif packet.qos == 2:
            self._acknowledge(PUBREC, packet.packet_id)

    def _on_fetched(self, packet: Publish) -> None:
        """A message came from the store beside the broker."""
        world = self.world
        is_retained = packet.payload[:1] == MARK
        number = int(packet.payload[is_retained:])
        world.note(self.name, "fetches", number, packet.qos, packet.dup)
        refuse = False
        if packet.qos:
            index = -number - (100_000 if is_retained else 10)
            is_new = self.receiver.publish(packet, index, self.broker_now(), False)
            refuse = is_new and self._refuses()
        if is_retained:
            world.mirror.inbox.retained.received(self.name, number, packet)
        else:
            world.mirror.inbox.received(self.name, number, packet)
        self._settle(packet, refuse)

    def _refuses(self) -> bool:
        world, plan = self.world, self.plan
        may = self.version == 5 and not plan.faithful and self.state == ONLINE and world.faults
        return may and world.chance(world.profile.refused_deliveries)

    def _refuse(self, packet: Publish) -> None:
        """Answer with an error code: the message must never come again [MQTT-4.4.0-2]."""
        sometimes("delivery_refused")
        self.receiver.refusing(packet.packet_id)
        if packet.qos == 1:
            self.send(Puback(packet.packet_id, 0x83))
        else:
            self.send(Pubrec(packet.packet_id, 0x83))

    def _judge(
        self, sent: "Sent", packet: Publish, view: SessionView, now: int, apply: bool
    ) -> None:
        copies = self.receiver.count(sent.index, packet.retain)
        allowed = sent.transmissions + (self.subscribes if packet.retain else 0)
        if not packet.dup and copies > allowed:
            if not sent.is_will or copies > 1:
                raise Violation(
                    "nothing_is_resent_on_a_live_connection",
                    f"{self.name} got {sent} {copies} times on one connection",
                )
        if packet.dup:
            sometimes("resume_owes_publish")
        if len(packet.subscription_identifiers) > 1:
            sometimes("overlapping_identifiers")
        self.oracle.delivered(view, sent, packet, self.world.step, now)
        self.world.left_out.delivered(view, sent)
        if apply and packet.qos == 2:
            self.oracle.applied(view, sent, packet, self.subscribes)
        is_sure = packet.qos == 2 or not self.is_deceived()  # a packet id of QoS 2 is durable
        if sent.is_will and self.plan.faithful and apply and is_sure:
            will = self.oracle.wills[sent.index]
            if not will.fired:
                will.first_fired_ms = now
                sometimes("will_fired")
                if will.starts != self.world.starts:
                    sometimes("will_fired_after_restart")
            will.fired += 1
        if packet.retain and not sent.is_will:
            sometimes("retained_replayed")

    def _resolve_alias(self, packet: Publish) -> None:
        alias = packet.topic_alias
        if alias > self.plan.aliases:
            raise Violation("protocol", f"{self.name} got topic alias {alias}")
        if packet.topic:
            self.aliases[alias] = packet.topic
        elif alias in self.aliases:
            packet.topic = self.aliases[alias]
            sometimes("topic_alias_from_broker")
        else:
            raise Violation("protocol", f"{self.name} got unknown topic alias {alias}")

    def _on_pubrel(self, packet: Pubrel) -> None:
        if self.receiver.resending and packet.packet_id in self.receiver.must:
            sometimes("resume_owes_pubrel")
        self.receiver.pubrel(packet.packet_id)
        self._acknowledge(PUBCOMP, packet.packet_id)

    def _acknowledge(self, kind: int, packet_id: int) -> None:
        world = self.world
        if self.state != ONLINE:
            return  # after DISCONNECT: it will come again
        if not world.faults or self.plan.ack_mode == ACK_NOW:
            self._send_ack(kind, packet_id)
            return
        self.held.append((kind, packet_id))
        if len(self.held) == 1:
            most = 300 if self.plan.ack_mode == ACK_LATE else 2_500
            world.after(5 + int(world.random.random() * most), self._flush_acks, self.link)

    def _flush_acks(self, link: Link | None) -> None:
        if link is None or link is not self.link or self.state != ONLINE:
            return
        world = self.world
        count = len(self.held)
        if world.faults and count > 1 and world.chance(0.5):
            count = 1 + int(world.random.random() * (count - 1))
        held, self.held = self.held[:count], self.held[count:]
        for kind, packet_id in held:
            self._send_ack(kind, packet_id)
        if self.held:
            world.after(5 + int(world.random.random() * 300), self._flush_acks, link)

    def _send_ack(self, kind: int, packet_id: int) -> None:
        if kind == PUBACK:
            self.receiver.acknowledging(packet_id, ends=True)
            self.send(Puback(packet_id))
        elif kind == PUBREC:
            self.receiver.acknowledging(packet_id, ends=False)
            self.send(Pubrec(packet_id))
        else:
            self.receiver.acknowledging(packet_id, ends=True)
            self.send(Pubcomp(packet_id))

    # Behaving

    def _ping(self, link: Link | None) -> None:
        if link is None or link is not self.link or self.state != ONLINE:
            return
        self.send(Pingreq())
        self.world.after(self.plan.keep_alive_s * 700, self._ping, link)

    def disconnect(self, packet: Disconnect) -> None:
        """Send DISCONNECT and leave, waiting for the broker's end or not."""
        world, link = self.world, self.link
        assert link is not None
        link.disconnect_starts = link.sent
        self.send(packet)
        link.disconnect_ends = link.sent
        self.state = LEAVING
        if world.chance(0.4):
            link.close_softly()
        else:
            world.after(CLOSE_TIMEOUT_MS, self._stop_waiting, link)

    def subscribe_audit(self) -> None:
        """Ask for everything that is retained."""
        view = self.view
        assert view is not None
        asked = [Subscription("r/#", 2), Subscription("will/#", 2)]
        items = []
        for one in asked:
            item = view.subscribing(one, 0, self.world.step, self.oracle.sent)
            items.append((item, item.options[-1], 0))
        packet_id = self.sender.free_id()
        self.subscribes += len(asked)
        self.requests[packet_id] = (SUBACK, items)
        self.send(Subscribe(packet_id, asked))

    def subscribe_to_inbox(self) -> None:
        """Ask for everything that the store beside the broker has."""
        view = self.view
        assert view is not None
        topics = (*TOPICS, RETAINED)
        asked = [Subscription(topic, 2) for topic in topics if topic in self.plan.filters]
        items = []
        for one in asked:
            self._looks_up(one)
            item = view.subscribing(one, 0, self.world.step, self.oracle.sent)
            items.append((item, item.options[-1], 0))
        if items:
            packet_id = self.sender.free_id()
            self.subscribes += len(asked)
            self.requests[packet_id] = (SUBACK, items)
            self.send(Subscribe(packet_id, asked))

    def _looks_up(self, asked: Subscription) -> None:
        """A SUBSCRIBE asks for retained messages: of the store, too?"""
        if asked.topic_filter == RETAINED:
            self.world.mirror.inbox.retained.subscribing(self.name, self.world.process)

    def _stop_waiting(self, link: Link) -> None:
        if link is self.link:
            link.leave(0)

    # Healing

    def heal(self) -> None:
        """Faults are over: come back, acknowledge everything, finish."""
        if self.link is not None:
            self.link.read_on()
            self._flush_acks(self.link)
        self.connect()

    def is_idle(self) -> bool:
        """Is nothing owed in either direction as far as this client knows?"""
        return (
            self.state == ONLINE
            and self.link is not None
            and not self.link.down
            and not self.link.up
            and not self.requests
            and not self.held
            and self.sender.is_idle()
            and not self.receiver.must
            and not self.receiver.expects_pubrel()
        )
