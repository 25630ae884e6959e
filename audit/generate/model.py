"""A model of the broker that records its history: the rows of a correct history, in order.

It serves MQTT like Holdfast (a log, streams per durable filter, sessions as cursors, group commits)
as far as the history shows it, on simulated time. Its rows are always correct;
`audit.generate.faults` changes them afterwards. `audit.generate.script` plays the clients.
"""

import heapq
from collections import deque
from typing import Any, Final

from audit.generate.state import (
    NEVER,
    SECOND,
    SLOT_BITS,
    UNSTORED,
    Client,
    Entry,
    Flight,
    Group,
    Message,
    Row,
    Session,
    Subscription,
    matches,
)
from storage.history import events as ev

QUEUE_MAX: Final = 60  # messages a clean session may have waiting
TAKEN_OVER: Final = 0x8E
SHUTTING_DOWN: Final = 0x8B
LAG_US: Final = 200_000  # delay until the end of an exchange is on disk
CENSUS_SLICE: Final = 40

# Events about single messages, which level `books` does not record.
MESSAGE_EVENTS: Final = frozenset(range(ev.MSG_ACCEPTED, ev.MSG_MOVED + 1))


class Boot:
    """One boot of the broker: its rows, and whether it ended with a shutdown."""

    def __init__(self, number: int, started_at: int) -> None:
        self.number = number
        self.started_at = started_at
        self.rows: list[Row] = []
        self.clean = False
        self.last_slot = 0
        # Slots (first, last) whose stamped rows are hidden by a lowered level, or deleted.
        self.hidden_slots: list[tuple[int, int]] = []
        self.gone_slots: list[tuple[int, int]] = []


class Broker:
    """The broker of one node. Rows of one tick have one time, in whole milliseconds."""

    def __init__(self, node: str, now: int) -> None:
        self.node = node
        self.now = now
        self.slot = 0
        self.slot_ends: list[int] = []  # the model's end of the log after each slot
        self.slot_begins: list[int] = [now]  # when each slot began
        self.slot_lasts: list[int] = []  # when the last row of each slot was written
        self.end = 0  # last offset used, not counting the stamped traffic
        self.boots: list[Boot] = []
        self.rows: list[Row] = []
        self.sessions: dict[str, Session] = {}
        self.entries: dict[str, Entry] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        self.retained: dict[str, tuple[Message, int]] = {}  # topic -> message, accepted at
        self.muted = False  # the level is `books`
        self.deaf = False  # the broker is about to crash: it sends nothing more
        self.watched: set[str | int] = set()  # clients of scenes and their messages
        self.watched_rows: list[Row] = []  # of this boot
        self._numbers = 0
        self._conns = 0
        self._streams = 0
        self._unstored = 0
        self._routes: dict[str, list[Entry]] = {}
        self._commits: list[tuple[Message, Session | None, int, int]] = []
        self._dirty: dict[int, Session] = {}
        self._timers: list[tuple[int, int, str, Session]] = []
        self._timer_serial = 0
        self._census: deque[Session] = deque()
        self._census_found = -1

    # Rows.

    def emit(self, event: int, session: Session | None = None, **columns: Any) -> Row:
        """Record a row and return it."""
        columns["ev"] = event
        columns["ts"] = self.clock
        columns["slot"] = self.slot
        columns.setdefault("actor", ev.BROKER)
        if session is not None:
            columns["tenant"] = session.tenant
            columns["client_id"] = session.client_id
            columns["session"] = session.number
            columns.setdefault("conn", session.conn)
        if self.muted and event in MESSAGE_EVENTS:
            columns["hidden"] = True
        self.rows.append(columns)
        if columns.get("client_id") in self.watched or columns.get("msg") in self.watched:
            self.watched_rows.append(columns)
            if event == ev.MSG_ACCEPTED:
                self.watched.add(columns["msg"])
        return columns

    @property
    def clock(self) -> int:
        """Return the time in whole milliseconds, as in rows and records."""
        return self.now // 1000 * 1000

    @property
    def log_end(self) -> int:
        """Return the end of the log, as of this slot."""
        return self.slot << SLOT_BITS | self.end

    def position(self, session: Session) -> int:
        """Return the offset up to which a session has everything completed or in flight."""
        if session.queue:
            return session.queue[0][0].id - 1
        return self.log_end if session.conn else session.position

    def _sizes(self, session: Session) -> dict[str, int]:
        return {
            "subs": len(session.subs),
            "inflight": len(session.flights),
            "position": self.position(session),
            "subs_check": session.subs_check,
            "expiry_s": session.expiry_s,
        }

    def wait(self, ms: int) -> None:
        """Begin another tick of the same slot, `ms` later."""
        self.now += ms * 1000

    def finish(self) -> None:
        """Close the slot: no rows of the model follow in it."""
        self.slot_ends.append(self.end)
        self.slot_lasts.append(self.now)
        self.boots[-1].last_slot = self.slot

    def turn(self, at: int) -> None:
        """Begin the next round at `at`, or when the last one is over if that is later."""
        self._next_slot(at)
        self._run_timers()
        self._restore_some()

    def _next_slot(self, at: int) -> None:
        self.finish()
        self.slot += 1
        self.now = max(self.now + 1000, at)
        self.slot_begins.append(self.now)

    # Connections.

    def connect(self, client: Client, clean_start: bool = False, steady: bool = False) -> Session:
        """Accept a CONNECT and return its session."""
        old = self.sessions.get(client.client_id)
        if old is not None and old.conn:
            self.emit(ev.SESSION_TAKEN_OVER, old, reason=TAKEN_OVER)
            self.disconnect(old, TAKEN_OVER, actor=ev.BROKER)
            old = self.sessions.get(client.client_id)
        if old is not None:
            self._admit_crash(old)
            due = old.expires_at
            if due is not None and due <= self.clock:
                self.expire(old, actor=ev.CLIENT)
                old = None
        if old is not None and clean_start:
            self.end_session(old, ev.SESSION_TERMINATED, reason=1011, actor=ev.CLIENT)
            old = None
        session = self._resume(old, client) if old else self._create(client, clean_start)
        session.steady = steady
        if client.will is not None:
            session.will = client.will
            self.emit(
                ev.WILL_ARMED,
                session,
                topic=client.will.topic,
                qos=client.will.qos,
                expiry_s=client.will.delay_s,
                actor=ev.CLIENT,
            )
        if old:
            self._resend(session)
        return session

    def _create(self, client: Client, clean_start: bool) -> Session:
        self._numbers += 1
        session = Session(self.boots[-1].number << 40 | self._numbers, client)
        self._plug(session)
        self.sessions[client.client_id] = session
        self.emit(
            ev.SESSION_CREATED,
            session,
            proto=client.proto,
            clean_start=clean_start or not session.durable,
            rmax=client.rmax,
            sp=False,
            actor=ev.CLIENT,
            **self._sizes(session),
        )
        return session

    def _resume(self, session: Session, client: Client) -> Session:
        session.census_due = False
        sizes = self._sizes(session)
        if session.will_due:
            session.will_due = 0
            session.will = None
            self.emit(ev.WILL_CANCELLED, session, reason=1041)
        self._plug(session)
        session.expiry_s = sizes["expiry_s"] = client.expiry_s
        self.emit(
            ev.SESSION_RESUMED,
            session,
            proto=client.proto,
            clean_start=False,
            rmax=client.rmax,
            sp=True,
            actor=ev.CLIENT,
            **sizes,
        )
        return session

    def _plug(self, session: Session) -> None:
        self._conns += 1
        session.conn = self._conns
        session.fresh_acks.clear()

    def _resend(self, session: Session) -> None:
        for pid, flight in session.flights.items():
            if not flight.released:
                self._send(session, flight, pid, again=True)
        self._pump(session)

    def disconnect(
        self, session: Session, reason: int, actor: int = ev.CLIENT, expiry_s: int | None = None
    ) -> None:
        """End a connection: by DISCONNECT (0, 4), a server's reason code, or a loss (1001)."""
        if expiry_s is not None and expiry_s != session.expiry_s:
            session.expiry_s = expiry_s
            self.emit(ev.SESSION_EXPIRY_CHANGED, session, expiry_s=expiry_s, actor=ev.CLIENT)
        self._move_leases(session)
        sizes = self._sizes(session)
        self.emit(ev.SESSION_DISCONNECTED, session, reason=reason, actor=actor, **sizes)
        session.conn = 0
        session.offline_at = self.clock
        session.position = sizes["position"]
        self._after_connection(session, reason)
        if not session.durable:
            changed = expiry_s == 0
            self.end_session(session, ev.SESSION_TERMINATED, reason=1012 if changed else 1010)
        else:
            self._arm_expiry(session)

    def _after_connection(self, session: Session, reason: int) -> None:
        will = session.will
        if will is None:
            return
        if reason == 0:
            session.will = None
            self.emit(ev.WILL_CANCELLED, session, reason=1040, actor=ev.CLIENT)
            return
        due = session.offline_at + min(will.delay_s, session.expiry_s) * SECOND
        if due <= self.clock:
            self.fire(session)
            return
        session.will_due = due
        self.emit(ev.WILL_DELAYED, session, topic=will.topic, qos=will.qos, at=due)
        self._timer(due, "will", session)

    def fire(self, session: Session) -> None:
        """Publish the will of a session now, delayed or not."""
        will = session.will
        assert will is not None
        session.will = None
        session.will_due = 0
        conn, session.conn = session.conn, 0
        message = self.publish(session, will.topic, will.qos, 20, actor=ev.BROKER)
        self.emit(ev.WILL_FIRED, session, msg=message.id, topic=will.topic, qos=will.qos)
        session.conn = conn

    def end_session(self, session: Session, event: int, **columns: Any) -> None:
        """End a session by `session_expired` or `session_terminated`; publish its will."""
        if session.will is not None:
            self.fire(session)
        sizes = self._sizes(session)
        sizes["position"] = self.log_end
        if event == ev.SESSION_TERMINATED:
            sizes = {"position": self.log_end}
        self.emit(event, session, conn=0, **sizes, **columns)
        for sub in list(session.subs.values()):
            self._release(session, sub)
        del self.sessions[session.client_id]

    def expire(self, session: Session, actor: int = ev.GC) -> None:
        """End a session that has expired."""
        due = session.expires_at
        self._admit_crash(session)
        self.end_session(session, ev.SESSION_EXPIRED, at=due, actor=actor)

    # Subscriptions.

    def subscribe(
        self, session: Session, tfilter: str, qos: int, no_local: bool = False
    ) -> Subscription:
        """Add or replace a subscription; send retained messages, unless it is shared."""
        old = session.subs.get(tfilter)
        sub = Subscription(tfilter, qos, no_local)
        session.subs[tfilter] = sub
        entry = self.entries.get(sub.plain)
        if entry is None:
            entry = self.entries[sub.plain] = Entry(sub.plain)
            self._routes.clear()
        if sub.share is None:
            entry.sessions[session.number] = (session, sub)
        else:
            group = self.groups.setdefault((sub.share, sub.plain), Group(sub.share, sub.plain))
            if old is None:
                group.members.append(session)
            entry.groups[sub.share] = group
        self._name_stream(entry)
        members = entry.groups[sub.share].members if sub.share is not None else [session]
        holds = qos > 0 and any(member.durable for member in members)
        sub.stream = entry.stream if holds else 0
        sub.since = self.log_end
        session.fresh_acks.clear()
        self.emit(
            ev.SUBSCRIBED,
            session,
            tfilter=tfilter,
            share=sub.share,
            stream=sub.stream,
            position=self.log_end,
            qos=qos,
            no_local=no_local,
            actor=ev.CLIENT,
        )
        if sub.share is None:
            self._send_retained(session, sub)
        return sub

    def _name_stream(self, entry: Entry) -> None:
        if not entry.held():
            entry.stream = 0
        elif not entry.stream:
            self._streams += 1
            entry.stream = self._streams

    def unsubscribe(self, session: Session, tfilter: str) -> None:
        """Remove a subscription; messages owed only by it are owed no more."""
        sub = session.subs.pop(tfilter)
        self._release(session, sub)
        self.emit(
            ev.UNSUBSCRIBED,
            session,
            tfilter=tfilter,
            share=sub.share,
            stream=sub.stream,
            position=self.log_end,
            actor=ev.CLIENT,
        )
        session.fresh_acks.clear()
        left = [
            (message, min(message.qos, granted))
            for message, _ in session.queue
            if (granted := self._granted(session, message)) > 0
        ]
        session.queue = deque(left)

    def _granted(self, session: Session, message: Message) -> int:
        return max(
            (
                sub.qos
                for sub in session.subs.values()
                if sub.share is None
                and sub.since < message.id
                and matches(sub.plain, message.topic)
            ),
            default=0,
        )

    def _release(self, session: Session, sub: Subscription) -> None:
        entry = self.entries[sub.plain]
        if sub.share is None:
            del entry.sessions[session.number]
        else:
            group = entry.groups[sub.share]
            group.members.remove(session)
            if not group.members:
                del entry.groups[sub.share]
                del self.groups[sub.share, sub.plain]
        self._name_stream(entry)
        if not entry.sessions and not entry.groups:
            del self.entries[sub.plain]
            self._routes.clear()

    # Incoming messages.

    def publish(
        self,
        session: Session,
        topic: str,
        qos: int,
        size: int,
        retain: bool = False,
        expiry_s: int | None = None,
        actor: int = ev.CLIENT,
    ) -> Message:
        """Accept a PUBLISH (or a will) and route it; `commit` acknowledges it."""
        entries = self._routes.get(topic)
        if entries is None:
            entries = [e for e in self.entries.values() if matches(e.plain, topic)]
            self._routes[topic] = entries
        streams = [entry.stream for entry in entries if entry.stream] if qos else []
        if streams:
            self.end += 1
            number = self.log_end
        else:
            self._unstored += 1
            number = UNSTORED | self.boots[-1].number << 40 | self._unstored
        message = Message(number, topic, qos, size, self.clock, session.number)
        message.stored = bool(streams)
        message.expiry_s = expiry_s
        message.retain = retain
        pid = 0
        if qos and actor == ev.CLIENT:
            session.pub_pid = pid = session.pub_pid % 65535 + 1
        columns = {"topic": topic, "pid": pid, "pub_qos": qos, "dup": False, "retain": retain}
        self.emit(
            ev.MSG_ACCEPTED,
            session,
            actor=actor,
            bytes=size,
            expiry_s=expiry_s,
            order=number,
            msg=number,
            pub=session.number,
            **columns,
        )
        for stream in streams:
            self.emit(ev.MSG_ENQUEUED, None, msg=number, stream=stream)
        if retain:
            self._retain(session, message)
        self._commits.append((message, session if pid else None, session.conn, pid))
        if qos == 2 and pid:
            session.incoming[pid] = number
        self._route(message, entries, session)
        return message

    def _route(self, message: Message, entries: list[Entry], publisher: Session) -> None:
        wanted: dict[int, tuple[Session, int]] = {}
        for entry in entries:
            for number, (session, sub) in entry.sessions.items():
                if not (sub.no_local and session is publisher):
                    known = wanted.get(number)
                    if known is None or known[1] < sub.qos:
                        wanted[number] = (session, sub.qos)
            for group in entry.groups.values():
                group.queue.append(message)
                self._pump_group(group)
                if not message.stored and group.queue and group.queue[-1] is message:
                    group.queue.pop()
        for session, granted in wanted.values():
            self._offer(session, message, granted)

    def _offer(self, session: Session, message: Message, granted: int) -> None:
        qos = min(message.qos, granted)
        if qos == 0:
            if session.conn and not self.deaf:
                self._send(session, Flight(message, 0, None), 0)
            return
        if not session.durable and len(session.queue) >= QUEUE_MAX:
            self.emit(ev.MSG_DROPPED, session, msg=message.id, reason=1020, count=1)
            return
        session.queue.append((message, qos))
        if qos == 1:
            self._pump(session)
        else:
            self._dirty[session.number] = session

    def resend_publish(self, session: Session, pid: int) -> None:
        """Receive a repeated QoS 2 PUBLISH: its id is in use, so it is not accepted again."""
        self.emit(ev.PUB_DUP_RECEIVED, session, pid=pid, actor=ev.CLIENT)

    def release_publish(self, session: Session, pid: int) -> None:
        """Receive PUBREL, which frees the id."""
        del session.incoming[pid]
        self.emit(ev.PUB_RELEASED, session, pid=pid, actor=ev.CLIENT)
        self.emit(ev.PUB_COMPLETED, session, pid=pid)

    def refuse(self, session: Session) -> None:
        """Refuse a PUBLISH as not authorized."""
        self.emit(ev.MSG_DROPPED, session, reason=1025, count=1)

    def commit(self) -> None:
        """Make the batch durable, and send everything that waited for it."""
        self.wait(2)
        commits, self._commits = self._commits, []
        for message, _, _, _ in commits:
            if message.stored:
                self.emit(ev.MSG_PERSISTED, None, msg=message.id, actor=ev.STORAGE)
        for message, publisher, conn, pid in commits:
            if publisher is not None and publisher.conn == conn and conn:
                self.emit(
                    ev.PUB_ACKED,
                    publisher,
                    msg=message.id,
                    pid=pid,
                    pub_qos=message.qos,
                    reason=0,
                )
        dirty, self._dirty = self._dirty, {}
        for session in dirty.values():
            self._pump(session)

    # Outgoing messages.

    def _pump(self, session: Session) -> None:
        if not session.conn or self.deaf:
            return
        queue = session.queue
        while queue and len(session.flights) < session.window:
            message, qos = queue.popleft()
            if message.expired(self.clock):
                self.emit(ev.MSG_EXPIRED, session, msg=message.id)
            elif session.client.size_max and message.size > session.client.size_max:
                self.emit(ev.MSG_DROPPED, session, msg=message.id, reason=1021, count=1)
            else:
                flight = Flight(message, qos, None)
                pid = session.take_pid()
                session.flights[pid] = flight
                self._send(session, flight, pid)

    def _pump_group(self, group: Group) -> None:
        while group.queue and not self.deaf:
            free = [m for m in group.members if m.conn and len(m.flights) < m.window]
            if not free:
                if not any(member.durable for member in group.members):
                    group.queue.clear()
                return
            group.turn += 1
            member = free[group.turn % len(free)]
            message = group.queue.popleft()
            sub = member.subs[f"$share/{group.share}/{group.plain}"]
            flight = Flight(message, min(sub.qos, message.qos), group)
            pid = 0
            if flight.qos:
                pid = member.take_pid()
                member.flights[pid] = flight
            self._send(member, flight, pid)

    def _send(self, session: Session, flight: Flight, pid: int, again: bool = False) -> None:
        self.emit(
            ev.MSG_DELIVERED,
            session,
            msg=flight.message.id,
            pid=pid,
            qos=flight.qos,
            dup=again,
            attempt=2 if again else 1,
            retain=False,
            **self._group_columns(flight.group),
        )

    def _group_columns(self, group: Group | None) -> dict[str, Any]:
        """Return the columns of a group: its share name, and the stream of its filter."""
        if group is None:
            return {}
        entry = self.entries.get(group.plain)
        return {"share": group.share, "stream": (entry.stream if entry else 0) or None}

    def acknowledge(self, session: Session, pid: int, reason: int = 0) -> None:
        """Receive PUBACK or PUBREC; a reason of 0x80 or more ends a QoS 2 exchange."""
        flight = session.flights[pid]
        self.emit(
            ev.MSG_ACKED,
            session,
            msg=flight.message.id,
            pid=pid,
            qos=flight.qos,
            reason=reason,
            actor=ev.CLIENT,
        )
        if flight.qos == 2 and reason < 0x80:
            flight.released = True
            return
        del session.flights[pid]
        if flight.qos == 1:
            self._ended(session, pid, flight)
        self._freed(session)

    def complete(self, session: Session, pid: int) -> None:
        """Receive PUBCOMP."""
        flight = session.flights.pop(pid)
        session.exact_to = max(session.exact_to, flight.message.id)
        self.emit(ev.MSG_COMPLETED, session, msg=flight.message.id, pid=pid, qos=2, actor=ev.CLIENT)
        self._ended(session, pid, flight)
        self._freed(session)

    def _ended(self, session: Session, pid: int, flight: Flight) -> None:
        if flight.group is None:
            session.fresh_acks.append((self.now, pid, flight))
            del session.fresh_acks[:-4]

    def _freed(self, session: Session) -> None:
        self._pump(session)
        for sub in session.subs.values():
            if sub.share is not None:
                self._pump_group(self.groups[sub.share, sub.plain])

    def _move_leases(self, session: Session) -> None:
        leased = [(pid, f) for pid, f in session.flights.items() if f.group is not None]
        for pid, flight in leased:
            del session.flights[pid]
            group = flight.group
            assert group is not None
            columns = self._group_columns(group)
            self.emit(ev.MSG_MOVED, session, msg=flight.message.id, **columns)
        for _, flight in reversed(leased):
            assert flight.group is not None
            flight.group.queue.appendleft(flight.message)
        conn, session.conn = session.conn, 0
        for _, flight in leased:
            assert flight.group is not None
            self._pump_group(flight.group)
        session.conn = conn

    def drop_oldest(self, session: Session, count: int) -> None:
        """Drop the first `count` messages of a backlog, in one range, because they are too old."""
        gone = [session.queue.popleft()[0] for _ in range(count)]
        self.emit(
            ev.MSG_DROPPED,
            session,
            msg=gone[0].id,
            msg_last=gone[-1].id,
            count=count,
            reason=1027,
        )

    # Retained messages.

    def _retain(self, session: Session, message: Message) -> None:
        at = message.accepted_at
        columns = {"topic": message.topic, "at": at, "client_id": session.client_id}
        columns |= {"tenant": session.tenant, "pub": session.number}
        if message.size == 0:
            if self.retained.pop(message.topic, None):
                self.emit(ev.RETAINED_CLEARED, None, **columns)
            return
        self.retained[message.topic] = (message, at)
        columns |= {"msg": message.id, "bytes": message.size, "qos": message.qos}
        self.emit(ev.RETAINED_SET, None, **columns)
        if message.expiry_s is not None:
            self._timer(message.accepted_at + message.expiry_s * SECOND, message.topic, session)

    def _send_retained(self, session: Session, sub: Subscription) -> None:
        sent = []
        for topic, (message, at) in self.retained.items():
            if not matches(sub.plain, topic) or message.expired(self.clock):
                continue
            if len(session.flights) >= session.window:
                break
            qos = min(sub.qos, message.qos, 1)
            pid = session.take_pid() if qos else 0
            self.emit(
                ev.RETAINED_SENT,
                session,
                topic=topic,
                pid=pid,
                qos=qos,
                at=at,
                dup=False,
                weight=message.size,
            )
            if pid:
                sent.append(pid)
                session.flights[pid] = Flight(message, qos, None)
        for pid in sent:
            del session.flights[pid]
            self.emit(ev.MSG_ACKED, session, pid=pid, qos=1, reason=0, actor=ev.CLIENT)

    # Time.

    def _timer(self, due: int, kind: str, session: Session) -> None:
        self._timer_serial += 1
        heapq.heappush(self._timers, (due, self._timer_serial, kind, session))

    def _arm_expiry(self, session: Session) -> None:
        if session.expiry_s != NEVER:
            self._timer(session.offline_at + session.expiry_s * SECOND, "expiry", session)

    def _run_timers(self) -> None:
        ended = 0
        while self._timers and self._timers[0][0] <= self.clock:
            due, _, kind, session = heapq.heappop(self._timers)
            if kind == "will":
                if session.will_due == due:
                    self._admit_crash(session)
                    self.fire(session)
            elif kind == "expiry":
                known = self.sessions.get(session.client_id)
                if known is session and session.expires_at == due:
                    self.expire(session)
                    ended += 1
            else:
                held = self.retained.get(kind)
                if held and held[0].expired(self.clock):
                    del self.retained[kind]
                    self.emit(ev.RETAINED_EXPIRED, None, topic=kind)
        if ended:
            self.emit(ev.GC_RUN, None, count=ended, actor=ev.GC)

    # Boots of the broker.

    def boot(self, at: int) -> None:
        """Start, or restart; the census follows in slices."""
        if self.boots:
            self._next_slot(at)
        self.boots.append(Boot(len(self.boots) + 1, self.clock))
        self.rows = self.boots[-1].rows
        self.watched_rows = []
        self.deaf = False
        self._conns = 0
        self._unstored = 0
        self.emit(
            ev.BOOT,
            None,
            detail="full",
            position=self.log_end,
            reason=ev.RELEASES_RECORDED,
        )
        for session in self.sessions.values():
            session.census_due = True
        self._census = deque(self.sessions.values())
        self._census_found = len(self._census)

    def _restore_some(self) -> None:
        if self._census_found < 0:
            return
        for _ in range(min(CENSUS_SLICE, len(self._census))):
            session = self._census.popleft()
            if session.census_due and self.sessions.get(session.client_id) is session:
                session.census_due = False
                self._admit_crash(session)
                self.emit(ev.SESSION_RESTORED, session, **self._sizes(session))
        if not self._census:
            self.emit(
                ev.RECOVERED, None, count=self._census_found, position=self.log_end, detail="census"
            )
            self._census_found = -1

    def _admit_crash(self, session: Session) -> None:
        """Record first that a session was connected when the broker crashed."""
        at, session.crashed_at = session.crashed_at, 0
        if at:
            sizes = self._sizes(session)
            self.emit(ev.SESSION_DISCONNECTED, session, conn=0, reason=1002, at=at, **sizes)
            will = session.will
            if will is not None and session.will_due > self.now:
                self.emit(
                    ev.WILL_DELAYED, session, topic=will.topic, qos=will.qos, at=session.will_due
                )

    def shutdown(self) -> None:
        """Shut down: close every connection first."""
        for session in list(self.sessions.values()):
            self._admit_crash(session)
            if session.conn:
                self.disconnect(session, SHUTTING_DOWN, actor=ev.BROKER)
        self.commit()
        self.emit(ev.SHUTDOWN, None)
        self.boots[-1].clean = True

    def crash(self) -> None:
        """Crash. Clean sessions are lost; ends of exchanges of the last LAG_US are undone."""
        self._commits.clear()
        self._dirty.clear()
        for session in list(self.sessions.values()):
            if not session.conn:
                continue
            if not session.durable:
                self.forget(session)
                continue
            self._lag(session)
            session.position = self.position(session)
            session.conn = 0
            session.offline_at = session.crashed_at = self.clock
            self._arm_expiry(session)
            if session.will is not None:
                delay_s = min(session.will.delay_s, session.expiry_s)
                session.will_due = self.clock + delay_s * SECOND
                self._timer(session.will_due, "will", session)

    def forget(self, session: Session) -> None:
        """Remove a session without a row: a clean one ends with the broker, except for its will."""
        for sub in list(session.subs.values()):
            self._release(session, sub)
        del self.sessions[session.client_id]
        session.conn = 0
        if session.will is not None:
            session.will_due = self.clock
            self._timer(session.will_due, "will", session)

    def _lag(self, session: Session) -> None:
        late = [ack for ack in session.fresh_acks if ack[0] > self.now - LAG_US]
        free = [(pid, flight) for _, pid, flight in late if pid not in session.flights]
        if not free or len(session.flights) + len(free) > session.window:
            return
        exact = session.exact_to < free[0][1].message.id  # so all of them are at QoS 1
        if not session.flights and not session.queue and len(free) == len(late) > 1 and exact:
            # The position is older, too: these messages will be sent as new.
            session.queue.extend((flight.message, 1) for _, flight in free)
            return
        merged = [*free, *session.flights.items()]
        merged.sort(key=lambda pair: pair[1].message.id)
        session.flights = dict(merged)
