"""Messages that applications put into the store beside the broker, and who asks for them.

The store keeps messages of a queue for who asked first, and for everybody a position. It forgets
claims, answers late, twice, out of order, or not at all, also to sessions that are gone. A session
must get each message once, and at the end every message must have reached whom it is for. Read
next: `session.delivery.fetching.inbox`, `tests.simulation.mirror`.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from mqtt.message import Message
from mqtt.packets import Publish
from session.delivery.fetching.inbox import FetchedMessage, FetchRequest
from session.settings import Fetching
from session.state.backend_record import Cursor
from storage.errors import Unrecoverable
from storage.tables import feed_rows as kinds
from storage.tables.feed_rows import FeedEvent
from storage.tables.fetch_rows import PUBSUB, QUEUE, RETAIN, SUBSCRIPTIONS
from tests.simulation.proxied import Question
from tests.simulation.rare import sometimes
from tests.simulation.retained_inbox import RetainedInbox
from tests.simulation.verdict import Violation

if TYPE_CHECKING:
    from tests.simulation.mirror import Mirror, Pump
    from tests.simulation.plans import Plan

SHARE: Final = 0.7  # of the worlds with a mirror
QUEUED: Final = "inbox/q"
POSITIONED: Final = "inbox/p"
TOPICS: Final = (QUEUED, POSITIONED)
MESSAGES_MAX: Final = 60
ASKED_MAX: Final = 3
# Longer than any answer takes. The real one is longer than a world.
SIMULATED_LEASE_MS: Final = 7_000


class Page:
    """An answer."""

    def __init__(self, messages: list[FetchedMessage], upto: str, *, more: bool) -> None:
        self.messages: Final = messages
        self.upto: Final = upto
        self.more: Final = more


class Inbox:
    """What is in the store, and what clients have seen of it."""

    def __init__(self, mirror: "Mirror") -> None:
        self.world: Final = mirror.world
        self.random: Final = Random(self.world.seed * 2 + 7)
        profile = self.world.profile
        is_plain = not profile.wide and not profile.damages[1] and not mirror.limit
        self.is_on: Final[bool] = mirror.is_on and is_plain and self.random.random() < SHARE
        self.retained: Final = RetainedInbox(mirror, is_on=self.is_on)
        count = self.random.choice((1, 3, 50))
        self.rules: Final = (
            (
                Fetching(QUEUE, "inbox/q", count),
                Fetching(PUBSUB, POSITIONED, count),
                *self.retained.rules,
            )
            if self.is_on
            else ()
        )
        # Is there a rule for acknowledgements of topics with positions?
        self.has_positions: Final = self.random.random() < 0.6
        self.mirror: Final = mirror
        self.inserted: Final[dict[str, tuple[str, int]]] = {}  # id -> topic, QoS
        self.leases: dict[str, tuple[str, int]] = {}  # id -> client, until
        # What the broker has told.
        self.kept: dict[str, str] = {}  # id -> client
        self.gone: set[str] = set()
        self.acked: dict[str, str] = {}  # client -> position
        # What clients have got: in the present session, and ever.
        self.members: list[str] = []
        self.seen: Final[dict[str, set[int]]] = {}
        self.ever: Final[dict[str, set[int]]] = {}
        self.restarted: Final[set[str]] = set()  # clients that began anew in this session

    def join(self, plans: "Sequence[Plan]") -> None:
        """Let some clients subscribe."""
        if not self.is_on:
            return
        for plan in plans:
            if plan.shared or plan.faithful or self.random.random() < 0.3:
                continue
            plan.filters = (*plan.filters, *TOPICS)
            plan.first_filters = (*plan.first_filters, *TOPICS)
            self.members.append(plan.name)
        self.world.after(50, self._insert)
        self.retained.join(plans)

    def _insert(self) -> None:
        """An application puts a message into the store, for one or for all."""
        if not self.world.faults or len(self.inserted) >= MESSAGES_MAX:
            return
        topic = self.random.choice(TOPICS)
        self.inserted[f"{len(self.inserted):06}"] = topic, self.random.choice((0, 1, 1, 2, 2))
        self.world.after(20 + int(self.random.random() * 300), self._insert)

    # What the broker tells

    def told(self, rows: Sequence[Message | FeedEvent]) -> None:
        """Take events about messages of this store, and about retained ones."""
        self.retained.told(rows)
        self._told(rows)

    def _told(self, rows: Sequence[Message | FeedEvent]) -> None:
        for row in rows:
            if not isinstance(row, FeedEvent) or row.kind not in kinds.FOREIGN or not row.username:
                continue
            name = row.body.decode()
            if row.kind == kinds.DELIVERED:
                self.kept[name] = row.client_id
            elif row.kind == kinds.RETURNED:
                sometimes("fetch_given_back")
                if self.kept.get(name) == row.client_id:
                    del self.kept[name]
                if name in self.leases and self.leases[name][0] == row.client_id:
                    del self.leases[name]
            elif row.text == QUEUED:
                self.gone.add(name)
                self.kept.pop(name, None)
            elif self.has_positions:
                self.acked[row.client_id] = max(self.acked.get(row.client_id, ""), name)

    def told_anew(self, rows: Sequence[Message | FeedEvent]) -> None:
        """The store has forgotten its newest rows, and perhaps its leases."""
        self.kept, self.gone, self.acked = {}, set(), {}
        if self.leases and self.random.random() < 0.7:
            sometimes("fetch_claim_forgotten")
            self.leases = {}
        self._told(rows)
        self.retained.told_anew(rows)

    # Questions

    def answer(self, request: FetchRequest, process: object) -> Page:
        """Return a page for a request, as the store is now."""
        if request.kind == RETAIN:
            return Page(self.retained.answer(request, process), "", more=False)
        world = self.world
        found: list[FetchedMessage] = []
        client = request.client_id
        after = max(request.after, self.acked.get(client, ""))
        upto = after
        for name, (topic, qos) in self.inserted.items():
            if topic != request.topic:
                continue
            if request.kind == QUEUE:
                owner, until = self.leases.get(name, ("", 0))
                is_leased = owner not in ("", client) and until > world.now
                if name in self.gone or name in self.kept or is_leased:
                    continue
            elif name <= after:
                continue
            if len(found) == request.count:
                return Page(found, upto, more=True)
            if request.kind == QUEUE:
                self.leases[name] = client, world.now + SIMULATED_LEASE_MS
            upto = name
            message = Message(topic, b"%d" % int(name), qos, False, b"", "app", world.now, 0, 0)
            found.append(FetchedMessage(name, message))
        return Page(found, upto, more=False)

    # What clients see

    def session_begun(self, client: str) -> None:
        """A client has a new session."""
        self.seen[client] = set()
        self.restarted.discard(client)
        self.retained.session_begun(client)

    def unsubscribed(self, client: str, topic: str) -> None:
        """A client ends a subscription: the next one begins at the position in the store."""
        if topic == POSITIONED:
            self.restarted.add(client)

    def received(self, client: str, number: int, packet: Publish) -> None:
        """A client got a message."""
        topic, qos = self.inserted[f"{number:06}"]
        if packet.retain or packet.topic != topic or packet.qos > qos:
            raise Violation("fetched_once", f"{client} got message {number} as {packet!r}")
        seen = self.seen.setdefault(client, set())
        may_repeat = topic == POSITIONED and client in self.restarted
        if number in seen and not packet.dup and not may_repeat:
            raise Violation("fetched_once", f"{client} got message {number} of {topic} again")
        if packet.dup and number not in seen:
            sometimes("fetched_again_after_crash")
        sometimes("fetched")
        seen.add(number)
        self.ever.setdefault(client, set()).add(number)

    # The end

    def ask_all(self) -> None:
        """Let everybody ask for the rest."""
        self.leases = {}  # their time has passed
        if self.is_on:
            for client in self.world.clients:
                if client.name in (*self.members, *self.retained.members):
                    client.subscribe_to_inbox()

    def judge(self) -> None:
        """Check that everything is with whom it is for. Nothing is under way any more."""
        self.retained.judge()
        if not self.is_on or not self.members:
            return
        acked: dict[bytes, str] = {}
        for row in self.mirror.rows:
            if isinstance(row, FeedEvent) and row.kind == kinds.ACKED and row.text == QUEUED:
                first = acked.setdefault(row.body, row.client_id)
                if first != row.client_id:
                    raise Violation(
                        "fetched_once", f"{first} and {row.client_id} acknowledged {row.body!r}"
                    )
        for name, (topic, qos) in self.inserted.items():
            if topic == QUEUED:
                if name not in self.gone:
                    raise Violation("fetched_once", f"{name} is still kept: {self.kept}")
                continue
            for client in self.members if qos else ():  # at QoS 0 it may get lost on the way
                if int(name) not in self.ever.get(client, ()):
                    raise Violation("fetched_once", f"{client} never got {name} of {topic}")


class Questions:
    """What one process of the broker asks the store."""

    def __init__(self, pump: "Pump") -> None:
        self.pump: Final = pump
        self.process: Final = pump.process
        self.mirror: Final = pump.mirror
        self.inbox: Final = pump.mirror.inbox
        self.proxied: Final = pump.mirror.proxied
        self.random: Final = self.inbox.random

    def ask(self) -> None:
        """Ask what sessions want to know, once the store has everything before."""
        pump = self.pump
        if not pump.begun:
            return
        for _ in range(ASKED_MAX):
            request = self.process.engine.requests.next("mirror", pump.known)
            if request is None:
                return
            question = None
            if request.kind == SUBSCRIPTIONS:
                question = self.proxied.asked(self.process, request, pump.asked_anew)
            self._after(40, self._arrives, pump.run, pump.known, request, question)

    def _after(self, most_ms: int, call: Any, *arguments: Any) -> None:
        if self.process.world.faults and self.random.random() < 0.05:
            most_ms = 3_000
        self.process.world.after(int(self.random.random() * most_ms), call, *arguments)

    def _arrives(
        self, run: int, known: Cursor, request: FetchRequest, question: Question | None
    ) -> None:
        """The question is with the store."""
        process, pump, faults = self.process, self.pump, self.process.world.faults
        if process.dead:
            if question is None and self.random.random() < 0.5:
                self.inbox.answer(request, process)  # and nobody hears it
            return
        if run != pump.run or not pump.begun or process.failed:
            return
        fence = self.mirror.fence
        if self.mirror.is_away() or fence is None or fence[1] < known:
            pump.begun = False  # the way is lost, or the store is not where it was
            return
        call = self._listed(request, question) if question else self._fetched(request)
        if faults and self.random.random() < 0.05:
            pump.begun = False
            if self.random.random() < 0.5:
                return
            sometimes("fetch_answered_late")
        if faults and self.random.random() < 0.1:
            sometimes("fetch_answered_twice")
            self._after(2_000 if question else 40, self._answered, call)
        is_late = question is not None and faults and self.random.random() < 0.15
        self._after(1_500 if is_late else 40, self._answered, call)

    def _fetched(self, request: FetchRequest) -> Callable[[], None]:
        page, inbox = self.inbox.answer(request, self.process), self.process.engine.inbox

        def call() -> None:
            self.process.engine.handle_timeout(self.process.broker_now())
            inbox.fetched(request.number, page.messages, page.upto, more=page.more)

        return call

    def _listed(self, request: FetchRequest, question: Question) -> Callable[[], None]:
        proxied, page = self.proxied, self.proxied.answer(request)
        is_refused = self.process.world.faults and self.proxied.random.random() < 0.05

        def call() -> None:
            proxied.listed(self.process, request, question, page, is_refused=is_refused)

        return call

    def _answered(self, call: Callable[[], None]) -> None:
        """The broker hears it."""
        process = self.process
        if process.dead or process.failed or process.thaws(self._answered, call):
            return
        try:
            call()
        except Unrecoverable as error:
            process.world.fail_stop(str(error))
            return
        process.schedule_tick()
