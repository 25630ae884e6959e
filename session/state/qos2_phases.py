"""The phases of a QoS 2 exchange in both directions, as tables of transitions.

We send (section 4.3.3, sender; the phase is in the entry of `Session.in_flight`):

    FREE --PUBLISH--> AWAITING_PUBREC --PUBREC/PUBREL--> AWAITING_PUBCOMP --PUBCOMP--> FREE
                             |                                ^
                             |                                |
                             +--message given up/PUBREL-------+
                             |
                             +--PUBREC of 0x80 and above--> FREE

We receive (section 4.3.3, receiver; the packet id is in `Session.incoming` or it is not):

    FREE --PUBLISH/PUBREC--> AWAITING_PUBREL --PUBREL/PUBCOMP--> FREE

An arrow is named event/answer. A resumed session stays in its phase and sends again what was not
answered. The end of an exchange we sent may be stored up to `progress_delay_ms` later: a crash
within it returns to the phase before. An acknowledgement that `SENDER` does not have in the current
phase is a protocol error. `Session` tests bits, for speed; its tests compare it with the tables.
"""

from typing import Final

from session.state.in_flight import (
    AWAITING_PUBACK,
    AWAITING_PUBCOMP,
    AWAITING_PUBREC,
    FREE,
    PHASE_MASK,
)

# The receiver's phase is no bit of an entry: the packet id is in `Session.incoming`.
AWAITING_PUBREL: Final = PHASE_MASK + 1

PHASES: Final = {
    FREE: "free",
    AWAITING_PUBREC: "awaiting PUBREC",
    AWAITING_PUBCOMP: "awaiting PUBCOMP",
    AWAITING_PUBREL: "awaiting PUBREL",
}
# The answer of the client in each phase.
EXPECTED: Final = {
    AWAITING_PUBACK: "PUBACK",
    AWAITING_PUBREC: "PUBREC",
    AWAITING_PUBCOMP: "PUBCOMP",
}

# Events
PUBLISH: Final = "PUBLISH"
PUBLISH_REFUSED: Final = "PUBLISH refused"  # not authorized, or a limit; only v5 clients are told
PUBACK: Final = "PUBACK"
PUBREC: Final = "PUBREC"
PUBREC_ERROR: Final = "PUBREC >= 0x80"
PUBREL: Final = "PUBREL"
PUBCOMP: Final = "PUBCOMP"
RESUMED: Final = "session resumed"
GIVEN_UP: Final = "message given up"  # at a resume: too old, damaged, denied, or too large

# Answers
NOTHING: Final = "nothing"
PUBLISH_AGAIN: Final = "PUBLISH, DUP 1"
PUBREL_UNKNOWN: Final = "PUBREL 0x92"  # v3.1.1 has no reason codes
PUBCOMP_UNKNOWN: Final = "PUBCOMP 0x92"

SENDER_EVENTS: Final = (PUBLISH, PUBACK, PUBREC, PUBREC_ERROR, PUBCOMP, RESUMED, GIVEN_UP)
RECEIVER_EVENTS: Final = (PUBLISH, PUBLISH_REFUSED, PUBREL, RESUMED)

# (phase, event) -> (next phase, what is sent)
SENDER: Final[dict[tuple[int, str], tuple[int, str]]] = {
    (FREE, PUBLISH): (AWAITING_PUBREC, PUBLISH),  # [MQTT-4.3.3-1], [MQTT-4.3.3-2]
    (FREE, PUBACK): (FREE, NOTHING),  # the exchange ended before the answer arrived
    (FREE, PUBREC): (FREE, PUBREL_UNKNOWN),
    (FREE, PUBREC_ERROR): (FREE, NOTHING),
    (FREE, PUBCOMP): (FREE, NOTHING),
    (AWAITING_PUBREC, PUBREC): (AWAITING_PUBCOMP, PUBREL),  # [MQTT-4.3.3-4]
    (AWAITING_PUBREC, PUBREC_ERROR): (FREE, NOTHING),  # [MQTT-4.3.3-4]: no PUBREL follows it
    (AWAITING_PUBREC, RESUMED): (AWAITING_PUBREC, PUBLISH_AGAIN),  # [MQTT-4.3.3-3]
    (AWAITING_PUBREC, GIVEN_UP): (AWAITING_PUBCOMP, PUBREL),  # the client may hold the id
    (AWAITING_PUBCOMP, PUBREC): (AWAITING_PUBCOMP, PUBREL),  # it did not receive our PUBREL
    (AWAITING_PUBCOMP, PUBREC_ERROR): (AWAITING_PUBCOMP, NOTHING),  # it acknowledged before
    (AWAITING_PUBCOMP, PUBCOMP): (FREE, NOTHING),  # [MQTT-4.3.3-5]: the id is free again
    (AWAITING_PUBCOMP, RESUMED): (AWAITING_PUBCOMP, PUBREL),  # [MQTT-4.3.3-5], [MQTT-4.3.3-6]
}
RECEIVER: Final[dict[tuple[int, str], tuple[int, str]]] = {
    (FREE, PUBLISH): (AWAITING_PUBREL, PUBREC),  # [MQTT-4.3.3-8]
    (FREE, PUBLISH_REFUSED): (FREE, PUBREC_ERROR),  # [MQTT-4.3.3-9]
    (FREE, PUBREL): (FREE, PUBCOMP_UNKNOWN),
    (AWAITING_PUBREL, PUBLISH): (AWAITING_PUBREL, PUBREC),  # [MQTT-4.3.3-10]: delivered once
    (AWAITING_PUBREL, PUBREL): (FREE, PUBCOMP),  # [MQTT-4.3.3-11]
    (AWAITING_PUBREL, RESUMED): (AWAITING_PUBREL, NOTHING),  # [MQTT-4.1.0-1]: the id is kept
}
