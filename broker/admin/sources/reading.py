"""Answers out of a read-only database, as records.

Each function reads one page, and gives up when it takes too long. The rows come from the same
functions as those of the commands. Must never write. Read next: `broker.admin.sources.lanes`,
which calls it on a thread, `broker.operations.sessions`, `broker.operations.looking`.
"""

import base64
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from broker.admin import records
from broker.admin.sources.lanes import NotThere, Opened
from broker.configuration.config import Config
from broker.history import queries
from broker.operations.looking import groups_report, retained_report, why
from broker.operations.looking.retained_messages import RetainedMessages
from broker.operations.looking.rows import Problems
from broker.operations.looking.shared_groups import PAGE_MEMBERS_MAX, SharedGroups
from broker.operations.looking.topic_readers import TopicReaders
from broker.operations.sessions import columns, queue_report, ranking, report
from broker.operations.sessions.inventory import SessionReport
from broker.operations.sessions.owed import Owed, in_flight, owed, waiting
from mqtt.topics import matches
from storage.errors import DamagedRows
from storage.time import machine_clocks

RANKED_MAX: Final = 1000  # sessions that are put in order at once; a page further on is another
READERS_MAX: Final = 1000  # sessions and groups that are told of one topic
SENTENCES_MAX: Final = 1000
PAYLOAD_BYTES_MAX: Final = 4096  # of a payload in a queue
RETAINED_BYTES_MAX: Final = 1 << 20  # of a retained one that is asked for
LIST_PAYLOADS_MAX: Final = 1 << 20  # bytes of all payloads of a page

Record = TypeVar("Record")


def now_text() -> str:
    """Return the wall-clock time as text."""
    return text_of(machine_clocks.wall_ms())


def text_of(wall_ms: int) -> str:
    """Return a wall-clock time, ms since 1970, as text."""
    moment = datetime.fromtimestamp(wall_ms / 1000, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def record(kind: type[Record], fields: dict[str, Any]) -> Record:
    """Return the record of these fields."""
    return msgspec.convert(fields, kind)


def _in_time(opened: Opened, rows: Iterable[Record]) -> Iterator[Record]:
    """Yield rows as long as there is time."""
    for row in rows:
        opened.check()
        yield row


# Sessions


def session_row(opened: Opened, found: SessionReport) -> records.SessionRow:
    """Return a session as a row."""
    fields = report.fields(opened.inventory, found)
    fields["subscriptions"] = len(found.session.subscriptions)
    return record(records.SessionRow, fields)


def session(opened: Opened, client_id: str) -> records.Session:
    """Return one session with its bytes. Raises `NotThere`."""
    fields = report.fields(opened.inventory, _session(opened, client_id, with_bytes=True))
    return record(records.Session, fields)


def _session(opened: Opened, client_id: str, *, with_bytes: bool = False) -> SessionReport:
    try:
        found = opened.inventory.session(client_id, with_bytes=with_bytes)
    except UnicodeEncodeError:
        found = None
    if found is None:
        raise NotThere(f"no session {client_id!r}")
    return found


def sessions_by_name(
    opened: Opened, pattern: str | None, is_offline: bool, after: str | None, limit: int
) -> tuple[list[records.SessionRow], bool, list[str]]:
    """Return sessions by client id, whether there are more, and what could not be read."""
    notes: list[str] = []
    found = _in_time(opened, _sessions(opened, pattern, is_offline, after, notes))
    rows = [session_row(opened, each) for each in islice(found, limit)]
    more = len(rows) == limit and next(found, None) is not None
    return rows, more, notes


def _sessions(
    opened: Opened,
    pattern: str | None,
    is_offline: bool,
    after: str | None,
    notes: list[str],
    *,
    with_bytes: bool = False,
) -> Iterator[SessionReport]:
    def wanted(client_id: str) -> bool:
        opened.check()
        return pattern is None or fnmatchcase(client_id, pattern)

    def damaged(text: str) -> None:
        if len(notes) < SENTENCES_MAX:
            notes.append(text)

    return opened.inventory.sessions(
        wanted=wanted, is_offline=is_offline, with_bytes=with_bytes, damaged=damaged, after=after
    )


def places(
    opened: Opened,
    order: str,
    pattern: str | None,
    is_offline: bool,
    after: tuple[int, str] | None,
) -> tuple[list[tuple[int, str]], list[str]]:
    """Return the places and client ids of the next sessions in an order, and what is damaged.

    For `RANKED_MAX` of them every session of the store is read.
    """
    import heapq

    notes: list[str] = []
    found = _sessions(opened, pattern, is_offline, None, notes, with_bytes=order == ranking.BYTES)
    ranked = ((ranking.place(each, order), each.session.client_id) for each in found)
    if after is not None:
        ranked = (place for place in ranked if place > after)
    return heapq.nsmallest(RANKED_MAX, ranked), notes


def rows_of(
    opened: Opened, client_ids: Iterable[str], notes: list[str]
) -> list[records.SessionRow]:
    """Return these sessions with their bytes; those that have ended meanwhile are left out."""
    rows = []
    for client_id in client_ids:
        opened.check()
        try:
            found = opened.inventory.session(client_id, with_bytes=True)
        except DamagedRows as problem:
            notes.append(str(problem))
            continue
        if found is not None:
            rows.append(session_row(opened, found))
    return rows


def queue(
    opened: Opened,
    config: Config,
    client_id: str,
    *,
    topic_filter: str | None,
    payloads: bool,
    after: tuple[str, int] | None,
    limit: int,
) -> tuple[list[records.QueueEntry], tuple[str, int] | None, list[str]]:
    """Return what a session is owed, the place of the next page, and notes. Raises `NotThere`.

    A place is ("flight", how many of those in flight were told) or ("offset", of the last one).
    """
    found = _session(opened, client_id)
    entries = _behind(opened, config, found, after)
    rows: list[records.QueueEntry] = []
    place = after
    size = 0
    for each, here in _in_time(opened, entries):
        if topic_filter is not None and (
            each.message is None or not matches(topic_filter, each.message.topic)
        ):
            continue
        if len(rows) == limit or size > LIST_PAYLOADS_MAX:
            return rows, place, list(queue_report.notes(found.session))
        fields = queue_report.fields(opened.inventory, each, False)
        if payloads:
            payload = None if each.message is None else each.message.payload[:PAYLOAD_BYTES_MAX]
            size += len(payload or b"")
            fields["payload"] = None if payload is None else base64.b64encode(payload).decode()
        rows.append(record(records.QueueEntry, fields))
        place = here
    return rows, None, list(queue_report.notes(found.session))


def _behind(
    opened: Opened, config: Config, found: SessionReport, after: tuple[str, int] | None
) -> Iterator[tuple[Owed, tuple[str, int]]]:
    """Yield what is owed behind a place, each with its own."""
    flights = len(list(in_flight(opened.inventory, found.session)))
    number = 0
    for each in owed(opened.inventory, found, config.settings, opened.time.now_ms):
        opened.check()
        number += 1
        here = ("flight", number) if number <= flights else ("offset", each.offset)
        if after is not None and (
            (after[0] == "flight" and number <= after[1])
            or (after[0] == "offset" and (number <= flights or each.offset <= after[1]))
        ):
            continue
        yield each, here


def count_waiting(
    opened: Opened, config: Config, client_id: str, older_ms: int, topic_filter: str | None
) -> int:
    """Return how many messages wait for a session, so old and on topics that match.

    Raises `NotThere`.
    """
    found = _session(opened, client_id)
    if not older_ms and topic_filter is None:
        return found.backlog.waiting
    before_ms = opened.time.now_ms - older_ms
    count = 0
    for each in _in_time(opened, waiting(opened.inventory, found, config.settings, 0)):
        message = each.message
        if message is None or (older_ms and message.accepted_at_ms > before_ms):
            continue
        count += topic_filter is None or matches(topic_filter, message.topic)
    return count


# Groups, topics, retained messages


def groups(
    opened: Opened, after: tuple[str, str] | None, limit: int
) -> tuple[list[records.Group], bool, list[str]]:
    """Return shared groups by name and filter, whether there are more, and what is damaged."""
    problems = Problems()
    found = _in_time(opened, SharedGroups(opened.inventory.store, problems).all(opened.time.now_ms))
    rows: list[records.Group] = []
    for each in found:
        if after is not None and (each.share_name, each.topic_filter) <= after:
            continue
        if len(rows) == limit:
            return rows, True, list(problems.lines())
        rows.append(record(records.Group, groups_report.fields(each)))
    return rows, False, list(problems.lines())


def group(opened: Opened, share_name: str, topic_filter: str) -> records.Group:
    """Return one group with its members. Raises `NotThere`."""
    problems = Problems()
    groups = SharedGroups(opened.inventory.store, problems, members_max=PAGE_MEMBERS_MAX)
    try:
        found = groups.find(share_name, topic_filter, opened.time.now_ms)
    except UnicodeEncodeError:
        found = None
    if found is None:
        damage = "; ".join(problems.lines())
        raise NotThere(damage or f"no shared group {share_name!r} of {topic_filter!r} is stored")
    return record(records.Group, groups_report.fields(found))


def topic(opened: Opened, name: str) -> records.TopicReaders:
    """Return who gets what is published on a topic."""
    problems = Problems()
    readers = TopicReaders(opened.inventory.store, name, problems)
    sessions: list[records.TopicSession] = []
    for each in _in_time(opened, readers.sessions()):
        if len(sessions) < READERS_MAX:
            sessions.append(
                records.TopicSession(
                    client_id=each.client_id,
                    topic_filter=each.topic_filter,
                    qos=each.qos,
                    no_local=each.no_local,
                    connected=each.is_connected,
                    gets=each.gets,  # type: ignore[arg-type]  # one of its three words
                )
            )
    groups = [
        records.TopicGroup(
            share_name=each.share_name,
            topic_filter=each.topic_filter,
            qos_min=each.qos_min,
            qos_max=each.qos_max,
            members=each.members,
            connected=each.connected,
            gets=each.gets,  # type: ignore[arg-type]
        )
        for each in islice(readers.groups.values(), READERS_MAX)
    ]
    return records.TopicReaders(
        topic=name,
        sessions=sessions,
        sessions_count=readers.sessions_count,
        sessions_connected=readers.sessions_connected,
        subscriptions_count=readers.subscriptions_count,
        groups=groups,
        groups_count=len(readers.groups),
        as_of=now_text(),
        notes=list(problems.lines()),
    )


def retained(
    opened: Opened, topic_filter: str | None, after: str | None, limit: int
) -> tuple[list[records.Retained], bool, list[str]]:
    """Return retained messages in the order of the store, whether there are more, and damage."""
    problems = Problems()
    messages = RetainedMessages(opened.inventory.store, opened.time.now_ms, problems)
    rows: list[records.Retained] = []
    for message in _in_time(opened, messages.matching(topic_filter, after=after)):
        if len(rows) == limit:
            return rows, True, list(problems.lines())
        rows.append(record(records.Retained, retained_report.fields(opened.time, message)))
    return rows, False, list(problems.lines())


def count_retained(opened: Opened, topic_filter: str) -> int:
    """Return how many retained messages are on topics that match."""
    messages = RetainedMessages(opened.inventory.store, opened.time.now_ms, Problems())
    return sum(1 for _ in _in_time(opened, messages.matching(topic_filter)))


def retained_message(opened: Opened, name: str) -> records.RetainedMessage:
    """Return the retained message of a topic. Raises `NotThere`."""
    problems = Problems()
    messages = RetainedMessages(opened.inventory.store, opened.time.now_ms, problems)
    message = messages.find(name)
    if message is None or messages.is_expired(message):
        raise NotThere("; ".join(problems.lines()) or f"no retained message on {name!r}")
    payload = message.payload[:RETAINED_BYTES_MAX]
    return record(
        records.RetainedMessage,
        {
            **retained_report.fields(opened.time, message),
            "payload": base64.b64encode(payload).decode(),
            "payload_is_cut": len(payload) < len(message.payload),
            **retained_report.properties(message),
        },
    )


# Why


def why_now(opened: Opened, config: Config, client_id: str, name: str | None) -> list[str]:
    """Return what a client has now, in sentences."""
    inventory = opened.inventory
    try:
        found = inventory.session(client_id)
    except UnicodeEncodeError:
        found = None
    sentences = list(
        why.session_lines(
            None if found is None else found.session,
            since=None if found is None else columns.moment(inventory, found.since_ms),
            expires=None if found is None else columns.moment(inventory, found.expires_ms),
            is_connected=found is not None and found.is_connected,
        )
    )
    if found is not None:
        if name is not None:
            sentences += why.topic_lines(found.session, name)
        queue = owed(inventory, found, config.settings, opened.time.now_ms)
        sentences += why.queue_lines(_in_time(opened, queue), name)
    return sentences


def why_before(
    config: Config, client_id: str, since_s: int | None, check: Callable[[], None]
) -> list[str]:
    """Return what the history tells of a client, in sentences."""
    story = why.Story()
    problem = []
    events = queries.of_client(config, client_id, since_s=since_s, now_ms=machine_clocks.wall_ms())
    try:
        for event in events:
            check()
            story.add(event)
    except queries.HistoryError as found:
        problem.append(str(found))
    return [*story.sentences(), *problem]
