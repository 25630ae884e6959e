"""The lists of subscriptions that a CONNECT waits for (`wait` of `on_subscribe_lookup`).

Such a CONNECT touches no session: it is judged anew when it has waited. Until then its client is
authenticated and no more, like one whose password is being checked. What is told of a client while
it waits is newer than its list, and is put into it. In memory only: a crash ends the connection.
Every wait has an end, and so has the number of those that wait. Read next:
`session.lifetime.connect`, which decides, and `session.delivery.fetching.requests`.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import Final

from session.delivery.fetching.requests import Asking, FetchRequest, Requests
from session.live.connection import AUTHENTICATING, Connection
from session.live.tick import Tick
from session.settings import Proxying
from storage.tables.fetch_rows import SUBSCRIPTIONS

# Topic filters that are asked for at once.
PAGE: Final = 256
# CONNECTs that wait at a time. More of them are judged at once, as if the store were down.
WAITING_MAX: Final = 1024
# What is gathered of one list: filters, and their characters with 64 more for each. All that wait
# together take 64 MiB at most. The rest of a longer list comes behind the CONNACK.
FILTERS_MAX: Final = 1024
CHARACTERS_MAX: Final = 65_536
_EACH: Final = 64
# Waits that end in one turn; each may accept a client.
ENDED_MAX: Final = 64


class AwaitedList(Asking):
    """The list of one store that a CONNECT waits for."""

    __slots__ = (
        "after",
        "changes",
        "characters",
        "deadline_ms",
        "has_more",
        "is_over",
        "left",
        "rows",
        "rule",
        "waiting",
        "was_had",
    )

    def __init__(self, waiting: "Waiting", backend: str, rule: Proxying, deadline_ms: int) -> None:
        super().__init__(backend)
        self.waiting: Final = waiting
        self.rule: Final = rule
        self.deadline_ms: Final = deadline_ms
        self.begin()

    def begin(self) -> None:
        """Begin the list, or begin it anew."""
        self.is_over: bool = False
        self.was_had: bool = False
        self.after: str = ""  # the list is gathered up to this filter
        self.rows: dict[str, int] = {}
        self.has_more: bool = False
        # What the store has told meanwhile, None = a subscription is over; and what the client has
        # unsubscribed on an earlier connection.
        self.changes: dict[str, int | None] = {}
        self.left: set[str] = set()
        self.characters: int = 0

    def is_ready(self) -> bool:
        """An answer always has room."""
        return True

    def question(self) -> FetchRequest:
        """Return what is asked."""
        client_id = self.waiting.connection.client_id
        return FetchRequest(self.number, SUBSCRIPTIONS, client_id, "", self.after, PAGE)

    def is_alive(self) -> bool:
        """Does somebody wait for it?"""
        return not self.is_over

    def is_wanted(self) -> bool:
        """Is it asked for, or had?"""
        return not self.is_over or self.was_had

    def gathered(self) -> list[tuple[str, int]]:
        """Return what it has, with what was told since; the rest will be read after that."""
        found = {**self.rows}
        for topic_filter, qos in self.changes.items():
            if self.has_more and topic_filter > self.after:
                continue
            if qos is not None:
                found[topic_filter] = qos
            else:
                found.pop(topic_filter, None)
        return list(found.items())

    def is_full(self) -> bool:
        """Is so much gathered that the rest has to come later?"""
        return len(self.rows) >= FILTERS_MAX or self.characters > CHARACTERS_MAX


class Waiting:
    """A CONNECT that waits for lists."""

    __slots__ = ("connection", "decide", "is_decided", "is_refused", "lists", "until")

    def __init__(self, connection: Connection, decide: Callable[["Waiting"], None]) -> None:
        self.connection: Final = connection
        self.decide: Final = decide  # called once it has waited
        self.lists: Final[dict[str, AwaitedList]] = {}  # by store
        self.is_decided: bool = False
        self.is_refused: bool = False  # a list that it must have was not to be had

    def had(self) -> dict[str, AwaitedList]:
        """Return the lists that came in time, by store."""
        return {name: each for name, each in self.lists.items() if each.was_had}


class AwaitedLists:
    """All CONNECTs that wait."""

    def __init__(self, tick: Tick, requests: Requests) -> None:
        self._tick: Final = tick
        self._requests: Final = requests
        self._waiting: Final[dict[Connection, Waiting]] = {}
        self._of_client: Final[dict[str, list[Waiting]]] = {}
        # Lists by the time when their wait is over; also of waits that ended earlier.
        self._due: Final[list[tuple[int, int, AwaitedList]]] = []
        self._count: int = 0  # breaks ties between equal times
        self._down: Final[set[str]] = set()  # stores that are known to be down

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(
        self,
        connection: Connection,
        wanted: Sequence[tuple[str, Proxying]],
        decide: Callable[[Waiting], None],
    ) -> Waiting:
        """Ask for the lists that a CONNECT waits for; if it `is_decided`, it need not wait."""
        waiting = Waiting(connection, decide)
        is_full = len(self._waiting) >= WAITING_MAX
        for name, rule in wanted:
            each = AwaitedList(waiting, name, rule, self._tick.now + rule.wait_ms)
            waiting.lists[name] = each
            if is_full or name in self._down:
                each.is_over = True
                waiting.is_refused = waiting.is_refused or rule.is_required
        if waiting.is_refused or all(each.is_over for each in waiting.lists.values()):
            for each in waiting.lists.values():
                each.is_over = True
            waiting.is_decided = True
            return waiting
        self._waiting[connection] = waiting
        self._of_client.setdefault(connection.client_id, []).append(waiting)
        for each in waiting.lists.values():
            if not each.is_over:
                self._push(each.deadline_ms, each)
                self._ask(each)
        return waiting

    def _push(self, when: int, each: AwaitedList) -> None:
        self._count += 1
        due = self._due
        if len(due) > 2 * WAITING_MAX * max(1, len(each.waiting.lists)):
            # Most have ended long before their time.
            due[:] = [item for item in due if not item[2].is_over]
            heapq.heapify(due)
        heapq.heappush(due, (when, self._count, each))

    def _ask(self, each: AwaitedList) -> None:
        self._requests.want(each)
        self._requests.hurry(each.backend)

    def forget(self, connection: Connection) -> None:
        """Wait no more: the connection is over, or refused for something else."""
        waiting = self._waiting.get(connection)
        if waiting is not None:
            self._end(waiting)

    # What stores say

    def take(
        self, each: AwaitedList, rows: Sequence[tuple[str, int]], *, more: bool, is_refused: bool
    ) -> None:
        """Take a page of a list, as `session.packets.proxy` does; `each` was just answered."""
        if each.is_over:
            return
        if is_refused:
            self._over(each, was_had=False)
            return
        found = {topic_filter: qos for topic_filter, qos in rows if topic_filter > each.after}
        each.rows.update(found)
        each.characters += sum([len(topic_filter) + _EACH for topic_filter in found])
        each.has_more = more and bool(found)
        if each.has_more:
            each.after = max(found)
            if not each.is_full():
                self._ask(each)
                return
        self._over(each, was_had=True)

    def told(self, client_id: str, backend: str, topic_filter: str, qos: int | None) -> None:
        """Note that a store has told of a change itself: what it lists may be older."""
        for waiting in self._of_client.get(client_id, ()):
            each = waiting.lists.get(backend)
            if each is not None and each.is_wanted():
                each.left.discard(topic_filter)
                if topic_filter in each.changes or self._has_room(each, topic_filter):
                    each.changes[topic_filter] = qos

    def client_unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """Note what a client has unsubscribed on the connection that it has meanwhile."""
        for waiting in self._of_client.get(client_id, ()):
            for each in waiting.lists.values():
                if not each.is_wanted() or topic_filter in each.left:
                    continue
                if self._has_room(each, topic_filter):
                    each.left.add(topic_filter)

    def _has_room(self, each: AwaitedList, topic_filter: str) -> bool:
        """May one more change be noted? If not, the list is begun anew, and is newer than it."""
        each.characters += len(topic_filter) + _EACH
        if each.characters <= 2 * CHARACTERS_MAX:
            return True
        self._requests.forget(each)
        each.begin()
        self._push(each.deadline_ms, each)
        self._ask(each)
        return False

    def store_is(self, name: str, *, is_up: bool) -> None:
        """Note whether a store can be reached; nobody waits for one that cannot."""
        if is_up:
            self._down.discard(name)
            return
        self._down.add(name)
        for waiting in self._waiting.values():
            each = waiting.lists.get(name)
            if each is not None and not each.is_over:
                self._push(0, each)

    # Time

    def next_deadline(self) -> int | None:
        """Return when a wait is over, broker ms; None = nobody waits."""
        due = self._due
        while due and due[0][2].is_over:
            heapq.heappop(due)
        return due[0][0] if due else None

    def run(self, now: int) -> None:
        """End the waits whose time is over, as many as one turn may."""
        due = self._due
        for _ in range(ENDED_MAX):
            if not due or due[0][0] > now:
                return
            each = heapq.heappop(due)[2]
            if not each.is_over:
                self._over(each, was_had=False)

    def _over(self, each: AwaitedList, *, was_had: bool) -> None:
        """End the wait for one list, and that of its CONNECT if it was the last one."""
        waiting = each.waiting
        self._requests.forget(each)
        each.is_over = True
        each.was_had = was_had
        waiting.is_refused = each.rule.is_required and not was_had
        if not waiting.is_refused and not all(each.is_over for each in waiting.lists.values()):
            return
        self._end(waiting)
        if waiting.connection.state == AUTHENTICATING:
            waiting.decide(waiting)

    def _end(self, waiting: Waiting) -> None:
        waiting.is_decided = True
        client_id = waiting.connection.client_id
        del self._waiting[waiting.connection]
        others = self._of_client[client_id]
        others.remove(waiting)
        if not others:
            del self._of_client[client_id]
        for each in waiting.lists.values():
            self._requests.forget(each)
            each.is_over = True
