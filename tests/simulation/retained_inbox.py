"""Retained messages that an application puts into the store beside the broker.

A session that subscribes gets the broker's own, and then the store's if it is newer: never an older
one after a newer one, and each at most once for a SUBSCRIBE. At the end everybody has the newest.
The store forgets what the broker has told it, the application deletes its message, or lets it
expire. Read next: `session.delivery.fetching.retain_lookup`, `tests.simulation.inbox`.
"""

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from mqtt.message import Message
from mqtt.packets import Publish
from session.delivery.fetching.inbox import FetchedMessage, FetchRequest
from session.settings import Fetching
from storage.tables import feed_rows as kinds
from storage.tables.feed_rows import FeedEvent
from storage.tables.fetch_rows import RETAIN, split_fetch_key
from storage.tables.tables import FETCHES, scan_all
from tests.simulation.rare import sometimes
from tests.simulation.verdict import Violation

if TYPE_CHECKING:
    from tests.simulation.mirror import Mirror
    from tests.simulation.oracle import Sent
    from tests.simulation.plans import Plan

SHARE: Final = 0.6  # of the worlds with an inbox
RETAINED: Final = "inbox/r/x"  # no other filter matches it
MARK: Final = b"r"  # before the number of a message of the application
MESSAGES_MAX: Final = 30
PROPERTY: Final = "store_retained_is_newer"


class Found:
    """A message of the application."""

    def __init__(self, number: int, at_ms: int, qos: int, until_ms: int, rows: int) -> None:
        self.number: Final = number
        self.at_ms: Final = at_ms  # broker time
        self.qos: Final = qos
        self.until_ms: Final = until_ms  # when it expires, 0 = never
        self.rows: Final = rows  # that the store had been told then


class Seen:
    """What a client has got of the topic in its present session."""

    def __init__(self) -> None:
        self.subscribes: int = 0
        self.counts: dict[int, int] = {}  # by the number of a message of the application
        self.last: int = -1
        self.last_ours: int = -1  # index of the newest one that a client has published


class RetainedInbox:
    """The retained message of one topic in the store, and what clients have seen of it."""

    def __init__(self, mirror: "Mirror", *, is_on: bool) -> None:
        self.world: Final = mirror.world
        self.mirror: Final = mirror
        self.random: Final = Random(self.world.seed * 2 + 9)
        self.is_on: Final[bool] = is_on and self.random.random() < SHARE
        self.rules: Final = (Fetching(RETAIN, RETAINED, 1),) if self.is_on else ()
        # Do rules let the broker write to it? Otherwise what was cleared, or expired, comes back.
        self.is_mirrored: Final[bool] = self.random.random() < 0.6
        self.messages: Final[list[Found]] = []
        self.present: Found | None = None  # None: nothing, or what the broker has written
        self.members: Final[list[str]] = []
        self.seen: Final[dict[str, Seen]] = {}
        self.ever: Final[dict[str, set[int]]] = {}
        self.answered: Final[set[tuple[str, int]]] = set()
        self.asked_by: Final[dict[str, object]] = {}  # client -> the process that got its SUBSCRIBE

    def join(self, plans: "Sequence[Plan]") -> None:
        """Let some clients subscribe, and perhaps one publish."""
        if not self.is_on:
            return
        for plan in plans:
            if plan.retained_topic is not None and not self.members and self.random.random() < 0.6:
                plan.retained_topic = RETAINED
            if plan.shared or plan.faithful or self.random.random() < 0.3:
                continue
            plan.filters = (*plan.filters, RETAINED)
            plan.first_filters = (*plan.first_filters, RETAINED)
            self.members.append(plan.name)
        self.world.after(50, self._change)

    def _change(self) -> None:
        """The application sets or deletes the message."""
        world, random = self.world, self.random
        if not world.faults or len(self.messages) >= MESSAGES_MAX:
            return
        if random.random() < 0.1:
            self.present = None
        else:
            at_ms = world.latest()
            if self.messages:
                at_ms = max(at_ms, self.messages[-1].at_ms + 1)
            until_ms = at_ms + random.choice((500, 2_000)) if random.random() < 0.2 else 0
            qos = random.choice((0, 1, 1, 2))
            rows = len(self.mirror.rows)
            self.present = Found(len(self.messages), at_ms, qos, until_ms, rows)
            self.messages.append(self.present)
        world.after(50 + int(random.random() * 600), self._change)

    # What the broker tells

    def told(self, rows: "Sequence[Message | FeedEvent]") -> None:
        """Take events about the topic."""
        for row in rows:
            if not isinstance(row, FeedEvent) or row.text != RETAINED:
                continue
            if row.kind == kinds.RETAINED and row.username.startswith(kinds.NOT_FOR):
                raise Violation(PROPERTY, f"{row} goes back to where it comes from")
            if self.is_mirrored and row.kind in (kinds.RETAINED, kinds.RETAIN_DELETED):
                self.present = None

    def told_anew(self, rows: "Sequence[Message | FeedEvent]") -> None:
        """The store has forgotten its newest rows: the application's message may be there again."""
        if self.messages and self.random.random() < 0.7:
            self.present = self.messages[-1]
            self.told(rows[self.present.rows :])

    # Questions

    def answer(self, request: FetchRequest, process: object) -> list[FetchedMessage]:
        """Return what the store has."""
        found, now = self.present, self.world.latest()
        if found is None or (found.until_ms and found.until_ms <= now):
            return []
        self.answered.add((request.client_id, found.number))
        if self.asked_by.get(request.client_id) is not process:
            sometimes("retained_looked_up_after_crash")
        payload = MARK + b"%d" % found.number
        message = Message(RETAINED, payload, found.qos, False, b"", "app", found.at_ms, 0, 0)
        expires_ms = found.until_ms - now if found.until_ms else 0
        return [FetchedMessage("id", message, expires_ms)]

    # What clients see

    def session_begun(self, client: str) -> None:
        """A client has a new session."""
        self.seen[client] = Seen()

    def _seen(self, client: str) -> Seen:
        """Return what a client has got; it may not have heard that it has a session."""
        return self.seen.setdefault(client, Seen())

    def subscribing(self, client: str, process: object) -> None:
        """A client asks for retained messages of the topic."""
        self._seen(client).subscribes += 1
        self.asked_by[client] = process

    def received(self, client: str, number: int, packet: Publish) -> None:
        """A client got a message of the application."""
        found, seen = self.messages[number], self._seen(client)
        if not packet.retain or packet.topic != RETAINED or packet.qos > found.qos:
            raise Violation(PROPERTY, f"{client} got message {number} as {packet!r}")
        self.ever.setdefault(client, set()).add(number)
        if packet.dup:
            return
        sometimes("retained_fetched")
        if (client, number) not in self.answered:
            sometimes("retained_fetched_by_others")
        if number < seen.last and not self.world.refusing_seen:
            raise Violation(PROPERTY, f"{client} got {number} of the store after {seen.last}")
        ours = self._sent(seen.last_ours)
        if ours is not None and self._hides(ours, found):
            raise Violation(PROPERTY, f"{client} got {number} of the store after {ours}")
        if ours is not None:
            sometimes("retained_fetched_behind_ours")
        seen.last = number
        count = seen.counts[number] = seen.counts.get(number, 0) + 1
        if count > seen.subscribes and packet.qos:
            raise Violation(
                PROPERTY, f"{client} got {number} of the store {count} times, asked less often"
            )

    def _hides(self, ours: "Sent", found: Found) -> bool:
        """Must nobody who has got `ours` get this message any more?"""
        if not ours.qos or not ours.acked_step or ours.first_ms <= found.at_ms:
            return False
        later = self.world.oracle.sent[ours.index :]
        return self.is_mirrored or not any(
            each.topic == RETAINED and (each.clears or each.expiry_s >= 0) for each in later
        )

    def received_ours(self, client: str, sent: "Sent | None", packet: Publish) -> None:
        """A client got a message of another client on the topic, None = the topic is cleared."""
        seen = self._seen(client)
        if packet.dup:
            return
        if sent is None:
            # The earliest one that it can be.
            for each in self.world.oracle.sent[seen.last_ours + 1 :]:
                if each.topic == RETAINED and each.clears and each.first_step:
                    seen.last_ours = each.index
                    return
            return
        found = self.messages[seen.last] if seen.last >= 0 else None
        if found is not None and packet.retain and sent.retain and sent.acked_step:
            is_older = sent.attempts == 1 and sent.acked_ms < found.at_ms
            if is_older and not self.world.refusing_seen and not self.world.boots:
                if not found.until_ms:
                    raise Violation(PROPERTY, f"{client} got {sent} after {found.number}")
        seen.last_ours = max(seen.last_ours, sent.index)

    def _sent(self, index: int) -> "Sent | None":
        return self.world.oracle.sent[index] if index >= 0 else None

    # The end

    def judge_owed(self) -> None:
        """Check that nothing is owed any more: all are connected, and the store is there."""
        process = self.world.up()
        if not self.is_on or process is None:
            return
        for key, _ in scan_all(process.store, FETCHES, b"", None):
            if split_fetch_key(key)[2] == RETAIN:
                raise Violation(PROPERTY, f"{key!r} is still owed")

    def judge(self) -> None:
        """Check that everybody has the newest. Nothing is under way any more."""
        found = self.present
        if not self.is_on or found is None or found.until_ms:
            return
        newer = [
            sent
            for sent in self.world.oracle.sent
            if sent.topic == RETAINED and sent.first_step and sent.last_ms >= found.at_ms
        ]
        for client in () if newer else self.members:
            if found.number not in self.ever.get(client, ()):
                raise Violation(PROPERTY, f"{client} never got {found.number} of the store")
