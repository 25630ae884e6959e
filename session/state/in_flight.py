"""The entry of an in-flight packet id, packed into one int.

    63 ........................ 8      7        6       5      4 3     2         1 0
    offset (log) or number (mailbox) unstored perhaps quota  source  released   QoS

`released` is the second half of QoS 2: PUBREC came, PUBREL is owed until PUBCOMP [MQTT-4.3.3-4].
`quota` belongs to one connection and is never stored: this id counts against the Receive Maximum of
the current connection [MQTT-4.9.0-2]. `perhaps` is set after a crash, for an id that was bound
ahead of its sending (`session.delivery.window.ahead`): the client may have the message, and no row
of the history tells it. It is set until the message is sent again.
`released` and QoS together are the phase of the exchange (`session.state.qos2_phases`).
In a stored session reference 0 is a message that was given up: its packet id waits for PUBCOMP.
`unstored` means that the number is not an offset but the number of a message that is not stored,
for the history. The packet ids of a session are kept in the order of first sending, which is the
order of re-sending [MQTT-4.6.0-1]. Read next: `session.state.session`.
"""

from typing import Final

QOS_MASK: Final = 0x03
RELEASED: Final = 0x04
SOURCE_MASK: Final = 0x18
FROM_LOG: Final = 0x00
FROM_MAILBOX: Final = 0x08
FROM_GROUP: Final = 0x10  # in the log, owed to a shared subscription's group
TOOK_QUOTA: Final = 0x20
PERHAPS_SENT: Final = 0x40
UNSTORED_REFERENCE: Final = 0x80
STORED_MASK: Final = QOS_MASK | RELEASED | SOURCE_MASK
REFERENCE_SHIFT: Final = 8
# The phase of an exchange: the next answer of the client.
PHASE_MASK: Final = QOS_MASK | RELEASED
FREE: Final = 0  # no exchange: the packet id is not in flight
AWAITING_PUBACK: Final = 1
AWAITING_PUBREC: Final = 2
AWAITING_PUBCOMP: Final = 2 | RELEASED
# The entry of a QoS 2 message that was given up: from the log, and no offset.
GIVEN_UP: Final = AWAITING_PUBCOMP
