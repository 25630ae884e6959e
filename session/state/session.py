"""The state of one MQTT session and the rules of its packet ids, windows and QoS 2 phases.

Pure: it neither sends nor stores. `session.delivery.delivery` uses it, `session.state.records`
encodes it. A session is a position in the log and the packet ids in flight: every message of its
streams at or below `position` is done unless it is in `in_flight`. Packet ids may be reserved ahead
for the next messages, those above the position.
"""

from collections.abc import Iterator
from typing import Final

from mqtt.topics import matches
from session.state.in_flight import (
    FROM_GROUP,
    FROM_LOG,
    FROM_MAILBOX,
    GIVEN_UP,
    PERHAPS_SENT,
    PHASE_MASK,
    QOS_MASK,
    REFERENCE_SHIFT,
    RELEASED,
    SOURCE_MASK,
    STORED_MASK,
    TOOK_QUOTA,
)
from session.state.subscription import Subscription

EXPIRY_NEVER: Final = 0xFFFFFFFF  # [MQTT-3.1.2-11.2]: the session does not expire
PACKET_ID_MAX: Final = 65535
NO_LIMITS: Final = (0, 0)


class Replay:
    """Retained messages still to be sent for a SUBSCRIBE: the matching ones from key `start`."""

    __slots__ = ("identifier", "overtaken", "qos", "start", "topic_filter")

    def __init__(self, topic_filter: str, qos: int, identifier: int, start: bytes) -> None:
        self.topic_filter: str = topic_filter
        self.qos: int = qos
        self.identifier: int = identifier
        self.start: bytes = start  # b"" = from the first
        # Topics with a newer retained message, which was delivered when published. Not stored.
        self.overtaken: set[str] = set()


class PurgedTopics:
    """Messages of a backlog that an operator has dropped, among others that are still owed."""

    __slots__ = ("count", "size_bytes", "topic_filter", "upto")

    def __init__(self, topic_filter: str, upto: int, count: int, size_bytes: int) -> None:
        self.topic_filter: str = topic_filter
        self.upto: int = upto  # what matches is dropped up to this offset of the log
        self.count: int = count  # of these messages
        self.size_bytes: int = size_bytes  # of their topics and payloads


class Session:
    """One session, of a connected client or loaded for a moment."""

    __slots__ = (
        "bypassing",
        "client_id",
        "connected_at_ms",
        "created_at_ms",
        "disconnected_at_ms",
        "expiry_due_ms",
        "expiry_interval_s",
        "gaps",
        "gaps_at",
        "has_doubts",
        "identity",
        "in_flight",
        "in_flight_max",
        "incarnation",
        "incoming",
        "is_stored",
        "leases",
        "next_mailbox",
        "next_packet_id",
        "owed_releases",
        "position",
        "protocol_version",
        "purged",
        "receive_maximum",
        "replays",
        "reserved",
        "send_quota",
        "send_quota_max",
        "subscription_bytes",
        "subscriptions",
        "will_due_ms",
    )

    def __init__(self, client_id: str, identity: str, created_at_ms: int) -> None:
        self.client_id: str = client_id
        self.identity: str = identity  # the authenticated owner
        # Identifies this session among all sessions ever, also of the same client. Boot of the
        # broker << 40 | number; 0 = none yet.
        self.incarnation: int = 0
        self.created_at_ms: int = created_at_ms  # all times: broker time, 0 = never
        self.connected_at_ms: int = 0
        self.disconnected_at_ms: int = 0
        self.expiry_due_ms: int = 0
        self.will_due_ms: int = 0
        self.expiry_interval_s: int = 0
        self.protocol_version: int = 4
        self.is_stored: bool = False  # False: in memory, ends with its connection
        self.subscriptions: dict[str, Subscription] = {}  # changed by `add` and `remove`
        self.subscription_bytes: int = 0  # of their topic filters, in UTF-8
        # Those of them for whose messages the policy is not asked; None = there never was one.
        self.bypassing: dict[str, Subscription] | None = None
        self.incoming: set[int] = set()  # inbound QoS 2 ids that wait for PUBREL
        # Packet id -> reference and flags, see `session.state.in_flight`.
        self.in_flight: dict[int, int] = {}
        self.has_doubts: bool = False  # some of them may be PERHAPS_SENT
        # Ids bound ahead: packet id -> entry, in the order of sending; None = none. They are stored
        # while the client is connected, and come back from a crash as PERHAPS_SENT.
        self.reserved: dict[int, int] | None = None
        # Shared subscriptions: packet id -> (share name, topic filter) of the group it belongs to.
        self.leases: dict[int, tuple[str, str]] = {}
        self.position: int = 0
        self.purged: list[PurgedTopics] | None = None  # behind the position; None = nothing
        # First and last offsets of what was dropped behind the position because the session was at
        # its limit, in order (`storage.log.gaps`).
        self.gaps: tuple[tuple[int, int], ...] = ()
        # The limits (messages, bytes) at which the last one was made; as long as they are these and
        # there is no more room, all that comes behind it is dropped, too. NO_LIMITS = there may be
        # room again.
        self.gaps_at: tuple[int, int] = NO_LIMITS
        self.next_packet_id: int = 1
        self.next_mailbox: int = 1
        self.replays: dict[str, Replay] = {}  # by topic filter, in the order of subscribing
        self.receive_maximum: int = 0
        self.in_flight_max: int = PACKET_ID_MAX
        self.owed_releases: int = 0  # PUBRELs of earlier connections that wait for PUBCOMP
        self.send_quota: int = 0
        self.send_quota_max: int = 0

    # What an operator has dropped

    def has_purged(self, topic: str, offset: int) -> bool:
        """Return whether a message behind the position is not owed any more."""
        if self.purged is None:
            return False
        return any(
            offset <= each.upto and matches(each.topic_filter, topic) for each in self.purged
        )

    def purged_behind(self) -> list[PurgedTopics]:
        """Return what of it is behind the position: the rest is forgotten."""
        return [each for each in self.purged or () if each.upto > self.position]

    def gaps_behind(self) -> tuple[tuple[int, int], ...]:
        """Return the gaps that are behind the position: the rest is forgotten."""
        return tuple([each for each in self.gaps if each[1] > self.position])

    def make_room(self) -> None:
        """Note that there may be room within the limits again: see `gaps_at`."""
        self.gaps_at = NO_LIMITS

    # Subscriptions

    def add(self, subscription: Subscription) -> None:
        """Add a subscription; it replaces one to the same topic filter."""
        topic_filter = subscription.topic_filter
        if topic_filter not in self.subscriptions:
            self.subscription_bytes += len(topic_filter.encode())
        self.subscriptions[topic_filter] = subscription
        if subscription.bypasses_policy:
            if self.bypassing is None:
                self.bypassing = {}
            self.bypassing[topic_filter] = subscription
        elif self.bypassing:
            self.bypassing.pop(topic_filter, None)

    def remove(self, topic_filter: str) -> Subscription | None:
        """Remove a subscription and return it, None if there is none."""
        subscription = self.subscriptions.pop(topic_filter, None)
        if subscription is not None:
            self.subscription_bytes -= len(topic_filter.encode())
            if self.bypassing:
                self.bypassing.pop(topic_filter, None)
        return subscription

    def keeps_retain(self, subscription: Subscription) -> bool:
        """Return whether RETAIN is sent as published; v3.1.1 has no such option."""
        return subscription.retain_as_published and self.protocol_version >= 5

    def is_no_local(self, subscription: Subscription) -> bool:
        """Return whether the client does not want its own messages; v3.1.1 has no such option."""
        return subscription.no_local and self.protocol_version >= 5

    # Packet ids and windows, sender side

    def begin_connection(self, receive_maximum: int, in_flight_max: int = PACKET_ID_MAX) -> None:
        """Set the send quota for a new connection [MQTT-4.9.0-1].

        It is the client's Receive Maximum, limited by `in_flight_max` minus the exchanges of
        earlier connections that wait for PUBCOMP. These take no quota, but a client that never
        completes them must not collect more and more.
        """
        assert receive_maximum >= 1
        self.receive_maximum = receive_maximum
        self.in_flight_max = in_flight_max
        self.owed_releases = 0
        for packet_id, entry in self.in_flight.items():
            if entry & TOOK_QUOTA:
                self.in_flight[packet_id] = entry & ~TOOK_QUOTA
            self.owed_releases += bool(entry & RELEASED)
        self.send_quota = self.send_quota_max = self._quota_max()

    def _quota_max(self) -> int:
        return min(self.receive_maximum, max(0, self.in_flight_max - self.owed_releases))

    def take_packet_id(self) -> int:
        """Return a packet id that is not in flight [MQTT-2.2.1-4]; it is not in flight yet."""
        packet_id = self.next_packet_id
        in_flight = self.in_flight
        reserved = self.reserved
        assert len(in_flight) < PACKET_ID_MAX
        while packet_id in in_flight or (reserved is not None and packet_id in reserved):
            packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
        self.next_packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
        return packet_id

    def reserve(self, reference: int, flags: int) -> int:
        """Bind a packet id to the message `reference` ahead of its sending, and return it."""
        packet_id = self.take_packet_id()
        if self.reserved is None:
            self.reserved = {}
        self.reserved[packet_id] = reference << REFERENCE_SHIFT | flags
        return packet_id

    def send_reserved(self, packet_id: int) -> None:
        """Take one from the send quota: the message of a reserved packet id is sent now."""
        assert self.send_quota > 0
        self.in_flight[packet_id] = self.unreserve(packet_id) | TOOK_QUOTA
        self.send_quota -= 1

    def unreserve(self, packet_id: int) -> int:
        """Free a reserved packet id, whose message is not sent; return its entry."""
        reserved = self.reserved
        assert reserved is not None
        entry = reserved.pop(packet_id)
        if not reserved:
            self.reserved = None
        return entry

    def perhaps_sent(self) -> list[int]:
        """Return the entries of messages that may have been sent before a crash."""
        if not self.has_doubts:
            return []
        found = [entry for entry in self.in_flight.values() if entry & PERHAPS_SENT]
        self.has_doubts = bool(found)
        return found

    def bind(self, reference: int, flags: int) -> int:
        """Assign a packet id to the message `reference`, and take one from the send quota."""
        assert self.send_quota > 0
        packet_id = self.take_packet_id()
        self.in_flight[packet_id] = reference << REFERENCE_SHIFT | flags | TOOK_QUOTA
        self.send_quota -= 1
        return packet_id

    def bind_run(self, reference: int, step: int, flags: int, count: int) -> list[int]:
        """Bind `count` messages, from `reference` in steps of `step`; return the packet ids."""
        assert self.send_quota >= count and self.reserved is None
        self.send_quota -= count
        in_flight = self.in_flight
        packet_id = self.next_packet_id
        entry = reference << REFERENCE_SHIFT | flags | TOOK_QUOTA
        step <<= REFERENCE_SHIFT
        packet_ids: list[int] = []
        for _ in range(count):
            while packet_id in in_flight:
                packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
            in_flight[packet_id] = entry
            entry += step
            packet_ids.append(packet_id)
            packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
        self.next_packet_id = packet_id
        return packet_ids

    def bind_each(self, references: list[int], flags: int) -> list[int]:
        """Bind the message of each reference, with the same flags; return the packet ids."""
        count = len(references)
        assert self.send_quota >= count and self.reserved is None
        self.send_quota -= count
        in_flight = self.in_flight
        packet_id = self.next_packet_id
        flags |= TOOK_QUOTA
        packet_ids: list[int] = []
        for reference in references:
            while packet_id in in_flight:
                packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
            in_flight[packet_id] = reference << REFERENCE_SHIFT | flags
            packet_ids.append(packet_id)
            packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
        self.next_packet_id = packet_id
        return packet_ids

    def take_quota_again(self, packet_id: int) -> None:
        """Take one from the send quota for an in-flight PUBLISH that is sent again."""
        assert self.send_quota > 0
        entry = self.in_flight[packet_id]
        assert not entry & TOOK_QUOTA
        self.in_flight[packet_id] = entry & ~PERHAPS_SENT | TOOK_QUOTA
        self.send_quota -= 1

    def release(self, packet_id: int) -> bool:
        """Handle PUBREC: PUBREL is owed from now on. False if no QoS 2 message has this id."""
        entry = self.in_flight.get(packet_id)
        if entry is None or entry & QOS_MASK != 2:
            return False
        if not entry & (TOOK_QUOTA | RELEASED):
            self._owe_release()
        self.in_flight[packet_id] = entry & ~PERHAPS_SENT | RELEASED
        return True

    def complete(self, packet_id: int, phase: int) -> int:
        """End the exchange of `packet_id` and return its entry, or -1 if it is in another phase.

        PUBACK ends AWAITING_PUBACK, PUBREC with an error AWAITING_PUBREC, and PUBCOMP
        AWAITING_PUBCOMP: an answer of the wrong type changes nothing [MQTT-4.3.3-4]. Nor does one
        to a message that was perhaps never sent: it is sent again.
        """
        entry = self.in_flight.get(packet_id, -1)
        if entry < 0 or entry & (PHASE_MASK | PERHAPS_SENT) != phase:
            return -1
        del self.in_flight[packet_id]
        if entry & TOOK_QUOTA:
            if self.send_quota < self.send_quota_max:
                self.send_quota += 1
        elif self.owed_releases and entry & RELEASED:
            self.owed_releases -= 1
            more = max(0, self._quota_max() - self.send_quota_max)
            self.send_quota_max += more
            self.send_quota += more
        return entry

    def give_up(self, packet_id: int) -> bool:
        """Drop the message of a PUBLISH of an earlier connection; return whether PUBREL is owed.

        The client may have received it. Then it keeps a QoS 2 packet id until PUBREL, and would
        take the next message with this id for the same one [MQTT-4.3.3-10]. So the id is not free
        before PUBCOMP.
        """
        entry = self.in_flight[packet_id]
        assert not entry & (TOOK_QUOTA | RELEASED)
        self.leases.pop(packet_id, None)
        if entry & QOS_MASK == 1:
            del self.in_flight[packet_id]
            return False
        self.in_flight[packet_id] = GIVEN_UP
        self._owe_release()
        return True

    def _owe_release(self) -> None:
        """Count a PUBLISH of an earlier connection that is released now, without our quota.

        Its packet id stays in use, so there may be one message less in flight beside it.
        """
        self.owed_releases += 1
        less = min(self.send_quota_max - self._quota_max(), self.send_quota)
        if less > 0:
            self.send_quota_max -= less
            self.send_quota -= less

    # Expiry

    def expires_at(self, disconnected_at_ms: int) -> int:
        """Return when the session expires if it is disconnected then; 0 = never. Broker ms."""
        if self.expiry_interval_s == EXPIRY_NEVER:
            return 0
        return disconnected_at_ms + self.expiry_interval_s * 1000

    def is_expired(self, now: int) -> bool:
        """Return whether this disconnected session is expired, though it may still be stored."""
        return self.disconnected_at_ms > 0 and 0 < self.expiry_due_ms <= now

    def invariants(self) -> Iterator[str]:
        """Yield a sentence for each invariant that does not hold."""
        taken = 0
        for packet_id, entry in self.in_flight.items():
            if not 1 <= packet_id <= PACKET_ID_MAX:
                yield f"{self.client_id}: packet id {packet_id} in flight"
            qos = entry & QOS_MASK
            if qos not in (1, 2):
                yield f"{self.client_id}: packet id {packet_id} in flight at QoS {qos}"
            if entry & RELEASED and qos != 2:
                yield f"{self.client_id}: packet id {packet_id} released at QoS {qos}"
            source = entry & SOURCE_MASK
            reference = entry >> REFERENCE_SHIFT
            is_named = reference or entry & STORED_MASK != GIVEN_UP
            from_log = is_named and self.is_stored and source == FROM_LOG
            if from_log and not 0 < reference <= self.position:
                yield (
                    f"{self.client_id}: packet id {packet_id} names offset {reference},"
                    f" but the position is {self.position}"
                )
            if self.is_stored and source == FROM_MAILBOX and reference >= self.next_mailbox:
                yield f"{self.client_id}: packet id {packet_id} names mailbox row {reference}"
            if (source == FROM_GROUP) is not (packet_id in self.leases):
                yield f"{self.client_id}: packet id {packet_id} and its lease disagree"
            taken += bool(entry & TOOK_QUOTA)
            if entry & PERHAPS_SENT and (source != FROM_LOG or not self.has_doubts):
                yield f"{self.client_id}: packet id {packet_id} was perhaps sent, from {source:#x}"
        for packet_id, entry in (self.reserved or {}).items():
            if packet_id in self.in_flight:
                yield f"{self.client_id}: packet id {packet_id} is reserved and in flight"
            if entry >> REFERENCE_SHIFT <= self.position:
                yield (
                    f"{self.client_id}: offset {entry >> REFERENCE_SHIFT} has a reserved packet id,"
                    f" but the position is {self.position}"
                )
        before = -1
        for first, last in self.gaps:
            if not before + 1 < first <= last:
                yield f"{self.client_id}: a gap from {first} to {last}, behind one up to {before}"
            before = last
        used = taken + self.owed_releases
        if self.send_quota and self.send_quota + used > self.in_flight_max:
            yield (
                f"{self.client_id}: send quota {self.send_quota} beside {used} in flight,"
                f" of {self.in_flight_max}"
            )
        if self.send_quota != self.send_quota_max - taken:
            yield (
                f"{self.client_id}: send quota {self.send_quota} with {taken}"
                f" of {self.send_quota_max} taken"
            )
        for packet_id in self.leases:
            if packet_id not in self.in_flight:
                yield f"{self.client_id}: lease of packet id {packet_id}, which is not in flight"
