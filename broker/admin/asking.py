"""What the API and the pages ask: of the running broker, and of its data directory, as records.

Lists are read from the data directory, read-only; the broker is asked for what only it knows, and
for all changes. Knows no HTTP, and must never decide who may ask. Read next:
`broker.admin.sources.reading`, `broker.admin.sources.broker_questions`.
"""

import asyncio
import json
import math
import secrets
from collections.abc import Hashable
from fnmatch import fnmatchcase
from time import monotonic
from typing import Any, Final, TypeVar

import msgspec

from broker.admin import records
from broker.admin.sources import reading, telling
from broker.admin.sources.broker_questions import BrokerQuestions
from broker.admin.sources.lanes import Lane, NotThere, Turn
from broker.admin.sources.orders import Orders, Sorted
from broker.admin.sources.reading import now_text
from broker.configuration.config import Config, ConfigError
from broker.operations.control_socket import Absent, ControlError, Request
from broker.operations.looking import restart_report, why
from broker.process import preflight

NAME: Final = "name"
ORDERS: Final = (NAME, "bytes", "messages", "oldest", "since")
LIMIT_MAX: Final = 1000
LIMIT: Final = 50
CLIENTS_AGE_S: Final = 2.0  # of a list of clients that is used again, or
CLIENTS_SHARE: Final = 20  # so many times what it took
CLIENTS_WAITING_MAX: Final = 32  # for such a list
CLIENTS_MAX: Final = 200_000  # in one list
LOOK_S: Final = 0.05  # between two questions how far a purge is
PURGE_S: Final = 60.0  # waited for a purge; it goes on by itself

Result = TypeVar("Result")


class BadCursor(Exception):
    """A cursor that no page gave."""


class _Clients:
    __slots__ = ("as_of", "is_whole", "rows", "until_s")

    def __init__(self, rows: list[records.Client], is_whole: bool, took_s: float) -> None:
        self.rows: Final = rows
        self.is_whole: Final = is_whole
        self.as_of: Final = now_text()
        self.until_s: Final = monotonic() + max(CLIENTS_AGE_S, CLIENTS_SHARE * took_s)


class Asking:
    """Answers questions about one broker. All methods are the loop's."""

    def __init__(self, config: Config) -> None:
        self._config: Final = config
        data_dir = config.shell.data_dir
        self.broker: Final = BrokerQuestions(data_dir, now_text)
        self._lists: Final = Lane(data_dir, "lists")
        self._orders: Final = Lane(data_dir, "orders", longest_s=math.inf)
        self._single: Final = Lane(data_dir, "single")
        self._past: Final = Lane(data_dir, "past")
        self._sorted_lists: Final = Orders(self._put_in_order)
        self._clients: _Clients | None = None
        self._listing: Final = Turn(waiting_max=CLIENTS_WAITING_MAX)

    def close(self) -> None:
        """Give everything back."""
        self._sorted_lists.close()
        self.broker.close()
        self._lists.close()
        self._orders.close()
        self._single.close()
        self._past.close()

    # Sessions

    async def sessions(
        self,
        *,
        sort: str = NAME,
        match: str | None = None,
        offline: bool = False,
        cursor: str | None = None,
        limit: int = LIMIT,
    ) -> "records.Page[records.SessionRow]":
        """Return a page of sessions; `sort` is one of `ORDERS`, the most owed first.

        Bytes are counted in every order but that by name. Raises `BadCursor`, `BeingSorted`.
        """
        if sort == NAME:
            after = place_of(cursor, str) if cursor else None
            rows, more, notes = await self._lists.run(
                lambda opened: reading.sessions_by_name(opened, match, offline, after, limit)
            )
            following = cursor_of(rows[-1].client_id) if more else None
            return records.Page(rows, following, now_text(), notes)
        return await self._sorted(sort, match, offline, cursor, limit)

    async def _sorted(
        self, sort: str, match: str | None, offline: bool, cursor: str | None, limit: int
    ) -> "records.Page[records.SessionRow]":
        """Return a page in an order, for which all sessions are read, but not for every page."""
        begin: tuple[int, str] | None = None
        skipped = 0
        if cursor:
            begin, skipped = place_of(cursor, tuple[tuple[int, str] | None, int])
        rank = await self._sorted_lists.get((sort, match, offline, begin))
        chosen = rank.places[skipped : skipped + limit]
        if skipped < 0 or (skipped and not chosen):
            raise BadCursor
        notes = list(rank.notes)
        if rank.is_old:
            notes.append("this is an older order: a newer one is being worked out")
        rows = await self._lists.run(
            lambda opened: reading.rows_of(opened, [name for _, name in chosen], notes)
        )
        following = None
        end = skipped + len(chosen)
        if end < len(rank.places):
            following = cursor_of((begin, end))
        elif len(rank.places) == reading.RANKED_MAX:
            following = cursor_of((rank.places[-1], 0))
        return records.Page(rows, following, rank.as_of, notes)

    async def _put_in_order(self, key: Hashable) -> Sorted:
        assert isinstance(key, tuple)
        sort, match, offline, begin = key
        found = await self._orders.run(
            lambda opened: reading.places(opened, sort, match, offline, begin)
        )
        self._lists.refresh()  # it has to know the sessions that are in the order
        return found

    async def session(self, client_id: str) -> records.Session:
        """Return one session. Raises `NotThere`."""
        return await self._single.run(lambda opened: reading.session(opened, client_id))

    async def queue(
        self,
        client_id: str,
        *,
        topic_filter: str | None = None,
        payloads: bool = False,
        cursor: str | None = None,
        limit: int = LIMIT,
    ) -> "records.Page[records.QueueEntry]":
        """Return a page of what a session is owed, in order. Raises `NotThere`, `BadCursor`."""
        after = place_of(cursor, tuple[str, int]) if cursor else None
        rows, place, notes = await self._single.run(
            lambda opened: reading.queue(
                opened,
                self._config,
                client_id,
                topic_filter=topic_filter,
                payloads=payloads,
                after=after,
                limit=limit,
            )
        )
        following = None if place is None else cursor_of(place)
        return records.Page(rows, following, now_text(), notes)

    async def purge(
        self,
        client_id: str,
        name: str,
        *,
        older_ms: int = 0,
        topic: str | None = None,
        kick: bool = False,
        reason: str = "",
        dry_run: bool,
    ) -> records.Purged:
        """Drop what waits for a session; durable on return. Raises `NotThere`, `ControlError`.

        With `kick` its client may be connected: it is disconnected and kept out meanwhile.
        """
        found = await self.session(client_id)
        if dry_run:
            counted = await self._single.run(
                lambda opened: reading.count_waiting(
                    opened, self._config, client_id, older_ms, topic
                )
            )
            return records.Purged(client_id, True, counted, found.in_flight)
        request = {
            "do": "session_purge",
            "client_id": client_id,
            "reason": reason,
            "older_ms": str(older_ms),
            "topic": topic or "",
            "kick": "1" if kick else "",
        }
        dropped = await self.purged((await self.ask(request, name))["purge"])
        return records.Purged(client_id, False, dropped, found.in_flight)

    async def purged(self, number: str) -> int:
        """Wait for the end of a purge; return how many messages it has dropped.

        Raises `ControlError`, also when it has ended early.
        """
        until = monotonic() + PURGE_S
        while True:
            status = await self.ask({"do": "session_purge_status", "purge": number})
            if status["over"] == "1":
                break
            if monotonic() > until:
                raise ControlError(
                    f"{status['dropped']} messages are dropped so far; it goes on by itself"
                )
            await asyncio.sleep(LOOK_S)
        self._forget()
        if status["why"]:
            raise ControlError(f"{status['dropped']} messages dropped; then {status['why']}")
        return int(status["dropped"])

    async def delete(
        self, client_id: str, name: str, *, reason: str = "", dry_run: bool
    ) -> records.Deleted:
        """End a session, with what waits for it; durable on return.

        Raises `NotThere`, `ControlError`.
        """
        waiting: int | None = None
        try:
            waiting = (await self.session(client_id)).waiting
        except NotThere:
            if dry_run:  # else it may be a clean one, which the broker knows
                raise
        if not dry_run:
            request = {"do": "session_end", "client_id": client_id, "reason": reason}
            await self.ask({**request, "offline_ms": "0"}, name)
        return records.Deleted(client_id, dry_run, waiting)

    # Clients

    async def clients(
        self, *, match: str | None = None, cursor: str | None = None, limit: int = LIMIT
    ) -> "records.Page[records.Client]":
        """Return a page of connected clients by client id. Raises `ControlError`, `BadCursor`."""
        after = place_of(cursor, str) if cursor else None
        found = await self._all_clients()
        rows: list[records.Client] = []
        following = None
        for row in found.rows:
            if after is not None and row.client_id <= after:
                continue
            if match is not None and not fnmatchcase(row.client_id, match):
                continue
            if len(rows) == limit:
                following = cursor_of(rows[-1].client_id)
                break
            rows.append(row)
        notes = [] if found.is_whole else [f"more than {CLIENTS_MAX} clients: some are left out"]
        return records.Page(rows, following, found.as_of, notes)

    async def _all_clients(self) -> _Clients:
        """Return all clients: a list costs the broker 8 us for each, so it is used again."""
        async with self._listing.mine():
            if self._clients is not None and monotonic() < self._clients.until_s:
                return self._clients
            self._clients = None
            rows: list[records.Client] = []
            walk, page, more = secrets.token_hex(8), 0, "1"
            began = monotonic()
            while more and len(rows) < CLIENTS_MAX:
                request = {"do": "client_list", "page": str(page), "match": "*", "walk": walk}
                answer = await self.ask(request)
                rows += msgspec.json.decode(answer["clients"], type=list[records.Client])
                more = answer["more"]
                page += 1
            rows.sort(key=lambda row: row.client_id)
            self._clients = _Clients(rows, not more, monotonic() - began)
            return self._clients

    async def client(self, client_id: str) -> records.ClientDetail:
        """Return one connected client. Raises `NotThere`, `ControlError`."""
        answer = await self.ask({"do": "client_show", "client_id": client_id})
        return msgspec.json.decode(answer["client"], type=records.ClientDetail)

    async def kick(self, client_id: str, name: str, *, reason: str = "") -> records.Kicked:
        """End a client's connection; durable on return. Raises `NotThere`, `ControlError`."""
        await self.ask({"do": "client_kick", "client_id": client_id, "reason": reason}, name)
        return records.Kicked(client_id)

    # Groups, topics, retained messages

    async def groups(
        self, *, cursor: str | None = None, limit: int = LIMIT
    ) -> "records.Page[records.Group]":
        """Return a page of shared groups by name and topic filter. Raises `BadCursor`."""
        after = place_of(cursor, tuple[str, str]) if cursor else None
        rows, more, notes = await self._lists.run(
            lambda opened: reading.groups(opened, after, limit)
        )
        following = cursor_of((rows[-1].share_name, rows[-1].topic_filter)) if more else None
        return records.Page(rows, following, now_text(), notes)

    async def group(self, share_name: str, topic_filter: str) -> records.Group:
        """Return one shared group with its members. Raises `NotThere`."""
        return await self._lists.run(lambda opened: reading.group(opened, share_name, topic_filter))

    async def topic(self, name: str) -> records.TopicReaders:
        """Return who gets what is published on a topic."""
        return await self._lists.run(lambda opened: reading.topic(opened, name))

    async def retained(
        self, *, match: str | None = None, cursor: str | None = None, limit: int = LIMIT
    ) -> "records.Page[records.Retained]":
        """Return a page of retained messages; `match` is a topic filter. Raises `BadCursor`."""
        after = place_of(cursor, str) if cursor else None
        rows, more, notes = await self._lists.run(
            lambda opened: reading.retained(opened, match, after, limit)
        )
        return records.Page(rows, cursor_of(rows[-1].topic) if more else None, now_text(), notes)

    async def retained_message(self, name: str) -> records.RetainedMessage:
        """Return the retained message of a topic. Raises `NotThere`."""
        return await self._single.run(lambda opened: reading.retained_message(opened, name))

    async def count_retained(self, topic_filter: str) -> int:
        """Return how many retained messages are on topics that match."""
        return await self._lists.run(lambda opened: reading.count_retained(opened, topic_filter))

    # The whole

    async def storage(self) -> records.Storage:
        """Return how much the log takes. Raises `ControlError`."""
        return msgspec.convert(
            await self.ask({"do": "storage_show"}), records.Storage, strict=False
        )

    async def backlog(self) -> records.Backlog:
        """Return what is owed in all, as it was counted last. Raises `ControlError`."""
        answer = await self.ask({"do": "backlog_totals"})
        told = {
            name: value if name == "problem" else json.loads(value)
            for name, value in answer.items()
        }
        return msgspec.convert(told, records.Backlog)

    async def pins(self) -> list[records.Generation]:
        """Return who needs which generation, as it was counted last. Raises `ControlError`."""
        rows: list[records.Generation] = []
        after = "0"
        while after:
            answer = await self.ask({"do": "storage_pins", "after": after})
            rows += msgspec.json.decode(answer["pins"], type=list[records.Generation])
            after = answer["after"]
        return rows

    async def live_figures(self) -> dict[str, Any]:
        """Return the figures of the broker now, as it tells them. Raises `ControlError`."""
        figures: dict[str, Any] = json.loads((await self.ask({"do": "live_figures"}))["figures"])
        return figures

    async def reclaim(self, name: str) -> records.Storage:
        """Have the broker give back what nobody needs; the figures are those right after.

        Raises `ControlError`.
        """
        answer = await self.ask({"do": "storage_reclaim"}, name)
        return msgspec.convert(answer, records.Storage, strict=False)

    async def restart_check(self) -> records.RestartCheck:
        """Return what a restart would cost and what is against it. Raises `ControlError`."""
        facts: dict[str, Any] = json.loads((await self.ask({"do": "restart_check"}))["facts"])
        facts["configuration"] = await asyncio.to_thread(self._configuration_problem)
        against = list(restart_report.objections(facts))
        return msgspec.convert(
            {
                **facts,
                "is_safe": not against,
                "against_it": against,
                "sentences": list(restart_report.sentences(facts)),
            },
            records.RestartCheck,
        )

    def _configuration_problem(self) -> str:
        try:
            preflight.check_files(self._config)
        except ConfigError as problem:
            return str(problem)
        return ""

    async def why(
        self, client_id: str, *, topic: str | None = None, since_s: int | None = None
    ) -> records.Why:
        """Return why a client may miss messages, in sentences."""
        now = await self._single.run(
            lambda opened: reading.why_now(opened, self._config, client_id, topic)
        )
        before = await self._lists.run(
            lambda opened: reading.why_before(self._config, client_id, since_s, opened.check)
        )
        settings, shell = self._config.settings, self._config.shell
        unknown = why.limits_of_knowledge(
            settings.history_level, has_rules=shell.acl_file is not None
        )
        return records.Why(client_id, now, before, list(unknown))

    async def timeline(self, client_id: str) -> records.Timeline:
        """Return what happened to a client, by the history, the newest first."""
        return await self._past.run(
            lambda opened: telling.timeline(self._config, client_id, opened.check)
        )

    async def starts(self) -> records.Starts:
        """Return how the broker began and ended, by the history, the newest first."""
        return await self._past.run(lambda opened: telling.starts(self._config, opened.check))

    async def ask(self, request: Request, name: str = "") -> Request:
        """Ask the broker; with a name something is changed, and is to be seen from now on."""
        try:
            return await self.broker.ask(request, name)
        except Absent as problem:
            raise NotThere(str(problem)) from None
        finally:
            if name:
                self._forget()

    def _forget(self) -> None:
        self._sorted_lists.forget()
        self._clients = None
        self._lists.refresh()
        self._orders.refresh()
        self._single.refresh()


# Cursors: a place in a list as text that nobody needs to understand.


def cursor_of(place: Any) -> str:
    """Return the text of a place."""
    return msgspec.json.encode(place).hex()


def place_of(cursor: str, kind: type[Result]) -> Result:
    """Return the place that a text stands for. Raises `BadCursor`."""
    try:
        return msgspec.json.decode(bytes.fromhex(cursor), type=kind)
    except (ValueError, msgspec.DecodeError):
        raise BadCursor from None
