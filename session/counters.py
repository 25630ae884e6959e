"""The counters of the broker: plain integers, which cost 50 ns per addition.

Must never know a metrics library, a label object or a lock: one thread writes (the engine's loop),
others read single integers, which the interpreter makes safe. Values only grow. Read next:
`broker.observe.metrics` (how they leave the process) and `broker.process.sys_topics` (the $SYS
tree).
"""

from typing import Final

PACKET_TYPES: Final = 16  # a packet's type is four bits; index 0 stays unused
PUBLISH: Final = 3

# Values of labels. They are listed here so that no client can create a new time series; the engine
# uses only these.
DROP_REASONS: Final = (
    "queue_full",
    "session_limit",
    "purged",
    "total_limit",
    "expired",
    "max_age",
    "too_large",
    "not_authorized",
    "slow_consumer",
    "qos0_offline",
    "storage_refused",
    "damaged",
)
DAMAGED_KINDS: Final = (
    "session",
    "message",
    "retained",
    "timer",
    "connection",
    "holder",
    "feed",
    "fetch",
    "ban",
)
CONNECT_RESULTS: Final = (
    "accepted",
    "malformed",
    "unsupported_version",
    "client_id_not_valid",
    "bad_credentials",
    "not_authorized",
    "banned",
    "quota_exceeded",
    "rate_exceeded",
    "redirected",
    "server_unavailable",
    "overtaken",
    "timeout",
    "handshake",
    "other",
)
REFUSALS: Final = tuple(each for each in CONNECT_RESULTS if each != "accepted")
DISCONNECT_REASONS: Final = (
    "normal",
    "with_will",
    "connection_lost",
    "keep_alive_timeout",
    "taken_over",
    "protocol_error",
    "malformed_packet",
    "shutting_down",
    "server_error",
    "quota_exceeded",
    "rate_exceeded",
    "storage_refused",
    "not_authorized",
    "administrative_action",
    "connect_timeout",
    "other",
)
# Of subscriptions that external stores want.
PROXY_OUTCOMES: Final = ("begun", "ended", "refused", "unknown_client")
WILL_OUTCOMES: Final = ("armed", "fired", "cancelled", "refused")

BUCKETS_MAX: Final = 32  # powers of two: 32 of them span 1 microsecond to over an hour


class LogBuckets:
    """A histogram over powers of two of `unit`: one bit_length and two additions per sample.

    Bucket i counts samples with value <= unit * 2**i (bucket 0: value <= unit). Not cumulative;
    `cumulative()` is what Prometheus wants. Good to a factor of two, which is what an alert needs.
    """

    __slots__ = ("buckets", "count", "total", "unit")

    def __init__(self, unit: float) -> None:
        assert unit > 0
        self.unit: float = unit
        self.count: int = 0
        self.total: float = 0.0  # sum of the samples, in their own unit (seconds, records)
        self.buckets: list[int] = [0] * BUCKETS_MAX

    def add(self, value: float) -> None:
        """Count one sample; negative values count as 0, huge ones in the last bucket."""
        self.count += 1
        if value <= self.unit:
            self.buckets[0] += 1
            if value > 0:
                self.total += value
            return
        self.total += value
        # The smallest i with value <= unit * 2**i. Exact powers of two stay in their own bucket.
        ratio = value / self.unit
        whole = int(ratio)
        index = (whole - 1).bit_length() if ratio == whole else whole.bit_length()
        self.buckets[index if index < BUCKETS_MAX else BUCKETS_MAX - 1] += 1

    def cumulative(self) -> list[tuple[float, int]]:
        """Return (upper bound, samples at or below it) per bucket; the last one is unbounded."""
        result: list[tuple[float, int]] = []
        running = 0
        for index, samples in enumerate(self.buckets):
            running += samples
            bound = float("inf") if index == BUCKETS_MAX - 1 else self.unit * float(1 << index)
            result.append((bound, running))
        return result


class Counters:
    """Totals since the start of the process."""

    def __init__(self) -> None:
        # Packets by type (index = MQTT control packet type number). PUBLISH is not counted in
        # `packets_sent`: `messages_sent` has it, by QoS, and the hot path adds only once.
        self.packets_received: list[int] = [0] * PACKET_TYPES
        self.packets_sent: list[int] = [0] * PACKET_TYPES
        self.bytes_received: int = 0
        self.bytes_sent: int = 0
        # PUBLISH packets by QoS, the $SYS/broker/publish/... numbers: from and to clients.
        self.messages_received: list[int] = [0, 0, 0]
        self.messages_sent: list[int] = [0, 0, 0]
        self.payload_bytes_received: int = 0
        self.payload_bytes_sent: int = 0
        # Messages stored in the log.
        self.messages_stored: int = 0
        # Deliveries and messages that were dropped, by reason.
        self.dropped: dict[str, int] = dict.fromkeys(DROP_REASONS, 0)
        # Damaged places found in the store, by what the rows hold; see `session.live.damage`.
        self.damaged_rows: dict[str, int] = dict.fromkeys(DAMAGED_KINDS, 0)
        self.expired_messages: int = 0  # Message Expiry Interval passed before delivery
        self.redeliveries: int = 0  # PUBLISH with DUP or PUBREL sent again at resume
        self.unmatched_messages: int = 0  # accepted, and no subscription matched (0x10)

        # Connections and sessions.
        self.connections_accepted: int = 0
        self.connects: dict[str, int] = dict.fromkeys(CONNECT_RESULTS, 0)
        # Those of `connects` that are refusals, by listener; changed by `refuse` only.
        self.refused: dict[str, dict[str, int]] = {}
        self.disconnects: dict[str, int] = dict.fromkeys(DISCONNECT_REASONS, 0)
        self.connected_maximum: int = 0  # most sessions connected at one moment
        self.sessions_created: int = 0
        self.sessions_resumed: int = 0
        self.sessions_taken_over: int = 0
        self.sessions_expired: int = 0
        self.sessions_terminated: int = 0  # ended by Clean Start or by an operator
        self.proxy_subscriptions: dict[str, int] = dict.fromkeys(PROXY_OUTCOMES, 0)
        self.wills: dict[str, int] = dict.fromkeys(WILL_OUTCOMES, 0)
        self.generations_added: int = 0
        self.generations_dropped: int = 0

        # Of the shell: exceptions caught at its marked boundary; each one is a bug.
        self.internal_errors: int = 0

        # Time and size of commits; and, per commit, from the beginning of the tick that received
        # what it covers to the release of the acknowledgements (the shell measures both times).
        self.commit_seconds: LogBuckets = LogBuckets(1e-6)
        self.batch_records: LogBuckets = LogBuckets(1.0)
        self.publish_ack_seconds: LogBuckets = LogBuckets(1e-6)
        self.commits: int = 0  # batches reported durable
        self.commit_failures: int = 0

    def sent_by_type(self) -> list[int]:
        """Return the packets sent by type, PUBLISH included."""
        sent = list(self.packets_sent)
        sent[PUBLISH] = sum(self.messages_sent)
        return sent

    def add_listener(self, name: str) -> dict[str, int]:
        """Begin to count the refusals of a listener; return its counts. Idempotent.

        The names come from the configuration, never from a client.
        """
        return self.refused.setdefault(name, dict.fromkeys(REFUSALS, 0))

    def refuse(self, listener: str, result: str) -> None:
        """Count a connection that was refused; an unknown result is a bug of the caller."""
        assert result in REFUSALS, result
        self.connects[result] += 1
        self.add_listener(listener)[result] += 1

    def drop(self, reason: str, count: int = 1) -> None:
        """Count `count` dropped deliveries; an unknown reason is a bug of the caller."""
        assert reason in self.dropped, reason
        self.dropped[reason] += count
