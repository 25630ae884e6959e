"""The shared groups of a store: their stored members, and what waits for them.

Subscriptions are in the order of client ids, so the members of a group are spread over all of them:
a page of groups is read, then all subscriptions once. Clean sessions are in the memory of the
running broker alone, and so are groups that have no other members. Must never write. Read next:
`session.state.shared_group_record`, `broker.operations.looking.groups_report`.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from broker.operations.looking.rows import Problems, is_connected, readable_rows
from broker.operations.sessions.backlogs import Backlogs
from broker.operations.sessions.inventory import Unchanged
from mqtt.topics import SHARE_PREFIX, split_shared
from session.state.in_flight import FROM_GROUP, SOURCE_MASK
from session.state.records import decode_session
from session.state.shared_group_record import decode_group
from session.state.subscription import decode_subscription
from storage.api import Store
from storage.errors import CorruptRecord, DamagedRows
from storage.log.generations import load_generations
from storage.log.message_log import MessageLog, Stream
from storage.tables.tables import (
    FILTERS,
    GROUPS,
    SESSIONS,
    SUBSCRIPTIONS,
    decode_filter,
    group_key,
    split_group_key,
    unseal,
)

PAGE_GROUPS: Final = 10_000  # in memory at once, about 20 MB; all subscriptions are read for each
# Members of a group that are named in a list, and in a page of one; further ones are counted.
MEMBERS_MAX: Final = 100
PAGE_MEMBERS_MAX: Final = 10_000


class Member:
    """A stored session that has the shared subscription."""

    __slots__ = ("client_id", "in_flight", "is_connected", "qos")

    def __init__(self, client_id: str, qos: int, connected: bool, in_flight: int) -> None:
        self.client_id: str = client_id
        self.qos: int = qos
        self.is_connected: bool = connected
        self.in_flight: int = in_flight  # messages of this group that it has not acknowledged


class SharedGroup:
    """One shared subscription that has a position in its stream."""

    __slots__ = (
        "connected",
        "in_flight",
        "members",
        "members_count",
        "owed",
        "position",
        "returned",
        "share_name",
        "since",
        "size_bytes",
        "topic_filter",
        "waiting",
    )

    def __init__(
        self, share_name: str, topic_filter: str, position: int, since: int, owed: list[int]
    ) -> None:
        self.share_name: str = share_name
        self.topic_filter: str = topic_filter
        self.position: int = position
        self.since: int = since
        # Came back from sessions that ended, or are with members whose sessions are not stored.
        self.owed: int = len(owed)
        self.returned: list[int] = owed  # their offsets
        self.waiting: int | None = None  # behind its position; None = that cannot be read
        # Topics and payloads of these and of what came back, None = not counted.
        self.size_bytes: int | None = None
        self.members: list[Member] = []  # the first ones by client id
        self.members_count: int = 0
        self.connected: int = 0  # of all members
        self.in_flight: int = 0  # with all members


class SharedGroups:
    """The shared groups of one store."""

    def __init__(
        self,
        store: Store,
        problems: Problems,
        *,
        page_groups: int = PAGE_GROUPS,
        members_max: int = MEMBERS_MAX,
        with_bytes: bool = False,
    ) -> None:
        """`with_bytes` reads every message that is owed."""
        self._store: Final = store
        self._problems: Final = problems
        self._page_groups: Final = page_groups
        self._members_max: Final = members_max
        self._with_bytes: Final = with_bytes
        self._backlogs: Backlogs | None = None

    def all(self, now_ms: int) -> Iterator[SharedGroup]:
        """Yield the groups by name and filter, with their members.

        `now_ms` is broker time. Damaged rows are noted and passed over. Raises `StorageError` if
        the log cannot be opened.
        """
        self._open_log(now_ms)
        groups = self._groups()
        while page := list(islice(groups, self._page_groups)):
            by_name = {(group.share_name, group.topic_filter): group for group in page}
            self._add_members(by_name)
            for group in page:
                self._count(group)
                yield group

    def find(self, share_name: str, topic_filter: str, now_ms: int) -> SharedGroup | None:
        """Return one group with its members, None if there is none or it is noted as damaged.

        Otherwise as `all`.
        """
        self._open_log(now_ms)
        key = group_key(share_name, topic_filter)
        for group in self._groups(key, key + b"\0"):
            self._add_members({(share_name, topic_filter): group})
            self._count(group)
            return group
        return None

    def _open_log(self, now_ms: int) -> None:
        generations = load_generations(self._store) if GROUPS in self._store.families() else []
        if generations:
            log = MessageLog(Unchanged(self._store), layout=generations[-1].layout)
            log.open(now_ms)
            self._backlogs = Backlogs(self._store, log)

    def _groups(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[SharedGroup]:
        for key, value in readable_rows(self._store, GROUPS, start, stop, self._problems):
            try:
                share_name, topic_filter = split_group_key(key)
                record = decode_group(unseal(value, "group"))
            except (ValueError, CorruptRecord) as problem:
                self._problems.note(f"shared group {key!r}", problem)
                continue
            yield SharedGroup(share_name, topic_filter, record.position, record.since, record.owed)

    def _add_members(self, groups: dict[tuple[str, str], SharedGroup]) -> None:
        last = ""
        connected = False
        leases: dict[tuple[str, str], int] = {}  # of the last client
        for key, value in readable_rows(self._store, SUBSCRIPTIONS, b"", None, self._problems):
            client, _, rest = key.partition(b"\0")
            if not rest.startswith(SHARE_PREFIX.encode()):
                continue
            try:
                client_id, topic_filter = client.decode(), rest.decode()
                name = split_shared(topic_filter)
                group = None if name is None else groups.get(name)
                if name is None or group is None:
                    continue
                body = unseal(value, "subscription")
                qos = decode_subscription(topic_filter, *name, body).qos
            except (ValueError, CorruptRecord) as problem:
                self._problems.note(f"subscription {key!r}", problem)
                continue
            if client_id != last:
                connected = is_connected(self._store, client_id, self._problems)
                leases = self._leases(client_id)
                last = client_id
            in_flight = leases.get(name, 0)
            group.members_count += 1
            group.connected += connected
            group.in_flight += in_flight
            if len(group.members) < self._members_max:
                group.members.append(Member(client_id, qos, connected, in_flight))

    def _leases(self, client_id: str) -> dict[tuple[str, str], int]:
        """Return how many messages of each group are in flight to a client, by its record."""
        what = f"session {client_id!r}"
        try:
            value = self._store.get(SESSIONS, client_id.encode())
            if value is None:
                return {}
            session = decode_session(client_id, unseal(value, what))
        except (ValueError, DamagedRows) as problem:
            self._problems.note(what, problem)
            return {}
        counts: dict[tuple[str, str], int] = {}
        for packet_id, name in session.leases.items():
            if session.in_flight[packet_id] & SOURCE_MASK == FROM_GROUP:
                counts[name] = counts.get(name, 0) + 1
        return counts

    def _count(self, group: SharedGroup) -> None:
        """Count what is behind its position, and the bytes of all that it is owed."""
        backlogs = self._backlogs
        if backlogs is None:
            group.waiting = group.size_bytes = 0
            return
        what = f"topic filter {group.topic_filter!r}"
        try:
            row = self._store.get(FILTERS, group.topic_filter.encode())
            if row is None:
                raise CorruptRecord("it has no row")
            stream = Stream(decode_filter(row)[0], group.topic_filter, group.since)
            behind = backlogs.behind(group.position, [stream], with_bytes=self._with_bytes)
        except DamagedRows as problem:
            self._problems.note(what, problem)
            return
        group.waiting = behind.messages
        if self._with_bytes:
            returned = sum(backlogs.message(offset)[0] for offset in group.returned)
            group.size_bytes = behind.size_bytes + returned
