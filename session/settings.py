"""All limits and defaults of the engine, in one flat class.

Must never read a file, the environment or a clock: `broker.configuration.load` fills it, tests
build it with `Settings()` and assign what they care about. Units come last in a name (`_ms`, `_s`,
`_bytes`), and 0 means "no limit" exactly where the comment says so. Read next:
`broker.configuration.load` (where the values come from) and `session.engine` (what they do).
"""

from typing import Final, Literal, TypeAlias

from storage.history import events
from storage.tables.feed_rows import AGAIN, GAP, PUBLISHED

OnLimit: TypeAlias = Literal["drop_oldest", "drop_new", "reject"]
OnFull: TypeAlias = Literal["drop_oldest", "reject"]
Asks: TypeAlias = Literal["always", "new", "never"]
StorePolicy: TypeAlias = Literal["durable", "all"]
LayoutName: TypeAlias = Literal["blocks", "filters", "timeline"]
OnRate: TypeAlias = Literal["throttle", "disconnect"]
RedirectWhen: TypeAlias = Literal["drain", "always"]

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

HASH_KEY_CHARACTERS_MIN: Final = 16  # fewer can be found by trying
HASH_KEY_BYTES_MAX: Final = 64  # what BLAKE2b takes as a key


# What may change while the engine runs (`Engine.change`). Not among them: what a CONNACK has
# announced, what lies on the disk, and what others keep a copy of.
CHANGEABLE: Final = (
    "session_expiry_max_s",
    "max_inflight",
    "max_offline_messages",
    "max_offline_bytes",
    "subscriptions_per_session_max",
    "subscription_bytes_max",
    "pending_messages_max",
    "clean_queue_messages_max",
    "pending_bytes_max",
    "clean_queue_bytes_max",
    "retained_messages_max",
    "keep_alive_max_s",
    "max_connections",
    "connections_per_address",
    "connection_rate",
    "publish_rate",
    "receive_rate_bytes",
    "on_rate",
    "client_id_bytes_max",
    "topic_levels_max",
    "expiry_slice",
    "user_properties",
    "server_reference",
    "server_moved",
    "redirect_when",
    "history_detail",
    "sys_interval_s",
)


class Fetching:
    """Which subscriptions are looked up in a store when they begin, and for what."""

    __slots__ = ("count_max", "kind", "range_ms", "topic_filter")

    def __init__(
        self, kind: int, topic_filter: str, count_max: int = 500, range_ms: int = 0
    ) -> None:
        """`kind` is one of `storage.tables.fetch_rows`.

        `count_max` messages are asked for at once; older ones than `range_ms` are not, 0 = all are.
        """
        self.kind: Final = kind
        self.topic_filter: Final = topic_filter
        self.count_max: Final = count_max
        self.range_ms: Final = range_ms

    def __repr__(self) -> str:
        return f"Fetching({self.kind}, {self.topic_filter!r})"


class Proxying:
    """How one backend, an external store, subscribes clients (proxy subscriptions)."""

    __slots__ = ("asks", "bypasses_policy", "is_required", "mirrors", "wait_ms")

    def __init__(
        self,
        asks: Asks = "always",
        *,
        mirrors: bool = False,
        bypasses_policy: bool = False,
        wait_ms: int = 0,
        is_required: bool = False,
    ) -> None:
        """`asks` says at which CONNECT the store is asked: at each, or for a new session only."""
        self.asks: Final = asks
        # Do subscriptions end that the store has begun and does not have any more?
        self.mirrors: Final = mirrors
        self.bypasses_policy: Final = bypasses_policy  # else the client's own rules are asked
        self.wait_ms: Final = wait_ms  # for so long at most the CONNACK waits for the list
        self.is_required: Final = is_required  # without it the client is refused, if it waits

    def __repr__(self) -> str:
        waits = f"{self.wait_ms}, {self.is_required}"
        return f"Proxying({self.asks!r}, {self.mirrors}, {self.bypasses_policy}, {waits})"


class Feed:
    """What one backend, an external store, is told of. The engine knows no rules and no actions."""

    __slots__ = (
        "backlog_bytes_max",
        "fetches",
        "filters",
        "keep_ms",
        "kinds",
        "name",
        "on_full",
        "proxying",
        "qos0",
        "usernames",
    )

    def __init__(
        self,
        name: str,
        filters: tuple[str, ...],
        kinds: int,
        keep_ms: int = 15 * 60 * 1000,
        fetches: tuple[Fetching, ...] = (),
        backlog_bytes_max: int = 0,
        on_full: OnFull = "drop_oldest",
        proxying: Proxying | None = None,
        qos0: tuple[str, ...] = (),
        usernames: bool = False,
    ) -> None:
        """`kinds` has the bit 1 << kind for each kind of event (`storage.tables.feed_rows`).

        Everybody is told of gaps.
        """
        self.name: Final = name
        # It gets the messages with QoS 1 and 2 that match one of these, each once.
        self.filters: Final = filters
        self.qos0: Final = qos0  # of these: it gets their messages with QoS 0, too
        self.kinds: Final = kinds | 1 << GAP | (1 << PUBLISHED if qos0 else 0)
        # For how long rows are kept after the store has confirmed them: it may lose its newest.
        self.keep_ms: Final = keep_ms
        self.fetches: Final = fetches
        # What may wait for it (`session.feed.backlogs`), 0 = no limit, and what happens beyond it:
        # the oldest rows go, or publishers of its messages are refused.
        self.backlog_bytes_max: Final = backlog_bytes_max
        self.on_full: Final = on_full
        self.proxying: Final = proxying
        self.usernames: Final = usernames  # Does it want those of publishers?

    @property
    def is_asked(self) -> bool:
        """Is the store asked for what applications have put there, or does it say so itself?"""
        return bool(self.fetches) or self.proxying is not None

    @property
    def has_events(self) -> bool:
        """Does it want other events than those about itself?"""
        return bool(self.kinds & ~(1 << GAP | 1 << AGAIN))

    def __repr__(self) -> str:
        return f"Feed({self.name!r}, {self.filters!r}, {self.kinds:#x}, {self.keep_ms})"


class Settings:
    """The settings of the engine; those of `CHANGEABLE` may change while it runs."""

    def __init__(self) -> None:
        # Announced to clients.

        # Un-acknowledged QoS 1/2 PUBLISH we take from one v5 client at a time (CONNACK Receive
        # Maximum). 1024 fills one group commit without letting a single client own its memory.
        self.receive_maximum: int = 1024
        # Largest packet we accept (CONNACK Maximum Packet Size); checked on the fixed header,
        # before anything is buffered. 16 MiB is far above any sane payload and far below the RAM.
        self.maximum_packet_size: int = 16 * MIB
        # Topic aliases a v5 client may set on its publishes to us; each costs one reference.
        self.topic_alias_maximum: int = 64
        # Aliases we use towards a client that allows them; bounds our per-connection table.
        self.outbound_topic_alias_maximum: int = 64
        # Highest QoS we serve (CONNACK Maximum QoS). Lower it only for a telemetry-only broker.
        self.maximum_qos: int = 2
        # False refuses retained publishes (CONNACK Retain Available = 0).
        self.retain_available: bool = True
        # False refuses the kind of subscription, which CONNACK announces.
        self.wildcard_subscriptions: bool = True
        self.shared_subscriptions: bool = True
        self.subscription_identifiers: bool = True
        # User properties added to every v5 CONNACK, for example a site name. Empty by default:
        # they are sent to everybody.
        self.user_properties: tuple[tuple[str, str], ...] = ()

        # One session.

        # Un-acknowledged QoS 1/2 messages we have in flight to one session, whatever larger
        # Receive Maximum it announces. Bounds the in-flight list of its record on disk.
        self.max_inflight: int = 256
        # Ceiling for Session Expiry Interval; v5 clients learn the lowered value in CONNACK. None
        # is no ceiling: a v3.1.1 session with clean session 0 then lives for ever.
        self.session_expiry_max_s: int | None = None
        # Ceiling for Keep Alive (CONNACK Server Keep Alive). 0 = none, and a client may send 0.
        # v3.1.1 has no such property: clients that ask for more, or for none, are refused.
        self.keep_alive_max_s: int = 0
        # Distinct topic filters one session may hold; SUBSCRIBE beyond it is answered 0x97.
        self.subscriptions_per_session_max: int = 10_000
        # Bytes of all its topic filters together, which are kept in RAM; the same answer. A filter
        # may have 65,535 bytes.
        self.subscription_bytes_max: int = 4 * MIB
        # Messages a live session may have waiting in RAM behind a full window. Beyond it the
        # session lags: it reads from its streams on disk until it has caught up.
        self.pending_messages_max: int = 1000
        # The same for a clean session, which has no disk to fall back on: beyond it messages are
        # dropped by `on_limit` and counted. mosquitto's max_queued_messages is 1000 too.
        self.clean_queue_messages_max: int = 1000
        # The payload bytes of either queue; a queue always takes one message. A message in several
        # queues is in RAM once, and counts in each.
        self.pending_bytes_max: int = 1 * MIB
        self.clean_queue_bytes_max: int = 4 * MIB
        # What one offline session may be owed, by number, by bytes and by age. 0 = no limit.
        self.max_offline_messages: int = 0
        self.max_offline_bytes: int = 0
        self.max_age_s: int = 0
        # What is dropped when such a limit is reached: the oldest owed message, the new one, or the
        # new one with 0x97 to its publisher (the only choice that never loses silently).
        self.on_limit: OnLimit = "drop_oldest"
        # True queues QoS 0 messages for offline durable sessions as well (not required by MQTT).
        self.store_qos0: bool = False

        # Connections.

        # Time from accept to a complete CONNECT, so that silent sockets cannot pile up.
        self.connect_timeout_ms: int = 10_000
        # Open connections at a time; the next one is refused with 0x89. 0 = no limit.
        self.max_connections: int = 0
        # Connections of one network address at a time; the next one is refused 0x97. 0 = no limit.
        self.connections_per_address: int = 0
        # New connections per second; one that comes faster is refused 0x9F. 0 = no limit.
        self.connection_rate: int = 0
        # Largest CONNECT in bytes, checked on its fixed header: the client is not known before.
        # A will and a password of 64 KiB each, which are legal, still fit.
        self.connect_size_max: int = 256 * KIB
        # PUBLISH packets and bytes per second one client may send, with a burst of one second.
        # 0 = no limit. Above it we stop reading from it for as long as it takes ("throttle"), or
        # close with 0x96 ("disconnect").
        self.publish_rate: int = 0
        self.receive_rate_bytes: int = 0
        self.on_rate: OnRate = "throttle"
        # Longest client identifier in bytes. The protocol's own limit is 65,535, and 23 must be
        # taken [MQTT-3.1.3-5].
        self.client_id_bytes_max: int = 65_535
        # Levels of a topic name or filter, without `$share/NAME/`: matching costs time by depth.
        # 201 is what mosquitto takes (200 slashes), and what a rule of the ACL file may have.
        self.topic_levels_max: int = 201
        # Bytes written towards one client and not yet taken by its socket. A slow consumer above
        # it gets no new deliveries until the buffer has drained (durable sessions then lag).
        self.out_buffer_bytes_max: int = 1 * MIB
        # Bytes of replies and messages one connection may have waiting for a commit. Above it we
        # stop reading from that connection: a slow disk slows its publishers, never the RAM.
        self.held_bytes_max: int = 4 * MIB
        # True accepts clients without user name; `broker.security.authenticators` checks names.
        self.allow_anonymous: bool = True

        # Another broker for our clients ("host:port", several separated by spaces). v5 clients are
        # referred to it when this one shuts down, or always: then no client is accepted.
        self.server_reference: str | None = None
        self.server_moved: bool = False  # for good (0x9D), not for now (0x9C)
        self.redirect_when: RedirectWhen = "drain"

        # The whole broker.

        # Bytes all stored messages may occupy together; above it `on_limit` applies. 0 = no limit
        # (the low-water mark of the disk still holds).
        self.total_bytes_max: int = 0
        # Retained messages the broker keeps; a new topic beyond it is refused 0x97. 0 = no limit.
        self.retained_messages_max: int = 0
        # "durable": store only what some durable subscription matches. "all": store everything.
        self.store: StorePolicy = "durable"
        # Key layout of the next generation of the message log.
        self.layout: LayoutName = "blocks"
        # A generation is closed at this size or age. Dropping one whole is how space returns, so
        # smaller ones return it sooner and cost more open column families.
        self.generation_size_bytes: int = 256 * MIB
        self.generation_age_s: int = 3600

        # History.

        # What is recorded, as the operator writes it: see `history_level` and `history_sample`.
        # "books" costs a few percent and proves what was counted; sessions are always in full.
        self.history_detail: str = "books"
        # True records a keyed hash (`history_hash_key`, UTF-8) in place of every client id, user
        # name, topic and topic filter: comparable among each other, and not readable.
        self.history_hash_names: bool = False
        self.history_hash_key: str = ""

        # External stores.

        # What each of them is told of, by name. One that is not among them any more is forgotten.
        self.feeds: tuple[Feed, ...] = ()

        # Name of this node in its cluster, "" = it is alone. The history tells who has led.
        self.member: str = ""

        # Rhythm.

        # Period of the $SYS tree; 0 switches it off.
        self.sys_interval_s: int = 10
        # Period of the heartbeat row. It is the crash time of every connected client, so wills and
        # expiry after a crash are this exact. One row a second is free.
        self.heartbeat_ms: int = 1000
        # How late the end of an exchange (PUBACK, PUBCOMP, PUBREC with an error) of a durable
        # session may reach its record: a crash within it costs duplicates at QoS 1, never losses.
        # After a lost PUBCOMP only PUBREL is sent again.
        self.progress_delay_ms: int = 200
        # Work of one tick, in packets, deliveries, rows or 128 bytes; what is sent beyond it waits
        # for the next tick. 8192 are 1 MiB of input: 30 ms interpreted, 8 compiled.
        self.tick_work_max: int = 8192
        # Rows that one slice of garbage collection or expiry may read or write.
        self.expiry_slice: int = 256
        # A session that lags with more durable filters than this reads up to a fixed end of the
        # log, and so many offsets of what it is owed behind that are noted meanwhile: 150 kB. To
        # follow the end takes a search for each filter and tick, of 128.
        self.followed_streams: int = 64
        self.arrivals_max: int = 4096
        # How often a client's window must have been full, with messages behind it, before packet
        # ids are bound ahead for it.
        self.ahead_after: int = 32

    @property
    def history_level(self) -> int:
        """The level of `storage.history.events` that `history_detail` names."""
        return events.LEVELS.index(self.history_detail.partition(":")[0])

    @property
    def history_sample(self) -> int:
        """One message in how many is recorded with all its events: 1 = every one, 0 = none."""
        if self.history_level == events.FULL:
            return 1
        _, _, divisor = self.history_detail.partition("/")
        return int(divisor) if divisor else 0

    def problems(self) -> list[str]:
        """Return one line for each setting that is contradictory or out of range.

        Ranges are the specification's (Receive Maximum and packet identifiers are 1..65535).
        """
        found: list[str] = []
        if not 1 <= self.receive_maximum <= 65_535:
            found.append(f"receive_maximum {self.receive_maximum}: expected 1 to 65535")
        if not 1 <= self.max_inflight <= 65_535:
            found.append(f"max_inflight {self.max_inflight}: expected 1 to 65535")
        if not 0 <= self.topic_alias_maximum <= 65_535:
            found.append(f"topic_alias_maximum {self.topic_alias_maximum}: expected 0 to 65535")
        if not 0 <= self.outbound_topic_alias_maximum <= 65_535:
            found.append(
                f"outbound_topic_alias_maximum {self.outbound_topic_alias_maximum}: "
                "expected 0 to 65535"
            )
        if self.maximum_qos not in (0, 1, 2):
            found.append(f"maximum_qos {self.maximum_qos}: expected 0, 1 or 2")
        if not 0 <= self.keep_alive_max_s <= 65_535:
            found.append(f"keep_alive_max_s {self.keep_alive_max_s}: expected 0 to 65535")
        if not 128 <= self.maximum_packet_size <= 268_435_460:
            found.append(
                f"maximum_packet_size {self.maximum_packet_size}: expected 128 to 268435460 bytes"
            )
        if self.redirect_when == "always" and not self.server_reference:
            found.append("redirect.when = 'always': expected redirect.server_reference as well")
        if self.history_hash_names and len(self.history_hash_key) < HASH_KEY_CHARACTERS_MIN:
            found.append(
                "history.hash_names = true: expected history.hash_key as well, of at least "
                f"{HASH_KEY_CHARACTERS_MIN} characters"
            )
        if len(self.history_hash_key.encode()) > HASH_KEY_BYTES_MAX:
            found.append(f"history.hash_key: expected at most {HASH_KEY_BYTES_MAX} bytes")
        if not 23 <= self.client_id_bytes_max <= 65_535:
            found.append(f"client_id_bytes_max {self.client_id_bytes_max}: expected 23 to 65535")
        for name in (
            "topic_levels_max",
            "pending_messages_max",
            "heartbeat_ms",
            "expiry_slice",
            "arrivals_max",
            "pending_bytes_max",
            "clean_queue_bytes_max",
            "tick_work_max",
        ):
            if getattr(self, name) < 1:
                found.append(f"{name} {getattr(self, name)}: expected at least 1")
        return found
