"""The packed rows of one tick: fixed-width records of ten signed 64-bit words, and what they mean.

What `broker.recorder` gathers while a tick runs is packed here into one value and spread over the
columns of `storage.history.events` again. A record stands for one event, or for a run of them: n
messages of one publisher and topic, or n messages of one connection. `expand` is the definition
of what a record means; `storage.history.table` does the same for many rows at once.

    w0  bits 0-7 event, 8-23 reason (books: stage), 24-27 actor, 28-29 QoS granted, 30-31 QoS
        published, 32 DUP, 33 RETAIN, 34 Session Present, 35 Clean Start, 36 No Local, 40-47
        protocol version, 48-60 the HAS bits below: which columns are not null
    w1  session (0 = none); of retained_set, retained_cleared, retained_expired: `pub`, and
        `session` is null
    w2  connection (0 = offline); null when w1 is 0 and it is 0 too
    w3  who | text << 20 | text2 << 40: each an index + 1 into the names, 0 = none
        who    client_id NUL tenant; an empty client_id is null, an empty tenant is ""
        text   topic (messages, wills, retained), tfilter (subscriptions), detail (all others)
        text2  share
    w4  HAS_MSG: msg, the first of n; HAS_POSITION: position; books: bin in ms
    w5  n >= 1: how many messages (events) the record stands for
    w6  HAS_PID: 0 = all have packet id 0; > 0 = the first of n consecutive ones, 1 after 65535;
        < 0 = ~index into the extras of n packet ids. Books: count
    w7  HAS_BYTES: payload bytes of each, or ~index into the extras of n sizes; HAS_STREAM: stream;
        HAS_SESSION_STATE (session events): ~index into the extras of STATE_SIZE numbers: subs, inflight,
        subs_check, rmax (-1 = null), at in ms (0 = null). Books: total_bytes
    w8  HAS_EXPIRY: expiry_s; HAS_AT: at in ms; msg_dropped: msg_last (0 = null). Books: check1
    w9  msg_accepted: 0, or ~index into the extras of k and k filter ids: the n msg_accepted are
        followed by n * k msg_enqueued, message by message, in the order of the filter ids;
        msg_dropped and all that is no message event, HAS_COUNT: count. Books: check2;
        the other message events: 0 = msg, msg + 1 ..., or ~index into the extras of n message
        ids, in which 0 = null (HAS_MSG is set)

By event and not by a bit: proto, sp, clean_start with HAS_SESSION_STATE of session_created and
session_resumed; no_local of subscribed and sub_restored; order = msg and pub = session of
msg_accepted; attempt of msg_delivered with HAS_FLAGS: 2 with DUP, else 1. A msg_enqueued that
msg_accepted stands for has msg, stream and actor, and no other column. `queued` is always null.
No checksum: `storage.state.seal` adds it. Read next: `storage.history.table`.
"""

from typing import Final

RECORD_WORDS: Final = 10
STATE_SIZE: Final = 5  # numbers in the extras of a session event with HAS_SESSION_STATE

# w0
REASON_SHIFT: Final = 8
ACTOR_SHIFT: Final = 24
QOS_SHIFT: Final = 28
PUB_QOS_SHIFT: Final = 30
DUP_SHIFT: Final = 32
RETAIN_SHIFT: Final = 33
SP_SHIFT: Final = 34
CLEAN_START_SHIFT: Final = 35
NO_LOCAL_SHIFT: Final = 36
PROTO_SHIFT: Final = 40
HAS_QOS: Final = 1 << 48
HAS_PUB_QOS: Final = 1 << 49
HAS_FLAGS: Final = 1 << 50  # dup and retain
HAS_PID: Final = 1 << 51
HAS_BYTES: Final = 1 << 52
HAS_EXPIRY: Final = 1 << 53
HAS_POSITION: Final = 1 << 54
HAS_AT: Final = 1 << 55
HAS_SESSION_STATE: Final = 1 << 56  # of a session
HAS_COUNT: Final = 1 << 57
HAS_MSG: Final = 1 << 58
HAS_REASON: Final = 1 << 59
HAS_STREAM: Final = 1 << 60

# w3
TEXT_SHIFT: Final = 20
TEXT2_SHIFT: Final = 40
NAMES_MAX: Final = (1 << 20) - 1  # of a row: what fits into w3

NULL: Final = -1  # a state number that is null
