"""The names of the properties that the oracle judges, and the exception for a broken one.

Failing seeds print these names, and mutants and documents refer to them, so a name must not be
changed or removed. Read next: `tests.simulation.oracle`.
"""

from typing import Final

PROPERTIES: Final[dict[str, str]] = {
    "no_acknowledged_message_is_lost": "an acknowledged message reaches all it is owed to",
    "qos2_is_delivered_once": "a QoS 2 message is applied at most once, and once if acknowledged",
    "order_per_topic_and_publisher": "first deliveries keep the publisher's order",
    "packet_ids_are_unique_in_flight": "a packet id in flight names one message",
    "a_packet_id_keeps_its_message_across_a_crash": "a durable binding survives every restart",
    "expired_sessions_leave_nothing": "an ended session leaves no row and no subscription",
    "will_fires_once_or_never": "a will fires exactly when the specification says, and once",
    "session_present_tells_the_truth": "CONNACK says whether the session is there",
    "subscriptions_survive": "a subscription is what SUBACK and UNSUBACK last said",
    "retained_is_the_last_acknowledged": "the retained message is not older than the last ack",
    "resume_resends_in_order_with_dup": "a resumed session re-sends all it owes first, in order",
    "receive_maximum_is_respected": "no more than Receive Maximum in flight on a connection",
    "nothing_is_resent_on_a_live_connection": "DUP and repetition belong to the start of a resume",
    "a_settled_session_stays_settled": "what a session completed is not delivered again",
    "no_phantom": "what is delivered was published, and to a subscription that was there",
    "delivered_qos_is_the_minimum": "QoS, RETAIN and identifiers follow the matching subscriptions",
    "what_is_dropped_stays_dropped": "what a session's limit has dropped does not come after all",
    "shared_message_goes_to_one_member": "a group's message reaches a member; QoS 2 only one, once",
    "no_session_expires_early": "a session lives at least its interval of elapsed time",
    "message_expiry_is_honoured": "an expired message is not begun; the interval left only shrinks",
    "refusals_are_honest": "what was refused was not accepted",
    "the_banned_are_kept_out": "who is banned has no connection, until that is over",
    "liveness": "once faults stop, everything is acknowledged, closed or delivered",
    "protocol": "the broker speaks correct MQTT to its clients",
    "invariants": "live and reloaded state satisfies its own invariants",
    "history_has_no_holes": "the events of a boot are numbered from 1 without a gap",
    "history_agrees_with_the_state": "what the history says is what the disk holds",
    "stores_are_told_all": "an external store gets every durable row once, in order",
    "history_balances_stores": "the history counts what a store got: each message once",
    "store_retained_is_newer": "a store's retained message comes once, and never after a newer one",
    "fetched_once": "a session gets each message of a store once, and all get what is theirs",
    "listed_is_subscribed": "what a store lists or tells of is subscribed, and stays so",
    "only_what_somebody_wanted_is_subscribed": "a client or its store wants each subscription",
    "a_told_change_is_durable_once_answered": "no crash takes back a change that was answered",
    "what_is_released_is_kept": "log and tail of a cluster keep what its leader has released",
    "nodes_agree": "all nodes of a cluster have the same rows in the end",
    "no_crash": "nothing but storage errors leaves the engine",
}


class Violation(AssertionError):
    """A named property was broken; the world adds the seed and the trace."""

    def __init__(self, name: str, what: str) -> None:
        assert name in PROPERTIES, name
        super().__init__(f"{name}: {what}")
        self.name = name
        self.what = what
