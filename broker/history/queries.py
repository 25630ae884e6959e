"""`holdfast history tail|timeline|verify`: what happened, for people and for programs.

Reads the data directory of a running or a stopped broker and changes nothing in it. Yields lines;
`broker.cli.history` prints them. Expected failures are `HistoryError`, a line for the operator.
Read next: `broker.history.reader`, `storage.history.words`, `broker.history.export_copy`.
"""

import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from broker.configuration.config import Config
from broker.history.location import Place, find
from broker.history.reader import Event, History
from broker.history.segment_process_link import HOW_TO_INSTALL
from storage.errors import StorageError
from storage.history import witness
from storage.history.chain import Chained
from storage.history.packed_rows import shortened
from storage.history.segment_names import SegmentName
from storage.history.witness import WitnessError
from storage.history.words import describe, printable

FOLLOW_S: Final = 2.0  # between two reads: each opens the database, which replays its log
TRIES: Final = 5  # to open a database while its broker deletes files
NAME_HASH_BYTES: Final = 16  # as `session.history.recorder` hashes names


class HistoryError(Exception):
    """A query that cannot be answered; one line for the operator."""


@contextlib.contextmanager
def _problems() -> Iterator[None]:
    try:
        yield
    except StorageError as problem:
        raise HistoryError(str(problem)) from None
    except OSError as problem:
        raise HistoryError(f"{problem.filename}: {problem.strerror}") from None


class Reading:
    """The history of the configured data directory; each query opens it anew."""

    def __init__(self, config: Config) -> None:
        """Raises `HistoryError` when there is no database."""
        self.place: Final[Place] = find(config.shell)
        self.left_out: int = 0  # segments that nobody here can read
        self._database: Final = Path(config.shell.data_dir) / "db"
        if not self._database.is_dir():
            raise HistoryError(f"data directory {config.shell.data_dir}: no database in it")

    def open(self) -> History:
        """Open the database; try again when a running broker deletes files at that moment."""
        for _ in range(TRIES - 1):
            try:
                return History(self._database, self.place)
            except StorageError:
                continue
        try:
            return History(self._database, self.place)
        except StorageError as problem:
            raise HistoryError(str(problem)) from None


def tail(config: Config, count: int, *, as_json: bool, follow: bool) -> Iterator[str]:
    """Yield the last `count` events, a line each; with `follow` new ones for ever.

    A segment that nobody can read ends it, after all others; with `follow` it is named on standard
    error, once. Raises `HistoryError`.
    """
    reading = Reading(config)
    show = _as_json if as_json else _as_line
    seen = (0, 0)
    with _problems():
        with reading.open() as history:
            events = _last(history, max(count, 1))  # of the newest one the place is needed
            reading.left_out = history.left_out
            damaged = history.damaged
        if events:
            seen = _place_of(events[-1])
        elif not follow and not reading.left_out and not damaged:
            raise HistoryError(
                f"nothing of node {reading.place.node!r} in {reading.place.directory}, and no "
                f"event in the database of {config.shell.data_dir}"
            )
        for event in events[len(events) - count if count < len(events) else 0 :]:
            yield show(event)
        if reading.left_out and not as_json:
            yield _left_out(reading.left_out)
        if not follow:
            _complain(damaged)
        named: set[str] = set()
        while follow:
            _warn(damaged, named)
            time.sleep(FOLLOW_S)
            with reading.open() as history:
                for event in _after(history, seen):
                    seen = _place_of(event)
                    yield show(event)
                damaged = history.damaged


def timeline(
    config: Config,
    client_id: str | None,
    message: int | None,
    *,
    since_s: int | None,
    as_json: bool,
    now_ms: int,
) -> Iterator[str]:
    """Yield what happened to a client, to a message, or to a message on its way to a client.

    Raises `HistoryError`, also when nothing is known of them.
    """
    if client_id is None and message is None:
        raise HistoryError("timeline of what? expected CLIENT_ID, --message ID, or both")
    reading = Reading(config)
    if client_id is not None:
        client_id = _recorded(config, client_id)
    since_ms = 0 if since_s is None else max(0, now_ms - since_s * 1000)
    show = _as_json if as_json else _as_line
    found = 0
    with _problems(), reading.open() as history:
        for event in _concerning(history, client_id, message, since_ms):
            found += 1
            yield show(event)
        left_out, damaged = history.left_out, history.damaged
    if left_out and not as_json:
        yield _left_out(left_out)
    _complain(damaged)
    if not found:
        whom = [] if client_id is None else [f"client {client_id!r}"]
        whom += [] if message is None else [f"message {message}"]
        raise HistoryError(f"the history knows nothing of {' and '.join(whom)}")


def of_client(
    config: Config, client_id: str, *, since_s: int | None, now_ms: int
) -> Iterator[Event]:
    """Yield the events of a client, the oldest first.

    Raises `HistoryError`, at the end also for segments that cannot be read.
    """
    reading = Reading(config)
    since_ms = 0 if since_s is None else max(0, now_ms - since_s * 1000)
    with _problems(), reading.open() as history:
        yield from _concerning(history, _recorded(config, client_id), None, since_ms)
        left_out, damaged = history.left_out, history.damaged
    if left_out:
        raise HistoryError(_left_out(left_out))
    _complain(damaged)


def newest_of(config: Config, names: Sequence[str]) -> Iterator[Event]:
    """Yield the events with these names, the newest first.

    Raises `HistoryError`, at the end also for segments that cannot be read.
    """
    reading = Reading(config)
    with _problems(), reading.open() as history:
        for boot, row in history.unexported_reversed():
            events = [event for event in history.expand(boot, row) if event["ev"] in names]
            yield from reversed(events)
        for segment in history.sealed(newest_first=True):
            yield from reversed(history.events_of(segment, [("ev", "in", list(names))]))
        left_out, damaged = history.left_out, history.damaged
    if left_out:
        raise HistoryError(_left_out(left_out))
    _complain(damaged)


def verify(
    config: Config, directory: str | None, *, thorough: bool, witnesses: Sequence[str] = ()
) -> tuple[list[str], str]:
    """Check every segment of `directory` (default: the configured one), those of other nodes too.

    `witnesses` are files that know what must be there; the configured one is among them if the
    directory is. Returns a line for each problem, and a summary. Raises `HistoryError`.
    """
    try:
        from storage.history.segments import SegmentError, survey
    except ImportError as problem:
        raise HistoryError(f"{problem}; {HOW_TO_INSTALL}") from None
    place = find(config.shell).directory if directory is None else Path(directory)
    if not place.is_dir():
        raise HistoryError(f"{place}: not a directory")
    configured = config.shell.history_witness
    if directory is None and configured is not None and configured not in witnesses:
        witnesses = [*witnesses, configured]
    try:
        read = [witness.read(path) for path in witnesses]  # before the history, which goes on
        with _problems():
            found = survey(place, thorough=thorough)
    except (SegmentError, WitnessError) as problem:
        raise HistoryError(str(problem)) from None
    problems = found.problems + [
        f"{each.node} boot {difference.boot}, events {difference.from_seq} to "
        f"{difference.to_seq}: {difference.what}: {each.place}"
        for each in read
        for difference in witness.compare_pieces(each, found.pieces)
        if difference.is_proven
    ]
    is_part = directory is None and config.shell.history_cluster is not None
    return [printable(problem) for problem in problems], (
        f"{place}: {found.segments} segments of {found.boots} starts of {found.nodes} nodes, "
        f"{found.events} events, {_chained(found.chained)}: {len(problems) or 'no'} problems"
        f"{'; other members of the cluster have segments, too' if is_part else ''}"
    )


def _chained(found: Chained) -> str:
    """Return how many segments the chain proves."""
    words = "all chained" if found.chained else "none chained"
    if found.chained and found.unchained:
        words = f"{len(found.unchained)} of them not chained"
    if found.unproven:
        words += f", {len(found.unproven)} behind what proves nothing"
    return words


def _recorded(config: Config, name: str) -> str:
    """Return a name as `session.history.recorder` records it."""
    settings = config.settings
    if not settings.history_hash_names:
        return shortened(name)
    key = settings.history_hash_key.encode()
    return hashlib.blake2b(name.encode(), digest_size=NAME_HASH_BYTES, key=key).hexdigest()


def _last(history: History, count: int) -> list[Event]:
    """Return the last `count` events in their order."""
    newest: list[Event] = []  # the newest first
    for boot, row in history.unexported_reversed():
        newest += reversed(list(history.expand(boot, row)))
        if len(newest) >= count:
            break
    if len(newest) < count:
        for segment in history.sealed(newest_first=True):
            where = [("seq", ">", segment.last_seq - (count - len(newest)))]
            newest += reversed(history.events_of(segment, where))
            if len(newest) >= count:
                break
    return newest[:count][::-1]


def _after(history: History, seen: tuple[int, int]) -> Iterator[Event]:
    """Yield the events after boot and seq `seen`."""
    fresh: list[SegmentName] = []
    for segment in history.sealed(newest_first=True):
        if (segment.boot, segment.last_seq) <= seen:
            break
        fresh.append(segment)
    boot, seq = seen
    for segment in reversed(fresh):
        where = [("seq", ">", seq)] if segment.boot == boot else None
        for event in history.events_of(segment, where):
            if _place_of(event) > seen:
                yield event
    for boot, row in history.unexported():
        if (boot, row.first_seq + row.events - 1) > seen:
            for event in history.expand(boot, row):
                if _place_of(event) > seen:
                    yield event


def _concerning(
    history: History, client_id: str | None, message: int | None, since_ms: int
) -> Iterator[Event]:
    is_wanted = _choose(client_id, message)
    where = _where(client_id, message)
    begin = datetime.fromtimestamp(since_ms // 1000, UTC)
    for segment in history.sealed(since_hour=f"date={begin:%Y-%m-%d}/hour={begin:%H}"):
        for event in history.events_of(segment, where):
            if is_wanted(event) and _microseconds(event["ts"]) >= since_ms * 1000:
                yield event
    for boot, row in history.unexported():
        if row.now_ms >= since_ms:
            for event in history.expand(boot, row):
                if is_wanted(event):
                    yield event


def _choose(client_id: str | None, message: int | None) -> Callable[[Event], bool]:
    """Return what tells whether an event belongs into the timeline."""

    def is_of_message(event: Event) -> bool:
        first, last = event["msg"], event["msg_last"]
        if first == message:
            return True
        return isinstance(first, int) and isinstance(last, int) and first <= (message or 0) <= last

    def is_wanted(event: Event) -> bool:
        if message is None:
            return event["client_id"] == client_id
        if not is_of_message(event):
            return False
        # Of a message on its way to one client: how it came in, and what that client has of it.
        return (
            client_id is None
            or event["client_id"] in (client_id, None)
            or (event["ev"] in ("msg_accepted", "pub_acked"))
        )

    return is_wanted


def _where(client_id: str | None, message: int | None) -> object:
    """Return what pyarrow may sort out by itself."""
    if message is None:
        return [("client_id", "==", client_id)]
    return [[("msg", "==", message)], [("msg", "<=", message), ("msg_last", ">=", message)]]


def _place_of(event: Event) -> tuple[int, int]:
    boot, seq = event["boot"], event["seq"]
    assert isinstance(boot, int)
    assert isinstance(seq, int)
    return boot, seq


def _microseconds(moment: object) -> int:
    assert isinstance(moment, int)
    return moment


def moment(value: object) -> str:
    microseconds = _microseconds(value)
    moment = datetime.fromtimestamp(microseconds // 1_000_000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{microseconds % 1_000_000 // 1000:03d}Z"


def _as_line(event: Event) -> str:
    client_id = event["client_id"]
    who = "" if client_id is None else f"{printable(str(client_id))}: "
    at = event["at"]
    when = f" (at {moment(at)})" if at is not None else ""
    return f"{moment(event['ts'])}  {who}{describe(event)}{when}"


def _as_json(event: Event) -> str:
    known = {name: value for name, value in event.items() if value is not None}
    for name in ("ts", "at", "bin"):
        if name in known:
            known[name] = moment(known[name]).replace(" ", "T")
    return json.dumps(known)


def _complain(damaged: list[str]) -> None:
    """End with a line about segments that nobody can read, after all that the others told."""
    if damaged:
        others = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        raise HistoryError(f"left out: {damaged[0]}{others}")


def _warn(damaged: list[str], named: set[str]) -> None:
    """Name the damaged segments that are not `named` yet on standard error, and go on."""
    for problem in damaged:
        if problem not in named:
            named.add(problem)
            sys.stderr.write(f"holdfast: left out: {problem}\n")
            sys.stderr.flush()


def _left_out(count: int) -> str:
    return f"({count} segments are left out: reading them takes pyarrow; {HOW_TO_INSTALL})"
