"""Subscriptions that a store has for clients, and what clients and crashes make of them.

An application changes a list for each client at any time, and tells of changes on a channel, which
forgets, or in a stream, which tells again what was not acknowledged. The store answers late, twice,
with an error or never, also to who is gone. A model knows from outside what each session may hold
(`tests.simulation.held`). It is compared with the broker's memory whenever the store has said
something, with the disk after each crash, and all the time with what clients get. Its random
numbers are its own. Read next: `session.packets.proxy`.
"""

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from broker.security.authenticators import AllowAllPolicy
from mqtt.packets import Publish, Subscription
from session.delivery.fetching.awaited_lists import AwaitedList
from session.delivery.fetching.proxies import Lookup
from session.delivery.fetching.requests import FetchRequest
from session.live.connection import ACTIVE
from session.packets.proxy import DONE, REFUSED, UNCHANGED, UNKNOWN
from session.packets.told_changes import ToldChange, ToldChanges
from session.settings import Proxying
from session.state.records import decode_session
from session.state.subscription import decode_subscription
from storage.errors import Unrecoverable
from storage.local.memory import MemoryStore
from storage.tables import feed_rows as kinds
from storage.tables.feed_rows import FeedEvent, filled_for
from storage.tables.fetch_rows import PROXIED, fetch_key
from storage.tables.tables import FETCHES, SESSIONS, SUBSCRIPTIONS, subscription_key, unseal
from tests.simulation.held import CLIENT, NONE, STORE, Event, Held, State
from tests.simulation.rare import sometimes
from tests.simulation.verdict import Violation
from tests.simulation.view import OPEN, SessionView, filter_matches

if TYPE_CHECKING:
    from session.live.connection import Connection
    from tests.simulation.client import Client
    from tests.simulation.mirror import Mirror, Pump
    from tests.simulation.plans import Plan
    from tests.simulation.process import BrokerProcess

SHARE: Final = 0.5  # of the worlds with a mirror
NAME: Final = "mirror"
TOPICS: Final = ("px/a", "px/b")
DENIED: Final = "px/no"  # nobody may subscribe to it
FILTERS: Final = ("px/a", "px/b", "px/+", "a/+", "r/0", DENIED)
EVENTS_MAX: Final = 60
UNANSWERED_MAX: Final = 4
LISTED: Final = "listed_is_subscribed"
# Is the answer to the list of a session durable, and must not be asked for again?
OWED: Final = 0
ANSWERED: Final = -1
PERHAPS: Final = -2  # a crash may have taken it back
ONLY_WANTED: Final = "only_what_somebody_wanted_is_subscribed"
DURABLE: Final = "a_told_change_is_durable_once_answered"


class Deny(AllowAllPolicy):
    """Permits everything but one topic filter."""

    is_open = False

    def may_subscribe(self, identity: str, client_id: str, topic: str) -> bool:
        """Deny the one filter."""
        return topic != DENIED


class SessionModel:
    """What is known of one session of the broker."""

    def __init__(self, client: str, number: int, *, is_stored: bool) -> None:
        self.client: Final = client
        self.number: Final = number  # its incarnation
        self.is_stored = is_stored
        self.filters: Final = {name: Held() for name in FILTERS}
        self.connection: Connection | None = None
        self.has_view = False  # does the client know of it?
        self.answered_by = OWED  # or the batch that the answer to its list is in


class Gathered:
    """What a CONNECT that waits has got of its list."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.changes: dict[str, int | None] = {}
        self.is_whole = False


class Question:
    """A question for a list that is under way."""

    def __init__(self, connection: "Connection", run: int, *, is_awaited: bool) -> None:
        self.connection: Final = connection
        self.run: Final = run
        self.is_awaited: Final = is_awaited  # by a CONNECT
        self.is_open = True


class Proxies:
    """The lists in the store, and what sessions hold of them."""

    def __init__(self, mirror: "Mirror") -> None:
        self.world: Final = mirror.world
        self.mirror: Final = mirror
        self.random: Final = Random(self.world.seed * 2 + 11)
        random, profile = self.random, self.world.profile
        is_plain = not profile.wide and not profile.damages[1] and not mirror.limit
        self.is_on: Final[bool] = mirror.is_on and is_plain and random.random() < SHARE
        self.asks: Final = random.choice(("always", "always", "new", "never"))
        self.mirrors: Final[bool] = random.random() < 0.5
        self.bypasses: Final[bool] = random.random() < 0.3
        waits = self.is_on and self.asks != "never"
        self.wait_ms: Final[int] = random.choice((0, 0, 300, 1_500)) if waits else 0
        self.is_required: Final[bool] = self.wait_ms > 0 and random.random() < 0.4
        self.lists: Final[dict[str, dict[str, int]]] = {}
        self.stream: list[ToldChange] = []  # not acknowledged
        self.members: Final[list[str]] = []
        self.sessions: Final[dict[str, SessionModel]] = {}  # the present one of each client
        self.gathered: Final[dict[Connection, Gathered]] = {}
        self.own: Final[dict[tuple[str, str], int]] = {}  # SUBSCRIBEs sent
        self.begun: Final[dict[tuple[str, str], int]] = {}  # of sessions that are over
        self.last_unsubscribed: Final[dict[tuple[str, str], int]] = {}
        self.opened: Final[dict[Connection, int]] = {}
        self.refused: Final[set[str]] = set()  # whose list was refused on the present connection
        self.settled_step = 0  # when everything was done: only a list may begin anything since
        self.told = 0

    def rule(self) -> Proxying | None:
        """Return what the broker is configured with."""
        if not self.is_on:
            return None
        return Proxying(
            self.asks,
            mirrors=self.mirrors,
            bypasses_policy=self.bypasses,
            wait_ms=self.wait_ms,
            is_required=self.is_required,
        )

    def join(self, plans: "Sequence[Plan]") -> None:
        """Choose clients that the store has lists for, and who publishes to them."""
        if not self.is_on:
            return
        self.world.policy = Deny()
        for plan in plans:
            if plan.topics and not plan.shared:
                plan.topics = (*plan.topics, *TOPICS)
            if plan.shared or plan.faithful or self.random.random() < 0.3:
                continue
            self.members.append(plan.name)
            names = [each for each in FILTERS[:4] if self.random.random() < 0.4]
            plan.filters = tuple(dict.fromkeys((*plan.filters, *names)))
            for name in FILTERS:
                if self.random.random() < 0.3:
                    self.lists.setdefault(plan.name, {})[name] = self._qos()
        self.world.after(50, self._change)

    def _qos(self) -> int:
        return self.random.choice((0, 1, 1, 2, 2))

    # The application

    def _change(self) -> None:
        """An application changes a list, or tells of a change, or both."""
        world, random = self.world, self.random
        if not world.faults or self.told >= EVENTS_MAX or not self.members:
            return
        world.after(30 + int(random.random() * 350), self._change)
        self.told += 1
        client = random.choice((*self.members, *self.members, "nobody"))
        name = random.choice(FILTERS)
        qos = self._qos() if random.random() < 0.6 else None
        if random.random() < 0.7:
            rows = self.lists.setdefault(client, {})
            if qos is None:
                rows.pop(name, None)
            else:
                rows[name] = qos
        if random.random() < 0.6:
            change = ToldChange(self.told, client, name, qos)
            process = world.up()
            if random.random() < 0.6:
                self.stream.append(change)
            elif process is not None and process.pump is not None:
                process.pump.changes.hear(change)

    # What the broker says of sessions

    def accepted(self, process: "BrokerProcess", connection: "Connection") -> None:
        """A client is connected, with a session."""
        if not self.is_on or connection.client_id not in self.members:
            return
        session = connection.session
        assert session is not None
        gathered = self.gathered.pop(connection, None)
        model = self.sessions.get(connection.client_id)
        is_new = model is None or model.number != session.incarnation
        if is_new or model is None:
            self._drop(connection.client_id)
            model = SessionModel(
                connection.client_id, session.incarnation, is_stored=session.is_stored
            )
            self.sessions[connection.client_id] = model
        if self.is_required and (is_new or self.asks == "always"):
            if gathered is None or not gathered.is_whole:
                raise Violation(LISTED, f"{model.client} is let in without its list")
        model.is_stored = session.is_stored
        model.connection = connection
        self.refused.discard(model.client)
        since = self.opened.get(connection, 0)
        unsure = {
            name
            for name, held in model.filters.items()
            if any(each.result == NONE for each in held.pending)
            or self.last_unsubscribed.get((model.client, name), 0) >= since
        }
        for held in model.filters.values():
            held.connected()
        if gathered is not None and gathered.is_whole:
            if self.asks == "always" or model.answered_by in (OWED, PERHAPS):
                sometimes("proxy_list_waited_for")
                rows: dict[str, int | None] = {**gathered.rows, **gathered.changes}
                for name in FILTERS:
                    is_certain = is_new or name not in unsure
                    self._list(model, name, rows.get(name), process, is_certain=is_certain)
                model.answered_by = process.next_serial()

    def _drop(self, client: str) -> None:
        """A session is over."""
        model = self.sessions.pop(client, None)
        if model is not None:
            for name, held in model.filters.items():
                key = client, name
                self.begun[key] = self.begun.get(key, 0) + held.may_begin

    # Lists

    def asked(self, process: "BrokerProcess", request: FetchRequest, run: int) -> Question:
        """The broker asks for a list."""
        asking = process.engine.requests._asked[request.number]
        if isinstance(asking, AwaitedList):
            connection = asking.waiting.connection
            self._gather(connection, anew=request.after == "")
            return Question(connection, run, is_awaited=True)
        assert isinstance(asking, Lookup)
        connection = asking.owner.connection
        model = self.sessions.get(request.client_id)
        if model is not None and self.asks == "new" and request.after == "":
            is_same = model.answered_by > 0 and model.connection is connection
            is_durable = 0 < model.answered_by <= process.durable_serial
            if model.answered_by == ANSWERED or is_same or is_durable:
                raise Violation(LISTED, f"{request.client_id} asks again for its list")
        return Question(connection, run, is_awaited=False)

    def _gather(self, connection: "Connection", *, anew: bool) -> Gathered:
        found = self.gathered.get(connection)
        if found is None or (anew and found.is_whole):
            found = self.gathered[connection] = Gathered()
        return found

    def answer(self, request: FetchRequest) -> tuple[list[tuple[str, int]], bool]:
        """Return a page of a list, and whether there is more of it."""
        rows = sorted(self.lists.get(request.client_id, {}).items())
        rows = [each for each in rows if each[0] > request.after]
        count = self.random.choice((1, 2, 50))
        return rows[:count], len(rows) > count

    def listed(
        self,
        process: "BrokerProcess",
        request: FetchRequest,
        question: Question,
        page: tuple[list[tuple[str, int]], bool],
        *,
        is_refused: bool,
    ) -> None:
        """The broker hears an answer."""
        process.engine.handle_timeout(process.broker_now())
        rows, more = page
        if is_refused:
            rows = []
        connection = question.connection
        counts = question.is_open and question.run == self._run(process)
        question.is_open = False
        client = request.client_id
        model = self.sessions.get(client)
        if not counts:
            sometimes("proxy_answer_ignored")
        elif question.is_awaited:
            if connection in process.engine._awaited._waiting and not is_refused:
                found = self._gather(connection, anew=False)
                found.rows.update(rows)
                found.is_whole = not (more and rows)
        elif model is not None and model.connection is connection and connection.state == ACTIVE:
            is_full = model.is_stored and process.engine._publishing.refuses_writes
            if is_refused:
                self.refused.add(client)
            elif not is_full:
                self._apply(process, model, request, rows, more=more)
        process.engine.proxy.listed(request.number, rows, more=more, is_refused=is_refused)
        self.judge_memory(process, client)

    def _run(self, process: "BrokerProcess") -> int:
        return -1 if process.pump is None else process.pump.asked_anew

    def _apply(
        self,
        process: "BrokerProcess",
        model: SessionModel,
        request: FetchRequest,
        rows: list[tuple[str, int]],
        *,
        more: bool,
    ) -> None:
        """Do what a page says that counts."""
        sometimes("proxy_list_taken")
        listed = dict(rows)
        upto = max(listed) if more and listed else None
        for name in FILTERS:
            if name > request.after and (upto is None or name <= upto):
                self._list(model, name, listed.get(name), process, is_certain=True)
        if upto is None:
            model.answered_by = process.next_serial()

    def _list(
        self,
        model: SessionModel,
        name: str,
        qos: int | None,
        process: "BrokerProcess",
        *,
        is_certain: bool,
    ) -> None:
        if qos is None and not self.mirrors:
            return
        held = model.filters[name]
        if held.left:
            sometimes("proxy_list_behind_unsubscribe")
        if held.told:
            sometimes("proxy_list_behind_change")
        if qos is None and any(state[0] == STORE for state in held.now()):
            sometimes("proxy_mirror_ended")
        self._happens(model, name, Event(qos, is_list=True), process, is_certain=is_certain)

    def _happens(
        self,
        model: SessionModel,
        name: str,
        event: Event,
        process: "BrokerProcess",
        *,
        is_certain: bool = True,
    ) -> None:
        """The broker does what the store says of a filter."""
        held = model.filters[name]
        if event.qos is not None and name == DENIED and not self.bypasses:
            sometimes("proxy_denied")
            return
        before = held.now()
        held.happens(event, process.next_serial(), is_certain=is_certain)
        after = held.now()
        if any(state[0] == CLIENT for state in before) and event.qos is not None:
            sometimes("proxy_client_came_first")
        if event.qos is not None and before == {(STORE, event.qos)}:
            sometimes("proxy_held_already")
        if event.qos is not None and before != {(STORE, event.qos)}:
            held.may_begin += 1
            client = self._client(model.client)
            client.subscribes += 1
            if before == {NONE}:
                sometimes("proxy_begun")
            if not held.since_step or before == {NONE}:
                held.since_step = self.world.step
        held.asked_step = 0
        if before == {NONE} and after == {(STORE, event.qos)}:
            held.asked_step = self.world.step
        self.show(model, name, process)

    # Changes

    def changed(self, process: "BrokerProcess", change: ToldChange, outcome: str) -> None:
        """The broker has made a change."""
        client, name = change.client_id, change.topic_filter
        model = self.sessions.get(client)
        if outcome == UNKNOWN:
            sometimes("proxy_change_unknown_client")
            if model is not None and model.connection is not None:
                if model.connection.state == ACTIVE:
                    raise Violation(LISTED, f"{client} is connected and not known")
        elif model is None:
            if client in self.members:
                raise Violation(ONLY_WANTED, f"{client} has no session: {outcome}")
        elif outcome.startswith(REFUSED):
            if name != DENIED or self.bypasses:
                raise Violation(LISTED, f"{name} of {client}: {outcome}")
        else:
            event, held = Event(change.qos), model.filters[name]
            is_away = model.connection is None or model.connection.state != ACTIVE
            sometimes("proxy_changed_away" if is_away else "proxy_changed_here")
            if outcome == DONE and all(event.after(each) == each for each in held.now()):
                raise Violation(ONLY_WANTED, f"{name} of {client} changed: {held.now()}")
            if outcome == UNCHANGED and all(event.after(each) != each for each in held.now()):
                raise Violation(LISTED, f"{name} of {client} did not change: {held.now()}")
            self._happens(model, name, event, process)
            held.told = True
        for connection in process.engine._awaited._waiting:
            if connection.client_id == client:
                sometimes("proxy_changed_while_waiting")
                self._gather(connection, anew=False).changes[name] = change.qos
        self.judge_memory(process, client)

    def answered(self, made: "Made") -> None:
        """The broker has answered a change of the stream: no crash may take it back."""
        if made.held is not None:
            made.held.past = [each for each in made.held.past if each[1] > made.changes]
            sometimes("proxy_change_answered")

    # What clients do

    def _session_of(self, client: "Client") -> SessionModel | None:
        model = self.sessions.get(client.name)
        link = client.link
        if model is None or link is None or model.connection is not link.connection:
            return None
        return model

    def _client(self, name: str) -> "Client":
        return next(each for each in self.world.clients if each.name == name)

    def opening(self, client: "Client") -> None:
        """A client opens a connection."""
        if self.is_on and client.link is not None:
            self.opened[client.link.connection] = self.world.step

    def subscribing(self, client: "Client", name: str, qos: int) -> None:
        """A client sends SUBSCRIBE."""
        if not self.is_on or name not in FILTERS:
            return
        key = client.name, name
        self.own[key] = self.own.get(key, 0) + 1
        model = self._session_of(client)
        if model is not None:
            model.filters[name].asks((CLIENT, qos))
            model.filters[name].asked_step = 0

    def unsubscribing(self, client: "Client", name: str) -> None:
        """A client sends UNSUBSCRIBE."""
        if not self.is_on or name not in FILTERS:
            return
        self.last_unsubscribed[client.name, name] = self.world.step
        model = self._session_of(client)
        if model is not None:
            model.filters[name].asks(NONE)
            model.filters[name].asked_step = 0

    def acknowledged(self, client: "Client", name: str, *, is_done: bool = True) -> None:
        """SUBACK or UNSUBACK came, and the client's view knows of it."""
        model = self._session_of(client) if self.is_on and name in FILTERS else None
        if model is None or not model.filters[name].pending:
            return
        held = model.filters[name]
        if held.pending[0].result == NONE:
            self.last_unsubscribed[client.name, name] = self.world.step
        held.answered(is_done=is_done)
        process = self.world.up()
        if process is not None:
            self.show(model, name, process)

    def session_begun(self, client: "Client") -> None:
        """CONNACK came, and the client has a view of its session."""
        model = self._session_of(client) if self.is_on else None
        process = self.world.up()
        if model is None or process is None:
            return
        model.has_view = True
        for name, held in model.filters.items():
            if client.view is not None and name not in client.view.filters:
                held.shown.clear()  # it is a new view
            self.show(model, name, process)

    def show(self, model: SessionModel, name: str, process: "BrokerProcess") -> None:
        """Let the client's view know what may be held, and what certainly is."""
        client, world = self._client(model.client), self.world
        view, held = client.view, model.filters[name]
        states = held.all(process.durable_serial)
        held.unseen |= {qos for who, qos in states if who == STORE}
        if view is None or not model.has_view:
            return
        seen, held.unseen = held.unseen, set()  # also what was over before the CONNACK came
        for qos in sorted(seen):
            option = held.shown.get(qos)
            if option is None or option.to_step != OPEN:
                self._show_one(client, view, held, Subscription(name, qos))
        known = view.filters.get(name)
        if known is None:
            return
        if NONE in states:
            if known.held_since:
                view.unsubscribing(name)
            if states == {NONE}:
                view.unsubscribed(known, world.step)
        elif len(states) == 1 and not held.pending:
            ((who, qos),) = states
            if who != STORE:
                return
            view.subscribed(known, held.shown[qos], world.step, qos)
            if held.asked_step:
                world.oracle.subscribed_to_retained(view, known, held.asked_step)
                held.asked_step = 0

    def _show_one(
        self, client: "Client", view: SessionView, held: Held, asked: Subscription
    ) -> None:
        """The store may have begun this: let the view of the client know."""
        oracle, step = self.world.oracle, held.since_step or self.world.step
        item = view.subscribing(asked, 0, step, oracle.sent)
        held.shown[asked.qos] = item.options[-1]
        if step == self.world.step:
            oracle.subscribing_to_retained(view, item, 1)
        else:  # what was retained then is not known any more
            for topic in oracle.retained:
                if filter_matches(item.stream, topic):
                    item.retained_floor[topic] = -1

    def committed(self, process: "BrokerProcess") -> None:
        """More is durable than before."""
        if self.is_on:
            for model in self.sessions.values():
                for name, held in model.filters.items():
                    if held.past:
                        self.show(model, name, process)

    def may_refuse(self, version: int, reason_code: int) -> bool:
        """May a CONNECT be refused because its list is not to be had?"""
        if not self.is_required or reason_code != (3 if version == 4 else 0x88):
            return False
        sometimes("proxy_list_required")
        return True

    # Judging

    def may_replay(self, client: "Client", packet: Publish) -> bool:
        """May a retained message come to a settled session, for what its list has begun since?"""
        model = self.sessions.get(client.name)
        return (
            packet.retain
            and model is not None
            and any(
                held.since_step > self.settled_step > 0 and filter_matches(name, packet.topic)
                for name, held in model.filters.items()
            )
        )

    def judge_memory(self, process: "BrokerProcess", client: str) -> None:
        """Compare what a connected session holds with what it may."""
        model = self.sessions.get(client)
        connection = process.engine._sessions.live.get(client)
        if model is None or connection is None or model.connection is not connection:
            return
        session = connection.session
        assert session is not None
        state = process.engine.proxy._proxies.state_of(session)
        begun = {} if state is None else state.filters
        for name, held in model.filters.items():
            found = session.subscriptions.get(name)
            actual = NONE
            if found is not None:
                actual = (STORE if name in begun else CLIENT, found.qos)
            self._judge(client, name, actual, held.now(), "in memory")

    def _judge(
        self, client: str, name: str, actual: State, possible: set[State], where: str
    ) -> None:
        if actual in possible:
            return
        prop = LISTED if actual == NONE else ONLY_WANTED
        raise Violation(
            prop, f"{name} of {client} is of {actual} {where}, expected {sorted(possible)}"
        )

    def ended(self, process: "BrokerProcess", store: MemoryStore) -> None:
        """Compare what is on the disk with what may be there, after a crash or a shutdown."""
        if not self.is_on:
            return
        durable = process.durable_serial
        if self.world.settled:
            self.settled_step = self.world.step
        self.gathered.clear()
        self.opened.clear()
        for client, model in list(self.sessions.items()):
            model.connection = None
            value = store.get(SESSIONS, client.encode())
            record = None
            if value is not None:
                record = decode_session(client, unseal(value, "session"))
            if record is None or record.incarnation != model.number:
                self._drop(client)
                if record is not None:  # the session before, whose end a crash took back
                    self._found(store, client, record.incarnation)
                continue
            if model.answered_by > 0:
                model.answered_by = PERHAPS if model.answered_by > durable else ANSWERED
            for name, held in model.filters.items():
                actual = self._on_disk(store, client, name)
                possible = held.all(durable)
                self._judge(client, name, actual, possible, "on the disk")
                if actual[0] == STORE and len(possible) > 1:
                    sometimes("proxy_crash_kept_it")
                elif actual == NONE and any(each[0] == STORE for each in possible):
                    sometimes("proxy_crash_took_it_back")
                held.asked_step = 0
                held.observed(actual)

    def _found(self, store: MemoryStore, client: str, number: int) -> None:
        """A session is there again, with what is on the disk."""
        model = self.sessions[client] = SessionModel(client, number, is_stored=True)
        model.answered_by = PERHAPS
        for name, held in model.filters.items():
            held.observed(self._on_disk(store, client, name))

    def _on_disk(self, store: MemoryStore, client: str, name: str) -> State:
        value = store.get(SUBSCRIPTIONS, subscription_key(client, name))
        is_ours = store.get(FETCHES, fetch_key(client, NAME, PROXIED, name)) is not None
        if value is None:
            if is_ours:
                raise Violation(ONLY_WANTED, f"{name} of {client} is of the store, and not there")
            return NONE
        found = decode_subscription(name, None, name, unseal(value, "subscription"))
        return (STORE if is_ours else CLIENT), found.qos

    def started(self, process: "BrokerProcess") -> None:
        """A process has begun; what it has found is durable."""
        if self.is_on:
            for model in self.sessions.values():
                for name in model.filters:
                    self.show(model, name, process)

    def judge(self) -> None:
        """Compare all that is connected. Nothing is under way any more."""
        process = self.world.up()
        if not self.is_on or process is None:
            return
        if self.stream:
            raise Violation(DURABLE, f"{len(self.stream)} changes are not answered")
        for client in self.members:
            self.judge_memory(process, client)
            model = self.sessions.get(client)
            if model is not None and model.connection is not None and self.asks == "new":
                if model.answered_by == OWED and client not in self.refused:
                    raise Violation(LISTED, f"{client} never got its list")
        self._judge_told()

    def _judge_told(self) -> None:
        """What is held already is not subscribed again."""
        found: dict[tuple[str, str], int] = {}
        for row in self.mirror.rows:
            if isinstance(row, FeedEvent) and row.kind == kinds.SUBSCRIBED:
                if row.client_id in self.members and row.text in FILTERS and not filled_for(row):
                    key = row.client_id, row.text
                    found[key] = found.get(key, 0) + 1
        for key, count in found.items():
            model = self.sessions.get(key[0])
            most = self.own.get(key, 0) + self.begun.get(key, 0)
            if model is not None:
                most += model.filters[key[1]].may_begin
            if count > most:
                raise Violation(
                    ONLY_WANTED, f"{key[1]} of {key[0]} began {count} times, expected {most}"
                )


class Made:
    """A change that the broker has not answered."""

    def __init__(self, change: ToldChange) -> None:
        self.change: Final = change
        self.held: Held | None = None  # what it was about
        self.changes = 0  # how often that had changed by then


class Changes:
    """What one process of the broker hears of changes."""

    def __init__(self, pump: "Pump") -> None:
        self.pump: Final = pump
        self.process: Final = pump.process
        self.proxies: Final = pump.mirror.proxied
        self.random: Final = self.proxies.random
        engine = pump.process.engine
        self.made: Final = ToldChanges(NAME, engine.proxy, lambda: engine.settled_by)
        self.numbers: dict[int, Made] = {}
        self.last_number = 0
        self.under_way: dict[int, ToldChange] = {}

    def begun(self) -> None:
        """The way to the store is a new one: what is not acknowledged is told again."""
        self.made.forget()
        self.numbers.clear()
        self.under_way.clear()

    def step(self) -> None:
        """Read on in the stream."""
        if not self.proxies.is_on or not self.pump.begun:
            return
        told = [each.change for each in self.numbers.values()] + list(self.under_way.values())
        for change in self.proxies.stream:
            if len(self.numbers) + len(self.under_way) >= UNANSWERED_MAX:
                return
            if change not in told:
                self.hear(change)

    def hear(self, change: ToldChange) -> None:
        """A change is on its way to the broker."""
        if not self.pump.begun:
            return
        self.last_number += 1
        self.under_way[self.last_number] = change
        self.process.world.after(
            int(self.random.random() * 40), self._arrives, self.pump.run, self.last_number
        )

    def _arrives(self, run: int, number: int) -> None:
        process = self.process
        if process.dead or process.failed or process.thaws(self._arrives, run, number):
            return
        if run != self.pump.run or number not in self.under_way:
            return
        if min(self.under_way) != number:
            process.world.after(5, self._arrives, run, number)  # in their order
            return
        change = self.under_way.pop(number)
        told = ToldChange(number, change.client_id, change.topic_filter, change.qos)
        self.numbers[number] = Made(change)
        self.made.add(told)
        self._go_on()

    def _go_on(self) -> None:
        """Make what can be made, and answer what is durable."""
        process, proxies = self.process, self.proxies
        try:
            process.engine.handle_timeout(process.broker_now())
            while (made := self.made.make_next()) is not None:
                told, outcome = made
                proxies.changed(process, told, outcome)
                model = proxies.sessions.get(told.client_id)
                if model is not None and outcome in (DONE, UNCHANGED):
                    number = self.numbers[told.number]
                    number.held = model.filters[told.topic_filter]
                    number.changes = number.held.changes
        except Unrecoverable as error:
            process.world.fail_stop(str(error))
            return
        process.schedule_tick()
        if self.made.are_waiting:
            sometimes("proxy_change_waited")
            process.world.after(100, self._again, self.pump.run)
        self.answer()

    def _again(self, run: int) -> None:
        process = self.process
        if process.dead or process.failed or process.thaws(self._again, run):
            return
        if run == self.pump.run:
            self._go_on()

    def answer(self) -> None:
        """Acknowledge to the store what is durable."""
        for number in self.made.answers(self.process.engine.durable):
            made = self.numbers.pop(number)
            if made.change in self.proxies.stream:
                self.proxies.stream.remove(made.change)
                self.proxies.answered(made)

    def is_done(self) -> bool:
        """Is nothing under way?"""
        return not (self.proxies.stream or self.numbers or self.under_way)
