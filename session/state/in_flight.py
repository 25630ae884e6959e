"""What one in-flight packet id stands for, packed into one int.

    63 ........................ 8      7       6     5      4 3     2         1 0
    offset (log) or number (mailbox) unstored sent  quota  source  released   QoS

`released` is the second half of QoS 2: PUBREC came, PUBREL is owed until PUBCOMP [MQTT-4.3.3-4].
`quota` and `sent` belong to one connection and are never stored: `quota` says that this id took one
from the Receive Maximum of the present connection [MQTT-4.9.0-2], `sent` that it went out on it.
`released` and QoS together are the phase of the exchange (`session.state.qos2_phases`).
`unstored` says that the number is no offset: what the history calls a message that is in no log.
Values of one session are unique packet ids in the order of first sending, which is the order of
re-sending [MQTT-4.6.0-1]. Read next: `session.state.session`.
"""

from typing import Final

QOS_MASK: Final = 0x03
RELEASED: Final = 0x04
SOURCE_MASK: Final = 0x18
FROM_LOG: Final = 0x00
FROM_MAILBOX: Final = 0x08
FROM_GROUP: Final = 0x10  # in the log, owed to a shared subscription's group
TOOK_QUOTA: Final = 0x20
UNSTORED_REFERENCE: Final = 0x80
STORED_MASK: Final = QOS_MASK | RELEASED | SOURCE_MASK
REFERENCE_SHIFT: Final = 8
# The phase of an exchange: what the client is to answer next.
PHASE_MASK: Final = QOS_MASK | RELEASED
FREE: Final = 0  # no exchange: the packet id is not in flight
AWAITING_PUBACK: Final = 1
AWAITING_PUBREC: Final = 2
AWAITING_PUBCOMP: Final = 2 | RELEASED
