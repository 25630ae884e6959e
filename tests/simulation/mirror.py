"""An external store beside the broker, and the shell that feeds it.

The store applies batches behind its fence, answers late or not at all, is away for a while, and
forgets its newest rows. It outlives the broker; the pump dies with it. At the end of a world the
store must have every acknowledged message once and in order, who is connected, and who subscribes
to what. Its random numbers are its own, so a world without a mirror is the world it always was.
Read next: `session.feed.outlet`.
"""

from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias

from mqtt.message import Message
from session.feed.dead_letters import DeadLetter
from session.feed.outlet import FeedOutlet, FeedPage
from session.settings import Feed, OnFull
from session.state.backend_record import Cursor, decode_backend
from storage.errors import DamagedRows, Unrecoverable
from storage.local.memory import MemoryStore
from storage.tables import feed_rows as kinds
from storage.tables import tables
from storage.tables.feed_rows import FeedEvent, message_of
from storage.tables.message_record import decode_message
from tests.simulation.inbox import Inbox, Questions
from tests.simulation.proxied import Changes, Proxies
from tests.simulation.rare import sometimes
from tests.simulation.refill import Refill
from tests.simulation.retained_inbox import MARK, RETAINED
from tests.simulation.told_balance import ToldBalance
from tests.simulation.verdict import Violation
from tests.simulation.view import filter_matches

if TYPE_CHECKING:
    from tests.simulation.oracle import Sent
    from tests.simulation.process import BrokerProcess
    from tests.simulation.world import World

SHARE: Final = 0.25  # of worlds have a mirror
LIMITED: Final = 0.4  # of these have a limit for what waits
NAME: Final = "mirror"
ALL_KINDS: Final = sum(1 << kind for kind in kinds.KINDS)
STEP_MS: Final = 60
REFUSED: Final = 0.1  # of the pages: something of one is refused
Row: TypeAlias = Message | FeedEvent


class Mirror:
    """The store."""

    def __init__(self, world: "World") -> None:
        self.world: Final = world
        self.random: Final = Random(world.seed * 2 + 1)
        # Not where blocks of the log are filled to the byte: few worlds are, and all are needed.
        self.is_on: bool = self.random.random() < SHARE and not world.profile.large
        self.is_on = self.is_on and not world.profile.nodes
        self.filters: Final = self.random.choice(
            (("#",), ("#",), ("a/#", "s/0", "will/+"), ("x/y", "+/y", "#", "w/#"), ())
        )
        self.keep_ms: int = self.random.choice((3_000, 900_000))
        if world.settings.total_bytes_max:
            self.keep_ms = 0  # what is kept counts: publishers would be refused for that long
        self.rows: list[Row] = []
        self.fence: tuple[str, Cursor] | None = None
        self.applied: list[tuple[int, tuple[str, Cursor] | None, int]] = []  # what was before each
        self.away_until = 0
        self.instances = 0
        # Of its own random numbers: other worlds stay as they were.
        dice = Random(world.seed * 2 + 5)
        is_limited = self.is_on and dice.random() < LIMITED
        self.limit: Final[int] = dice.choice((600, 2_000, 6_000)) if is_limited else 0
        self.on_full: Final[OnFull] = dice.choice(("drop_oldest", "reject"))
        # For these it asks for messages with QoS 0, too.
        self.qos0: Final[tuple[str, ...]] = Random(world.seed * 2 + 9).choice(
            ((), self.filters[:1], self.filters)
        )
        # What the log of each broker held when it was looked at: offset -> payload.
        self.logged: Final[dict[int, bytes]] = {}
        self.looked_at = 0
        self.has_refused = False  # was a message ever refused?
        # Offsets of all messages that it ever got, also of those that it has forgotten.
        self.ever: Final[set[int]] = set()
        self.balance: Final = ToldBalance(has_damage=any(world.profile.damages))
        self.refusals: Final = Random(world.seed * 2 + 7)
        self.inbox: Final = Inbox(self)
        self.proxied: Final = Proxies(self)
        self.refill: Final = Refill(self)
        world.settings.feeds = self.feeds()

    def feeds(self) -> tuple[Feed, ...]:
        """Return what the broker is configured with."""
        if not self.is_on:
            return ()
        return (
            Feed(
                NAME,
                self.filters,
                ALL_KINDS,
                self.keep_ms,
                self.inbox.rules,
                self.limit,
                self.on_full,
                self.proxied.rule(),
                qos0=self.qos0,
            ),
        )

    def new_instance(self) -> str:
        """Return the mark of a new backend."""
        self.instances += 1
        return f"{self.instances:016x}"

    def is_away(self) -> bool:
        """Does the store not answer now?"""
        world = self.world
        if not world.faults:
            return False
        if world.now >= self.away_until and self.random.random() < 0.02:
            self.away_until = world.now + int(self.random.random() * 3_000)
            sometimes("store_away")
        return world.now < self.away_until

    def start(self, instance: str, cursor: Cursor) -> None:
        """Place the fence where a run begins, if the store knows none of this database."""
        if self.fence is None or self.fence[0] != instance:
            self.fence = (instance, cursor)

    def apply(self, instance: str, after: Cursor, upto: Cursor, rows: list[Row]) -> bool:
        """Apply a batch behind the fence; False if the fence is elsewhere."""
        if self.fence == (instance, upto):
            sometimes("store_applied_before")
            return True
        if self.fence != (instance, after):
            return False
        self.applied.append((self.world.now, self.fence, len(self.rows)))
        self.fence = (instance, upto)
        self.rows += rows
        self.ever.update(row.offset for row in rows if isinstance(row, Message))
        self.inbox.told(rows)
        return True

    def forget(self) -> None:
        """Lose the newest rows, no more than the broker still keeps."""
        since = self.world.now - self.keep_ms // 2
        young = [each for each in self.applied if each[0] > since]
        if not young:
            return
        at = self.random.choice(young)
        sometimes("store_forgot")
        self.world.note("the store forgets", len(self.rows) - at[2])
        self.applied = self.applied[: self.applied.index(at)]
        self.fence = at[1]
        del self.rows[at[2] :]
        self.inbox.told_anew(self.rows)
        if self.random.random() < 0.3:
            sometimes("store_forgot_and_was_away")
            self.away_until = self.world.now + self.random.choice((1_000, 5_000))

    def refuse(self, page: FeedPage) -> list[DeadLetter]:
        """Choose a message that one of two commands was refused for; the other one was applied."""
        if not self.world.faults or self.refusals.random() >= REFUSED:
            return []
        position, seq = page.after
        for row in page.rows:
            if isinstance(row, FeedEvent):
                position, seq = max(position, row.end), row.seq
            elif self.refusals.random() < 0.5:
                sometimes("store_refused")
                return [DeadLetter((row.offset, seq), "1", "no", b"")]
        return []

    def judge_history(self, store: MemoryStore) -> None:
        """Compare what the history says that the store was told with what it got."""
        if not self.is_on:
            return
        told = None
        value = store.get(tables.BACKENDS, NAME.encode())
        if value is not None:
            told = decode_backend(tables.unseal(value, "backend")).told
        retold = self.world.retold
        self.balance.judge(retold.about_stores, self.ever, told)
        retold.about_stores.clear()

    def may_refuse(self, topic: str) -> bool:
        """Return whether messages of a topic may have been refused, because too much waited."""
        return self.has_refused and any(filter_matches(each, topic) for each in self.filters)

    def watch(self, process: "BrokerProcess") -> None:
        """Note when messages are refused, and what a crash took back."""
        self.looked_at = min(self.looked_at, process.engine._log.end)
        feeds = process.engine.feeds
        refuse = feeds.refused

        def refused(filters: frozenset[str]) -> None:
            if filters:
                sometimes("backlog_refused")
                if self.on_full != "reject" or not self.limit:
                    raise Violation("refusals_are_honest", "messages are refused for no reason")
                self.has_refused = True
            refuse(filters)

        self.has_refused |= feeds.is_refusing(NAME)
        feeds.refused = refused

    def is_given_up(self, feeds: FeedOutlet, instance: str) -> bool:
        """Go to the floor if the store has lost what lies before rows that were given up.

        Or messages that a limit has dropped since: that moves no events.
        """
        record = feeds.backends[NAME].record
        floor = record.floor
        assert self.fence is not None
        position, seq = self.fence[1]
        if position >= floor[0] and seq >= floor[1]:
            return False
        if record.given_up != (0, 0):
            sometimes("backlog_dropped_and_store_forgot")
            why = "dropped by backlog_bytes_max (events, too), and the store forgot"
        elif self.world.lossy and seq >= floor[1]:
            why = "dropped by a limit, and the store forgot"
        else:
            return False
        upto = (max(position, floor[0]), max(seq, floor[1]))
        gap = FeedEvent(kinds.GAP, self.world.now, upto[0], "", why, seq=upto[1])
        gap.offset, gap.accepted_ms = position + 1, upto[0]
        self.rows.append(gap)
        self.fence = (instance, upto)
        return True

    def look(self, process: "BrokerProcess") -> None:
        """Note which message has which offset, once it is written."""
        if not self.limit:
            return
        log = process.engine._log
        for offset in range(self.looked_at + 1, log.end + 1):
            try:
                message = log.get(offset)
            except DamagedRows:
                continue
            if message is not None:
                self.logged[offset] = message.payload
                self.looked_at = offset

    def named(self) -> set[bytes]:
        """Return the payloads of messages that gaps have named."""
        return {
            self.logged[offset]
            for row in self.rows
            if isinstance(row, FeedEvent) and row.kind == kinds.GAP and row.offset
            for offset in range(row.offset, row.accepted_ms + 1)
            if offset in self.logged
        }

    # The end

    def holds(self, family: str, key: bytes) -> bool:
        """Return whether this row is there because of the mirror."""
        if not self.is_on:
            return False
        if family == tables.FILTERS:
            return key.decode() in self.filters
        return family == tables.HOLDERS and key[8:] == tables.backend_holder(NAME)

    def judge(self) -> None:
        """Compare the store with what clients know. Nothing is under way any more."""
        self._judge_order()
        self._judge_messages()
        self._judge_unlogged()
        if not self._gaps_of_limit(with_events=True):  # their events may tell of anybody
            self._judge_deliveries()
            self._judge_presence()
            self._judge_subscriptions()
            self._judge_retained()
        self._judge_limit()
        self.inbox.judge()
        self.proxied.judge()

    def _gaps_of_limit(self, *, with_events: bool) -> list[FeedEvent]:
        return [
            row
            for row in self.rows
            if isinstance(row, FeedEvent)
            and row.kind == kinds.GAP
            and row.text.startswith("dropped by backlog_bytes_max")
            and (not with_events or "events" in row.text)
        ]

    def _judge_limit(self) -> None:
        process = self.world.up()
        assert process is not None
        if self._gaps_of_limit(with_events=False):
            sometimes("backlog_dropped")
            if not self.limit:
                raise Violation("stores_are_told_all", "rows were dropped without a limit")
        if process.engine.feeds.is_refusing(NAME):
            raise Violation("liveness", "messages are refused though the store has everything")

    def _judge_order(self) -> None:
        position = seq = 0
        for row in self.rows:
            if isinstance(row, FeedEvent):
                is_old = row.seq < seq if row.kind == kinds.GAP else row.seq <= seq
                if is_old or row.end < position:
                    raise Violation(
                        "stores_are_told_all", f"{row} of offset {row.end} came after {position}"
                    )
                seq = row.seq
            else:
                if row.offset <= position:
                    raise Violation(
                        "stores_are_told_all", f"offset {row.offset} came after {position}"
                    )
                position = row.offset

    def _told(self) -> list[tuple[Row, Message]]:
        """Return all messages that the store has, each with its row."""
        found: list[tuple[Row, Message]] = []
        for row in self.rows:
            if isinstance(row, Message):
                found.append((row, row))
            elif row.kind == kinds.PUBLISHED:
                found.append((row, message_of(row)))
        return found

    def _judge_unlogged(self) -> None:
        """Messages with QoS 0 are asked for, come in order, and have one number each."""
        oracle = self.world.oracle
        by_number: dict[int, Message] = {}
        last: dict[tuple[str, int], int] = {}
        messages: set[tuple[str, bytes]] = set()
        for row, message in self._told():
            messages.add((message.topic, message.payload))
            if isinstance(row, FeedEvent):
                sometimes("store_got_qos0")
                by_number[message.offset] = message
                if message.qos or not any(filter_matches(each, row.text) for each in self.qos0):
                    raise Violation("stores_are_told_all", f"{row} was not asked for")
            index = index_of(message)
            sent = None if index is None else oracle.sent[index]
            if sent is None or sent.is_will or sent.transmissions != 1:
                continue
            before = last.get((sent.publisher, sent.connect), -1)
            if before >= sent.index:
                raise Violation("stores_are_told_all", f"{sent} came after {before}")
            last[sent.publisher, sent.connect] = sent.index
        for row in self.rows:
            if not isinstance(row, FeedEvent) or row.kind != kinds.RETAINED or row.qos:
                continue
            if row.offset & kinds.UNSTORED and row.offset in by_number:
                told, kept = by_number[row.offset], decode_message(row.body, 0)
                if (told.topic, told.payload) != (kept.topic, kept.payload):
                    raise Violation("stores_are_told_all", f"{row} has the number of another")
                sometimes("store_got_retained_qos0")
            elif not row.offset and not row.username and self.asks_for_qos0(row.text):
                kept = decode_message(row.body, 0)
                if not self._may_drop_qos0() or (kept.topic, kept.payload) in messages:
                    raise Violation("stores_are_told_all", f"{row} is another message there")

    def _may_drop_qos0(self) -> bool:
        """May a message with QoS 0 be retained and not there? The log had no room for it."""
        settings = self.world.settings
        is_limited = settings.store_qos0 and settings.total_bytes_max
        return bool(is_limited) and settings.on_limit != "drop_oldest"

    def asks_for_qos0(self, topic: str) -> bool:
        """Return whether the store wants messages with QoS 0 of a topic."""
        return any(filter_matches(each, topic) for each in self.qos0)

    def _must_have(self, sent: "Sent") -> bool:
        """Must the store have a message with QoS 0?

        A later one of its publisher was acknowledged on the same connection, and the store wants
        both: what the broker knew of the first one is durable with the second one.
        """
        world = self.world
        if world.lossy or world.refusing_seen or any(world.profile.damages):
            return False
        if world.settings.store_qos0 or not self.asks_for_qos0(sent.topic):
            return False
        return any(
            later.publisher == sent.publisher
            and later.connect == sent.connect
            and later.index > sent.index
            and later.transmissions == 1
            and later.qos > 0
            and later.acked_step > 0
            and any(filter_matches(each, later.topic) for each in self.filters)
            for later in world.oracle.sent
        )

    def _judge_messages(self) -> None:
        oracle = self.world.oracle
        found: dict[int, int] = {}
        topics: dict[int, str] = {}
        has_gap = False
        for row in self.rows:
            if isinstance(row, FeedEvent):
                has_gap |= row.kind == kinds.GAP
                if row.kind == kinds.ACKED and topics.get(row.offset, row.text) != row.text:
                    raise Violation("stores_are_told_all", f"{row} names the wrong topic")
            else:
                topics[row.offset] = row.topic
        for _, message in self._told():
            index = index_of(message)
            if index is not None:
                found[index] = found.get(index, 0) + 1
        named = {payload.partition(b".")[0] for payload in self.named()}
        for sent in oracle.sent:
            count = found.get(sent.index, 0)
            if sent.qos == 0:
                if count > 1:
                    raise Violation("stores_are_told_all", f"{sent} is there {count} times")
                if not count and not sent.clears and not has_gap and self._must_have(sent):
                    raise Violation("stores_are_told_all", f"{sent} is not there")
                continue
            if sent.qos == 2 and count > max(sent.attempts, 1):
                raise Violation("stores_are_told_all", f"{sent} is there {count} times")
            if not sent.acked_step or sent.clears or count:
                continue
            if not any(filter_matches(each, sent.topic) for each in self.filters):
                continue
            if b"%d" % sent.index in named:
                continue
            if sent.index in oracle.lost or (self.world.lossy and has_gap):
                continue
            if self.world.settings.on_limit == "drop_new" and self.world.lossy:
                continue
            raise Violation("stores_are_told_all", f"{sent} was acknowledged and is not there")

    def _judge_deliveries(self) -> None:
        """A client can only acknowledge what was sent to it."""
        if self.world.lossy or self.world.profile.damages[1]:
            return
        sent: set[tuple[str, int]] = set()
        for row in self.rows:
            if isinstance(row, FeedEvent) and row.kind == kinds.SENT and row.offset:
                sent.add((row.client_id, row.offset))
            elif isinstance(row, FeedEvent) and row.kind == kinds.ACKED and row.offset:
                if (row.client_id, row.offset) not in sent:
                    raise Violation("stores_are_told_all", f"{row} was never sent")

    def _judge_presence(self) -> None:
        told: dict[str, bool] = {}
        for row in self._known_events():
            if row.kind in (kinds.CONNECTED, kinds.DISCONNECTED):
                told[row.client_id] = row.kind == kinds.CONNECTED
        process = self.world.up()
        assert process is not None
        online = set(process.engine._sessions.live)
        said = {name for name, is_online in told.items() if is_online}
        if said != online:
            raise Violation(
                "stores_are_told_all", f"{sorted(said)} are online there, {sorted(online)} are"
            )

    def _judge_subscriptions(self) -> None:
        told: dict[str, dict[str, int]] = {}
        for row in self._known_events():
            if row.kind == kinds.SUBSCRIBED:
                told.setdefault(row.client_id, {})[row.text] = row.qos
            elif row.kind == kinds.UNSUBSCRIBED:
                told.get(row.client_id, {}).pop(row.text, None)
            elif row.kind == kinds.SESSION_ENDED:
                told.pop(row.client_id, None)
        process = self.world.up()
        assert process is not None
        if self.world.profile.damages[1]:
            return  # subscriptions that cannot be read are lost without an event
        for name, connection in process.engine._sessions.live.items():
            session = connection.session
            assert session is not None
            held = {text: each.qos for text, each in session.subscriptions.items()}
            if told.get(name, {}) != held:
                raise Violation(
                    "stores_are_told_all", f"{name} has {held}, the store {told.get(name, {})}"
                )
        for key, _ in tables.scan_all(process.store, tables.SUBSCRIPTIONS, b"", None):
            client_id, _, text = key.decode().partition("\0")
            if text not in told.get(client_id, {}):
                raise Violation("stores_are_told_all", f"{text} of {client_id} is not there")

    def _judge_retained(self) -> None:
        told: dict[str, bytes] = {}
        for row in self._known_events():
            if row.kind == kinds.RETAINED:
                told[row.text] = decode_message(row.body, 0).payload
            elif row.kind == kinds.RETAIN_DELETED:
                told.pop(row.text, None)
        process = self.world.up()
        assert process is not None
        if any(self.world.profile.damages):
            return
        held = {
            tables.retained_topic(key): decode_message(value, 0).payload
            for key, value in tables.scan_all(process.store, tables.RETAINED, b"", None)
        }
        if held.get(RETAINED, b"")[:1] == MARK:
            held.pop(RETAINED, None)  # it comes from there
            told.pop(RETAINED, None)
        if told != held:
            raise Violation("stores_are_told_all", f"retained are {held}, the store has {told}")

    def _known_events(self) -> list[FeedEvent]:
        """Return the events that the store has not forgotten before it was told again."""
        return [
            row
            for row in self.rows
            if isinstance(row, FeedEvent) and row.seq > self.refill.forgotten
        ]


def index_of(message: Message) -> int | None:
    """Return which message of the world it is, None if that does not say it."""
    index, dot, _ = message.payload.partition(b".")
    return int(index) if dot and index.isdigit() else None


class Pump:
    """What one process of the broker does to feed the store."""

    def __init__(self, process: "BrokerProcess", mirror: Mirror) -> None:
        self.process: Final = process
        self.mirror: Final = mirror
        self.run = 0
        self.known: Cursor = (0, 0)  # the store's cursor, as far as it has answered
        self.begun = False
        self.waiting: list[tuple[Cursor, FeedPage]] = []  # pages read and not confirmed, in order
        self.is_sending = False
        self.asked_anew = 0  # how often all questions were asked again
        self.questions = Questions(self)
        self.changes = Changes(self)
        # Serial of the batch that begins a backfill, and the last event before it.
        self.filling: tuple[int, int] | None = None
        mirror.watch(process)
        process.world.after(STEP_MS, self.step)

    def is_done(self) -> bool:
        """Is there nothing left to send?"""
        feeds = self.process.engine.feeds
        is_asked = self.process.engine.requests.owed(NAME) > 0
        is_filled = self.mirror.refill.is_done(self)
        is_known = feeds.cursor(NAME) == self.known
        is_idle = not self.waiting and not is_asked and self.changes.is_done()
        return self.begun and is_idle and is_known and is_filled

    def step(self) -> None:
        """Do what a shell does now and then."""
        process = self.process
        if process.dead or process.failed or process.thaws(self.step):
            return
        process.world.after(STEP_MS + int(self.mirror.random.random() * STEP_MS), self.step)
        if self.mirror.is_away():
            self._is_away()
            return
        try:
            if not self.begun:
                self._begin()
            elif not self.waiting and self.mirror.fence is not None:
                if self.mirror.fence[1] == self.known:
                    process.engine.feeds.heard(NAME)
            self._read()
        except Unrecoverable as error:
            process.world.fail_stop(str(error))
            return
        self._send()
        self.mirror.refill.step(self)
        self.questions.ask()
        self.changes.step()
        self.changes.answer()
        process.schedule_tick()

    def _is_away(self) -> None:
        """The store does not answer, which may be noticed or not."""
        proxied, process = self.mirror.proxied, self.process
        if proxied.wait_ms and proxied.random.random() < 0.5:
            sometimes("proxy_store_known_to_be_down")
            process.engine.proxy.store_is(NAME, is_up=False)
            self.begun = False
            process.schedule_tick()

    def _begin(self) -> None:
        feeds, mirror = self.process.engine.feeds, self.mirror
        instance = feeds.instance(NAME)
        cursor = feeds.cursor(NAME)
        fence = mirror.fence
        if fence is not None and fence[0] == instance:
            end = feeds.end()
            if fence[1][0] > end[0] or fence[1][1] > end[1]:
                raise Violation(
                    "stores_are_told_all", f"the store is at {fence[1]}, the broker at {end}"
                )
            if mirror.is_given_up(feeds, instance):
                fence = mirror.fence
                assert fence is not None
            floor = feeds.floor(NAME)
            if fence[1][0] < floor[0] or fence[1][1] < floor[1]:
                raise Violation(
                    "stores_are_told_all", f"the store is at {fence[1]}, the floor at {floor}"
                )
            if fence[1] < cursor:
                sometimes("store_read_again")
            else:
                feeds.confirm(NAME, fence[1])
            cursor = fence[1]
        mirror.start(instance, cursor)
        self.known = cursor
        self.run += 1
        self.waiting.clear()
        self.is_sending = False
        feeds.begin(NAME, cursor)
        self.process.engine.requests.ask_again(NAME)
        self.asked_anew += 1
        self.changes.begun()
        self.process.engine.proxy.store_is(NAME, is_up=True)
        self.begun = True

    def _read(self) -> None:
        while len(self.waiting) < 3:
            page = self.process.engine.feeds.read(
                NAME, self.mirror.random.choice((1, 3, 50)), self.mirror.random.choice((1, 10_000))
            )
            if page is None:
                return
            after = self.waiting[-1][1].upto if self.waiting else self.known
            self.waiting.append((after, page))

    def _send(self) -> None:
        if self.waiting and not self.is_sending:
            self.is_sending = True
            after, page = self.waiting[0]
            delay = int(self.mirror.random.random() * 40)
            self.process.world.after(delay, self._arrives, self.run, after, page)

    def _arrives(self, run: int, after: Cursor, page: FeedPage) -> None:
        mirror, process = self.mirror, self.process
        if process.dead:
            # It was on its way when the broker died: it may arrive all the same.
            if mirror.random.random() < 0.5:
                mirror.apply(process.engine.feeds.instance(NAME), after, page.upto, page.rows)
            return
        if run != self.run or process.failed:
            return
        if process.world.faults and mirror.random.random() < 0.03:
            mirror.forget()
        was_applied = mirror.apply(process.engine.feeds.instance(NAME), after, page.upto, page.rows)
        answer = self._answered if was_applied else self._refused
        if process.world.faults and mirror.random.random() < 0.05:
            answer = self._unanswered  # the answer is lost: it is sent again
        process.world.after(int(mirror.random.random() * 40), answer, run)

    def _answered(self, run: int) -> None:
        process = self.process
        if process.dead or process.failed or run != self.run:
            return
        if process.thaws(self._answered, run):
            return
        self.is_sending = False
        _, page = self.waiting.pop(0)
        self.known = page.upto
        process.engine.feeds.confirm(NAME, page.upto, self.mirror.refuse(page))
        process.schedule_tick()

    def _unanswered(self, run: int) -> None:
        if run == self.run:
            self.is_sending = False

    def _refused(self, run: int) -> None:
        if run == self.run:
            self.begun = False
