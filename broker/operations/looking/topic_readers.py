"""Who gets a message published on a topic now: stored sessions and shared groups.

One pass over all subscriptions in the order of client ids. Sessions are yielded as they come;
groups, whose members are spread over the whole family, are kept until the end. Clean sessions are
not in a store. Must never write. Read next: `broker.operations.looking.topic_report`.
"""

from collections.abc import Iterator
from typing import Final

from broker.operations.looking.rows import Problems, is_connected, readable_rows
from mqtt.topics import matches, split_shared
from session.state.subscription import decode_subscription
from storage.api import Store
from storage.errors import CorruptRecord
from storage.tables.tables import SUBSCRIPTIONS, unseal

GROUPS_MAX: Final = 10_000  # groups of one topic that are kept; members of others are counted

# When a subscriber gets the message.
NOW: Final = "now"
LATER: Final = "later"  # it is stored until its client comes back
NO: Final = "no"  # its client is away, and with QoS 0 nothing is stored


class SessionReader:
    """One subscription of a stored session that matches."""

    __slots__ = ("client_id", "gets", "is_connected", "no_local", "qos", "topic_filter")

    def __init__(
        self, client_id: str, topic_filter: str, qos: int, no_local: bool, gets: str
    ) -> None:
        self.client_id: str = client_id
        self.topic_filter: str = topic_filter
        self.qos: int = qos  # granted
        self.no_local: bool = no_local  # it does not get what it publishes itself
        self.gets: str = gets
        self.is_connected: bool = gets == NOW


class GroupReader:
    """One shared group that matches; each message goes to one of its members."""

    __slots__ = ("connected", "members", "qos_max", "qos_min", "share_name", "topic_filter")

    def __init__(self, share_name: str, topic_filter: str) -> None:
        self.share_name: str = share_name
        self.topic_filter: str = topic_filter
        self.members: int = 0  # stored sessions
        self.connected: int = 0  # of them
        self.qos_min: int = 2
        self.qos_max: int = 0

    @property
    def gets(self) -> str:
        """When does a member get the message? A group with a stored member stores at any QoS."""
        return NOW if self.connected else LATER


class TopicReaders:
    """The subscribers of one valid topic name. `sessions` is to be read once, before the rest."""

    def __init__(
        self, store: Store, topic: str, problems: Problems, *, groups_max: int = GROUPS_MAX
    ) -> None:
        self._store: Final = store
        self._problems: Final = problems
        self._groups_max: Final = groups_max
        self.topic: Final = topic
        self.sessions_count: int = 0  # each once, however many of its filters match
        self.sessions_connected: int = 0
        self.subscriptions_count: int = 0  # not shared
        self.groups: Final[dict[tuple[str, str], GroupReader]] = {}
        self.members_left_out: int = 0  # of groups beyond the limit

    def sessions(self) -> Iterator[SessionReader]:
        """Yield each matching subscription that is not shared, by client id, and count.

        Damaged rows are noted and passed over. Raises `StorageError`.
        """
        last = ""
        connected_id, connected = "", False  # of the last client that was asked for
        for key, value in readable_rows(self._store, SUBSCRIPTIONS, b"", None, self._problems):
            try:
                client_id, topic_filter, share_name, stream_filter = _names(key)
                if not matches(stream_filter, self.topic):
                    continue
                body = unseal(value, "subscription")
                found = decode_subscription(topic_filter, share_name, stream_filter, body)
            except (ValueError, CorruptRecord) as problem:
                self._problems.note(f"subscription {key!r}", problem)
                continue
            if client_id != connected_id:
                connected = is_connected(self._store, client_id, self._problems)
                connected_id = client_id
            if share_name is not None:
                self._add_member(share_name, stream_filter, found.qos, connected)
                continue
            self.subscriptions_count += 1
            if client_id != last:
                self.sessions_count += 1
                self.sessions_connected += connected
                last = client_id
            gets = NOW if connected else LATER if found.holds else NO
            yield SessionReader(client_id, topic_filter, found.qos, found.no_local, gets)

    def _add_member(self, share_name: str, topic_filter: str, qos: int, connected: bool) -> None:
        name = share_name, topic_filter
        group = self.groups.get(name)
        if group is None:
            if len(self.groups) >= self._groups_max:
                self.members_left_out += 1
                return
            group = self.groups[name] = GroupReader(share_name, topic_filter)
        group.members += 1
        group.connected += connected
        group.qos_min = min(group.qos_min, qos)
        group.qos_max = max(group.qos_max, qos)


def _names(key: bytes) -> tuple[str, str, str | None, str]:
    """Return client id, filter as subscribed, share name and the filter that topics must match."""
    client, _, rest = key.partition(b"\0")
    client_id, topic_filter = client.decode(), rest.decode()
    if not topic_filter:
        raise ValueError("no topic filter in its key")
    shared = split_shared(topic_filter)
    share_name, stream_filter = shared if shared is not None else (None, topic_filter)
    return client_id, topic_filter, share_name, stream_filter
