"""Events of the history as text: one line for people.

Pure: takes an event as `storage.history.packed_rows.expand` yields it, returns text. Names that
clients chose are escaped, so that they cannot control a terminal. The broker's timelines and the
audit's stories say it with the same words. Read next: `broker.history.queries`.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from storage.history.events import REASONS

Event: TypeAlias = dict[str, object]

NEVER_S: Final = 0xFFFFFFFF
STORED_MAX: Final = 1 << 62  # message ids from here on were never stored
SUCCESS_MAX: Final = 0x80  # reason codes below it are no refusals

# Reason codes of MQTT 5 that end a connection, a session or a message here.
CODES: Final[dict[int, str]] = {
    0x00: "success",
    0x04: "disconnect with will",
    0x10: "no matching subscribers",
    0x80: "unspecified error",
    0x81: "malformed packet",
    0x82: "protocol error",
    0x87: "not authorized",
    0x89: "server busy",
    0x8B: "server shutting down",
    0x8D: "keep alive timeout",
    0x8E: "session taken over",
    0x93: "receive maximum exceeded",
    0x95: "packet too large",
    0x96: "message rate too high",
    0x97: "quota exceeded",
    0x98: "administrative action",
    0x99: "payload format invalid",
}


def printable(text: str) -> str:
    """Return `text` with everything escaped that could control a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def message_name(message: object) -> str:
    """Return a message's id as text: a stored one is its offset, others have a mark."""
    number = _number(message)
    if number < STORED_MAX:
        return f"message {number}"
    return f"message {number} (not stored)"


def describe(event: Event) -> str:
    """Return what happened, without the time and the client."""
    name = str(event["ev"])
    template = TEMPLATES.get(name)
    if template is None:
        return name
    words = _Words(event)
    head, *parts = template.split("|")
    text = head.format_map(words)
    said = []
    for part in parts:
        words.lacks_one = False
        word = part.format_map(words)
        if not words.lacks_one:
            said.append(word)
    if not said:
        return text.removesuffix(":")
    return text + (" " if text.endswith(":") else ", ") + ", ".join(said)


class _Words(dict[str, str]):
    """The words of a template, computed when the template uses them."""

    def __init__(self, event: Event) -> None:
        super().__init__()
        self.lacks_one: bool = False  # was a word asked for that this event does not have?
        self._event = event

    def __missing__(self, key: str) -> str:
        event = self._event
        phrase = PHRASES.get(key)
        if phrase is not None:
            text = phrase(event)
        else:
            value = event.get(key)
            text = "" if value is None else printable(str(value))
        if not text:
            self.lacks_one = True
        return text


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _quoted(value: object) -> str:
    return "" if value is None else f"'{printable(str(value))}'"


def _reason(event: Event) -> str:
    reason = event.get("reason")
    if not isinstance(reason, int):
        return ""
    if reason in REASONS:
        return REASONS[reason].replace("_", " ")
    return f"0x{reason:02X} {CODES.get(reason, '')}".rstrip()


def _refused(event: Event) -> str:
    reason = event.get("reason")
    if isinstance(reason, int) and SUCCESS_MAX <= reason < 0x100:
        return f"refused: {_reason(event)}"
    return ""


def _expiry(event: Event) -> str:
    seconds = event.get("expiry_s")
    if seconds is None:
        return ""
    if seconds == NEVER_S:
        return "expires never"
    return "ends with its connection" if seconds == 0 else f"expires after {seconds} s"


def _has(event: Event) -> str:
    parts = []
    if event.get("subs") is not None:
        parts.append(f"{event['subs']} subscriptions")
    if event.get("inflight") is not None:
        parts.append(f"{event['inflight']} in flight")
    if event.get("position") is not None:
        parts.append(f"position {event['position']}")
    return ", ".join(parts)


def _protocol(event: Event) -> str:
    return {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5.0"}.get(_number(event.get("proto")), "")


def _packet(event: Event) -> str:
    return f"packet id {event['pid']}" if event.get("pid") else ""


def _dup(event: Event) -> str:
    return "again, with DUP" if event.get("dup") else ""


def _share(event: Event) -> str:
    return f"from the shared subscription {_quoted(event['share'])}" if event.get("share") else ""


def _range(event: Event) -> str:
    last, count = event.get("msg_last"), event.get("count")
    if last is None:
        return message_name(event["msg"]) if event.get("msg") is not None else "message"
    return f"{count} messages between {event.get('msg')} and {last}"


def _told(event: Event) -> str:
    return f"{event['count']} {_lost(event)}" if event.get("count") is not None else ""


def _lost(event: Event) -> str:
    if event.get("msg_last") is None:
        return "messages"
    return f"messages among {event.get('msg')} to {event['msg_last']}"


def _retained(event: Event) -> str:
    if event.get("msg") is not None:
        return message_name(event["msg"])
    return "a message"


def _books(event: Event) -> str:
    return str(event.get("stage") or "").replace("_", " ")


PHRASES: Final[dict[str, Callable[[Event], str]]] = {
    "Reason": _reason,
    "Refused": _refused,
    "Expiry": _expiry,
    "Has": _has,
    "Protocol": _protocol,
    "Packet": _packet,
    "Dup": _dup,
    "Share": _share,
    "Range": _range,
    "Told": _told,
    "Lost": _lost,
    "Message": _retained,
    "Stage": _books,
    "Topic": lambda event: _quoted(event.get("topic")),
    "Filter": lambda event: _quoted(event.get("tfilter")),
    "Clean": lambda event: "Clean Start" if event.get("clean_start") else "",
    "Stream": lambda event: f"stream {event['stream']}" if event.get("stream") else "",
    "Bytes": lambda event: "" if event.get("bytes") is None else f"{event['bytes']} bytes",
    "Local": lambda event: "No Local" if event.get("no_local") else "",
    "Delay": lambda event: f"delay {event['expiry_s']} s" if event.get("expiry_s") else "",
    "Keep": lambda event: "retain" if event.get("retain") else "",
    "Missing": lambda event: f"{event['count']} events are missing" if event.get("count") else "",
    "Operator": lambda event: (
        f"by {printable(str(event['detail']))}" if event.get("actor") == "admin" else ""
    ),
    "Detail": lambda event: printable(str(event.get("detail") or "")),
}

# The beginning, and what is added where the event has it.
TEMPLATES: Final[dict[str, str]] = {
    "session_created": "connected, new session:|{Protocol}|{Clean}|{Expiry}",
    "session_resumed": "connected, session resumed:|{Protocol}|{Has}|{Expiry}",
    "session_taken_over": "taken over by a new connection of the same client",
    "session_disconnected": "disconnected:|{Reason}|{Operator}|{Has}|{Expiry}",
    "session_expiry_changed": "changed its session expiry:|{Expiry}",
    "session_expired": "session expired:|it had {Has}",
    "session_terminated": "session ended:|{Reason}|{Operator}",
    "session_purged": "{count} messages that waited were dropped:|{Operator}|position {position}",
    "session_restored": "session found after a restart:|{Has}|{Expiry}",
    "subscribed": "subscribed to {Filter} at QoS {qos}|{Local}|from position {position}",
    "unsubscribed": "unsubscribed from {Filter}",
    "sub_restored": "subscription found after a restart: {Filter} at QoS {qos}",
    "msg_accepted": "published {Message} to {Topic} at QoS {pub_qos}|{Bytes}|{Keep}|{Packet}",
    "msg_persisted": "{Message} is durable",
    "pub_acked": "got its acknowledgement of {Message}|{Packet}|{Refused}",
    "pub_completed": "got PUBCOMP|{Packet}",
    "pub_released": "sent PUBREL|{Packet}",
    "pub_dup_received": "published again what was there already|{Packet}",
    "msg_enqueued": "{Message} stored for {Stream}",
    "msg_delivered": "was sent {Message} at QoS {qos}|{Packet}|{Dup}|{Share}",
    "msg_acked": "acknowledged {Message}|{Packet}|{Refused}",
    "msg_completed": "completed {Message} with PUBCOMP|{Packet}",
    "msg_dropped": "{Range} dropped:|{Reason}",
    "msg_expired": "{Message} expired before it was sent",
    "msg_moved": "{Message} went to another member of the shared subscription|{share}",
    "will_armed": "left a will for {Topic} at QoS {qos}|{Delay}",
    "will_delayed": "will waits for its delay",
    "will_fired": "will published to {Topic} as {Message}",
    "will_cancelled": "will cancelled:|{Reason}",
    "retained_set": "{Message} retained on {Topic}|{Bytes}",
    "retained_cleared": "retained message on {Topic} cleared",
    "retained_expired": "retained message on {Topic} expired",
    "retained_sent": "was sent the retained message on {Topic} at QoS {qos}|{Packet}|{Dup}",
    "boot": "broker started:|recording {Detail}|the boot before has {count} events",
    "shutdown": "broker ended in order",
    "recovered": "broker has looked at every session:|{count} found|{Detail}",
    "gc_run": "garbage collection:|{count}|{Detail}",
    "checkpoint": "copy of the database made|{Detail}",
    "history_gap": "gap in the history:|{Reason}|{Missing}|recording {Detail}",
    "clock_step": "the wall clock jumped|{Detail}",
    "books": "books of a minute:|{count} messages {Stage}|{total_bytes} bytes",
    "backend_opened": "backend {backend} opened:|{count} filters|told up to {position}",
    "backend_follows": "backend {backend} gets {Filter}|behind {position}",
    "backend_told": "backend {backend} was told {Told}:|{Reason}",
    "backend_gap": "backend {backend} does not get {Lost}:|{Reason}",
    "backend_forgotten": "backend {backend} is not configured any more:|told up to {position}",
    "ban_added": "banned until that time:|{Operator}",
    "ban_removed": "ban removed:|{Operator}",
    "ban_expired": "ban over:|{Detail}",
    "operator_action": "an operator has acted:|{Detail}|{count} messages",
    "trace_began": "an operator traces it: all of it is recorded from here on|level {Detail}",
    "trace_goes_on": "its trace goes on: all of it is recorded|level {Detail}",
    "member_leads": "node {Detail} of the cluster leads",
    "trace_ended": "its trace has ended: no more of it is recorded than of others|level {Detail}",
}
