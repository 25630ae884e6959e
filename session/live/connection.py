"""The state of one client connection, which is never stored.

`output` is written to the transport at the end of the tick, `waiting` waits for commits: see
`session.live.commit_gate`. Topic aliases, quotas and keep alive belong to a connection, not to its
session. Decides nothing about messages: see `session.delivery.delivery` and `session.engine`.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from mqtt.decoder import Decoder
from mqtt.message import Message
from mqtt.packets import Will
from session.live.backlog_trim import Plan, Trim
from session.live.rate_meter import Meter
from session.ports import Exchange, Transport
from session.state.session import Session
from storage.log.message_log import Cursor

# States of a connection, in their order.
AWAITING_CONNECT: Final = 0
AUTHENTICATING: Final = 1
ACTIVE: Final = 2
CLOSING: Final = 3  # nothing more is read; output and waiting replies are still sent
CLOSED: Final = 4


class Pending:
    """A message that waits for room in the send window of a connected session."""

    __slots__ = ("identifiers", "message", "qos", "retain")

    def __init__(
        self, message: Message, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        self.message = message
        self.qos = qos
        self.retain = retain
        self.identifiers = identifiers


class Ahead:
    """A message whose packet id is bound, and that is sent when the window has room."""

    __slots__ = ("item", "packet_id", "serial")

    def __init__(self, item: Pending, packet_id: int, serial: int) -> None:
        self.item = item
        self.packet_id = packet_id
        self.serial = serial  # of the batch with the packet id; it must be durable before


# Shared by all connections with nothing in these queues: an empty deque takes 624 bytes, and two
# would be a quarter of the memory of an idle connection. Nothing is ever added to them.
NOTHING_PENDING: Final[deque[Pending]] = deque()
NOTHING_AGAIN: Final[deque[int]] = deque()
NOTHING_AHEAD: Final[deque[Ahead]] = deque()


class Arrivals:
    """What a lagging session is owed of the messages accepted while it reads up to `after`.

    With thousands of filters that takes many ticks, and the log grows meanwhile: a reader that
    followed its end would look into every filter's index again, for ever.
    """

    __slots__ = ("_count_max", "after", "is_complete", "offsets")

    def __init__(self, after: int, count_max: int) -> None:
        self._count_max: Final = count_max  # offsets that are noted
        self.after: int = after  # the cursor reads up to this offset
        self.offsets: list[int] = []  # of the messages behind it, ascending
        self.is_complete: bool = True  # False: there were more, behind the last of these

    def note(self, offset: int) -> None:
        """Note a message that was just accepted."""
        if self.is_complete and len(self.offsets) < self._count_max:
            self.offsets.append(offset)
        else:
            self.is_complete = False


class Replies:
    """The replies of one connection that wait for one batch."""

    __slots__ = ("acks", "connection", "data", "messages", "serial", "size")

    def __init__(self, connection: "Connection") -> None:
        self.connection: Connection = connection
        self.serial: int = 0  # of the batch, once it is written
        self.data: list[bytes] = []
        self.size: int = 0  # in memory
        self.acks: int = 0  # PUBACKs among them
        self.messages: int = 0  # PUBLISHes and CONNACKs among them: no message overtakes these


class Waiting:
    """All waiting replies of one connection: of this tick and of earlier ones."""

    __slots__ = ("has_connack", "messages", "newest", "size", "unwritten")

    def __init__(self) -> None:
        self.unwritten: Replies | None = None  # of this tick, whose batch is not written
        self.newest: Replies | None = None  # of the newest written batch
        self.has_connack: bool = False
        self.size: int = 0  # of all, in memory
        self.messages: int = 0


class Handshake:
    """An enhanced authentication under way, at CONNECT or again."""

    __slots__ = ("accept", "awaits_client", "exchange")

    def __init__(
        self, exchange: Exchange, accept: Callable[[str, bytes | None], bool] | None
    ) -> None:
        self.exchange: Exchange = exchange
        # Accepts the CONNECT that began it, with identity and Authentication Data; returns False if
        # it was refused after all. None for a re-authentication.
        self.accept: Callable[[str, bytes | None], bool] | None = accept
        self.awaits_client: bool = False  # the next AUTH must come from the client


class Meters:
    """The rate limits of what one client sends."""

    __slots__ = ("bytes", "messages")

    def __init__(self, messages: Meter | None, bytes: Meter | None) -> None:
        self.messages: Meter | None = messages
        self.bytes: Meter | None = bytes

    def take(self, messages: int, size: int, now: int) -> int:
        """Count what the client sent; return for how many ms it must not be read from."""
        pause_ms = 0
        if self.messages is not None and messages:
            pause_ms = self.messages.take(messages, now)
        if self.bytes is not None:
            pause_ms = max(pause_ms, self.bytes.take(size, now))
        return pause_ms


class Connection:
    """One client connection."""

    __slots__ = (
        "address",
        "ahead",
        "ahead_after",
        "ahead_bytes",
        "alias_out_max",
        "aliases_in",
        "aliases_out",
        "arrivals",
        "authentication_method",
        "clean_start",
        "client_id",
        "connect_number",
        "cursor",
        "decoder",
        "expiry_interval_s",
        "full_windows",
        "group_keys",
        "handshake",
        "identity",
        "inbound_open",
        "is_lagging",
        "is_over",
        "is_reading",
        "keep_alive_ms",
        "keep_alive_s",
        "last_received_ms",
        "listener",
        "maximum_packet_size",
        "meters",
        "number",
        "opened_at_ms",
        "output",
        "passed_over",
        "pending",
        "pending_bytes",
        "plan",
        "problem_information",
        "reading_paused",
        "receive_maximum",
        "refusal",
        "remote",
        "resend",
        "session",
        "state",
        "throttled_until_ms",
        "transport",
        "trim",
        "username",
        "version",
        "waiting",
        "will",
        "writable",
    )

    def __init__(
        self,
        number: int,
        transport: Transport,
        decoder: Decoder,
        opened_at_ms: int,
        listener: str,
        remote: str,
        identity: str | None,
    ) -> None:
        self.number: int = number  # unique in this process; gives a deterministic order
        self.transport: Transport = transport
        self.decoder: Decoder = decoder
        self.opened_at_ms: int = opened_at_ms
        self.last_received_ms: int = opened_at_ms
        self.listener: str = listener
        self.remote: str = remote
        # The user name that the transport has proved (a certificate), None = as CONNECT says.
        self.identity: str | None = identity
        self.address: str = ""  # network address it is counted under, if these are limited
        self.refusal: int = 0  # reason code to answer its CONNECT with, 0 = none
        self.state: int = AWAITING_CONNECT
        self.version: int = 0
        # Of CONNECT, for `observe`: also of one that is refused.
        self.client_id: str = ""  # or assigned
        self.session: Session | None = None
        self.username: str = ""  # or proved; whom a session belongs to is its `identity`
        self.keep_alive_s: int = 0
        self.clean_start: bool = False
        self.expiry_interval_s: int = 0  # as asked for, also by Clean Session of v3.1.1
        self.authentication_method: str | None = None  # of CONNECT
        self.handshake: Handshake | None = None

        self.output: list[bytes] = []
        # None = nothing waits, so that idle connections need no memory for it.
        self.waiting: Waiting | None = None
        self.is_over: bool = False  # waiting replies are not sent any more
        self.writable: bool = True
        self.reading_paused: bool = False
        self.meters: Meters | None = None  # None = no rate limit
        self.throttled_until_ms: int = 0  # not read from until then: it sent too fast; 0 = it is

        self.connect_number: int = 0  # CONNECTs are numbered as they are complete
        self.keep_alive_ms: int = 0  # already times 1.5; 0 = off
        self.receive_maximum: int = 65535
        self.maximum_packet_size: int = 0  # the client's; 0 = no limit
        self.problem_information: bool = True
        self.alias_out_max: int = 0
        self.aliases_in: dict[int, str] = {}
        self.aliases_out: dict[str, int] = {}
        self.inbound_open: int = 0  # QoS > 0 PUBLISHes received and not fully acknowledged
        self.will: Will | None = None

        # Delivery.
        self.resend: deque[int] = NOTHING_AGAIN  # packet ids to send again before new messages
        self.ahead: deque[Ahead] = NOTHING_AHEAD  # changed by `*_ahead` only
        self.ahead_bytes: int = 0  # of their payloads
        self.ahead_after: int = 0  # no packet id is bound ahead until the position is here
        self.full_windows: int = 0  # how often messages waited, up to `Settings.ahead_after`
        self.pending: deque[Pending] = NOTHING_PENDING  # changed by `*queue*`, `*_pending` only
        self.pending_bytes: int = 0  # of their payloads
        self.passed_over: int = 0  # offset after the pending ones up to which nothing is owed
        self.is_lagging: bool = False  # its messages are read from the store
        self.is_reading: bool = False  # is it in `Tick.readers`?
        self.cursor: Cursor | None = None
        self.arrivals: Arrivals | None = None
        self.plan: Plan | None = None  # counts the backlog for `trim`
        self.trim: Trim | None = None  # messages of the backlog that exceed the limits
        # The groups of its shared subscriptions: (share name, topic filter).
        self.group_keys: dict[tuple[str, str], None] = {}

    def send_later(self, packet_id: int) -> None:
        """Queue a message in flight to be sent again; only this adds to `resend`."""
        if self.resend is NOTHING_AGAIN:
            self.resend = deque()
        self.resend.append(packet_id)

    def add_ahead(self, held: Ahead) -> None:
        """Add a message whose packet id is bound."""
        if self.ahead is NOTHING_AHEAD:
            self.ahead = deque()
        self.ahead.append(held)
        self.ahead_bytes += len(held.item.message.payload)

    def next_ahead(self) -> Ahead:
        """Remove and return the first message whose packet id is bound."""
        held = self.ahead.popleft()
        self.ahead_bytes -= len(held.item.message.payload)
        if not self.ahead:
            self.ahead = NOTHING_AHEAD
        return held

    def clear_ahead(self) -> None:
        """Remove all messages whose packet ids are bound."""
        self.ahead = NOTHING_AHEAD
        self.ahead_bytes = self.ahead_after = 0

    def queue(self, item: Pending) -> None:
        """Queue a message until there is room for it."""
        if self.pending is NOTHING_PENDING:
            self.pending = deque()
        self.pending.append(item)
        self.pending_bytes += len(item.message.payload)

    def next_pending(self) -> Pending:
        """Remove and return the first queued message."""
        item = self.pending.popleft()
        self.pending_bytes -= len(item.message.payload)
        if not self.pending:
            self.pending = NOTHING_PENDING
        return item

    def clear_queue(self) -> None:
        """Remove all queued messages."""
        self.pending = NOTHING_PENDING
        self.pending_bytes = 0

    def waits_for_room(self) -> bool:
        """Return whether there are messages that have no packet id yet."""
        return bool(self.pending) or self.is_lagging

    def has_queued(self) -> bool:
        """Return whether messages of the session wait in memory, bound ahead or not."""
        return bool(self.ahead or self.pending)

    def bound_to(self, session: Session) -> int:
        """Return the offset up to which every message is done or has a packet id."""
        return self.ahead[-1].item.message.offset if self.ahead else session.position

    def connack_waits(self) -> bool:
        """Return whether the CONNACK waits for its commit."""
        return self.waiting is not None and self.waiting.has_connack

    def waiting_size(self) -> int:
        """Return the memory of replies that wait for commits."""
        return 0 if self.waiting is None else self.waiting.size

    def has_backlog(self) -> bool:
        """Return whether there is something to send as soon as there is room."""
        if self.is_lagging or self.pending or self.resend or self.ahead:
            return True
        return self.session is not None and bool(self.session.replays)

    def has_room(self) -> bool:
        """Return whether a new QoS > 0 message may be sent now."""
        session = self.session
        return (
            session is not None
            and self.state == ACTIVE
            and self.writable
            and session.send_quota > 0
            and not self.resend
            and not self.ahead
        )
