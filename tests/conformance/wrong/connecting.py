"""Brokers that get CONNECT and CONNACK wrong."""

from conformance import tables
from tests.conformance.wrong.frames import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PUBLISH,
    SUBSCRIBE,
    Frame,
)
from tests.conformance.wrong.mutant import (
    DROP,
    Answer,
    Link,
    mutant,
    on_broker,
    on_client,
)

WILL, WILL_RETAIN = 0x04, 0x20


@mutant("none", "is not wrong: the man in the middle himself is innocent").on_client()
def _(link: Link, frame: Frame) -> Answer:
    return None


@on_client("ignores_clean", "takes every CONNECT for one without Clean Start", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    if frame.client_id:
        frame.connect_flags &= ~2
    return None


@on_client("always_clean", "takes every CONNECT for one with Clean Start", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    frame.connect_flags |= 2
    return None


def without(name: str, sentence: str, kind: int, identifier: int) -> None:
    """Register a broker that does not see a property."""

    @on_client(name, sentence, kind)
    def _(link: Link, frame: Frame) -> Answer:
        frame.remove(identifier)
        return None


without(
    "forgets_session_expiry", "ends every session of 5.0 with its connection",
    CONNECT, tables.SESSION_EXPIRY,
)  # fmt: skip
without(
    "ignores_expiry_of_disconnect", "does not read the expiry interval of DISCONNECT",
    DISCONNECT, tables.SESSION_EXPIRY,
)  # fmt: skip
without("ignores_receive_maximum", "does not read Receive Maximum", CONNECT, tables.RECEIVE_MAXIMUM)
without(
    "ignores_packet_size", "does not read Maximum Packet Size",
    CONNECT, tables.MAXIMUM_PACKET_SIZE,
)  # fmt: skip
without(
    "ignores_problem_info", "does not read Request Problem Information",
    CONNECT, tables.REQUEST_PROBLEM_INFO,
)  # fmt: skip
without(
    "ignores_auth_method", "does not read the Authentication Method",
    CONNECT, tables.AUTH_METHOD,
)  # fmt: skip


@on_client("sessions_never_expire", "keeps sessions of 5.0 for ever", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    if frame.version == 5:
        frame.set(tables.SESSION_EXPIRY, 0xFFFFFFFF)
        frame.reason = None
    return None


@on_client("ignores_keep_alive", "never minds silence", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    frame.keep_alive = 0
    return None


# Wills.


@on_client("forgets_wills", "does not publish wills", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    frame.connect_flags &= ~(WILL | 0x38)
    return None


@on_client("everybody_has_a_will", "publishes a will nobody has left", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    if not frame.connect_flags & WILL and frame.client_id:
        frame.connect_flags |= WILL
        frame.topic, frame.payload = frame.client_id[:8] + b"/will", b"will"
    return None


@on_client("ignores_will_retain", "publishes wills without RETAIN", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    frame.connect_flags &= ~WILL_RETAIN
    return None


@on_client("retains_wills", "publishes all wills with RETAIN", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    if frame.connect_flags & WILL:
        frame.connect_flags |= WILL_RETAIN
    return None


@on_client("ignores_will_qos", "publishes wills at QoS 0", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    frame.connect_flags &= ~0x18
    return None


@on_client("ignores_will_delay", "publishes wills at once", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    frame.will_properties = [p for p in frame.will_properties if p[0] != tables.WILL_DELAY]
    return None


@on_client("ignores_will_properties", "publishes wills without their properties", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    frame.will_properties = [p for p in frame.will_properties if p[0] == tables.WILL_DELAY]
    return None


@on_client("turns_will_properties_round", "reverses the user properties of a will", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    frame.will_properties.reverse()
    return None


@on_client("keeps_old_wills", "takes a will for that of all later connections too", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    wills = link.world.setdefault("wills", {})
    if frame.connect_flags & WILL:
        wills[frame.client_id] = (
            frame.connect_flags & 0x3C,
            frame.will_properties,
            frame.topic,
            frame.payload,
        )
    elif frame.client_id in wills:
        flags, frame.will_properties, frame.topic, frame.payload = wills[frame.client_id]
        frame.connect_flags |= flags
    return None


@on_client("swaps_credentials", "takes the password for the user name", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    if frame.connect_flags & 0xC0 == 0xC0:
        frame.username, frame.password = frame.password, frame.username
    return None


@on_client("will_after_disconnect", "publishes the will although DISCONNECT came", DISCONNECT)
def _(link: Link, frame: Frame) -> Answer:
    link.cut()
    return DROP


@on_client("disconnect_is_disconnect", "takes every DISCONNECT for one with 0x00", DISCONNECT)
def _(link: Link, frame: Frame) -> Answer:
    if frame.reason:
        frame.reason = 0
    return None


# Who it is.


@on_client(
    "ignores_user_name", "lets everybody in who has no user name, and does not read it", CONNECT
)
def _(link: Link, frame: Frame) -> Answer:
    frame.connect_flags &= ~0xC0
    return None


@on_client("lower_case_ids", "takes client ids for equal whatever their case", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    frame.client_id = frame.client_id.lower()
    return None


@on_client("one_anonymous_id", "gives every client without an id the same one", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    frame.client_id = frame.client_id or b"anonymous"
    return None


assigned = mutant("assigns_one_id", "assigns the same client id to everybody who has none")


@assigned.on_client(CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    if not frame.client_id:
        frame.client_id = b"assigned"
        link.notes["assigned"] = True
    return None


@assigned.on_broker(CONNACK)
def _(link: Link, frame: Frame) -> Answer:
    if link.notes.get("assigned") and frame.version == 5:
        frame.add(tables.ASSIGNED_CLIENT_ID, "assigned")
    return None


@on_client("refuses_long_ids", "refuses client ids of more than 20 characters", CONNECT)
def _(link: Link, frame: Frame) -> Answer:
    if len(frame.client_id) > 20:
        link.to_client(b"\x20\x03\0\x85\0" if frame.version == 5 else b"\x20\x02\0\x02")
        link.cut()
        return DROP
    return None


early = mutant("deaf_until_connack", "does not read what comes before CONNACK is sent")


@early.on_broker(CONNACK)
def _(link: Link, frame: Frame) -> Answer:
    link.notes["in"] = True
    return None


@early.on_client(PUBLISH, SUBSCRIBE, PINGREQ)
def _(link: Link, frame: Frame) -> Answer:
    return None if link.notes.get("in") else DROP


# CONNACK.


@on_broker(
    "session_always_present", "says that there is a session, whether there is or not", CONNACK
)
def _(link: Link, frame: Frame) -> Answer:
    if not frame.reason:
        frame.session_present = 1
    return None


@on_broker("session_never_present", "never says that there is a session", CONNACK)
def _(link: Link, frame: Frame) -> Answer:
    frame.session_present = 0
    return None


@on_broker("session_present_in_refusal", "says session present where it refuses", CONNACK)
def _(link: Link, frame: Frame) -> Answer:
    if frame.reason:
        frame.session_present = 1
    return None


@on_broker("strange_connack_flags", "sets a reserved flag in CONNACK", CONNACK)
def _(link: Link, frame: Frame) -> Answer:
    frame.session_present |= 2
    return None


@on_broker("two_connacks", "sends CONNACK twice", CONNACK)
def _(link: Link, frame: Frame) -> Answer:
    return [frame, frame]


@on_broker("pingresp_first", "says PINGRESP before CONNACK", CONNACK)
def _(link: Link, frame: Frame) -> Answer:
    return [b"\xd0\x00", frame]


@on_broker("refuses_with_9", "refuses with a return code that does not exist", CONNACK)
def _(link: Link, frame: Frame) -> Answer:
    if frame.reason:
        frame.reason = 9
    return None


@on_broker("refuses_with_5", "always says that it was the authorization", CONNACK)
def _(link: Link, frame: Frame) -> Answer:
    if frame.reason:
        frame.reason = 5 if frame.version < 5 else 0x87
    return None


@on_broker("refuses_nobody", "says 0 where it refuses", CONNACK)
def _(link: Link, frame: Frame) -> Answer:
    if frame.reason:
        frame.reason = 0
    return None


def limit(name: str, sentence: str, identifier: int, value: int | None) -> None:
    """Register a broker that says another value in CONNACK."""

    @on_broker(name, sentence, CONNACK)
    def _(link: Link, frame: Frame) -> Answer:
        if frame.version == 5 and frame.reason == 0:
            frame.remove(identifier)
            if value is not None:
                frame.add(identifier, value)
        return None


limit(
    "boasts_of_aliases", "announces more aliases than it takes", tables.TOPIC_ALIAS_MAXIMUM, 65_535
)
limit("hides_maximum_qos", "does not announce its Maximum QoS", tables.MAXIMUM_QOS, None)
limit("denies_wildcards", "says that it has no wildcards, and has", tables.WILDCARD_AVAILABLE, 0)
limit("hides_keep_alive", "does not announce its Server Keep Alive", tables.SERVER_KEEP_ALIVE, None)
limit(
    "hides_assigned_id",
    "does not say which client id it has given",
    tables.ASSIGNED_CLIENT_ID,
    None,
)


def talkative(
    name: str, sentence: str, kinds: tuple[int, ...], identifier: int, value: object
) -> None:
    """Register a broker that adds a property, whether it fits or not."""

    @on_broker(name, sentence, *kinds)
    def _(link: Link, frame: Frame) -> Answer:
        if frame.version == 5:
            frame.add(identifier, value)
        return None


talkative(
    "explains_connack", "adds a long Reason String to every CONNACK",
    (CONNACK,), tables.REASON_STRING, "r" * 300,
)  # fmt: skip
talkative(
    "adorns_connack", "adds large User Properties to every CONNACK",
    (CONNACK,), tables.USER_PROPERTY, ("u" * 150, "v" * 150),
)  # fmt: skip
talkative(
    "offers_response_information", "sends Response Information nobody asked for",
    (CONNACK,), tables.RESPONSE_INFO, "here",
)  # fmt: skip
talkative(
    "names_a_method", "says an Authentication Method in every CONNACK",
    (CONNACK,), tables.AUTH_METHOD, "SCRAM-SHA-1",
)  # fmt: skip
talkative(
    "expiry_in_disconnect", "sends a Session Expiry Interval in DISCONNECT",
    (DISCONNECT,), tables.SESSION_EXPIRY, 10,
)  # fmt: skip
talkative(
    "explains_disconnect", "adds a long Reason String to every DISCONNECT",
    (DISCONNECT,), tables.REASON_STRING, "r" * 300,
)  # fmt: skip
talkative(
    "adorns_disconnect", "adds large User Properties to every DISCONNECT",
    (DISCONNECT,), tables.USER_PROPERTY, ("u" * 150, "v" * 150),
)  # fmt: skip
