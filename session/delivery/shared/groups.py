"""All shared subscriptions: their members, and their records in the store.

A group with a stored member has a position in its filter's stream, like a session; it is durable
while all members are offline. A group whose members are all in memory has no record. Read next:
`session.delivery.shared.distribution`, `session.state.shared_group_record`.
"""

from collections.abc import Iterator
from typing import Final

from session.delivery.context import DeliveryContext
from session.live.connection import Connection
from session.live.subscribers import Group
from session.state.shared_group_record import decode_group, encode_group
from session.state.subscription import Subscription
from storage.tables.tables import GROUPS, group_key, scan_all, seal, split_group_key, unseal


class Groups:
    """All shared subscriptions of the broker."""

    def __init__(self, context: DeliveryContext) -> None:
        self._tick: Final = context.tick
        self._store: Final = context.store
        self._log: Final = context.log
        self._routes: Final = context.routes
        # By (share name, topic filter); others only look up.
        self.by_key: Final[dict[tuple[str, str], Group]] = {}

    def all(self) -> list[Group]:
        """Return all groups."""
        return list(self.by_key.values())

    def open(self) -> None:
        """Load the stored groups; call it after the filters were loaded.

        A group without a stored member had only sessions that a crash has ended.
        """
        for key, value in scan_all(self._store, GROUPS, b"", None):
            share_name, topic_filter = split_group_key(key)
            record = decode_group(unseal(value, "group"))
            entry = self._routes.ensure(topic_filter)
            group = Group(share_name, entry)
            group.is_stored = True
            group.position = record.position
            group.since = record.since
            group.stored_members = record.stored_members
            group.owed.extend(record.owed)
            group.is_lagging = True
            entry.add_group(group)
            self._routes.changed(entry)
            self.by_key[group.key()] = group

    def find(self, key: tuple[str, str]) -> Group | None:
        """Return a group by (share name, topic filter)."""
        return self.by_key.get(key)

    def ensure(self, share_name: str, topic_filter: str) -> Group:
        """Return the group; create it if there is none."""
        group = self.by_key.get((share_name, topic_filter))
        if group is None:
            entry = self._routes.ensure(topic_filter)
            group = Group(share_name, entry)
            entry.add_group(group)
            self._routes.changed(entry)
            self.by_key[group.key()] = group
        return group

    def store(self, group: Group) -> None:
        """Store the messages of a group from now on: it has its first stored member.

        The caller has made the group a holder of its stream.
        """
        group.is_stored = True
        group.position = group.since = self._log.end
        self._tick.dirty_groups[group] = None

    def join(self, group: Group, connection: Connection, subscription: Subscription) -> None:
        """Make a connected session a member, or change its options."""
        if connection not in group.members:
            connection.group_keys[group.key()] = None
        group.members[connection] = subscription

    def leave(self, group: Group, connection: Connection) -> None:
        """Remove a connection from the members; it keeps what it has not acknowledged."""
        if group.members.pop(connection, None) is not None:
            del connection.group_keys[group.key()]

    def is_empty(self, group: Group) -> bool:
        """Has the group lost its last session?"""
        return not group.members and not group.stored_members

    def remove(self, group: Group) -> None:
        """Remove a group without sessions, and its undelivered messages.

        The caller has removed the group as a holder of its stream.
        """
        del self.by_key[group.key()]
        del group.entry.groups[group.share_name]
        self._tick.dirty_groups.pop(group, None)
        self._tick.group_readers.pop(group, None)
        if group.is_stored:
            key = group_key(group.share_name, group.entry.topic_filter)
            self._tick.batch.append((GROUPS, key, None))
        self._routes.changed(group.entry)

    def write_dirty(self) -> None:
        """Put the records of the stored groups that changed into the batch."""
        tick = self._tick
        for group in tick.dirty_groups:
            if group.is_stored:
                key = group_key(group.share_name, group.entry.topic_filter)
                tick.batch.append((GROUPS, key, seal(encode_group(group.record()))))
        tick.dirty_groups.clear()

    def invariants(self) -> Iterator[str]:
        """Yield what must hold of the groups and does not."""
        for key, group in self.by_key.items():
            if self.is_empty(group):
                yield f"group {key}: no member is left"
            if group.is_stored and group.entry.filter_id == 0:
                yield f"group {key}: stored, but its filter has no stream"
            for offset in group.owed:
                if offset > group.position:
                    yield f"group {key}: owes offset {offset} above its position {group.position}"
