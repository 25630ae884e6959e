"""What an operator asks of clients and sessions of a running broker: who is there, and ends.

What changes something is answered when it is durable, and logged with the user who asked. Read
next: `session.administration`, which does it, and `broker.cli.administration`, which asks.
"""

import fnmatch
import json
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, Final

from broker.loop.driver import Driver
from broker.observe.structured_log import Log
from broker.operations.control_socket import BY, Absent, Answer, ControlError, Request
from broker.process.desks.engine_work import begin, whole_number
from mqtt.topics import SHARE_PREFIX, filter_problem
from session.administration import Administration
from session.engine import Engine
from session.errands.group_purging import GroupPurge
from session.live.connection import Connection
from session.purging import Purge
from session.state.session import EXPIRY_NEVER

LIST: Final = "client_list"
SHOW: Final = "client_show"
KICK: Final = "client_kick"
END: Final = "session_end"
PURGE: Final = "session_purge"
GROUP_PURGE: Final = "group_purge"
PURGED: Final = "session_purge_status"  # how far the purge with a number is
RECLAIM: Final = "storage_reclaim"
STORAGE: Final = "storage_show"
REQUESTS: Final = frozenset({LIST, SHOW, KICK, END, PURGE, GROUP_PURGE, PURGED, RECLAIM, STORAGE})

PAGE_CLIENTS: Final = 256  # looked at for one page: about 2 ms
PAGE_BYTES: Final = 128 << 10  # of one page; the last client may exceed it
FILTERS_MAX: Final = 1000  # shown of one client
FILTERS_BYTES_MAX: Final = 128 << 10
WALKS_MAX: Final = 4  # lists that are under way at once
KNOWN_MAX: Final = 256  # purges whose end is remembered
Row = dict[str, Any]


class ClientDesk:
    """Answers requests about clients and sessions."""

    def __init__(self, engine: Engine, driver: Driver, log: Log) -> None:
        self._engine: Final = engine
        self._driver: Final = driver
        self._log: Final = log
        # By who lists: the number of the next page, and whom it has not shown.
        self._walks: Final[dict[str, tuple[int, Iterator[str]]]] = {}
        self._purges: Final[dict[str, Purge | GroupPurge]] = {}  # by number, oldest first
        self._last_purge = 0

    def answer(self, request: Request) -> Answer:
        """Answer a request of `REQUESTS`. Raises `ControlError`, at once or in the future."""
        works = {
            LIST: self._list,
            SHOW: self._show,
            KICK: self._kick,
            END: self._end,
            PURGE: self._purge,
            GROUP_PURGE: self._purge_group,
            PURGED: self._purged,
            RECLAIM: self._reclaim,
            STORAGE: self._show_storage,
        }
        return begin(self._driver, works[request["do"]], request)

    @property
    def _administration(self) -> Administration:
        return self._engine.administer(self._driver.now)

    # Who is there

    def _list(self, request: Request, found: Future[Request]) -> None:
        """Tell who is connected, a page at a time: those who were when the first page was asked.

        Pages are numbered; the place of the next one is kept here, for each name of a walk.
        """
        live = self._administration.connections()
        page, pattern = request.get("page", "0"), request.get("match", "*")
        name = request.get("walk", "")
        if page == "0":
            self._walks.pop(name, None)
            if len(self._walks) >= WALKS_MAX:
                del self._walks[next(iter(self._walks))]
            self._walks[name] = (0, iter(list(live)))
        number, walk = self._walks.get(name, (0, iter(())))
        if page != str(number):
            raise ControlError("another operator has begun a list: ask again")
        rows: list[Row] = []
        size = looked_at = 0
        for client_id in walk:
            looked_at += 1
            connection = live.get(client_id)
            if connection is not None and fnmatch.fnmatchcase(client_id, pattern):
                rows.append(self._row(connection))
                size += len(json.dumps(rows[-1]))
            if looked_at == PAGE_CLIENTS or size > PAGE_BYTES:
                break
        if looked_at:
            self._walks[name] = (number + 1, walk)
        else:
            self._walks.pop(name, None)
        found.set_result({"clients": json.dumps(rows), "more": "1" if looked_at else ""})

    def _show(self, request: Request, found: Future[Request]) -> None:
        connection = self._administration.connections().get(request.get("client_id", ""))
        if connection is None:
            raise _absent(request)
        row = self._row(connection)
        filters: list[Row] = []
        size = 0
        session = connection.session
        subscriptions = {} if session is None else session.subscriptions
        for each in subscriptions.values():
            size += len(json.dumps(each.topic_filter))
            if len(filters) == FILTERS_MAX or size > FILTERS_BYTES_MAX:
                break
            filters.append({"topic_filter": each.topic_filter, "qos": each.qos})
        row["topic_filters"] = filters
        found.set_result({"client": json.dumps(row)})

    def _row(self, connection: Connection) -> Row:
        session = connection.session
        assert session is not None
        will, expiry_s = connection.will, session.expiry_interval_s
        return {
            "client_id": session.client_id,
            "user": connection.username,
            "listener": connection.listener,
            "address": connection.remote,
            "protocol_version": connection.version,
            "keep_alive_seconds": connection.keep_alive_s,
            "connected_seconds": max(0, self._driver.now - session.connected_at_ms) // 1000,
            "durable": session.is_stored,
            "session_expiry_interval": None if expiry_s == EXPIRY_NEVER else expiry_s,
            "subscriptions": len(session.subscriptions),
            "in_flight": len(session.in_flight),
            "lagging": connection.is_lagging,
            "will_topic": None if will is None else will.topic,
        }

    # Ends

    def _kick(self, request: Request, found: Future[Request]) -> None:
        client_id, reason = request.get("client_id", ""), request.get("reason", "")
        if not self._administration.kick(client_id, request[BY], reason):
            raise _absent(request)
        self._done("client_kicked", "an operator has ended a connection", request, found)

    def _end(self, request: Request, found: Future[Request]) -> None:
        client_id, reason = request.get("client_id", ""), request.get("reason", "")
        offline_ms = whole_number(request, "offline_ms")
        ended = self._administration.end_session(
            client_id, request[BY], reason, offline_ms=offline_ms
        )
        if not ended:
            away = " and is away for so long" if offline_ms else ""
            raise Absent(f"no client {client_id!r} has a session{away}")
        self._done("session_ended", "an operator has ended a session", request, found)

    def _purge(self, request: Request, found: Future[Request]) -> None:
        client_id, reason = request.get("client_id", ""), request.get("reason", "")
        administration = self._administration
        kick = request.get("kick") == "1"
        live = administration.connections().get(client_id)
        if live is not None and not kick:
            raise ControlError(
                f"client {client_id!r} is connected: --kick ends that and keeps it out meanwhile"
            )
        if live is not None and (live.session is None or not live.session.expiry_interval_s):
            raise ControlError(
                f"the session of {client_id!r} ends with its connection: `holdfast client kick`"
            )
        purge = administration.purge(
            client_id,
            request[BY],
            reason,
            older_ms=whole_number(request, "older_ms"),
            topic=_topic_filter(request),
            kick=kick,
        )
        if purge is None:
            raise Absent(f"no client {client_id!r} has a session")
        self._log.info(
            "session_purged",
            "an operator drops what waits for a session",
            client_id=client_id,
            by=request[BY],
            reason=reason,
        )
        found.set_result({"purge": self._numbered(purge)})

    def _purge_group(self, request: Request, found: Future[Request]) -> None:
        group, topic_filter = request.get("group", ""), request.get("topic_filter", "")
        purge = self._administration.purge_group(
            group,
            topic_filter,
            request[BY],
            request.get("reason", ""),
            older_ms=whole_number(request, "older_ms"),
            topic=_topic_filter(request),
        )
        if purge is None:
            raise Absent(f"no shared group {group!r} of {topic_filter!r}")
        self._log.info(
            "group_purged",
            "an operator drops what waits for a shared subscription",
            group=group,
            topic_filter=topic_filter,
            by=request[BY],
            reason=request.get("reason", ""),
        )
        found.set_result({"purge": self._numbered(purge)})

    def _numbered(self, purge: Purge | GroupPurge) -> str:
        """Return the number by which a purge is known."""
        self._last_purge += 1
        if len(self._purges) >= KNOWN_MAX:
            del self._purges[next(iter(self._purges))]
        self._purges[str(self._last_purge)] = purge
        return str(self._last_purge)

    def _purged(self, request: Request, found: Future[Request]) -> None:
        """Tell how far a purge is; its end is told when it is durable."""
        purge = self._purges.get(request.get("purge", ""))
        if purge is None:
            raise ControlError("that purge is not known any more")
        answer = {"dropped": str(purge.dropped), "over": str(int(purge.is_over)), "why": purge.why}
        if purge.is_over:
            self._driver.when_durable(lambda: found.set_result(answer))
        else:
            found.set_result(answer)

    def _reclaim(self, request: Request, found: Future[Request]) -> None:
        """Close the open generation, so that it goes as soon as nobody needs it."""
        self._administration.reclaim()
        self._log.info(
            "storage_reclaim", "an operator wants the space of what nobody needs", by=request[BY]
        )
        self._driver.when_durable(lambda: self._show_storage(request, found))

    def _show_storage(self, request: Request, found: Future[Request]) -> None:
        stats = self._engine.stats()
        names = ("log_bytes", "generations", "sessions_stored", "retained_messages")
        found.set_result({name: str(stats[name]) for name in names})

    def _done(self, event: str, words: str, request: Request, found: Future[Request]) -> None:
        """Log what was done, and answer once it is durable."""
        client_id = request["client_id"]
        self._log.info(
            event, words, client_id=client_id, by=request[BY], reason=request.get("reason", "")
        )
        self._driver.when_durable(lambda: found.set_result({"client_id": client_id}))


def _topic_filter(request: Request) -> str | None:
    """Return the topic filter of what a purge drops, None = everything. Raises `ControlError`."""
    topic = request.get("topic") or None
    if topic is None:
        return None
    problem = filter_problem(topic)
    if problem is None and topic.startswith(SHARE_PREFIX):
        problem = f"topic filter {topic[:60]!r}: expected one that is not shared"
    if problem is not None:
        raise ControlError(problem)
    return topic


def _absent(request: Request) -> Absent:
    return Absent(f"no client {request.get('client_id', '')!r} is connected")
