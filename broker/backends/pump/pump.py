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
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.backends import resumption
from broker.backends.backoff import Backoff
from broker.backends.link import Answer, LinkFailed
from broker.backends.pump.asking import Asking
from broker.backends.pump.port import Link, MakeLink
from broker.backends.pump.row_buffer import BATCH_ROWS, RowBuffer, Sent
from broker.backends.pump.telling import Telling, cursor_of
from broker.backends.rows import CONFIG, Cursor, Start, encode_batch, encode_start, json_frame
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
from session.engine import Engine

UNANSWERED_MAX: Final = 4  # batches: the process has one, the next one waits in the pipe
SLICE_PAUSE_S: Final = 0.001
LOOK_S: Final = 0.02  # between a commit and the look at what it brought
INSTANCE_BYTES: Final = 8

STATES: Final = frozenset({CONNECTING, CONNECTED, DISCONNECTED})


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
        self._reach: bool | None = None  # can the store be asked? None = not known yet
        self._proxy: Final = engine.proxy
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
        self._buffer: Final = RowBuffer(
            options.get("batch_rows", BATCH_ROWS), options.get("linger_ms", 0) / 1000
        )
        self._telling: Final = Telling(name, engine.feeds, self._figures, log)
        self._asking: Final = Asking(
            engine, driver.loop, self._figures, log, self._guarded, self._reached
        )
        self._retry: asyncio.TimerHandle | None = None
        self._renewed: int = 0  # the instance is durable with this batch
        self._run: int = 0
        self._is_running = False  # may batches of this run be sent?
        self._unanswered: Final[deque[Sent]] = deque()
        self._may_read = False
        self._timer: asyncio.TimerHandle | None = None
        self._look_at: float = 0.0  # when it fires
        self._is_paused = False
        self._is_closed = False
        self._is_sound = True

    # For the process around it.

    def start(self) -> None:
        """Start the process of the store, and read ahead for it."""
        self._guarded(self._begin, self._outlet.cursor(self.name))
        self._asking.start()
        self._connect()

    def commits_durable(self) -> None:
        """Look for rows soon; call it when a commit has become durable."""
        self._buffer.is_dry = False
        self._look_after(LOOK_S)
        self._telling.full()
        self._asking.answer_changes()

    def pause(self) -> None:
        """Send nothing more until `resume`; rows wait in the database."""
        self._is_paused = self._figures.is_paused = True
        self._asking.pause()
        self._note_reach()

    def resume(self) -> None:
        """Send again."""
        self._is_paused = self._figures.is_paused = False
        self._note_reach()
        self._look_after(0)
        self._asking.resume()

    def figures(self) -> BackendFigures:
        """Return the figures of this moment."""
        figures, outlet, requests = self._figures, self._outlet, self._engine.requests
        stats = outlet.stats(self.name)
        figures.cursor = outlet.cursor(self.name)
        figures.rows_behind = stats.messages_behind + stats.events_behind
        figures.backlog_bytes = stats.backlog_bytes
        figures.is_refusing = outlet.is_refusing(self.name)
        figures.dead_letters = stats.dead_letters
        figures.fetches_owed = requests.owed(self.name) - requests.held(self.name)
        oldest_ms = next((sent.oldest_ms for sent in self._unanswered if sent.oldest_ms), 0)
        oldest_ms = oldest_ms or self._buffer.oldest_ms
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
        self._asking.close()
        for timer in (self._timer, self._retry):
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
        self._asking.link_is(link)
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
        self._asking.link_is(None)
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
            self._asking.link_is(None)
        self._end_run()

    def _end_run(self) -> None:
        self._is_running = False
        self._unanswered.clear()
        self._asking.run_is(0)

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
            self._asking.take(answer)
        elif "cursor" in answer:
            self._take_cursor(answer)
        elif "change" in answer:
            self._asking.take_change(answer)
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
        theirs = None if answer["cursor"] is None else cursor_of(answer["cursor"])
        found = resumption.resume(
            theirs,
            answer["instance"] == outlet.instance(name),
            had_ours=self._run > 0,
            floor=outlet.floor(name),
            confirmed=outlet.cursor(name),
            end=outlet.end(),
        )
        self._telling.resumed(found, theirs)
        if found.kind == resumption.LOST:
            first = 1 if theirs is None else theirs[0] + 1
            if first <= found.cursor[0]:
                outlet.note_lost_there(name, first, found.cursor[0])
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
        self._asking.run_is(self._run)

    def _take_done(self, answer: Answer) -> None:
        """Confirm what the store has, with its dead letters."""
        outlet, name = self._outlet, self.name
        cursor = cursor_of(answer["done"])
        dead, refused = self._telling.dead_letters(answer.get("dead", ()))
        if answer["run"] != self._run or not self._is_running:
            if dead:  # of a batch before the connection was lost
                outlet.confirm(name, outlet.cursor(name), dead)
            return
        sent = self._unanswered.popleft()
        assert sent.upto == cursor, f"{cursor} is answered, expected {sent.upto}"
        outlet.confirm(name, cursor, dead, refused)
        self._telling.gap_rows(sent.gaps)
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
        dead, refused = self._telling.dead_letters(unheard)
        self._outlet.confirm(self.name, cursor, dead, refused)

    # Rows.

    def _begin(self, cursor: Cursor) -> None:
        """Read on from `cursor`."""
        self._outlet.begin(self.name, cursor)
        self._buffer.begin(cursor)
        self._may_read = True
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
        if not self._buffer.is_full():
            self._read_slice()
        self._push()

    def _reached(self) -> Cursor:
        """Return what the store has for sure."""
        is_idle = not self._buffer and not self._unanswered
        return self._buffer.read if is_idle else self._outlet.cursor(self.name)

    def _read_slice(self) -> None:
        page = self._outlet.read(self.name, *self._buffer.room)
        if page is None:
            self._buffer.is_dry = True
            return
        self._buffer.add(page, self._driver.loop.time())
        if page.lost:
            self._telling.gap(
                f"{page.lost} messages or events up to {page.upto} cannot be read (run `holdfast "
                "db check`)"
            )

    def _push(self) -> None:
        """Send what is complete, if it may be sent now; read on if there is room."""
        buffer, now = self._buffer, self._driver.loop.time()
        if self._is_running and not self._is_paused and len(self._unanswered) < UNANSWERED_MAX:
            if buffer.is_complete(now, is_idle=not self._unanswered):
                self._send(now)
        if not buffer.is_full():
            if not buffer.is_dry:
                self._look_after(SLICE_PAUSE_S)
            elif buffer and (wait_s := buffer.lingers_s(now)) > 0:
                self._look_after(wait_s)
        self._asking.ask()

    def _send(self, now: float) -> None:
        assert self._link is not None
        if not self._link.has_room():
            self._look_after(LOOK_S)
            return
        batch, sent = self._buffer.take(self._run, now)
        self._link.send(encode_batch(batch))
        self._unanswered.append(sent)
