"""What the HTTP API says: one type for each kind of record. JSON and OpenAPI are made of these.

The fields are those that the commands print with `-o json`, by the same functions. Must never
compute anything. Read next: `broker.admin.asking`, which fills them, `broker.admin.api.openapi`.
"""

from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, field

Moment = Annotated[
    str, Meta(description="UTC, ISO 8601", extra_json_schema={"format": "date-time"})
]
Count = Annotated[int, Meta(ge=0)]
QoS = Annotated[int, Meta(ge=0, le=2)]
Base64 = Annotated[str, Meta(description="Base64", extra_json_schema={"format": "byte"})]

Item = TypeVar("Item")


class Page(Struct, Generic[Item]):
    """A part of a list."""

    items: list[Item]
    next: Annotated[str | None, Meta(description="the cursor of the next page, null = no more")]
    as_of: Annotated[Moment, Meta(description="when this was read")]
    notes: Annotated[
        list[str], Meta(description="what the list does not tell, or could not be read")
    ]


class Sorting(Struct):
    """An answer that is being worked out: ask again."""

    detail: str
    seconds: Annotated[int, Meta(ge=0, description="for how long already")]


class Subscription(Struct):
    """One topic filter of a session."""

    topic_filter: str
    qos: QoS
    no_local: bool
    retain_as_published: bool
    identifier: int | None


class SessionRow(Struct):
    """A stored session, in a list."""

    client_id: str
    identity: Annotated[str, Meta(description="the user whose session it is")]
    state: Literal["online", "offline"]
    protocol_version: int
    created_at: Moment | None
    connected_at: Moment | None
    disconnected_at: Moment | None
    expires_at: Annotated[Moment | None, Meta(description="null = not yet known, or never")]
    session_expiry_interval: Count
    position: Count
    in_flight: Count
    incoming_qos2: Count
    waiting: Annotated[int, Meta(ge=0, description="messages behind its position")]
    bytes: Annotated[Count | None, Meta(description="that it is owed; null = not counted")]
    oldest_at: Annotated[Moment | None, Meta(description="when the oldest one was accepted")]
    subscriptions: Annotated[int, Meta(ge=0, description="how many")]


class Session(SessionRow):
    """A stored session."""

    subscriptions: list[Subscription]  # type: ignore[assignment]


class QueueEntry(Struct, omit_defaults=True):
    """A message that a session is owed."""

    state: str
    packet_id: int | None
    source: str
    offset: int | None
    topic: str | None
    qos: int | None
    bytes: int | None
    accepted_at: Moment | None
    expires_at: Moment | None
    publisher: str | None
    payload: Annotated[
        Base64 | UnsetType | None,
        Meta(description="its beginning; only with the permission `payloads`"),
    ] = UNSET


class Client(Struct):
    """A connected client."""

    client_id: str
    user: str | None
    listener: str
    address: str
    protocol_version: int
    keep_alive_seconds: Count
    connected_seconds: Count
    durable: Annotated[bool, Meta(description="its session outlives its connection")]
    session_expiry_interval: Annotated[int | None, Meta(description="null = never")]
    subscriptions: Count
    in_flight: Count
    lagging: Annotated[bool, Meta(description="it reads its backlog from the disk")]
    will_topic: str | None


class ClientFilter(Struct):
    """A topic filter of a connected client."""

    topic_filter: str
    qos: QoS


class ClientDetail(Client):
    """A connected client with its first topic filters."""

    topic_filters: list[ClientFilter]


class GroupMember(Struct):
    """A stored session that shares a subscription."""

    client_id: str
    qos: QoS
    connected: bool
    in_flight: Count


class Group(Struct):
    """The group of a shared subscription."""

    share_name: str
    topic_filter: str
    position: Count
    members: Count
    connected: Count
    waiting: Annotated[int | None, Meta(description="null = could not be read")]
    bytes: Annotated[int | None, Meta(description="of them; null = not counted")]
    returned: Annotated[int, Meta(description="messages that came back from members")]
    in_flight: Count
    first_members: list[GroupMember]


class Retained(Struct):
    """A retained message, without what it says."""

    topic: str
    bytes: Count
    qos: QoS
    stored_at: Moment | None
    expires_at: Moment | None
    publisher: str | None


class RetainedMessage(Retained):
    """A retained message."""

    payload: Base64
    payload_is_cut: Annotated[bool, Meta(description="there is more of it than is told here")]
    content_type: str | None
    payload_format: Annotated[
        Literal["bytes", "text"] | None, Meta(description="as its publisher says; null = not said")
    ]
    response_topic: str | None
    correlation_data_base64: Base64 | None
    user_properties: list[tuple[str, str]]
    properties_problem: Annotated[
        str | None, Meta(description="why its properties cannot be read, null = they can")
    ]


class TopicSession(Struct):
    """A subscription that gets what is published on a topic."""

    client_id: str
    topic_filter: str
    qos: QoS
    no_local: bool
    connected: bool
    gets: Literal["now", "later", "no"]


class TopicGroup(Struct):
    """A shared subscription that gets what is published on a topic."""

    share_name: str
    topic_filter: str
    qos_min: QoS
    qos_max: QoS
    members: Count
    connected: Count
    gets: Literal["now", "later", "no"]


class TopicReaders(Struct):
    """Who gets what is published on a topic."""

    topic: str
    sessions: Annotated[list[TopicSession], Meta(description="the first ones by client id")]
    sessions_count: Annotated[int, Meta(description="of all")]
    sessions_connected: Count
    subscriptions_count: Count
    groups: Annotated[list[TopicGroup], Meta(description="the first ones")]
    groups_count: Count
    as_of: Moment
    notes: list[str]


class Event(Struct):
    """What happened once, by the history."""

    at: Moment
    text: str


class Timeline(Struct):
    """What happened to a client, by the history."""

    events: Annotated[list[Event], Meta(description="the newest first")]
    notes: list[str]


class Start(Struct):
    """One start of the broker, by the history."""

    boot: Count
    at: Moment
    before: Annotated[
        Literal["orderly", "crash", "unknown"], Meta(description="how the boot before it ended")
    ]
    sessions: Annotated[int | None, Meta(description="that it found")]
    detail: str


class Starts(Struct):
    """The starts of the broker."""

    starts: Annotated[list[Start], Meta(description="the newest first")]
    notes: list[str]


class Storage(Struct):
    """How much the log takes, and what is in the store."""

    log_bytes: Count
    generations: Count
    sessions_stored: Count
    retained_messages: Count


class RestartCheck(Struct):
    """What a restart would cost, and what is against it."""

    is_safe: Annotated[bool, Meta(description="nothing is against it")]
    against_it: list[str]
    sentences: Annotated[list[str], Meta(description="what it costs")]
    phase: str
    connected: Count
    durable_sessions_connected: Count
    clean_sessions_connected: Count
    sessions_stored: Count
    durability: str
    last_recovery_seconds: float
    writes_refused: Annotated[str, Meta(description='why, "" = they are taken')]
    disk_is_low: bool
    backends_down: list[str]
    configuration: Annotated[str, Meta(description='why it would not start, "" = it would')]


class Why(Struct):
    """Why a client may miss messages, in sentences."""

    client_id: str
    now: list[str]
    before: Annotated[list[str], Meta(description="by the history")]
    not_known: list[str]


class Purged(Struct):
    """What a purge dropped, or would drop."""

    client_id: str
    dry_run: bool
    dropped: Annotated[int, Meta(ge=0, description="messages; with dry_run: that would be")]
    in_flight: Annotated[int | None, Meta(description="messages that stay; null = not told")]


class Deleted(Struct):
    """A session that was deleted, or would be."""

    client_id: str
    dry_run: bool
    waiting: Annotated[int | None, Meta(description="messages that went along; null = not told")]


class Kicked(Struct):
    """A client whose connection was ended."""

    client_id: str


class OwedTo(Struct):
    """What some of those to whom messages are owed are owed."""

    holders: Annotated[int, Meta(ge=0, description="that are owed something")]
    messages: Count
    bytes: Count


class OwedMost(Struct):
    """One of the sessions that are owed most."""

    client_id: str
    state: Literal["online", "offline"]
    messages: Count
    bytes: Count
    oldest_ms: Annotated[int, Meta(ge=0, description="age of its oldest message")]


class Backlog(Struct):
    """What is owed in all, as the broker has counted it last in the background."""

    age_ms: Annotated[int, Meta(ge=0, description="of the count")]
    messages: Count
    bytes: Count
    oldest_ms: Annotated[int, Meta(ge=0, description="age of the oldest message")]
    sessions: Annotated[int, Meta(ge=0, description="that are owed something")]
    sessions_stored: Count
    offline: OwedTo
    online: OwedTo
    groups: OwedTo
    unreadable: Count
    top: Annotated[list[OwedMost], Meta(description="those who are owed most bytes")]
    problem: Annotated[str, Meta(description='what went wrong while it counted, "" = nothing')]


class Needing(Struct):
    """One of those that need a generation."""

    name: str
    messages: Count


class Generation(Struct):
    """A generation of the log, and who needs it: it goes when nobody does."""

    generation: Count
    state: Literal["open", "closed"]
    created_at: Moment | None
    age_seconds: Count
    first_offset: int
    last_offset: int
    messages: Count
    bytes: Count
    sessions: Count
    groups: Count
    backends: Count
    unreadable: Count
    largest_sessions: list[Needing]
    largest_groups: list[Needing]
    largest_backends: list[Needing]


Duration = Annotated[
    str,
    Meta(pattern="^[1-9][0-9]{0,7}[smhd]$", description="45s, 30m, 12h or 90d", examples=["1h"]),
]
Reason = Annotated[str, Meta(max_length=1024, description="for the history")]


class BanWanted(Struct, forbid_unknown_fields=True):
    """A ban to be made."""

    kind: Literal["client-id", "user", "address"]
    value: Annotated[
        str, Meta(min_length=1, description="of an address also a network: 10.0.0.0/8")
    ]
    for_: Duration = field(name="for")
    reason: Reason = ""


class Ban(Struct):
    """A ban."""

    kind: Literal["client-id", "user", "address"]
    value: str
    since: Moment
    until: Moment
    left_seconds: Count
    by: str
    reason: str


class Unbanned(Struct):
    """A ban that was removed."""

    kind: str
    value: str


class Publication(Struct, forbid_unknown_fields=True):
    """A message to be published."""

    topic: Annotated[str, Meta(min_length=1)]
    text: Annotated[str | None, Meta(description="what it says, or else `payload`")] = None
    payload: Annotated[Base64 | None, Meta(description="what it says, as Base64")] = None
    qos: QoS = 1
    retain: bool = False
    content_type: str | None = None
    expiry_seconds: Annotated[int, Meta(ge=0, le=4_294_967_295)] | None = None
    user_properties: list[tuple[str, str]] = []
    reason: Reason = ""


class Published(Struct):
    """A message that was published."""

    topic: str
    matched: Annotated[int, Meta(description="subscriptions that get it: all of the next three")]
    connected: Count
    groups: Count
    filters: Annotated[int, Meta(description="of sessions that are away")]
    stored: bool


class RetainedDeleted(Struct):
    """Retained messages that were deleted, or would be."""

    dry_run: bool
    deleted: Count


class GroupPurged(Struct):
    """What a purge of a shared subscription dropped; with dry_run what waits, whatever its age."""

    share_name: str
    topic_filter: str
    dry_run: bool
    dropped: Annotated[int | None, Meta(description="messages; null = could not be read")]


class TraceWanted(Struct, forbid_unknown_fields=True):
    """A trace to be begun."""

    kind: Literal["client", "topic", "address"]
    value: Annotated[str, Meta(min_length=1)]
    for_: Duration = field(name="for", default="10m")
    payload_bytes: Annotated[int, Meta(ge=0, le=256)] = 0


class Trace(Struct):
    """A trace that is on."""

    trace: int
    kind: Literal["client", "topic", "address"]
    value: str
    by: str
    seconds_left: Count
    lines_waiting: Count


class TraceBegun(Struct):
    """The number of a trace."""

    trace: int


class TraceLines(Struct):
    """What a trace has told since it was read last."""

    lines: list[dict[str, Any]]
    left_out: Annotated[int, Meta(ge=0, description="lines for which there was no room")]
    over: Annotated[str, Meta(description='why the trace has ended, "" = it is on')]


class LogLevelWanted(Struct, forbid_unknown_fields=True):
    """The level that the broker is to log from."""

    level: Literal["debug", "info", "warning", "error"]
    for_: Duration | None = field(name="for", default=None)


class LogLevel(Struct):
    """The level that the broker logs from, and the one of its configuration."""

    level: str
    configured: str


class Reloaded(Struct):
    """What the broker has read again."""

    changed: list[str]
    needs_restart: list[str]
    problems: list[str]


RoleWord = Literal["viewer", "operator", "admin"]
AccessName = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
Password = Annotated[str, Meta(min_length=12, max_length=1024)]


class Me(Struct):
    """Who asks."""

    name: str
    role: Literal["viewer", "operator", "admin"]
    payloads: bool
    how: Literal["token", "login"]


class LogLine(Struct):
    """A line of the admin log."""

    at: Moment
    what: str
    outcome: str
    name: str | None = None
    role: str | None = None
    how: str | None = None
    from_: Annotated[str | None, Meta(description="address")] = field(name="from", default=None)
    change: Annotated[str | None, Meta(description="the same in both lines of a change")] = None
    details: Annotated[dict[str, Any], Meta(description="what it was about")] = {}


class TokenRow(Struct):
    """A token, without itself."""

    name: str
    role: Literal["viewer", "operator", "admin"]
    payloads: bool
    created_at: Moment
    expires_at: Moment
    expired: bool


class TokenWanted(Struct, forbid_unknown_fields=True):
    """A token to be made."""

    name: AccessName
    role: RoleWord
    expires: Duration
    payloads: bool = False


class TokenMade(TokenRow):
    """A token that was made."""

    token: Annotated[str, Meta(description="itself, told this once")]


class UserRow(Struct):
    """A user of the dashboard."""

    name: str
    role: Literal["viewer", "operator", "admin"]
    payloads: bool
    changed_at: Moment


class UserWanted(Struct, forbid_unknown_fields=True):
    """A user to be added."""

    name: AccessName
    role: RoleWord
    password: Password
    payloads: bool = False


class UserChange(Struct, forbid_unknown_fields=True):
    """What is to be changed of a user; what is null stays as it is."""

    role: RoleWord | None = None
    payloads: bool | None = None
    password: Password | None = None


class PasswordChange(Struct, forbid_unknown_fields=True):
    """Another password for the user who asks."""

    old: str
    new: Password


class Granted(Struct):
    """Whose rights were changed."""

    name: str


class Problem(Struct):
    """Why something was not done (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


class Verdict(Struct):
    """What the last audit said."""

    status: Literal["ok", "violated", "unknown"]
    at: Annotated[str, Meta(description="when it was written; empty = not known")]
    lines: list[str]
