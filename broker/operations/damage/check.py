"""`holdfast db check DATA_DIR`: reads everything in a database, and changes nothing.

Every row is read with RocksDB's checksums and decoded; rows that name each other are compared.
Memory does not grow with the messages: it has what the broker has, the filters, and the damage. Of
a running broker a checkpoint is checked.
Read next: `storage.local.salvage.source`.
"""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.operations import checkpoint
from broker.operations.checkpoint import CheckpointError
from broker.operations.damage import decoding
from broker.operations.damage.decoding import DECODERS, UNDECODABLE, try_decode
from broker.operations.damage.messages import Messages, Range
from broker.operations.damage.report import Findings
from session.state.in_flight import (
    FROM_MAILBOX,
    REFERENCE_SHIFT,
    RELEASED,
    SOURCE_MASK,
)
from session.state.session import Session
from session.state.shared_group_record import decode_group
from session.state.subscription import Subscription
from storage.errors import StorageError
from storage.local.data_directory import is_in_use
from storage.local.salvage.source import Source
from storage.log.gaps import covers
from storage.log.generations import load_generations
from storage.log.layouts.message_rows import OFFSET_MAX
from storage.tables.tables import (
    FILTERS,
    GROUPS,
    HOLDERS,
    MAILBOX,
    META,
    RETAINED,
    SESSIONS,
    SUBSCRIPTIONS,
    decode_filter,
    load_totals,
    mailbox_key,
    split_group_key,
    unseal,
)

# Checked on their own, with the rows they belong to.
APART: Final = (SESSIONS, SUBSCRIPTIONS, HOLDERS, FILTERS, GROUPS)


class CheckError(Exception):
    """A database that could not be checked; one line for the operator."""


def check(data_dir: str) -> Findings:
    """Return what is damaged in the database of `data_dir`. Raises `CheckError`."""
    place = Path(data_dir)
    if not any(file.suffix == ".sst" or file.name == "CURRENT" for file in _files(place)):
        raise CheckError(f"data directory {data_dir}: no database in it")
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-check-") as work:
            if not is_in_use(place):
                found = _check_at(place, Path(work))
                if not is_in_use(place):
                    return found
                raise CheckError(
                    f"data directory {data_dir}: a broker has started meanwhile; check again"
                )
        # Its files come and go, so a copy is read: of hard links, made by the broker.
        with tempfile.TemporaryDirectory(prefix="check-", dir=place) as copy:
            checkpoint.make(data_dir, copy)
            with tempfile.TemporaryDirectory(prefix="holdfast-check-") as work:
                found = _check_at(Path(copy), Path(work))
                # The files have the same names there, and the copy is gone soon.
                found.problems = [each.replace(copy, data_dir) for each in found.problems]
                return found
    except CheckpointError as problem:
        raise CheckError(
            f"data directory {data_dir}: in use, and no copy of it: {problem}"
        ) from None
    except StorageError as problem:
        raise CheckError(" ".join(str(problem).split())) from None
    except OSError as error:
        raise CheckError(f"{error.filename or data_dir}: {error.strerror}") from None


def _files(place: Path) -> list[Path]:
    return list((place / "db").iterdir()) if (place / "db").is_dir() else []


def _check_at(place: Path, work: Path) -> Findings:
    with Source(place, work) as source:
        return Checker(source).run()


class Checker:
    """One reading of a database."""

    def __init__(self, source: Source) -> None:
        self._source: Final = source
        self._store: Final = source.store
        self.found: Final = Findings()
        self._told_gaps = 0
        self._messages: list[Messages] = []
        # Filters with messages in their index that cannot be read, by generation.
        self._hit: dict[int, set[int]] = {}
        # Stretches of an index that cannot be read: generation, first and last key.
        self._blind: list[tuple[Messages, bytes, bytes | None]] = []
        self._filters: dict[str, tuple[int, int]] = {}  # topic filter -> (id, holders)

    def run(self) -> Findings:
        """Read everything."""
        for problem in self._source.problems:
            self.found.problem(problem)
        self._check_generations()
        for family in self._store.families():
            if family not in APART and not family.startswith(("msg.", "idx.")):
                self._check_family(family)
        self._check_filters()
        self._check_sessions()
        self._check_subscriptions()
        self._check_totals()
        return self.found

    # --- rows ---

    def _rows(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a family that can be read and decoded; note the others."""
        decode = DECODERS.get(family)
        count = 0
        for key, value in self._source.rows(family):
            if decode is not None:
                problem = try_decode(decode, key, value)
                if isinstance(problem, str):
                    self._damaged_row(family, key, problem)
                    continue
            count += 1
            yield key, value
        self.found.rows[family] = count
        self._tell_gaps()

    def _check_family(self, family: str) -> None:
        for _ in self._rows(family):
            pass

    def _damaged_row(self, family: str, key: bytes, problem: str) -> None:
        self.found.problem(f"family {family}, row {show(key)}: {problem}")
        if family in (SESSIONS, SUBSCRIPTIONS):
            client_id = key.partition(b"\0")[0].decode(errors="replace")
            self.found.session(client_id, f"a row of family {family} is damaged")

    def _tell_gaps(self) -> None:
        for gap in self._source.gaps[self._told_gaps :]:
            before = "the end" if gap.before is None else show(gap.before)
            after = show(gap.after) if gap.after else "the beginning"
            self.found.problem(f"family {gap.family}, between {after} and {before}: {gap.problem}")
        self._told_gaps = len(self._source.gaps)

    # --- messages ---

    def _check_generations(self) -> None:
        try:
            loaded = load_generations(self._store)
        except StorageError as error:
            self.found.problem(f"the list of generations: {self._source.plain(str(error))}")
            loaded = []
        known = set()
        present = self._store.families()
        for generation in loaded:
            messages = Messages(generation, is_newest=generation is loaded[-1])
            if messages.family not in present and messages.index not in present:
                continue  # being dropped
            known |= {messages.family, messages.index}
            self._messages.append(messages)
            self._check_messages(messages)
        for family in present:  # without a generation: a crash left them, or the list is damaged
            if family.startswith(("msg.", "idx.")) and family not in known:
                self._check_family(family)

    def _check_messages(self, messages: Messages) -> None:
        before = self.found.problem_count
        for key, value in self._rows(messages.family):
            try:
                messages.read_row(key, value)
            except UNDECODABLE as error:
                self._damaged_row(messages.family, key, str(error))
        messages.end()
        is_damaged = self.found.problem_count > before
        referred = 0  # the last offset that the index names
        if messages.index is not None:
            gaps = len(self._source.gaps)
            for key, value in self._rows(messages.index):
                try:
                    filter_id, ranges = messages.ranges(key, value)
                except UNDECODABLE as error:
                    self._damaged_row(messages.index, key, str(error))
                    self._blind.append((messages, key, key))
                    continue
                referred = max(referred, self._check_ranges(messages, filter_id, ranges))
            for gap in self._source.gaps[gaps:]:
                self._blind.append((messages, gap.after, gap.before))
        if is_damaged or messages.number in self._hit:
            for first, last in messages.holes():
                last = min(last, max(referred, messages.written_end))
                if first <= last:
                    self.found.lost_messages.append((messages.number, first, last))
            if not is_damaged:
                self.found.problem(f"generation {messages.number}: messages are missing")

    def _check_ranges(self, messages: Messages, filter_id: int, ranges: list[Range]) -> int:
        for first, last, _ in ranges:
            if any(True for _ in messages.holes(first - 1, last)):
                self._hit.setdefault(messages.number, set()).add(filter_id)
        return ranges[-1][1] if ranges else 0

    # --- filters and groups ---

    def _check_filters(self) -> None:
        ids: dict[int, str] = {}
        for key, value in self._rows(FILTERS):
            topic_filter = key.decode()
            self._filters[topic_filter] = decode_filter(value)
            ids[self._filters[topic_filter][0]] = topic_filter
        held: dict[int, int] = {}
        for key, value in self._rows(HOLDERS):
            filter_id = decoding.holder(key, value)[0]
            held[filter_id] = held.get(filter_id, 0) + 1
        for topic_filter, (filter_id, holders) in self._filters.items():
            if held.get(filter_id, 0) != holders:
                self.found.problem(
                    f"filter {topic_filter!r}: {held.get(filter_id, 0)} holders, expected {holders}"
                )
        for filter_id in held.keys() - ids.keys():
            self.found.problem(f"filter {filter_id}: it has holders, but its row is missing")
        for key, value in self._rows(GROUPS):
            share_name, topic_filter = split_group_key(key)
            name = f"$share/{share_name}/{topic_filter}"
            if topic_filter not in self._filters:
                self.found.problem(f"{name}: the row of its filter is missing")
            lost = sum(self._is_lost(offset) for offset in decode_group(unseal(value, "")).owed)
            if lost:
                self.found.problem(f"{name}: {lost} of its messages cannot be read")

    # --- sessions ---

    def _check_sessions(self) -> None:
        for key, value in self._rows(SESSIONS):
            session = decoding.session(key, value)
            lost = 0
            for entry in session.in_flight.values():
                reference = entry >> REFERENCE_SHIFT
                if entry & RELEASED:
                    continue  # the message is not needed any more
                if entry & SOURCE_MASK != FROM_MAILBOX:
                    lost += self._is_lost(reference)
                elif not self._has_copy(session, reference):
                    lost += 1
            if lost:
                self.found.problem(f"session {session.client_id!r}: {lost} in flight are missing")
                self.found.session(
                    session.client_id, f"{lost} messages in flight cannot be read", lost
                )

    def _has_copy(self, session: Session, reference: int) -> bool:
        try:
            key = mailbox_key(session.client_id, reference)
            return self._source.get(MAILBOX, key) is not None
        except StorageError:
            return False

    def _is_lost(self, offset: int) -> bool:
        return any(each.is_lost(offset) for each in self._messages if each.first <= offset)

    def _check_subscriptions(self) -> None:
        rows = self._rows(SUBSCRIPTIONS)
        for client_id, group in itertools.groupby(
            (decoding.subscription(key, value) for key, value in rows), lambda row: row[0]
        ):
            subscriptions = [subscription for _, subscription in group]
            session = self._session(client_id)
            if session is None:
                self.found.problem(f"session {client_id!r}: it has subscriptions, but no row")
                self.found.session(client_id, "the row of the session cannot be read")
                continue
            for each in subscriptions:
                if each.holds and each.stream_filter not in self._filters:
                    self.found.problem(
                        f"session {client_id!r}: the row of its filter {each.stream_filter!r} "
                        "is missing"
                    )
                    self.found.session(client_id, "a filter of its subscriptions is missing")
            if self._hit or self._blind:
                self._count_waiting(session, subscriptions)

    def _session(self, client_id: str) -> Session | None:
        key = client_id.encode()
        try:
            value = self._source.get(SESSIONS, key)
        except StorageError:
            return None
        if value is None:
            return None
        session = try_decode(decoding.session, key, value)
        return None if isinstance(session, str) else session

    def _count_waiting(self, session: Session, subscriptions: list[Subscription]) -> None:
        """Count the messages that wait for a session and cannot be read, by the index."""
        lost: set[int] = set()
        blind = False
        for each in subscriptions:
            if not each.holds or each.share_name is not None:
                continue
            filter_id = self._filters.get(each.stream_filter, (0, 0))[0]
            after = max(session.position, each.since)
            for messages in self._messages:
                if filter_id in self._hit.get(messages.number, ()):
                    lost |= self._lost_of(messages, filter_id, after)
            blind = blind or any(
                _may_hide(messages, first, last, filter_id, after)
                for messages, first, last in self._blind
            )
        lost = {offset for offset in lost if not covers(session.gaps, offset, offset)}
        if lost:
            text = f"{len(lost)} messages that wait for it cannot be read"
            self.found.session(session.client_id, text, len(lost))
        if blind:
            self.found.session(session.client_id, "messages may wait for it that are not known")

    def _lost_of(self, messages: Messages, filter_id: int, after: int) -> set[int]:
        """Return the offsets after `after` that a filter's index names and that are lost."""
        assert messages.index is not None
        lost: set[int] = set()
        for hole_first, hole_last in messages.holes(after):
            start = messages.start_of(filter_id, hole_first)
            for key, value in self._source.rows_between(
                messages.index, start, messages.start_of(filter_id + 1, 0)
            ):
                try:
                    _, ranges = messages.ranges(key, value)
                except UNDECODABLE:
                    continue
                for first, last, _ in ranges:
                    lost.update(range(max(first, hole_first), min(last, hole_last) + 1))
                if ranges and ranges[0][0] > hole_last:
                    break
        return lost

    # --- totals ---

    def _check_totals(self) -> None:
        if META not in self._store.families():
            self.found.problem("family meta: missing")
            return
        try:
            totals = load_totals(self._store)
        except StorageError:
            return  # told as a damaged row or stretch
        for name, said, family in (
            ("sessions", totals.sessions, SESSIONS),
            ("subscriptions", totals.subscriptions, SUBSCRIPTIONS),
            ("retained messages", totals.retained, RETAINED),
        ):
            if said != self.found.rows.get(family, 0):
                self.found.problem(
                    f"{self.found.rows.get(family, 0)} {name} found, expected {said}"
                )


def _may_hide(
    messages: Messages, first: bytes, last: bytes | None, filter_id: int, after: int
) -> bool:
    """May a stretch of an index have offsets of a filter after `after`?"""
    if filter_id == 0 or after >= messages.last:
        return False
    begin = messages.start_of(filter_id, after + 1)
    end = messages.start_of(filter_id, min(messages.last, OFFSET_MAX - 1) + 1)
    return first <= end and (last is None or last >= begin)


def show(key: bytes) -> str:
    """Return a key for a person: as text where it is text."""
    text = key.replace(b"\0", b" ").decode("ascii", "replace")
    return repr(text) if text.isprintable() and "\ufffd" not in text else key.hex()
