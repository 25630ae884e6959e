"""Brings the feed of one store to its process: what, when, and what becomes of it.

Works on the loop's thread, in slices, inside ticks of the driver. It looks for rows when a commit
has become durable, at most every 20 ms, so that an idle broker pays nothing and a loaded one does
not read in every turn. Rows leave in batches; a few of them may be unanswered. Must never stop
MQTT: whatever goes wrong here ends the process of the store, which is started again, and the store
then says where to go on.

    process            pump
    {"cursor": c}  ->             after each connect
                   <-  START      a run: its batches follow, the first one after the start's cursor
                   <-  BATCH ...  at most `UNANSWERED_MAX`
    {"done": c}    ->             confirmed, with the next commit

Read next: `broker.backends.resumption` (where a run starts) and `session.feed.outlet` (the rows).
"""

import asyncio
import binascii
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from broker.backends import resumption
from broker.backends.backoff import Backoff
from broker.backends.inbox import questions
from broker.backends.link import Answer, LinkFailed
from broker.backends.rows import (
    CHANGED,
    CONFIG,
    FETCH,
    Cursor,
    Row,
    RowBatch,
    Start,
    encode_batch,
    encode_start,
    json_frame,
)
from broker.loop.driver import Driver
from broker.observe.backend_figures import (
    CONNECTED,
    CONNECTING,
    DISCONNECTED,
    FAILED,
    STARTING,
    BackendFigures,
)
from broker.observe.structured_log import Log
from mqtt import reasons
from session.engine import Engine
from session.feed.dead_letters import DeadLetter
from session.packets.proxy import REFUSED, UNKNOWN
from session.packets.told_changes import ToldChange, ToldChanges
from storage.tables.feed_rows import GAP, FeedEvent, filled_for
from storage.tables.fetch_rows import SUBSCRIPTIONS

UNANSWERED_MAX: Final = 4  # batches: the process has one, the next one waits in the pipe
BATCH_ROWS: Final = 500  # the most that may be configured
BATCH_BYTES: Final = 1 << 20
SLICE_ROWS: Final = 128  # read in one turn of the loop: 1 to 3 ms
SLICE_PAUSE_S: Final = 0.001
LOOK_S: Final = 0.02  # between a commit and the look at what it brought
# A cursor that passes over what others wanted is written this often: rows of events are kept until
# every store has passed them.
PASS_S: Final = 5.0
# Questions for sessions that the process has not answered: an answer is 256 KiB, or one message.
ASKED_MAX: Final = 4
ASK_AGAIN_S: Final = 0.5  # between looks at sessions that have no room for an answer
# Whoever may publish may be able to make rows that a store refuses: they must not fill the disk.
DEAD_LETTERS_MAX: Final = 10_000
DEAD_LETTER_BYTES_MAX: Final = 64 << 10  # of a row that is kept with its letter
REFUSALS_SHOWN: Final = 10  # in the log, of one answer
INSTANCE_BYTES: Final = 8

STATES: Final = frozenset({CONNECTING, CONNECTED, DISCONNECTED})


class Link(Protocol):
    """A process that writes to a store, as the pump sees it."""

    async def open(self) -> None:
        """Start the process."""
        ...

    def has_room(self) -> bool:
        """Return whether a frame may be sent."""
        ...

    def send(self, frame: bytes) -> None:
        """Hand over a frame."""
        ...

    def kill(self) -> None:
        """End the process; nothing more is heard of it."""
        ...

    async def wait_gone(self) -> None:
        """Return once the process has ended."""
        ...


# Makes a link; it calls the first function with each answer, the second one when it has ended.
MakeLink: TypeAlias = Callable[[Callable[[Answer], None], Callable[[str], None]], Link]


class Sent:
    """A batch that is not answered yet."""

    __slots__ = ("gaps", "oldest_ms", "upto")

    def __init__(self, upto: Cursor, rows: Sequence[Row]) -> None:
        self.upto: Final = upto
        self.oldest_ms: Final = _made_ms(rows[0]) if rows else 0  # 0 = it has no rows
        self.gaps: Final = [
            row for row in rows if isinstance(row, FeedEvent) and row.kind == GAP
        ]  # told once they are confirmed


class Pump:
    """Feeds one store until closed."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        driver: Driver,
        configuration: dict[str, Any],
        make_link: MakeLink,
        log: Log,
        *,
        is_required: bool = False,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`configuration` is what the process is told first, without the instance.

        `changed` is called when the store can be reached or no more.
        """
        self.name: Final = name
        self._outlet: Final = engine.feeds
        self._requests: Final = engine.requests
        self._reach: bool | None = None  # can the store be asked? None = not known yet
        self._inbox: Final = engine.inbox
        self._proxy: Final = engine.proxy
        self._changes: Final = ToldChanges(name, engine.proxy, lambda: engine.settled_by)
        # Questions that are not answered, with the loop's time when they were sent.
        self._asked: Final[dict[int, float]] = {}
        self._ask_timer: asyncio.TimerHandle | None = None
        self._engine: Final = engine
        self._driver: Final = driver
        self._configuration: Final = configuration
        self._make_link: Final = make_link
        self._log: Final = log
        self._changed: Final = changed
        self._figures: Final = BackendFigures(name, is_required=is_required)
        self._link: Link | None = None
        self._opening: asyncio.Task[None] | None = None
        self._leaving: list[Link] = []  # killed, and not gone yet
        self._error: str = ""  # what the process said that it cannot go on for
        options: dict[str, Any] = configuration.get("options", {})
        self._backoff: Final = Backoff(options)
        self._batch_rows: Final[int] = options.get("batch_rows", BATCH_ROWS)
        self._linger_s: Final[float] = options.get("linger_ms", 0) / 1000
        self._retry: asyncio.TimerHandle | None = None
        self._renewed: int = 0  # the instance is durable with this batch
        self._run: int = 0
        self._is_running = False  # may batches of this run be sent?
        self._unanswered: Final[deque[Sent]] = deque()
        # What was read and not sent, and where reading is.
        self._rows: list[Row] = []
        self._bytes: int = 0
        self._first_at: float = 0.0  # when the first of these was read
        self._read: Cursor = (0, 0)
        self._sent: Cursor = (0, 0)
        self._sent_at: float = 0.0
        self._may_read = False
        self._is_dry = False  # has everything durable been read?
        self._timer: asyncio.TimerHandle | None = None
        self._look_at: float = 0.0  # when it fires
        self._is_paused = False
        self._is_closed = False
        self._is_sound = True
        self._was_refusing = False
        self._drops: int = 0  # of the outlet, as far as the log has them

    # For the process around it.

    def start(self) -> None:
        """Start the process of the store, and read ahead for it."""
        self._guarded(self._begin, self._outlet.cursor(self.name))
        self._requests.listen(self.name, self._ask_at_once)
        self._connect()

    def commits_durable(self) -> None:
        """Look for rows soon; call it when a commit has become durable."""
        self._is_dry = False
        self._look_after(LOOK_S)
        self._tell_full()
        self._answer_changes()

    def pause(self) -> None:
        """Send nothing more until `resume`; rows wait in the database."""
        self._is_paused = self._figures.is_paused = True
        self._note_reach()

    def resume(self) -> None:
        """Send again."""
        self._is_paused = self._figures.is_paused = False
        self._note_reach()
        self._look_after(0)
        self._ask_after(0)

    def figures(self) -> BackendFigures:
        """Return the figures of this moment."""
        figures, outlet = self._figures, self._outlet
        stats = outlet.stats(self.name)
        figures.cursor = outlet.cursor(self.name)
        figures.rows_behind = stats.messages_behind + stats.events_behind
        figures.backlog_bytes = stats.backlog_bytes
        figures.is_refusing = outlet.is_refusing(self.name)
        figures.dead_letters = stats.dead_letters
        figures.fetches_owed = self._requests.owed(self.name) - self._requests.held(self.name)
        oldest_ms = next((sent.oldest_ms for sent in self._unanswered if sent.oldest_ms), 0)
        if not oldest_ms and self._rows:
            oldest_ms = _made_ms(self._rows[0])
        figures.lag_s = max(0, self._driver.now - oldest_ms) / 1000 if oldest_ms else 0.0
        return figures

    @property
    def is_up(self) -> bool:
        """Whether the store can be reached."""
        return self._figures.is_up

    @property
    def is_required(self) -> bool:
        """Whether the broker is not ready without it."""
        return self._figures.is_required

    async def close(self) -> None:
        """End the process, and wait for that."""
        self._is_closed = True
        for timer in (self._timer, self._retry, self._ask_timer):
            if timer is not None:
                timer.cancel()
        self._drop_link()
        for link in self._leaving:
            await link.wait_gone()

    # The process.

    def _connect(self) -> None:
        """Start the process, unless what it must be told is not durable yet."""
        self._retry = None
        if self._is_closed:
            return
        if self._engine.durable < self._renewed:
            self._retry = self._driver.loop.call_later(LOOK_S, self._connect)
            return
        self._note_state(STARTING, "")
        self._link = link = self._make_link(self._answered, self._link_ended)
        self._opening = self._driver.loop.create_task(self._open(link))

    async def _open(self, link: Link) -> None:
        try:
            await link.open()
        except LinkFailed as problem:
            if self._link is link:
                self._link_ended(str(problem))
            return
        if self._link is link:
            self._guarded(self._introduce, link)

    def _introduce(self, link: Link) -> None:
        told = {**self._configuration, "instance": self._outlet.instance(self.name)}
        link.send(json_frame(CONFIG, told))

    def _link_ended(self, why: str) -> None:
        """Note that the process is gone; start it again after a while."""
        self._link = None
        self._changes.forget()  # the next process tells of them again
        self._end_run()
        why, self._error = self._error or why, ""
        delay_s = self._backoff.failed()
        self._figures.retries += 1
        self._note_state(FAILED, why)
        self._log.warning(
            "backend_failed",
            f"{why}; it is started again",
            backend=self.name,
            retry_s=round(delay_s, 3),
        )
        if self._retry is None and not self._is_closed:
            self._retry = self._driver.loop.call_later(delay_s, self._connect)

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.kill()
            self._leaving = [self._link]
            self._link = None
            self._changes.forget()
        self._end_run()

    def _end_run(self) -> None:
        self._is_running = False
        self._unanswered.clear()
        self._asked.clear()
        self._requests.ask_again(self.name)

    def _guarded(self, call: Callable[..., None], *arguments: object) -> None:
        """Call inside a tick; after a bug, which the driver has logged, begin anew."""
        self._is_sound = False
        self._driver.run(self._try, call, *arguments)
        if not self._is_sound and not self._is_closed:
            self._may_read = False  # until the store says where to go on
            self._drop_link()
            self._link_ended("an internal error, which is in the log")

    def _try(self, call: Callable[..., None], *arguments: object) -> None:
        call(*arguments)
        self._is_sound = True

    # What the process says.

    def _answered(self, answer: Answer) -> None:
        self._guarded(self._take, answer)

    def _take(self, answer: Answer) -> None:
        if "done" in answer:
            self._take_done(answer)
        elif "fetched" in answer:
            self._take_fetched(answer)
        elif "cursor" in answer:
            self._take_cursor(answer)
        elif "change" in answer:
            number, client_id = int(answer["change"]), str(answer["client_id"])
            change = ToldChange(number, client_id, str(answer["topic"]), answer["qos"])
            self._changes.add(change)
            self._make_changes()
        elif "alive" in answer:
            if self._is_running:
                self._outlet.heard(self.name)
        elif answer.get("state") in STATES:
            self._take_state(str(answer["state"]), str(answer.get("why", "")))
        elif "listening" in answer:
            what = f"applications are heard on {answer['listening']}"
            self._log.info("backend_listening", what, backend=self.name)
        elif "unheard" in answer:
            what = f"applications are not heard: {answer['unheard']}"
            self._log.warning("backend_listening", what, backend=self.name)
        elif "unreadable" in answer:
            what = f"what an application has told is no change: {answer['unreadable']}"
            self._log.warning("backend_change_refused", what, backend=self.name)
        elif "error" in answer:
            self._error = str(answer["error"])  # it ends now, which is told then

    def _take_state(self, state: str, why: str) -> None:
        before = self._figures.state
        self._note_state(state, why)
        if state == CONNECTED and before != CONNECTED:
            self._log.info("backend_connected", "the store can be reached", backend=self.name)
        elif state == DISCONNECTED:
            self._figures.retries += 1
            if before != DISCONNECTED:
                self._log.warning("backend_disconnected", why, backend=self.name)

    def _note_state(self, state: str, why: str) -> None:
        figures = self._figures
        figures.state = state
        if why:
            figures.why = why
        # While it tries again it is as it was: down, or not known to be.
        self._note_reach()
        is_up = figures.is_up if state == CONNECTING else state == CONNECTED
        if is_up != figures.is_up:
            figures.is_up = is_up
            self._changed()

    def _note_reach(self) -> None:
        """Tell the broker whether the store can be asked: clients may wait for its answers."""
        state = self._figures.state
        reach = self._reach
        if state == CONNECTED or self._is_paused:
            reach = not self._is_paused
        elif state in (DISCONNECTED, FAILED):
            reach = False
        if reach is not None and reach != self._reach and not self._is_closed:
            self._reach = reach
            # In a turn of its own: this may be the middle of another one.
            self._driver.loop.call_soon(self._tell_reach)

    def _tell_reach(self) -> None:
        if self._reach is not None and not self._is_closed:
            self._guarded(self._apply_reach)

    def _apply_reach(self) -> None:
        self._proxy.store_is(self.name, is_up=self._reach is True)

    def _take_cursor(self, answer: Answer) -> None:
        """Go on where the store is."""
        outlet, name = self._outlet, self.name
        theirs = None if answer["cursor"] is None else _cursor(answer["cursor"])
        found = resumption.resume(
            theirs,
            answer["instance"] == outlet.instance(name),
            had_ours=self._run > 0,
            floor=outlet.floor(name),
            confirmed=outlet.cursor(name),
            end=outlet.end(),
        )
        self._tell(found, theirs)
        if found.kind == resumption.AHEAD:
            outlet.renew(name, secrets.token_hex(INSTANCE_BYTES))
            self._renewed = self._engine.written + 1
            self._drop_link()
            self._retry = self._driver.loop.call_later(LOOK_S, self._connect)
            return
        if found.kind == resumption.ON and found.cursor != outlet.cursor(name):
            self._take_unheard(found.cursor, answer.get("refused", ()))
        assert self._link is not None
        self._end_run()
        self._run += 1
        self._begin(found.cursor)
        is_rewind = found.kind in (resumption.REWIND, resumption.LOST)
        self._link.send(encode_start(Start(self._run, found.cursor, is_rewind=is_rewind)))
        self._is_running = True

    def _tell(self, found: resumption.Resumption, theirs: Cursor | None) -> None:
        """Log and count what the store's cursor means, if it is not as it should be."""
        kind, log, backend = found.kind, self._log, self.name
        confirmed = self._outlet.cursor(backend)
        if kind in (resumption.REWIND, resumption.LOST):
            self._figures.rewinds += 1
            log.warning(
                "backend_rewound",
                f"the store has lost what it had confirmed: it is at {theirs or 'nothing'}, not at "
                f"{confirmed}; "
                f"everything after {found.cursor} is sent again",
                backend=backend,
            )
        if kind == resumption.LOST:
            self._tell_gap(
                f"the rows between {theirs or 'its beginning'} and {found.cursor} are not kept any "
                "more (rewind_keep)"
            )
            first = 1 if theirs is None else theirs[0] + 1
            if first <= found.cursor[0]:
                self._outlet.note_lost_there(backend, first, found.cursor[0])
        elif kind == resumption.AHEAD:
            log.warning(
                "backend_ahead",
                f"the store is at {theirs} and this database at {self._outlet.end()}: an earlier "
                f"copy was restored; it goes on from {found.cursor}, under a new mark",
                backend=backend,
            )
        elif kind == resumption.NEW:
            log.info(
                "backend_new",
                f"the store has nothing of this database; it starts at {found.cursor}",
                backend=backend,
            )

    def _tell_full(self) -> None:
        """Log it if too much waits, once for each time that something is done about it."""
        drops = self._outlet.drops(self.name)
        if drops != self._drops:
            self._drops = drops
            self._log.warning(
                "backend_full",
                "backlog_bytes_max is reached: the oldest rows are dropped",
                backend=self.name,
            )
        is_refusing = self._outlet.is_refusing(self.name)
        if is_refusing != self._was_refusing:
            self._was_refusing = is_refusing
            if is_refusing:
                what = "backlog_bytes_max is reached: QoS 1 and 2 messages for it are refused"
                self._log.warning("backend_full", what, backend=self.name)
            else:
                what = "messages are taken again"
                self._log.info("backend_has_room", what, backend=self.name)

    def _tell_gap(self, what: str) -> None:
        self._figures.gaps += 1
        self._log.error("backend_gap", f"{what}; the store does not get them", backend=self.name)

    def _tell_gap_row(self, gap: FeedEvent) -> None:
        what = gap.text
        if gap.offset:
            what += (
                f": the messages {gap.offset} to {gap.accepted_ms} of the log, as far as rules "
                "want them"
            )
        self._tell_gap(what)

    def _take_done(self, answer: Answer) -> None:
        """Confirm what the store has, with its dead letters."""
        outlet, name = self._outlet, self.name
        cursor = _cursor(answer["done"])
        dead, refused = self._dead_letters(answer.get("dead", ()))
        if answer["run"] != self._run or not self._is_running:
            if dead:  # of a batch before the connection was lost
                outlet.confirm(name, outlet.cursor(name), dead)
            return
        sent = self._unanswered.popleft()
        assert sent.upto == cursor, f"{cursor} is answered, expected {sent.upto}"
        outlet.confirm(name, cursor, dead, refused)
        for gap in sent.gaps:
            self._tell_gap_row(gap)
        self._figures.rows += int(answer["rows"])
        self._figures.batch_seconds.add(float(answer["ms"]) / 1000)
        self._backoff.worked()
        self._push()

    def _take_unheard(self, cursor: Cursor, refused: Sequence[Any]) -> None:
        """Confirm what the store had applied when its answer was lost, with its dead letters.

        These come without their rows.
        """
        confirmed = self._outlet.cursor(self.name)
        retried = self._outlet.retried(self.name)
        unheard = [
            # A row that was sent again is known by its event, which ends its batch.
            {**each, "row": "", "at": each["upto"] if each["upto"][1] in retried else each["at"]}
            for each in refused
            if each["upto"][0] > confirmed[0] or each["upto"][1] > confirmed[1]
        ]
        dead, refused = self._dead_letters(unheard)
        self._outlet.confirm(self.name, cursor, dead, refused)

    def _dead_letters(self, told: Sequence[Any]) -> tuple[list[DeadLetter], list[Cursor]]:
        """Tell of the rows that the store has refused; return those that are kept.

        And the cursors of the others.
        """
        room = DEAD_LETTERS_MAX - self._outlet.stats(self.name).dead_letters if told else 0
        kept: list[DeadLetter] = []
        gone: list[Cursor] = []
        for letter in map(_dead_letter, told):
            self._log.error(
                "backend_dead_letter",
                f"rule {letter.rule}: {letter.why}",
                backend=self.name,
                position=letter.at[0],
                event_number=letter.at[1],
            )
            if len(kept) < room:
                kept.append(letter)
            else:
                gone.append(letter.at)
        if len(kept) < len(told):
            self._tell_gap(
                f"{len(told) - len(kept)} rows were refused while {DEAD_LETTERS_MAX} dead letters "
                "are kept already"
            )
        return kept, gone

    # Rows.

    def _begin(self, cursor: Cursor) -> None:
        """Read on from `cursor`."""
        self._outlet.begin(self.name, cursor)
        self._rows = []
        self._bytes = 0
        self._read = self._sent = cursor
        self._may_read = True
        self._is_dry = False
        self._look_after(0)

    def _look_after(self, delay_s: float) -> None:
        """Look for rows then, or when that was to be anyway, if it is sooner."""
        loop = self._driver.loop
        look_at = loop.time() + delay_s
        if self._is_closed or (self._timer is not None and self._look_at <= look_at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._look_at = look_at
        self._timer = loop.call_at(look_at, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._may_read:
            self._guarded(self._work)

    def _work(self) -> None:
        """Read a slice, send a batch that is complete, and see to it that this goes on."""
        if not self._is_full():
            self._read_slice()
        self._push()

    # Questions for sessions.

    def _ask(self) -> None:
        """Ask what sessions want to know, as far as the store has what it must have before."""
        if not self._requests.is_on or not self._is_running or self._is_paused:
            return
        assert self._link is not None
        is_idle = not self._rows and not self._unanswered
        reached = self._read if is_idle else self._outlet.cursor(self.name)
        while len(self._asked) < ASKED_MAX and self._link.has_room():
            request = self._requests.next(self.name, reached)
            if request is None:
                break
            self._link.send(json_frame(FETCH, questions.ask(request, self._run)))
            self._asked[request.number] = self._driver.loop.time()
        asked = len(self._asked)
        if asked < ASKED_MAX and self._requests.owed(self.name) > asked:
            self._ask_after(ASK_AGAIN_S)

    def _ask_after(self, delay_s: float) -> None:
        if self._ask_timer is None and not self._is_closed:
            self._ask_timer = self._driver.loop.call_later(delay_s, self._ask_now)

    def _ask_at_once(self) -> None:
        if self._ask_timer is not None:
            self._ask_timer.cancel()
            self._ask_timer = None
        self._ask_after(0)

    def _ask_now(self) -> None:
        self._ask_timer = None
        self._guarded(self._make_changes)
        self._guarded(self._ask)

    def _take_fetched(self, answer: Answer) -> None:
        sent_at = self._asked.pop(int(answer["fetched"]), None)
        if sent_at is not None:
            self._figures.fetch_seconds.add(self._driver.loop.time() - sent_at)
        if answer["why"]:
            self._log.error("backend_fetch_refused", str(answer["why"]), backend=self.name)
        if answer["kind"] == SUBSCRIPTIONS:
            self._take_listed(answer)
        else:
            self._take_messages(answer)
        self._ask()

    def _take_messages(self, answer: Answer) -> None:
        self._inbox.fetched(
            int(answer["fetched"]),
            questions.messages_of(answer, self.name),
            str(answer["upto"]),
            more=bool(answer["more"]),
        )

    def _take_listed(self, answer: Answer) -> None:
        """Subscribe a client to what the store lists for it."""
        if answer["unusable"]:
            self._log.warning(
                "backend_fetch_refused",
                f"{answer['unusable']} rows of a client are no topic filters with a QoS of 0 to 2",
                backend=self.name,
            )
        refused = self._proxy.listed(
            int(answer["fetched"]),
            questions.subscriptions_of(answer),
            more=bool(answer["more"]),
            is_refused=bool(answer["why"]),
        )
        for each in refused[:REFUSALS_SHOWN]:
            self._log.warning(
                "backend_subscription_refused",
                f"{each.topic_filter!r}: {reasons.name(each.reason_code)}",
                backend=self.name,
                client_id=each.client_id,
            )

    # Changes that the store tells of by itself.

    def _make_changes(self) -> None:
        """Make the changes that can be made now, in their order."""
        while not self._is_paused and (made := self._changes.make_next()) is not None:
            change, outcome = made
            if outcome.startswith(REFUSED) or outcome == UNKNOWN:
                self._log.warning(
                    "backend_change_refused",
                    f"{change.topic_filter!r}: {outcome}",
                    backend=self.name,
                    client_id=change.client_id,
                )
        if self._changes.are_waiting:
            self._ask_after(ASK_AGAIN_S)
        self._answer_changes()

    def _answer_changes(self) -> None:
        """Tell the process of the changes that are durable."""
        numbers = self._changes.answers(self._engine.durable)
        if numbers and self._link is not None:
            self._link.send(json_frame(CHANGED, numbers))

    def _is_full(self) -> bool:
        return len(self._rows) >= self._batch_rows or self._bytes >= BATCH_BYTES

    def _read_slice(self) -> None:
        count = min(SLICE_ROWS, self._batch_rows - len(self._rows))
        page = self._outlet.read(self.name, count, BATCH_BYTES - self._bytes)
        if page is None:
            self._is_dry = True
            return
        assert page.after == self._read, f"rows after {page.after}, expected {self._read}"
        if not self._rows:
            self._first_at = self._driver.loop.time()
        self._rows += page.rows
        self._bytes += sum(map(_size, page.rows))
        self._read = page.upto
        if page.lost:
            self._tell_gap(
                f"{page.lost} messages or events up to {page.upto} cannot be read (run `holdfast "
                "db check`)"
            )

    def _push(self) -> None:
        """Send what is complete, if it may be sent now; read on if there is room."""
        if self._is_running and not self._is_paused and self._is_complete():
            if len(self._unanswered) < UNANSWERED_MAX:
                self._send()
        if not self._is_full():
            if not self._is_dry:
                self._look_after(SLICE_PAUSE_S)
            elif self._rows and (wait_s := self._lingers_s()) > 0:
                self._look_after(wait_s)
        self._ask()

    def _is_complete(self) -> bool:
        if self._is_full():
            return True
        if self._rows:
            return self._is_dry and self._lingers_s() <= 0
        is_due = self._driver.loop.time() - self._sent_at >= PASS_S
        return is_due and self._read != self._sent and not self._unanswered

    def _lingers_s(self) -> float:
        """Return how long rows that are no full batch still wait for others."""
        return self._first_at + self._linger_s - self._driver.loop.time()

    def _send(self) -> None:
        assert self._link is not None
        if not self._link.has_room():
            self._look_after(LOOK_S)
            return
        rows = self._rows
        self._link.send(encode_batch(RowBatch(self._run, self._sent, self._read, rows)))
        self._unanswered.append(Sent(self._read, rows))
        self._sent = self._read
        self._sent_at = self._driver.loop.time()
        self._rows = []
        self._bytes = 0


def _cursor(value: Any) -> Cursor:
    position, seq = value
    return int(position), int(seq)


def _dead_letter(value: Any) -> DeadLetter:
    row = binascii.a2b_base64(value["row"])
    if len(row) > DEAD_LETTER_BYTES_MAX:
        row = b""
    return DeadLetter(_cursor(value["at"]), str(value["rule"]), str(value["why"]), row)


def _made_ms(row: Row) -> int:
    if isinstance(row, FeedEvent) and filled_for(row):
        return 0  # what was there before does not make the store late
    return row.at_ms if isinstance(row, FeedEvent) else row.accepted_at_ms


def _size(row: Row) -> int:
    if isinstance(row, FeedEvent):
        return len(row.client_id) + len(row.text) + len(row.body)
    return len(row.topic) + len(row.payload) + len(row.properties)
