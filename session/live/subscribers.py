"""The subscribers of one topic filter: connected sessions, stored holders, shared groups.

`FilterEntry` is one distinct filter, `Group` one shared subscription to it. Both only hold state:
`session.routing.filter_index` finds entries, `session.delivery.shared.distribution` hands messages
to the members of a group.
"""

from collections import deque
from typing import Final

from mqtt.message import Message
from session.live.connection import Connection
from session.state.shared_group_record import GroupRecord
from session.state.subscription import Subscription
from storage.log.message_log import Cursor

# Shared by all filters without any. Nothing is ever added to them.
NOBODY: Final[dict[Connection, Subscription]] = {}
NO_GROUPS: Final["dict[str, Group]"] = {}


class FilterEntry:
    """One distinct topic filter that is loaded (awake)."""

    __slots__ = (
        "alone",
        "filter_id",
        "groups",
        "holders",
        "routes",
        "subscription",
        "together",
        "topic_filter",
        "version",
        "wants_qos0",
    )

    def __init__(self, topic_filter: str, filter_id: int = 0, holders: int = 0) -> None:
        self.topic_filter: str = topic_filter
        self.filter_id: int = filter_id  # its stream in the store, 0 = none
        self.holders: int = holders  # sessions and groups whose messages are stored under filter_id
        # Connected sessions, not the shared ones: one alone with its subscription, or more. Most
        # filters have one, which needs no dict. Changed by `join` and `leave`.
        self.alone: Connection | None = None
        self.subscription: Subscription | None = None
        self.together: dict[Connection, Subscription] = NOBODY
        self.groups: dict[str, Group] = NO_GROUPS  # share name -> group; changed by `add_group`
        self.version: int = 0  # counts changes of its subscribers
        self.routes: int = 0  # number of cached routes that contain it
        self.wants_qos0: bool = False  # is some external store told of messages with QoS 0?

    def join(self, connection: Connection, subscription: Subscription) -> None:
        """Add a connected session, or replace its subscription."""
        if self.together:
            self.together[connection] = subscription
        elif self.alone is None or self.alone is connection:
            self.alone, self.subscription = connection, subscription
        else:
            assert self.subscription is not None
            self.together = {self.alone: self.subscription, connection: subscription}
            self.alone = self.subscription = None

    def leave(self, connection: Connection) -> None:
        """Remove a connected session. Idempotent."""
        if self.alone is connection:
            self.alone = self.subscription = None
        elif self.together:
            self.together.pop(connection, None)
            if not self.together:
                self.together = NOBODY

    def live(self) -> list[tuple[Connection, Subscription]]:
        """Return the connected sessions with their subscriptions, in the order they came in."""
        if self.alone is None:
            return list(self.together.items())
        assert self.subscription is not None
        return [(self.alone, self.subscription)]

    def is_live(self) -> bool:
        """Return whether a session is connected."""
        return self.alone is not None or bool(self.together)

    def add_group(self, group: "Group") -> None:
        """Add a shared subscription to this filter."""
        if self.groups is NO_GROUPS:
            self.groups = {}
        self.groups[group.share_name] = group

    def is_idle(self) -> bool:
        """Return whether the filter has no subscriber any more."""
        return not self.is_live() and not self.holders and not self.groups

    def may_rest(self) -> bool:
        """Return whether the number of its stream is all that must be kept of it."""
        is_plain = self.holders == 1 and not self.wants_qos0
        return is_plain and not self.routes and not self.is_live() and not self.groups


class Group:
    """One shared subscription with its connected members."""

    __slots__ = (
        "borrowed",
        "cursor",
        "entry",
        "is_lagging",
        "is_stored",
        "leased",
        "members",
        "owed",
        "pending",
        "pending_bytes",
        "position",
        "rotor",
        "share_name",
        "since",
        "stored_members",
    )

    def __init__(self, share_name: str, entry: FilterEntry) -> None:
        self.share_name: str = share_name
        self.entry: FilterEntry = entry
        self.members: dict[Connection, Subscription] = {}
        self.rotor: int = 0  # the member that gets the next message, modulo their number
        self.is_stored: bool = False
        self.stored_members: int = 0
        self.position: int = 0
        self.since: int = 0
        self.owed: deque[int] = deque()  # returned offsets, to be delivered first
        # Offsets in flight to members whose sessions are not stored: owed again after a crash.
        self.leased: dict[int, None] = {}
        self.is_lagging: bool = False
        self.cursor: Cursor | None = None
        # In memory only: messages without an offset, waiting or in flight to a member. `pending` is
        # changed only by `queue`, `queue_again` and `next_pending`.
        self.pending: deque[Message] = deque()
        self.pending_bytes: int = 0  # of their payloads
        self.borrowed: dict[tuple[Connection, int], Message] = {}

    def queue(self, message: Message) -> None:
        """Queue a message until a member has room."""
        self.pending.append(message)
        self.pending_bytes += len(message.payload)

    def queue_again(self, message: Message) -> None:
        """Queue a returned message before all others."""
        self.pending.appendleft(message)
        self.pending_bytes += len(message.payload)

    def next_pending(self) -> Message:
        """Remove and return the first queued message."""
        message = self.pending.popleft()
        self.pending_bytes -= len(message.payload)
        return message

    def key(self) -> tuple[str, str]:
        """Return (share name, topic filter), which identify it."""
        return self.share_name, self.entry.topic_filter

    def record(self) -> GroupRecord:
        """Return its record for the store."""
        return GroupRecord(
            self.position, self.since, self.stored_members, [*self.owed, *self.leased]
        )
