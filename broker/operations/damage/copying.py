"""Copies the rows of a damaged database, and leaves no row that names a lost one.

What follows from other rows is written anew: who holds which filter, the totals, the timers of
expiries. Offsets and filter ids are never used again, so the new database goes on behind every one
that any row names. Read next: `broker.operations.damage.messages`, `session.lifetime.repository`.
"""

import itertools
import time
from collections.abc import Iterator
from typing import Final

from broker.operations.damage import decoding
from broker.operations.damage.decoding import DECODERS, UNDECODABLE, try_decode
from broker.operations.damage.messages import Messages
from session.lifetime.repository import INCARNATION_SHIFT
from session.state.backend_record import encode_backend
from session.state.in_flight import FROM_MAILBOX, REFERENCE_SHIFT, RELEASED, SOURCE_MASK
from session.state.records import encode_session
from session.state.session import Session
from session.state.shared_group_record import GroupRecord, decode_group, encode_group
from session.state.subscription import Subscription
from session.state.will_record import ConnectionRecord, encode_connection
from storage.api import Batch
from storage.errors import StorageError, WriteStalled
from storage.history.packed_rows import split_history_key
from storage.local.rocks import RocksStore
from storage.local.salvage.source import Source
from storage.log.generations import (
    LAYOUTS,
    ROW_PREFIX,
    Generation,
    decode_generation,
    encode_generation,
    generation_key,
)
from storage.log.layouts import blocks, filters, timeline
from storage.log.layouts.block_format import Block
from storage.replicated.applied import POSITION_KEY
from storage.tables.message_record import decode_message
from storage.tables.tables import (
    BACKENDS,
    BANS,
    BOOKS,
    BOOT_KEY,
    CONNECTIONS,
    DEAD_LETTERS,
    DUE,
    FEED,
    FETCHES,
    FILTERS,
    FORMAT_KEY,
    FORMAT_VERSION,
    GROUPS,
    HISTORY,
    HOLDERS,
    INCOMING,
    MAILBOX,
    META,
    PRESENCE,
    RETAINED,
    SESSIONS,
    SUBSCRIPTIONS,
    TOTALS_KEY,
    Totals,
    backend_holder,
    client_prefix,
    encode_boot,
    encode_filter,
    encode_since,
    group_holder,
    holder_key,
    mailbox_key,
    scan_all,
    scan_prefix,
    seal,
    session_holder,
    split_group_key,
    unseal,
)
from storage.tables.timers import RETAINED as DUE_RETAINED
from storage.tables.timers import SESSION, due_key
from storage.time.broker_clock import HEARTBEAT_KEY, Heartbeat

BATCH_ROWS: Final = 1000
BATCH_BYTES: Final = 4 << 20
STALL_SECONDS: Final = 0.05
GroupName = tuple[str, str]  # share name, topic filter


class Copying:
    """One copy, family by family."""

    def __init__(self, source: Source, store: RocksStore) -> None:
        self._source: Final = source
        self._store: Final = store
        self._batch: Batch = []
        self._size = 0
        self._messages: list[Messages] = []
        self._generations: dict[int, tuple[str, int, int]] = {}  # layout, first offset, created
        self._ids: dict[str, int] = {}  # topic filter -> filter id
        self._held: dict[int, int] = {}  # filter id -> holders
        self._members: dict[GroupName, int] = {}
        self._wanted: dict[str, set[tuple[bytes, int]]] = {}  # filter without id -> holder, since
        self._end = 0  # the greatest offset that any row names
        self._last_id = 0  # the same of filter ids
        self._boot = 0
        self._told = 0  # events of that boot, at least
        self._now_ms = 0  # broker time, about
        self._totals: Final = Totals()
        self.ended: Final[dict[str, str]] = {}  # client id -> why its session is lost
        self.notes: Final[list[str]] = []

    def run(self) -> None:
        """Copy everything."""
        self._copy_meta()
        self._copy_messages()
        self._read_filters()
        self._copy_sessions()
        self._copy_subscriptions()
        self._compare_holders()
        self._copy_of_sessions(INCOMING)
        self._copy_of_sessions(MAILBOX)
        self._copy_of_sessions(FETCHES)
        self._copy_plain(BOOKS)
        for family in (FEED, PRESENCE, DEAD_LETTERS, BANS):
            self._copy_plain(family)
        self._copy_history()
        self._copy_retained()
        self._copy_timers()
        self._copy_connections()
        self._write_groups()
        self._write_backends()
        self._write_holders()
        self._write_meta()
        self._flush()

    # --- reading and writing ---

    def _rows(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a family that can be read and decoded."""
        decode = DECODERS[family]
        for key, value in self._source.rows(family):
            if not isinstance(try_decode(decode, key, value), str):
                yield key, value

    def _put(self, family: str, key: bytes, value: bytes | None) -> None:
        self._batch.append((family, key, value))
        self._size += len(key) + len(value or b"")
        if len(self._batch) >= BATCH_ROWS or self._size >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Write what was put; what follows can read it."""
        while self._batch:
            try:
                self._store.write(self._batch)
            except WriteStalled:
                time.sleep(STALL_SECONDS)  # RocksDB writes tables meanwhile
                continue
            self._batch = []
        self._size = 0

    def _copy_plain(self, family: str) -> None:
        for key, value in self._rows(family):
            self._put(family, key, value)

    def _copy_of_sessions(self, family: str) -> None:
        """Copy the rows of a family that belong to sessions that are kept."""
        for client_id, rows in itertools.groupby(
            self._rows(family), lambda row: decoding.split_client(row[0])[0]
        ):
            if self._has_session(client_id):
                for key, value in rows:
                    self._put(family, key, value)
            else:
                self._lose(client_id, "its row cannot be read")

    def _has_session(self, client_id: str) -> bool:
        return self._store.get(SESSIONS, client_id.encode()) is not None

    def _lose(self, client_id: str, why: str) -> None:
        self.ended.setdefault(client_id, why)

    # --- the log ---

    def _copy_meta(self) -> None:
        for key, value in self._rows(META):
            if key.startswith(ROW_PREFIX):
                number = int.from_bytes(key[len(ROW_PREFIX) :])
                layout, first, created_ms = decode_generation(value, number)
                if layout in LAYOUTS:
                    self._generations[number] = (layout, first, created_ms)
            elif key == BOOT_KEY:
                body = unseal(value, "boot")
                self._boot, self._told = int.from_bytes(body[1:9]), int.from_bytes(body[9:])
            elif key not in (TOTALS_KEY, FORMAT_KEY, POSITION_KEY):
                self._put(META, key, value)
                if key == HEARTBEAT_KEY:
                    self._now_ms = Heartbeat.decode(value).broker_ms
        present = self._source.store.families()
        for family in present:
            prefix, _, number_text = family.partition(".")
            if prefix == "msg" and number_text.isdecimal():
                number = int(number_text)
                found = self._guess(family, number)
                if found is not None:
                    self._generations.setdefault(number, found)
        gone = [
            number
            for number in self._generations
            if f"msg.{number}" not in present and f"idx.{number}" not in present
        ]
        for number in gone:
            later = [each for each in self._generations if each > number]
            self._end = max(self._end, self._generations[number][1] - 1)
            if later or not self._source.is_rebuilt:
                del self._generations[number]

    def _guess(self, family: str, number: int) -> tuple[str, int, int] | None:
        """Return what the row of a generation must have said, None if it has no message."""
        if number in self._generations:
            return self._generations[number]
        for key, value in self._source.rows(family):
            try:
                last = int.from_bytes(key)
                try:
                    block = Block(value, last)
                    message = block.get(block.first)
                    layout, first = blocks.NAME, block.first
                except UNDECODABLE:
                    message = decode_message(value, last)
                    has_index = f"idx.{number}" in self._source.store.families()
                    layout, first = (filters.NAME if has_index else timeline.NAME), last
            except UNDECODABLE:
                continue
            assert message is not None
            self.notes.append(f"the row of generation {number} was lost, and is made anew")
            return layout, first, message.accepted_at_ms
        return None

    def _copy_messages(self) -> None:
        numbers = sorted(self._generations)
        for number, following in itertools.zip_longest(numbers, numbers[1:]):
            layout, first, created_ms = self._generations[number]
            last = first - 1 if following is None else self._generations[following][1] - 1
            generation = Generation(number, layout, first, last, created_ms, following is not None)
            messages = Messages(generation, is_newest=following is None)
            self._messages.append(messages)
            self._end = max(self._end, first - 1)
            for family in LAYOUTS[layout](self._store, number).families:
                self._store.create_family(family)
            for key, value in self._source.rows(messages.family):
                try:
                    messages.read_row(key, value)
                except UNDECODABLE:
                    continue
                self._put(messages.family, key, value)
            messages.end()
            self._end = max(self._end, messages.written_end)
            if messages.index is not None:
                self._copy_index(messages, messages.index)
            self._put(META, generation_key(number), encode_generation(layout, first, created_ms))

    def _copy_index(self, messages: Messages, family: str) -> None:
        for key, value in self._source.rows(family):
            try:
                filter_id, ranges = messages.ranges(key, value)
            except UNDECODABLE:
                continue
            self._last_id = max(self._last_id, filter_id)
            if ranges:
                self._end = max(self._end, ranges[-1][1])
            left = messages.without_holes(ranges)
            if left == ranges:
                self._put(family, key, value)
            elif left:
                self._put(family, *messages.encode(filter_id, left))

    def _is_lost(self, offset: int) -> bool:
        return any(each.is_lost(offset) for each in self._messages if each.first <= offset)

    # --- sessions ---

    def _copy_sessions(self) -> None:
        for key, value in self._source.rows(SESSIONS):
            session = try_decode(decoding.session, key, value)
            if isinstance(session, str):
                self._lose(key.decode(errors="replace"), "its row cannot be read")
                continue
            self._boot = max(self._boot, session.incarnation >> INCARNATION_SHIFT)
            self._end = max(self._end, session.position)
            for purged in session.purged or ():  # no message behind the new end may be one of them
                self._end = max(self._end, purged.upto)
            for _, last in session.gaps:  # or be in one of these
                self._end = max(self._end, last)
            if self._drop_lost_in_flight(session):
                value = seal(encode_session(session))
            self._put(SESSIONS, key, value)
        self._flush()

    def _drop_lost_in_flight(self, session: Session) -> int:
        """Give up the messages in flight that cannot be read; return how many."""
        lost = []
        for packet_id, entry in session.in_flight.items():
            reference = entry >> REFERENCE_SHIFT
            source = entry & SOURCE_MASK
            if source != FROM_MAILBOX:
                self._end = max(self._end, reference)
            if entry & RELEASED:
                continue  # PUBREL is owed, and the message is not needed for that
            if source == FROM_MAILBOX:
                if not self._has_copy(session, reference):
                    lost.append(packet_id)
            elif self._is_lost(reference):
                lost.append(packet_id)
        for packet_id in lost:
            session.give_up(packet_id)
        return len(lost)

    def _has_copy(self, session: Session, reference: int) -> bool:
        key = mailbox_key(session.client_id, reference)
        try:
            value = self._source.get(MAILBOX, key)
        except StorageError:
            return False
        return value is not None and not isinstance(try_decode(DECODERS[MAILBOX], key, value), str)

    def _copy_subscriptions(self) -> None:
        rows = (
            (*decoding.subscription(key, value), key, value)
            for key, value in self._rows(SUBSCRIPTIONS)
        )
        for client_id, group in itertools.groupby(rows, lambda row: row[0]):
            if not self._has_session(client_id):
                self._lose(client_id, "its row cannot be read")
                continue
            for _, each, key, value in group:
                self._put(SUBSCRIPTIONS, key, value)
                if each.share_name is not None:
                    # Its filter must have an id for the group, which has the same since.
                    continue
                if each.holds and each.stream_filter not in self._ids:
                    holder = session_holder(client_id)
                    self._wanted.setdefault(each.stream_filter, set()).add((holder, each.since))
        self._flush()

    def _read_filters(self) -> None:
        for key, value in self._rows(FILTERS):
            filter_id = int.from_bytes(unseal(value, "filter")[1:9])
            self._ids[key.decode()] = filter_id
            self._last_id = max(self._last_id, filter_id)

    def _compare_holders(self) -> None:
        """End the sessions of which a subscription is lost; find the ids of lost filters."""
        for key, value in self._rows(GROUPS):
            share_name, topic_filter = split_group_key(key)
            if topic_filter not in self._ids:
                since = decode_group(unseal(value, "group")).since
                self._wanted.setdefault(topic_filter, set()).add((group_holder(share_name), since))
        for key, value in self._rows(BACKENDS):
            for topic_filter, since in decoding.backend(key, value).filters.items():
                if topic_filter not in self._ids:
                    claim = (backend_holder(key.decode()), since)
                    self._wanted.setdefault(topic_filter, set()).add(claim)
        names = {filter_id: name for name, filter_id in self._ids.items()}
        found: dict[str, set[int]] = {}
        orphans: dict[tuple[bytes, int], set[int]] = {}
        for key, value in self._rows(HOLDERS):
            filter_id, holder, since = decoding.holder(key, value)
            self._last_id = max(self._last_id, filter_id)
            if filter_id not in names:
                orphans.setdefault((holder, since), set()).add(filter_id)
            elif holder[:1] == b"c":
                self._check_holder(holder[1:], names[filter_id])
        for name, evidence in self._wanted.items():
            candidates = [orphans[each] for each in evidence if each in orphans]
            found[name] = set.intersection(*candidates) if candidates else set()
        self._assign(found, orphans)
        held: dict[bytes, set[int]] = {}  # by client
        for (holder, _), ids in orphans.items():
            if holder[:1] == b"c":
                held.setdefault(holder[1:], set()).update(ids)
        for client, filter_ids in held.items():
            client_id = client.decode()
            known = {self._ids.get(each.stream_filter) for each in self._subscriptions(client_id)}
            if not filter_ids <= known:
                self._end_session(client_id, "a subscription of it cannot be read")
        for name, evidence in self._wanted.items():
            if name not in self._ids:
                for holder, _ in evidence:
                    if holder[:1] == b"c":
                        self._end_session(
                            holder[1:].decode(), f"the filter {name!r} cannot be read"
                        )

    def _assign(
        self, found: dict[str, set[int]], orphans: dict[tuple[bytes, int], set[int]]
    ) -> None:
        """Give the lost filters their ids back, where only one is possible."""
        taken: set[int] = set()
        while True:
            clear = [name for name, ids in found.items() if len(ids - taken) == 1]
            if not clear:
                return
            (filter_id,) = found.pop(clear[0]) - taken
            taken.add(filter_id)
            self._ids[clear[0]] = filter_id

    def _check_holder(self, client: bytes, topic_filter: str) -> None:
        key = client + b"\0" + topic_filter.encode()
        if self._store.get(SUBSCRIPTIONS, key) is None:
            self._end_session(client.decode(), f"its subscription {topic_filter!r} cannot be read")

    def _subscriptions(self, client_id: str) -> list[Subscription]:
        rows = scan_prefix(self._store, SUBSCRIPTIONS, client_prefix(client_id))
        return [decoding.subscription(key, value)[1] for key, value in rows]

    def _end_session(self, client_id: str, why: str) -> None:
        """Leave a session out whose row is copied already."""
        self._lose(client_id, why if self._has_session(client_id) else "its row cannot be read")
        self._put(SESSIONS, client_id.encode(), None)
        for key, _ in scan_prefix(self._store, SUBSCRIPTIONS, client_prefix(client_id)):
            self._put(SUBSCRIPTIONS, key, None)
        self._flush()

    # --- the rest ---

    def _copy_history(self) -> None:
        for key, value in self._rows(HISTORY):
            self._boot = max(self._boot, split_history_key(key)[0])
            self._put(HISTORY, key, value)

    def _copy_retained(self) -> None:
        for key, value in self._rows(RETAINED):
            self._put(RETAINED, key, value)
            self._totals.retained += 1
            expires_at_ms = decode_message(value, 0).expires_at_ms
            if expires_at_ms:
                self._put(DUE, due_key(expires_at_ms, DUE_RETAINED, key), seal(b""))

    def _copy_timers(self) -> None:
        """Copy the wills that wait; expiries follow from what expires."""
        for key, value in self._rows(DUE):
            if decoding.due(key, value)[1] not in (SESSION, DUE_RETAINED):
                self._put(DUE, key, value)
        for key, value in scan_all(self._store, SESSIONS, b"", None):
            session = decoding.session(key, value)
            if session.expiry_due_ms:
                self._put(DUE, due_key(session.expiry_due_ms, SESSION, key), seal(b""))

    def _copy_connections(self) -> None:
        self._copy_plain(CONNECTIONS)
        self._flush()
        for key, value in scan_all(self._store, SESSIONS, b"", None):
            session = decoding.session(key, value)
            if session.disconnected_at_ms or self._store.get(CONNECTIONS, key) is not None:
                continue
            # It was connected. Without this row it would never count as disconnected.
            record = ConnectionRecord(
                session.identity,
                is_stored=True,
                connected_at_ms=session.connected_at_ms,
                expiry_interval_s=session.expiry_interval_s,
                will=None,
                incarnation=session.incarnation,
            )
            self._put(CONNECTIONS, key, seal(encode_connection(record)))
            self.notes.append(f"the will of {session.client_id!r} is lost, if it had one")

    def _write_groups(self) -> None:
        self._flush()
        for key, value in scan_all(self._store, SUBSCRIPTIONS, b"", None):
            each = decoding.subscription(key, value)[1]
            if each.share_name is not None:
                name = (each.share_name, each.stream_filter)
                self._members[name] = self._members.get(name, 0) + 1
        kept = {}
        for key, value in self._rows(GROUPS):
            record = decode_group(unseal(value, "group"))
            self._end = max([self._end, record.position, *record.owed])
            kept[split_group_key(key)] = record
        for name, members in self._members.items():
            share_name, topic_filter = name
            group = kept.get(name)
            if group is None or topic_filter not in self._ids:
                group = GroupRecord(self._end, self._end, members, [])
                self.notes.append(
                    f"$share/{share_name}/{topic_filter}: the messages that waited for it are lost"
                )
                if topic_filter not in self._ids:
                    self._last_id += 1
                    self._ids[topic_filter] = self._last_id
            group.stored_members = members
            group.owed = [offset for offset in group.owed if not self._is_lost(offset)]
            key = share_name.encode() + b"\0" + topic_filter.encode()
            self._put(GROUPS, key, seal(encode_group(group)))
            self._hold(self._ids[topic_filter], group_holder(share_name), group.since)

    def _write_backends(self) -> None:
        for key, value in self._rows(BACKENDS):
            name = key.decode()
            record = decoding.backend(key, value)
            self._end = max(self._end, record.cursor[0])
            for topic_filter in record.filters:
                if topic_filter not in self._ids:
                    self._last_id += 1
                    self._ids[topic_filter] = self._last_id
                    record.filters[topic_filter] = self._end
                    self.notes.append(
                        f"backend {name!r}: the messages of {topic_filter!r} that waited for it"
                        " are lost"
                    )
                since = record.filters[topic_filter]
                self._hold(self._ids[topic_filter], backend_holder(name), since)
            self._put(BACKENDS, key, seal(encode_backend(record)))

    def _hold(self, filter_id: int, holder: bytes, since: int) -> None:
        self._put(HOLDERS, holder_key(filter_id, holder), encode_since(since))
        self._held[filter_id] = self._held.get(filter_id, 0) + 1

    def _write_holders(self) -> None:
        for key, value in scan_all(self._store, SUBSCRIPTIONS, b"", None):
            client_id, each = decoding.subscription(key, value)
            self._totals.subscriptions += 1
            if each.holds and each.share_name is None:
                holder = session_holder(client_id)
                self._hold(self._ids[each.stream_filter], holder, each.since)
        for topic_filter, filter_id in self._ids.items():
            holders = self._held.get(filter_id, 0)
            if holders:
                self._put(FILTERS, topic_filter.encode(), encode_filter(filter_id, holders))

    def _write_meta(self) -> None:
        self._totals.sessions = sum(1 for _ in scan_all(self._store, SESSIONS, b"", None))
        self._totals.next_filter_id = self._last_id + 1
        self._put(META, TOTALS_KEY, self._totals.encode())
        self._put(META, FORMAT_KEY, seal(FORMAT_VERSION.to_bytes(2, "big")))
        self._put(META, BOOT_KEY, encode_boot(self._boot, self._told))
        written = self._messages[-1].written_end if self._messages else 0
        if self._end <= written:
            return
        # No offset is used twice: sessions that had read behind what is lost would skip it.
        number = self._messages[-1].number + 1 if self._messages else 1
        for family in LAYOUTS[blocks.NAME](self._store, number).families:
            self._store.create_family(family)
        row = encode_generation(blocks.NAME, self._end + 1, self._now_ms)
        self._put(META, generation_key(number), row)
