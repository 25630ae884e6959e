"""Judge what clients saw: what was published, acknowledged, owed, delivered and refused.

It sees what clients see, and when the broker's side of a connection ended. When a message is first
sent, it notes the sessions and groups that must get it. It removes such an obligation when the
message is delivered or no longer owed, so at the end of a world the remaining ones are failures.
Must never look inside the broker. Read next: `tests.simulation.view`, `tests.simulation.presence`.
"""

from typing import Final

from mqtt.packets import Publish
from tests.simulation.presence import Presence, Will
from tests.simulation.rare import sometimes
from tests.simulation.retained_inbox import RETAINED
from tests.simulation.verdict import Violation
from tests.simulation.view import Filter, SessionView, filter_matches

# v5 properties of messages in turn: none, a content type, correlation data and user properties.
CONTENTS: Final = (
    b"",
    b"\x03\x00\x04text",
    b"\x09\x00\x02\x00\xff\x26\x00\x01k\x00\x01v\x26\x00\x01k\x00\x00",
)


class Sent:
    """One application message as its publisher knows it."""

    __slots__ = (
        "acked_ms",
        "acked_step",
        "attempts",
        "clears",
        "connect",
        "doubtful",
        "expiry_s",
        "first_ms",
        "first_step",
        "from_both_versions",
        "from_version5",
        "index",
        "is_will",
        "last_ms",
        "padding",
        "publisher",
        "qos",
        "rejected",
        "retain",
        "topic",
        "transmissions",
    )

    def __init__(
        self, index: int, publisher: str, topic: str, qos: int, retain: bool, expiry_s: int
    ) -> None:
        self.index = index
        self.publisher = publisher
        self.topic = topic
        self.qos = qos
        self.retain = retain
        self.expiry_s = expiry_s  # -1 = none
        self.padding = index * 7 % 40  # bytes of the payload behind the index
        self.clears = False  # an empty retained payload
        self.is_will = False
        self.from_version5 = False
        self.from_both_versions = False
        self.doubtful = False  # sent again, and the first time it may have been refused
        self.connect = 0  # number of its publisher's CONNECT before the last transmission
        self.first_step = 0
        self.first_ms = 0  # broker time, as all times here
        self.last_ms = 0  # of the last transmission
        self.acked_step = 0  # PUBACK or PUBREC with success came; 0 = not
        self.acked_ms = 0
        self.rejected = False
        self.attempts = 0  # flows: a new packet id in a new session is another attempt
        self.transmissions = 0  # PUBLISH packets

    def payload(self) -> bytes:
        """Return what is in it: its index, and padding to vary the size."""
        return b"" if self.clears else b"%d." % self.index + b"x" * self.padding

    def properties(self) -> bytes:
        """Return the v5 properties a receiver must get unaltered."""
        return self.contents() if self.from_version5 else b""

    def contents(self) -> bytes:
        """Return the properties it has if a v5 client sends it."""
        return b"" if self.is_will or self.clears else CONTENTS[self.index % len(CONTENTS)]

    def size(self) -> int:
        """Return at least as many bytes as it counts for limits."""
        return len(self.topic) + len(self.payload()) + max(len(each) for each in CONTENTS)

    def may_follow(self, other: "Sent") -> bool:
        """May the broker have accepted it after another one?"""
        if self.is_will:
            return True
        is_later = not self.acked_step or self.acked_step >= other.first_step
        return bool(self.first_step) and not self.rejected and is_later

    def __str__(self) -> str:
        return f"message {self.index} (QoS {self.qos} of {self.publisher})"


class Group:
    """One shared subscription."""

    __slots__ = ("applied", "held", "in_memory", "owed", "share", "stream")

    def __init__(self, share: str, stream: str) -> None:
        self.share = share
        self.stream = stream
        self.held: dict[str, bool] = {}  # client -> is its session durable; certain members only
        self.owed: dict[int, set[str]] = {}  # index -> durable members since before it was sent
        self.applied: dict[int, int] = {}  # index -> QoS 2 applications over all members
        self.in_memory: set[int] = set()  # applied by a session that does not outlive a crash


class Oracle:
    """What is known of one world from its clients."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.views: dict[str, SessionView] = {}
        self.presences: dict[str, Presence] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        self.wills: dict[int, Will] = {}
        self.retained: dict[str, list[int]] = {}  # topic -> indices in the order of first sending
        self.deliveries = 0
        # With limits a QoS 0 message may be stored or not, and what is not overtakes what is.
        self.has_limits = False
        self.view_count = 0
        # What was in rows that were damaged: it may be missing, and must be right if it comes.
        self.lost: set[int] = set()  # messages
        self.lost_wills: set[int] = set()
        self.lost_retained: dict[str, int] = {}  # topic -> step

    # Publishers

    def new_message(
        self, publisher: str, topic: str, qos: int, *, retain: bool = False, expiry_s: int = -1
    ) -> Sent:
        """Make a message that was not sent yet."""
        sent = Sent(len(self.sent), publisher, topic, qos, retain, expiry_s)
        self.sent.append(sent)
        return sent

    def sending(self, sent: Sent, step: int, now: int, *, new_flow: bool) -> None:
        """A PUBLISH leaves its publisher."""
        sent.transmissions += 1
        sent.attempts += new_flow
        sent.last_ms = now
        if sent.first_step:
            return
        sent.first_step = step
        sent.first_ms = now
        if sent.retain and sent.topic != RETAINED:  # the store beside the broker knows better
            self.retained.setdefault(sent.topic, []).append(sent.index)
            for view in self.views.values():
                view.owed_retained.pop(sent.topic, None)
        if sent.qos == 0 or sent.clears:
            return
        for view in self.views.values():
            if view.durable:
                view.owe(sent)
        for group in self.groups.values():
            if filter_matches(group.stream, sent.topic):
                members = {name for name, durable in group.held.items() if durable}
                if members:
                    group.owed[sent.index] = members

    def acknowledged(self, sent: Sent, step: int, now: int) -> None:
        """PUBACK or PUBREC with a success code reached the publisher."""
        if not sent.acked_step:
            sent.acked_step = step
            sent.acked_ms = now
            if sent.retain and sent.first_step > self.lost_retained.get(sent.topic, step):
                del self.lost_retained[sent.topic]  # its row is another one

    def rejected(self, sent: Sent) -> None:
        """PUBACK or PUBREC with an error code: the broker did not take the message.

        Only a first and only transmission proves that nothing of it was ever accepted.
        """
        if sent.transmissions == 1:
            sent.rejected = True
        for view in self.views.values():
            view.owed.pop(sent.index, None)
        for group in self.groups.values():
            group.owed.pop(sent.index, None)

    # Damaged rows

    def lose(self, index: int) -> None:
        """The row of a message is damaged: nobody is certain to get it any more."""
        self.lost.add(index)
        self.lost_wills.add(index)
        for group in self.groups.values():
            group.owed.pop(index, None)

    def lose_retained(self, topic: str, step: int) -> None:
        """The row of a retained message is damaged: it is absent until it is replaced."""
        self.lost_retained[topic] = step
        for view in self.views.values():
            view.owed_retained.pop(topic, None)

    def count_damaged(self) -> int:
        """Return how many deliveries are owed still whose messages were in damaged rows."""
        return sum(
            1
            for view in self.views.values()
            for sent in view.losses(self.sent)
            if sent.index in self.lost
        )

    # Sessions

    def new_view(self, client: str) -> SessionView:
        """A session begins at the client: CONNACK without session present."""
        self.end_view(client)
        self.view_count += 1
        view = self.views[client] = SessionView(client, self.view_count)
        return view

    def end_view(self, client: str) -> None:
        """The session is over: nothing is owed to it."""
        view = self.views.pop(client, None)
        if view is not None:
            self.leave_groups(view)

    def weaken_view(self, client: str) -> None:
        """The session may be over: nothing is owed to it, but it may still be there."""
        view = self.views.get(client)
        if view is not None:
            view.weaken()
            self.leave_groups(view)

    def leave_groups(self, view: SessionView) -> None:
        """The session is no certain member of any group any more."""
        for item in view.filters.values():
            if item.share is not None:
                self.leave_group(item, view.client)

    def join_group(self, item: Filter, client: str, durable: bool) -> None:
        """SUBACK for a shared filter came."""
        assert item.share is not None
        key = (item.share, item.stream)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(*key)
        group.held[client] = durable

    def leave_group(self, item: Filter, client: str) -> None:
        """The member may be gone from now on.

        QoS 2 messages under way to it may have been dropped with its session [MQTT-4.8.2-5]; the
        others go to another member while there is one.
        """
        assert item.share is not None
        group = self.groups.get((item.share, item.stream))
        if group is None:
            return
        group.held.pop(client, None)
        for index in list(group.owed):
            members = group.owed[index]
            members.discard(client)
            if not members or self.sent[index].qos == 2:
                del group.owed[index]

    def member_ended(self, names: tuple[str, ...]) -> None:
        """A clean member's connection ended: QoS 2 messages sent to it end with it."""
        for group in self.groups.values():
            if any(name == f"$share/{group.share}/{group.stream}" for name in names):
                for index in [i for i in group.owed if self.sent[i].qos == 2]:
                    del group.owed[index]

    def broker_crashed(self) -> None:
        """What was not acknowledged and went to a session in memory never happened."""
        for group in self.groups.values():
            for index in group.in_memory:
                if not self.sent[index].acked_step:
                    group.applied[index] -= 1
            group.in_memory.clear()
        for view in self.views.values():
            view.crashed()

    # Receivers

    def delivered(
        self, view: SessionView, sent: Sent, packet: Publish, step: int, now: int
    ) -> None:
        """Judge a PUBLISH that reached a client, before the client applies it."""
        self._check_content(view, sent, packet)
        if packet.topic != sent.topic:
            raise Violation("no_phantom", f"{view.client} got {sent} on topic {packet.topic!r}")
        if not sent.first_step and not sent.is_will:
            raise Violation("no_phantom", f"{view.client} got {sent}, which was never sent")
        if sent.rejected:
            raise Violation("refusals_are_honest", f"{view.client} got {sent}, which was refused")
        if not sent.is_will:
            view.check_delivery(sent, packet, step)
            if packet.qos or not self.has_limits:
                view.check_order(sent, packet)
        if not packet.retain or not sent.retain or view.keeps_retain(sent.topic):
            view.owed.pop(sent.index, None)  # a replay of a retained message is another copy
        least = view.owed_retained.get(sent.topic)
        if least is not None and sent.index >= least:
            del view.owed_retained[sent.topic]
        self._check_expiry(view, sent, packet, now)
        if packet.retain and not packet.dup and not sent.is_will:
            self._check_retained(view, sent)
        if self.groups:
            for item in view.matching(sent.topic):
                if item.share is not None and (item.share, item.stream) in self.groups:
                    self.groups[item.share, item.stream].owed.pop(sent.index, None)

    def applied(self, view: SessionView, sent: Sent, packet: Publish, subscribes: int) -> None:
        """A QoS 2 PUBLISH is applied by its receiver."""
        view.apply_once(sent, packet, subscribes)
        for item in view.matching(sent.topic):
            if item.share is None:
                continue
            group = self.groups.get((item.share, item.stream))
            if group is None:
                continue
            count = group.applied[sent.index] = group.applied.get(sent.index, 0) + 1
            if not view.durable:
                group.in_memory.add(sent.index)
            if sent.qos == 2 and count > sent.attempts:
                raise Violation(
                    "shared_message_goes_to_one_member",
                    f"{sent} was applied {count} times in group {group.share!r},"
                    f" the last time by {view.client}",
                )

    def _check_content(self, view: SessionView, sent: Sent, packet: Publish) -> None:
        if sent.is_will:
            return
        properties = sent.properties() if view.version == 5 else b""
        altered = packet.properties != properties and not sent.from_both_versions
        if packet.payload != sent.payload() or altered:
            raise Violation(
                "no_phantom",
                f"{view.client} got {sent} with payload {packet.payload!r} and properties"
                f" {packet.properties!r}, expected {sent.payload()!r} and {properties!r}",
            )

    def _check_expiry(self, view: SessionView, sent: Sent, packet: Publish, now: int) -> None:
        if sent.expiry_s < 0 or packet.message_expiry_interval < 0:
            return
        # The clock runs from acceptance, which lies between the first sending and the first ack.
        accepted_hi = sent.acked_ms or sent.last_ms + 60_000
        if sent.attempts == sent.transmissions == 1 and packet.message_expiry_interval > max(
            0, sent.expiry_s
        ):
            raise Violation(
                "message_expiry_is_honoured",
                f"{view.client} got {sent} with {packet.message_expiry_interval} s left"
                f" of {sent.expiry_s}",
            )
        if packet.dup or sent.transmissions > 1:
            return
        if sent.attempts == 1:
            self._check_interval(view, sent, packet, now)
        if now > accepted_hi + sent.expiry_s * 1000 + 10_000:
            raise Violation(
                "message_expiry_is_honoured",
                f"{view.client} got {sent} at {now}, long after it expired",
            )
        waited_least = now - 10_000 - accepted_hi
        if packet.message_expiry_interval > sent.expiry_s - waited_least // 1000:
            raise Violation(
                "message_expiry_is_honoured",
                f"{view.client} got {sent} with {packet.message_expiry_interval} s left,"
                f" having waited at least {waited_least} ms of {sent.expiry_s} s",
            )

    def _check_interval(self, view: SessionView, sent: Sent, packet: Publish, now: int) -> None:
        """The interval is less by the time the message has been waiting [MQTT-3.3.2-6]."""
        interval = packet.message_expiry_interval
        waited = max(0, view.connected_ms - sent.acked_ms) if sent.acked_ms else 0
        most = max(0, sent.expiry_s - waited // 1000)
        # Broker time may go back a second at a restart.
        least = max(0, sent.expiry_s - (now - sent.first_ms + 1_999) // 1000)
        if not least <= interval <= most:
            raise Violation(
                "message_expiry_is_honoured",
                f"{view.client} got {sent} with {interval} s left, expected {least} to {most}",
            )
        if interval < sent.expiry_s:
            sometimes("sent_with_less_expiry")
            if packet.retain:
                sometimes("retained_sent_with_less_expiry")

    def _check_retained(self, view: SessionView, sent: Sent) -> None:
        if sent.doubtful or view.keeps_retain(sent.topic):
            return  # it may be a live copy that keeps its flag
        floors = [
            item.retained_floor[sent.topic]
            for item in view.matching(sent.topic)
            if sent.topic in item.retained_floor
        ]
        if floors and sent.index < min(floors):
            raise Violation(
                "retained_is_the_last_acknowledged",
                f"{view.client} got retained {sent} on {sent.topic!r},"
                f" but {min(floors)} was acknowledged before it subscribed",
            )

    # Retained messages

    def last_acknowledged(self, topic: str) -> int:
        """Return the index of the last acknowledged retained message of a topic, -1 = none."""
        for index in reversed(self.retained.get(topic, [])):
            if self.sent[index].acked_step and not self.sent[index].rejected:
                return index
        return -1

    def _came_again(self, topic: str, last: int) -> list[int]:
        """Return messages that may have replaced a later one, which was acknowledged.

        At QoS 1 a message that is sent again is accepted again. One that followed at QoS 2 is not:
        it was taken the first time.
        """
        if last < 0:
            return []
        later = self.sent[last]
        after_ms = later.first_ms if later.qos == 2 else later.last_ms + 1
        earlier = (self.sent[index] for index in self.retained[topic] if index < last)
        return [
            sent.index
            for sent in earlier
            if sent.qos == 1 and sent.transmissions > 1 and sent.last_ms >= after_ms
        ]

    def _retained_wills(self, topic: str) -> set[int]:
        """Return what may be retained on the topic of a client's wills: one of the fired ones.

        The client may have published there itself, always for some seconds only: that is over, or
        replaced by a will that fired when its connection had ended.
        """
        wills = [
            will
            for index, will in self.wills.items()
            if self.sent[index].topic == topic and self.sent[index].retain
        ]
        fired = {will.index for will in wills if will.fired}
        fired |= {will.index for will in wills if will.qos == 0}  # may have fired unseen
        # Below QoS 2 it may have been seen before a crash undid it.
        last = max((will.connect for will in wills if will.fired and will.qos == 2), default=0)
        found = fired if last else fired | {-1}
        for index in self.retained.get(topic, ()):
            if self.sent[index].connect > last:
                found |= {-1, index}
        return found

    def retained_candidates(self, topic: str) -> set[int]:
        """Return what may be retained now: -1 stands for nothing."""
        last = self.last_acknowledged(topic)
        candidates = {-1 if last < 0 or self.sent[last].clears else last}
        if last >= 0 and self.sent[last].expiry_s >= 0:
            candidates.add(-1)
        again = self._came_again(topic, last)
        for index in self.retained.get(topic, []):
            sent = self.sent[index]
            if (index > last or sent.doubtful or index in again) and not sent.rejected:
                candidates.add(-1 if sent.clears else index)
                if sent.qos == 0 or sent.expiry_s >= 0:
                    candidates.add(-1)
        return candidates

    def subscribing_to_retained(self, view: SessionView, item: Filter, handling: int) -> None:
        """SUBSCRIBE is sent: remember what is retained at this moment."""
        if item.share is not None or handling == 2:
            return
        for topic in self.retained:
            if filter_matches(item.stream, topic):
                last = self.last_acknowledged(topic)
                last = min([last, *self._came_again(topic, last)])
                item.retained_floor[topic] = min(item.retained_floor.get(topic, last), last)

    def subscribed_to_retained(self, view: SessionView, item: Filter, asked_step: int) -> None:
        """SUBACK for a filter that gets retained messages: they are owed at QoS 1 and 2."""
        if not view.durable or item.share is not None:
            return
        for topic, indices in self.retained.items():
            if not filter_matches(item.stream, topic):
                continue
            last = self.sent[indices[-1]]
            option = item.options[-1]
            if (
                last.acked_step
                and last.acked_step < asked_step
                and not any(self.sent[index].doubtful for index in indices)
                and not last.rejected
                and not last.clears
                and topic not in self.lost_retained
                and last.qos > 0
                and last.expiry_s < 0
                and option.qos > 0
                and not (option.no_local and last.publisher == view.client)
            ):
                view.owe_retained(last)

    # The end

    def resized(self, sent: Sent) -> None:
        """A message is sent again by a client of the other protocol version."""
        for view in self.views.values():
            view.resized(sent)

    def judge_losses(self) -> None:
        """Judge what is still owed after everybody drained."""
        for view in self.views.values():
            if any(self.sent[i].expiry_s >= 0 and self.sent[i].acked_step for i in view.owed):
                sometimes("message_expired_offline")
            for sent in view.losses(self.sent):
                if sent.index in self.lost:
                    continue
                raise Violation(
                    "no_acknowledged_message_is_lost",
                    f"{view.client} never got {sent} on {sent.topic!r}",
                )
            for topic, index in view.owed_retained.items():
                raise Violation(
                    "no_acknowledged_message_is_lost",
                    f"{view.client} never got retained message {index} on {topic!r}"
                    " although it subscribed",
                )
        self.judge_groups()

    def judge_groups(self) -> None:
        """Judge what is still owed to the members of shared subscriptions."""
        for group in self.groups.values():
            for index in group.owed:
                sent = self.sent[index]
                if sent.acked_step and not sent.rejected and sent.expiry_s < 0:
                    raise Violation(
                        "shared_message_goes_to_one_member",
                        f"no member of group {group.share!r} got {sent} on {sent.topic!r}",
                    )

    def judge_limits(self, count_max: int, bytes_max: int, *, keeps_oldest: bool) -> None:
        """Judge what limits of a session have dropped: 0 = no such limit.

        A dropped message was followed by as many as the session may keep, or with `keeps_oldest`
        it followed these.
        """
        for view in self.views.values():
            for sent in view.losses(self.sent):
                if sent.index in self.lost:
                    continue
                count, size = 0, sent.size()
                for other in self.sent:
                    later, earlier = (sent, other) if keeps_oldest else (other, sent)
                    if (
                        other is not sent
                        and later.may_follow(earlier)
                        and view.matching(other.topic)
                    ):
                        count += max(1, other.transmissions)
                        size += max(1, other.transmissions) * other.size()
                within = not count_max or count < count_max
                if within and (not bytes_max or size <= bytes_max):
                    verb = "preceded" if keeps_oldest else "followed"
                    raise Violation(
                        "no_acknowledged_message_is_lost",
                        f"{view.client} never got {sent} on {sent.topic!r}, which {count} messages"
                        f" of {size} bytes may have {verb}",
                    )

    def count_losses(self) -> int:
        """Return how many deliveries are owed still."""
        lost = 0
        for view in self.views.values():
            lost += sum(1 for _ in view.losses(self.sent))
        return lost

    def judge_wills(self, *, times: bool, lossy: bool) -> None:
        """Judge every will of every client."""
        for presence in self.presences.values():
            presence.judge_wills(self.lost_wills, times=times, lossy=lossy)

    def judge_retained(self, found: dict[str, int]) -> None:
        """Judge what a new subscriber got: topic -> index."""
        topics = self.retained.keys() | found.keys() | {f"will/{name}" for name in self.presences}
        for topic in sorted(topics):
            candidates = self.retained_candidates(topic)
            if topic.startswith("will/"):
                candidates = self._retained_wills(topic)
            if topic in self.lost_retained:
                candidates.add(-1)
            index = found.get(topic, -1)
            if index not in candidates:
                raise Violation(
                    "retained_is_the_last_acknowledged",
                    f"{topic!r} retains message {index}, expected one of {sorted(candidates)}"
                    " (-1 = none)",
                )
