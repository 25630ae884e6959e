"""One client connection: what lives and dies with it.

`output` goes to the transport at the end of the tick; `waiting` is what waits for commits, see
`session.live.commit_gate`. Topic aliases, quotas and keep alive belong to a connection and are
never stored. Decides nothing about messages; see `session.delivery.delivery` and `session.engine`.
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
CLOSING: Final = 3  # nothing more is read; what was sent or waits still goes out
CLOSED: Final = 4


class Pending:
    """A message that waits for room in a connected session's window."""

    __slots__ = ("identifiers", "message", "qos", "retain")

    def __init__(
        self, message: Message, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        self.message = message
        self.qos = qos
        self.retain = retain
        self.identifiers = identifiers


# What every connection has for whom nothing waits: an empty deque of its own takes 624 bytes, and
# an idle connection would spend a quarter of its memory on two. Never changed, `clear` apart.
NOTHING_PENDING: Final[deque[Pending]] = deque()
NOTHING_AGAIN: Final[deque[int]] = deque()


class Replies:
    """The replies of one connection that wait for one batch."""

    __slots__ = ("acks", "connection", "data", "messages", "serial", "size")

    def __init__(self, connection: "Connection") -> None:
        self.connection: Connection = connection
        self.serial: int = 0  # of the batch, once that is written
        self.data: list[bytes] = []
        self.size: int = 0  # in memory
        self.acks: int = 0  # PUBACKs among them
        self.messages: int = 0  # PUBLISHes among them, and the CONNACK: no message overtakes these


class Waiting:
    """All replies of one connection that wait: those of this tick, and of earlier ones."""

    __slots__ = ("has_connack", "messages", "newest", "size", "unwritten")

    def __init__(self) -> None:
        self.unwritten: Replies | None = None  # for the batch of this tick
        self.newest: Replies | None = None  # for the newest of the batches that are written
        self.has_connack: bool = False
        self.size: int = 0  # of all of them
        self.messages: int = 0


class Handshake:
    """An enhanced authentication under way, at CONNECT or again."""

    __slots__ = ("accept", "awaits_client", "exchange")

    def __init__(
        self, exchange: Exchange, accept: Callable[[str, bytes | None], bool] | None
    ) -> None:
        self.exchange: Exchange = exchange
        # Accepts the CONNECT that began it (identity, Authentication Data); False if it must not.
        # None for a client that was accepted before and authenticates again.
        self.accept: Callable[[str, bytes | None], bool] | None = accept
        self.awaits_client: bool = False  # is it the client's turn?


class Meters:
    """How fast a client sends."""

    __slots__ = ("bytes", "messages")

    def __init__(self, messages: Meter | None, bytes: Meter | None) -> None:
        self.messages: Meter | None = messages
        self.bytes: Meter | None = bytes

    def take(self, messages: int, size: int, now: int) -> int:
        """Count what one client has sent; return for how many ms it is to send nothing more."""
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
        "alias_out_max",
        "aliases_in",
        "aliases_out",
        "authentication_method",
        "client_id",
        "cursor",
        "decoder",
        "expiry_interval_s",
        "group_keys",
        "handshake",
        "identity",
        "inbound_open",
        "is_lagging",
        "is_over",
        "is_reading",
        "keep_alive_ms",
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
        self.number: int = number  # unique in this process; orders what must be deterministic
        self.transport: Transport = transport
        self.decoder: Decoder = decoder
        self.opened_at_ms: int = opened_at_ms
        self.last_received_ms: int = opened_at_ms
        self.listener: str = listener
        self.remote: str = remote
        # Who the client is, as its transport has proved (a certificate); None = its CONNECT says.
        self.identity: str | None = identity
        self.address: str = ""  # the network address that it counts for, if those are limited
        self.refusal: int = 0  # its CONNECT will be answered with this reason code
        self.state: int = AWAITING_CONNECT
        self.version: int = 0
        self.client_id: str = ""  # as in CONNECT or assigned; for whoever watches
        self.session: Session | None = None
        self.username: str = ""
        self.authentication_method: str | None = None  # of CONNECT
        self.handshake: Handshake | None = None

        self.output: list[bytes] = []
        # None = nothing waits: an idle connection spends no memory on it.
        self.waiting: Waiting | None = None
        self.is_over: bool = False  # nothing that waits is sent any more
        self.writable: bool = True
        self.reading_paused: bool = False
        self.meters: Meters | None = None  # if what a client may send is limited
        self.throttled_until_ms: int = 0  # it sent too fast and is not read from, 0 = it is

        # From CONNECT.
        self.keep_alive_ms: int = 0  # already times 1.5; 0 = off
        self.receive_maximum: int = 65535
        self.maximum_packet_size: int = 0  # the client's; 0 = no limit
        self.problem_information: bool = True
        self.alias_out_max: int = 0
        self.aliases_in: dict[int, str] = {}
        self.aliases_out: dict[str, int] = {}
        self.inbound_open: int = 0  # QoS > 0 PUBLISH received and not fully acknowledged
        self.will: Will | None = None
        self.expiry_interval_s: int = 0  # as asked for in CONNECT

        # Delivery.
        self.resend: deque[int] = NOTHING_AGAIN  # packet ids to send before anything new
        self.pending: deque[Pending] = NOTHING_PENDING  # changed by `queue` and those below it only
        self.pending_bytes: int = 0  # of their payloads
        self.passed_over: int = 0  # offset behind the pending ones up to which nothing is owed
        self.is_lagging: bool = False  # reads its streams from the store
        self.is_reading: bool = False  # is it in the list of those which read at end of tick?
        self.cursor: Cursor | None = None
        self.plan: Plan | None = None  # counts the backlog, to know its trim
        self.trim: Trim | None = None  # what of the backlog is over the limits
        # The groups of its shared subscriptions: (share name, topic filter).
        self.group_keys: dict[tuple[str, str], None] = {}

    def send_later(self, packet_id: int) -> None:
        """Let a message in flight wait until it can be sent again; only this adds to `resend`."""
        if self.resend is NOTHING_AGAIN:
            self.resend = deque()
        self.resend.append(packet_id)

    def queue(self, item: Pending) -> None:
        """Let a message wait for room."""
        if self.pending is NOTHING_PENDING:
            self.pending = deque()
        self.pending.append(item)
        self.pending_bytes += len(item.message.payload)

    def next_pending(self) -> Pending:
        """Take the first message that waits."""
        item = self.pending.popleft()
        self.pending_bytes -= len(item.message.payload)
        if not self.pending:
            self.pending = NOTHING_PENDING
        return item

    def clear_queue(self) -> None:
        """Forget what waits."""
        self.pending = NOTHING_PENDING
        self.pending_bytes = 0

    def connack_waits(self) -> bool:
        """Does the CONNACK wait for its commit?"""
        return self.waiting is not None and self.waiting.has_connack

    def waiting_size(self) -> int:
        """Return the size in memory of what waits for commits."""
        return 0 if self.waiting is None else self.waiting.size

    def has_backlog(self) -> bool:
        """Is there something to send as soon as there is room?"""
        if self.is_lagging or self.pending or self.resend:
            return True
        return self.session is not None and bool(self.session.replays)

    def has_room(self) -> bool:
        """May a new QoS > 0 message be sent right now?"""
        session = self.session
        return (
            session is not None
            and self.state == ACTIVE
            and self.writable
            and session.send_quota > 0
            and not self.resend
        )
