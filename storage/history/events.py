"""The vocabulary of the session history: events, reasons, stages, and the columns of its table.

One row is one event, in the order of (node, boot, seq); seq has no holes within a boot. The broker
writes rows in the same batch as the state they describe (`session.history`), packed as
`storage.history.packed_rows` defines; the exporter expands them into the columns below and writes
Parquet files. The numbers here are on disk: never change one, only add. docs/history.md defines
each event and the columns it fills.
"""

from typing import Final

SCHEMA_VERSION: Final = 1

# Events: the number in packed rows, the name in the table.
EVENTS: Final[dict[int, str]] = {
    # sessions
    1: "session_created",
    2: "session_resumed",
    3: "session_taken_over",
    4: "session_disconnected",
    5: "session_expiry_changed",
    6: "session_expired",
    7: "session_terminated",
    8: "session_restored",
    9: "session_purged",
    # subscriptions
    16: "subscribed",
    17: "unsubscribed",
    18: "sub_restored",
    24: "backend_follows",
    # messages on their way in
    32: "msg_accepted",
    33: "msg_persisted",
    34: "pub_acked",
    35: "pub_completed",
    36: "pub_dup_received",
    37: "pub_released",  # PUBREL freed the packet id: in the batch that frees it
    # messages on their way out
    48: "msg_enqueued",
    49: "msg_delivered",
    50: "msg_acked",
    51: "msg_completed",
    52: "msg_dropped",
    53: "msg_expired",
    54: "msg_moved",
    # wills
    64: "will_armed",
    65: "will_delayed",
    66: "will_fired",
    67: "will_cancelled",
    # retained messages
    80: "retained_set",
    81: "retained_cleared",
    82: "retained_expired",
    83: "retained_sent",
    # the broker
    96: "boot",
    97: "shutdown",
    98: "recovered",
    99: "gc_run",
    100: "checkpoint",
    101: "history_gap",
    102: "clock_step",
    103: "canary_sent",
    104: "canary_received",
    105: "books",
    # external stores
    106: "backend_opened",
    107: "backend_told",
    108: "backend_gap",
    109: "backend_forgotten",
    # an operator
    110: "ban_added",
    111: "ban_removed",
    112: "ban_expired",
    113: "operator_action",
    114: "trace_began",
    115: "trace_goes_on",
    116: "trace_ended",
    # a cluster
    117: "member_leads",
}

SESSION_CREATED: Final = 1
SESSION_RESUMED: Final = 2
SESSION_TAKEN_OVER: Final = 3
SESSION_DISCONNECTED: Final = 4
SESSION_EXPIRY_CHANGED: Final = 5
SESSION_EXPIRED: Final = 6
SESSION_TERMINATED: Final = 7
SESSION_RESTORED: Final = 8
SESSION_PURGED: Final = 9
SUBSCRIBED: Final = 16
UNSUBSCRIBED: Final = 17
SUB_RESTORED: Final = 18
BACKEND_FOLLOWS: Final = 24
MSG_ACCEPTED: Final = 32
MSG_PERSISTED: Final = 33
PUB_ACKED: Final = 34
PUB_COMPLETED: Final = 35
PUB_DUP_RECEIVED: Final = 36
PUB_RELEASED: Final = 37
MSG_ENQUEUED: Final = 48
MSG_DELIVERED: Final = 49
MSG_ACKED: Final = 50
MSG_COMPLETED: Final = 51
MSG_DROPPED: Final = 52
MSG_EXPIRED: Final = 53
MSG_MOVED: Final = 54
WILL_ARMED: Final = 64
WILL_DELAYED: Final = 65
WILL_FIRED: Final = 66
WILL_CANCELLED: Final = 67
RETAINED_SET: Final = 80
RETAINED_CLEARED: Final = 81
RETAINED_EXPIRED: Final = 82
RETAINED_SENT: Final = 83
BOOT: Final = 96
SHUTDOWN: Final = 97
RECOVERED: Final = 98
GC_RUN: Final = 99
CHECKPOINT: Final = 100
HISTORY_GAP: Final = 101
CLOCK_STEP: Final = 102
CANARY_SENT: Final = 103
CANARY_RECEIVED: Final = 104
BOOKS: Final = 105
BACKEND_OPENED: Final = 106
BACKEND_TOLD: Final = 107
BACKEND_GAP: Final = 108
BACKEND_FORGOTTEN: Final = 109
BAN_ADDED: Final = 110
BAN_REMOVED: Final = 111
BAN_EXPIRED: Final = 112
OPERATOR_ACTION: Final = 113
TRACE_BEGAN: Final = 114
TRACE_GOES_ON: Final = 115
TRACE_ENDED: Final = 116
MEMBER_LEADS: Final = 117
# Their second name is a backend, not a shared group.
BACKEND_EVENTS: Final = (
    BACKEND_FOLLOWS,
    BACKEND_OPENED,
    BACKEND_TOLD,
    BACKEND_GAP,
    BACKEND_FORGOTTEN,
)

# Who caused the event.
ACTORS: Final[dict[int, str]] = {0: "broker", 1: "client", 2: "gc", 3: "admin", 4: "storage"}
BROKER: Final = 0
CLIENT: Final = 1
GC: Final = 2
ADMIN: Final = 3
STORAGE: Final = 4

# Reasons for which MQTT has no reason code (those are below 256).
REASONS: Final[dict[int, str]] = {
    # the end of a connection
    1001: "connection_lost",
    1002: "broker_crashed",  # the client was connected when the broker died
    1003: "connect_timeout",
    # the end of a session
    1010: "ended_with_connection",  # its expiry interval is 0
    1011: "clean_start",
    1012: "no_expiry_left",  # DISCONNECT set the expiry interval to 0
    1013: "replaced",  # expired, and removed by the CONNECT of its successor
    1014: "administrative_action",
    # a message was dropped
    1020: "queue_full",
    1021: "too_large",
    1022: "no_session",
    1023: "session_limit",
    1024: "total_limit",
    1025: "not_authorized",
    1026: "storage_refused",
    1027: "max_age",
    1028: "slow_consumer",
    1029: "unwanted",  # the session must not get it any more: unsubscribed, or No Local
    1030: "unsubscribed",
    1031: "row_damaged",  # its row in the store could not be read
    1032: "purged",  # an operator has dropped it
    # a will was cancelled, or not published
    1040: "will_disconnected",  # DISCONNECT with reason code 0x00
    1041: "will_resumed",  # the session was resumed within the delay
    1042: "will_refused",
    # a gap in the history
    1050: "outbox_full",  # rows were written faster than they were exported
    1051: "outbox_trimmed",  # rows were deleted before they were exported
    1052: "segment_lost",
    1053: "began",  # the gap begins here; its end has the count
    1054: "detail_changed",  # an operator changed the level
    1055: "damaged",  # rows of the books could not be read at start
    # what an external store was told
    1060: "confirmed",  # it has these messages
    1061: "dead_lettered",  # it has refused them, and they are kept
    1062: "refused",  # the same, and they are not kept: too many are
    1063: "told_again",  # it had lost them, and has them again
    # what it was not told
    1064: "backlog_full",  # given up: too much waited
    1065: "not_kept",  # the log dropped them
    1066: "unreadable",  # damage; those of the range that could be read were told
    1067: "lost_there",  # it has lost them, and they are not kept any more
    1068: "not_counted",  # it has them; a crash took back how many
    # how its filters are recorded
    1070: "names_hashed",
    # what a boot records that earlier brokers did not
    1071: "releases_recorded",  # every packet id that a PUBREL frees has a `pub_released`
}

OUTBOX_FULL: Final = 1050
OUTBOX_TRIMMED: Final = 1051
DETAIL_CHANGED: Final = 1054
CONFIRMED: Final = 1060
DEAD_LETTERED: Final = 1061
REFUSED: Final = 1062
TOLD_AGAIN: Final = 1063
BACKLOG_FULL: Final = 1064
NOT_KEPT: Final = 1065
UNREADABLE: Final = 1066
LOST_THERE: Final = 1067
NOT_COUNTED: Final = 1068
NAMES_HASHED: Final = 1070
RELEASES_RECORDED: Final = 1071
# Matches a name that `storage.history.packed_rows.shortened` cut: some of its levels are missing.
SHORTENED: Final = r"(?s)^.{256}\.\.\.[0-9a-f]{32}$"

# Stages of the books. Each has a count, bytes, and checksums of the message ids (see `check1`).
STAGES: Final[dict[int, str]] = {
    0: "accepted",  # read from publishers, QoS 0 included; bin: the minute of acceptance
    1: "stored",  # of those, appended to the log
    2: "persisted",  # of those, durable
    3: "pub_acked",  # PUBACK or PUBREC sent to the publisher
    4: "delivered",  # first sending to a session; bin: the minute of sending, as all below
    5: "redelivered",  # with DUP
    6: "acked",  # PUBACK or PUBREC received from a session
    7: "completed",  # PUBCOMP received from a session
    8: "dropped",
    9: "expired",
    10: "ack_owed",  # accepted at QoS 1 or 2, so PUBACK or PUBREC must follow; bin as accepted
    11: "unanswered",  # of those: the connection was gone before PUBACK or PUBREC could be sent
}
STAGE_ACCEPTED: Final = 0
STAGE_STORED: Final = 1
STAGE_PERSISTED: Final = 2
STAGE_PUB_ACKED: Final = 3
STAGE_DELIVERED: Final = 4
STAGE_REDELIVERED: Final = 5
STAGE_ACKED: Final = 6
STAGE_COMPLETED: Final = 7
STAGE_DROPPED: Final = 8
STAGE_EXPIRED: Final = 9
STAGE_ACK_OWED: Final = 10
STAGE_UNANSWERED: Final = 11

# Levels of detail; each includes the ones before it.
OFF: Final = 0
SESSIONS: Final = 1  # sessions, subscriptions, wills, retained messages, the broker
BOOKS_LEVEL: Final = 2  # and the books of every minute
SAMPLED: Final = 3  # and every event of one message in N
FULL: Final = 4  # and every event of every message
LEVELS: Final = ("off", "sessions", "books", "sampled", "full")

# The flat table: (column, type). Arrow types: dict = dictionary<int32, string>, time =
# timestamp[us, UTC]. Only the first columns of the envelope are never null. New columns are added
# at the end.
COLUMNS: Final = (
    # envelope, on every row
    ("v", "int8"),
    ("node", "dict"),
    ("boot", "int64"),
    ("seq", "int64"),  # from 1, without holes within a node and boot
    ("ts", "time"),  # broker time: never jumps back, whatever the wall clock does
    ("mono_ns", "int64"),  # since the boot
    ("ev", "dict"),
    ("tenant", "dict"),
    ("client_id", "dict"),
    ("session", "int64"),  # incarnation: boot << 40 | number, never reused
    ("conn", "int64"),  # of this boot; 0 = offline
    ("reason", "int16"),
    ("actor", "dict"),
    # message
    ("msg", "int64"),  # offset in the log; what was never stored: 1 << 62 | boot << 40 | number
    ("pub", "int64"),  # session of the publisher
    ("topic", "dict"),
    ("tfilter", "dict"),
    ("pid", "int32"),
    ("qos", "int8"),  # granted
    ("pub_qos", "int8"),
    ("dup", "bool"),
    ("retain", "bool"),
    ("bytes", "int32"),  # of the payload
    ("expiry_s", "int64"),  # of a message, a session or a will's delay; 4294967295 = never
    ("order", "int64"),  # rises with every message of a publisher and topic
    ("share", "dict"),
    ("attempt", "int16"),  # 1 = first sending, 2 = again
    # session
    ("sp", "bool"),  # Session Present as sent
    ("clean_start", "bool"),
    ("rmax", "int32"),
    ("proto", "int8"),
    ("subs", "int32"),  # sizes as the broker counts them
    ("queued", "int32"),
    ("inflight", "int32"),
    # what Holdfast adds
    ("stream", "int64"),  # id of a durable topic filter: its messages are stored for its holders
    ("position", "int64"),  # in the log: of the session, or the end of the log
    ("subs_check", "int64"),  # sum of crc32(filter + NUL + decimal granted QoS), UTF-8
    ("no_local", "bool"),
    ("at", "time"),  # effective time, past or future, if it is not `ts`
    ("count", "int64"),
    ("msg_last", "int64"),  # last message of a range that starts at `msg`
    ("detail", "string"),  # level in force, or free text
    # books
    ("stage", "dict"),
    ("bin", "time"),  # start of the minute
    ("total_bytes", "int64"),
    ("check1", "int64"),  # sum of the offsets, modulo 2 ** 61; messages never stored add 0
    ("check2", "int64"),  # sum of (offset modulo 2 ** 30) ** 2, modulo 2 ** 61; likewise
    # external stores
    ("backend", "dict"),
)
CHECK_BITS: Final = 61
CHECK_ROOT_BITS: Final = 30
UNSTORED: Final = 1 << 62  # ids from here on are not offsets
