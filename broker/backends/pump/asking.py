"""What sessions want to know of one store, and the changes that the store tells of by itself.

Questions leave once the store has what it must have before, a few at a time; changes are made in
their order and answered once they are durable. Works inside ticks of the driver. Read next:
`session.delivery.fetching.requests` (who asks), `session.packets.told_changes`.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from broker.backends.inbox import questions
from broker.backends.link import Answer
from broker.backends.pump.port import Link
from broker.backends.rows import CHANGED, FETCH, Cursor, json_frame
from broker.observe.backend_figures import BackendFigures
from broker.observe.structured_log import Log
from mqtt import reasons
from session.engine import Engine
from session.packets.proxy import REFUSED, UNKNOWN
from session.packets.told_changes import ToldChange, ToldChanges
from storage.tables.fetch_rows import SUBSCRIPTIONS

# Questions for sessions that the process has not answered: an answer is 256 KiB, or one message.
ASKED_MAX: Final = 4
ASK_AGAIN_S: Final = 0.5  # between looks at sessions that have no room for an answer
REFUSALS_SHOWN: Final = 10  # in the log, of one answer


class Asking:
    """Asks one store until closed."""

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        figures: BackendFigures,
        log: Log,
        guarded: Callable[[Callable[[], None]], None],
        reached: Callable[[], Cursor],
    ) -> None:
        """`guarded` calls inside a tick; `reached` returns what the store has for sure."""
        self._name: Final = figures.name
        self._engine: Final = engine
        self._loop: Final = loop
        self._figures: Final = figures
        self._log: Final = log
        self._guarded: Final = guarded
        self._reached: Final = reached
        self._requests: Final = engine.requests
        self._changes: Final = ToldChanges(self._name, engine.proxy, lambda: engine.settled_by)
        # Questions that are not answered, with the loop's time when they were sent.
        self._asked: Final[dict[int, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._link: Link | None = None
        self._run: int = 0  # 0 = nothing may be asked
        self._is_paused = False
        self._is_closed = False

    # What becomes of the process.

    def start(self) -> None:
        """Hear of sessions that ask."""
        self._requests.listen(self._name, self._ask_at_once)

    def link_is(self, link: Link | None) -> None:
        """Take another process, or none; it tells of its changes again."""
        self._link = link
        if link is None:
            self._changes.forget()

    def run_is(self, run: int) -> None:
        """Ask within a run; 0 = no more, and what is not answered is asked again."""
        self._run = run
        if not run:
            self._asked.clear()
            self._requests.ask_again(self._name)

    def pause(self) -> None:
        """Ask nothing and make no change until `resume`."""
        self._is_paused = True

    def resume(self) -> None:
        """Ask again."""
        self._is_paused = False
        self._ask_after(0)

    def close(self) -> None:
        """Ask nothing more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    # Questions for sessions.

    def ask(self) -> None:
        """Ask what sessions want to know, as far as the store has what it must have before."""
        if not self._requests.is_on or not self._run or self._is_paused:
            return
        assert self._link is not None
        reached = self._reached()
        while len(self._asked) < ASKED_MAX and self._link.has_room():
            request = self._requests.next(self._name, reached)
            if request is None:
                break
            self._link.send(json_frame(FETCH, questions.ask(request, self._run)))
            self._asked[request.number] = self._loop.time()
        asked = len(self._asked)
        if asked < ASKED_MAX and self._requests.owed(self._name) > asked:
            self._ask_after(ASK_AGAIN_S)

    def _ask_after(self, delay_s: float) -> None:
        if self._timer is None and not self._is_closed:
            self._timer = self._loop.call_later(delay_s, self._ask_now)

    def _ask_at_once(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ask_after(0)

    def _ask_now(self) -> None:
        self._timer = None
        self._guarded(self._make_changes)
        self._guarded(self.ask)

    def take(self, answer: Answer) -> None:
        """Hand an answer to the sessions that it is for."""
        sent_at = self._asked.pop(int(answer["fetched"]), None)
        if sent_at is not None:
            self._figures.fetch_seconds.add(self._loop.time() - sent_at)
        if answer["why"]:
            self._log.error("backend_fetch_refused", str(answer["why"]), backend=self._name)
        if answer["kind"] == SUBSCRIPTIONS:
            self._take_listed(answer)
        else:
            self._take_messages(answer)
        self.ask()

    def _take_messages(self, answer: Answer) -> None:
        self._engine.inbox.fetched(
            int(answer["fetched"]),
            questions.messages_of(answer, self._name),
            str(answer["upto"]),
            more=bool(answer["more"]),
        )

    def _take_listed(self, answer: Answer) -> None:
        """Subscribe a client to what the store lists for it."""
        if answer["unusable"]:
            self._log.warning(
                "backend_fetch_refused",
                f"{answer['unusable']} rows of a client are no topic filters with a QoS of 0 to 2",
                backend=self._name,
            )
        refused = self._engine.proxy.listed(
            int(answer["fetched"]),
            questions.subscriptions_of(answer),
            more=bool(answer["more"]),
            is_refused=bool(answer["why"]),
        )
        for each in refused[:REFUSALS_SHOWN]:
            self._log.warning(
                "backend_subscription_refused",
                f"{each.topic_filter!r}: {reasons.name(each.reason_code)}",
                backend=self._name,
                client_id=each.client_id,
            )

    # Changes that the store tells of by itself.

    def take_change(self, answer: Answer) -> None:
        """Take a change, and make those that can be made."""
        number, client_id = int(answer["change"]), str(answer["client_id"])
        self._changes.add(ToldChange(number, client_id, str(answer["topic"]), answer["qos"]))
        self._make_changes()

    def _make_changes(self) -> None:
        """Make the changes that can be made now, in their order."""
        while not self._is_paused and (made := self._changes.make_next()) is not None:
            change, outcome = made
            if outcome.startswith(REFUSED) or outcome == UNKNOWN:
                self._log.warning(
                    "backend_change_refused",
                    f"{change.topic_filter!r}: {outcome}",
                    backend=self._name,
                    client_id=change.client_id,
                )
        if self._changes.are_waiting:
            self._ask_after(ASK_AGAIN_S)
        self.answer_changes()

    def answer_changes(self) -> None:
        """Tell the process of the changes that are durable."""
        numbers = self._changes.answers(self._engine.durable)
        if numbers and self._link is not None:
            self._link.send(json_frame(CHANGED, numbers))
