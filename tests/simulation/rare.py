"""The names of rare states, to prove that the simulation reaches them.

Counters are per process. `scripts/sim` fails if a fixed range of at least `WORLDS_MIN` worlds does
not reach every one of them. Add a name here before using it.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

WORLDS_MIN: Final = 1_000  # fewer worlds than that need not reach every rare state

RARE: Final[dict[str, str]] = {
    "crash_before_pubrec_sync": "crash with an inbound QoS 2 id written but not synced",
    "crash_before_puback_sync": "crash with a message in the log written but not synced",
    "crash_kept_a_prefix": "crash that kept some but not all un-synced batches",
    "crash_lost_everything_unsynced": "crash that kept none of several un-synced batches",
    "crash_mid_sync": "crash while a sync was running",
    "crash_after_sync_before_report": "crash after the sync, before the engine heard of it",
    "crash_between_receive_and_write": "crash with a tick's changes only in memory",
    "crash_with_bytes_on_the_wire": "crash with replies written but not arrived",
    "crash_while_waiting_for_connack": "crash while a client waited for CONNACK",
    "crash_with_session_unsynced": "crash with a session record written but not synced",
    "resume_with_unsynced_state": "session resumed while its last change was not synced",
    "resume_owes_pubrel": "resume that re-sent a PUBREL",
    "resume_owes_publish": "resume that re-sent a PUBLISH",
    "resume_after_crash": "session resumed by another process than the one it was made in",
    "resume_after_reboot": "session resumed after a reboot with the wall clock set back",
    "resume_with_smaller_receive_maximum": "Receive Maximum below the number in flight",
    "packet_id_wrap": "a packet id below the one delivered before it, near 65,535",
    "publisher_packet_id_wrap": "a publisher's packet id wrapped to 1",
    "resume_across_the_wrap": "resume that re-sent packet ids from before and after the wrap",
    "resume_across_the_wrap_after_crash": "the same, by another process than sent them first",
    "publisher_resume_across_the_wrap": "a publisher re-sent ids from before and after the wrap",
    "publisher_resume_across_the_wrap_after_crash": "the same, to another process",
    "takeover": "a second connection of a client took the session over",
    "takeover_with_held_acks": "takeover while the old connection held acknowledgements",
    "ended_before_connack": "the broker ended a connection whose CONNACK waited for its commit",
    "half_open_resume": "resume while the broker still believed in the old connection",
    "will_pending_at_crash": "crash while a delayed will waited",
    "history_gap": "less of the history was recorded for a while",
    "boot_with_inherited_history": "a start with rows of the history that an earlier boot left",
    "boot_after_a_whole_export": "a start with none of them: all were exported and deleted",
    "inherited_history_trimmed": "rows of an earlier boot were exported and deleted",
    "inherited_history_discarded": "rows of an earlier boot were deleted for want of room",
    "history_discarded": "rows of this boot were deleted for want of room",
    "crash_with_trim_unsynced": "crash with the deletion of exported rows not synced",
    "connected_with_will_at_crash": "crash while a client with a will was connected",
    "will_cancelled_by_resume": "a delayed will did not fire because its session was resumed",
    "will_fired": "a will fired",
    "will_fired_after_restart": "a will fired in a later process than it was armed in",
    "will_and_retained_due_at_once": "a retained will was due, then what its topic retained",
    "will_and_session_due_at_once": "a will and its session were due in one slice",
    "replaced_and_new_expire_at_once": "a retained message and the one it replaced were due",
    "session_expired_while_down": "a session expired while the broker was down",
    "session_expired_while_up": "a session expired while the broker was up",
    "clean_start_over_a_session": "Clean Start ended a durable session",
    "disconnect_changed_expiry": "DISCONNECT carried another expiry interval",
    "session_lagged_then_live": "a session that had lagged went live again",
    "catch_up_from_disk": "a resumed session read messages from its streams",
    "group_offline_over_crash": "crash while every member of a group was offline",
    "group_took_message_back": "a member left with un-acknowledged messages of its group",
    "generation_rotated": "the log got a new generation",
    "generation_dropped": "a generation was dropped",
    "generation_dropped_between": "a generation was dropped between others that stayed",
    "generation_closed_early": "a generation was closed because nobody needed its older half",
    "left_during_sweep": "a session that needed a generation left while sessions were searched",
    "backlog_trimmed": "the backlog of a session that was away was cut to its limits",
    "trimming_given_up": "a session came back while its backlog was counted or cut",
    "generation_rotated_during_lag": "rotation while a session lagged",
    "disk_full_with_publish_in_flight": "the disk was full while a PUBLISH waited for its ack",
    "publish_refused": "a PUBLISH was refused with 0x97",
    "start_refused": "the broker could not start on a full disk, and did later",
    "shutdown_on_a_full_disk": "the broker was told to exit and could not write what it had to",
    "life_shown_beside_the_store": "a sign of life that the store did not take",
    "sync_failed": "a sync failed and the broker stopped",
    "slow_sync": "a sync of a second or more",
    "clean_shutdown": "the broker drained and exited",
    "writing_paused": "a client did not read and the engine paused",
    "message_expired_offline": "a message with expiry was never delivered to an offline session",
    "retained_replayed": "a retained message was delivered to a new subscription",
    "retained_expired": "a retained message was dropped because it had expired",
    "retained_cleared": "an empty retained message was acknowledged",
    "resubscribed": "a subscription was replaced while messages flowed",
    "unsubscribed_with_messages_in_flight": "UNSUBSCRIBE with deliveries of its filter in flight",
    "topic_alias_from_client": "a publisher used a topic alias",
    "topic_alias_from_broker": "the broker used a topic alias",
    "overlapping_identifiers": "a delivery with two subscription identifiers",
    "delivery_refused": "a client answered a PUBLISH with an error code",
    "process_frozen": "the process was stopped for a while",
    "password_checked_later": "a CONNECT was judged some time after it came",
    "connection_lost_while_judged": "a connection was lost while its CONNECT was judged",
    "packet_of_the_maximum_size": "a client got a PUBLISH as large as it takes",
    "packet_of_the_maximum_size_again": "the same, sent again",
    "packet_of_the_maximum_size_with_identifier": "the same, with a subscription identifier",
    "packet_of_the_maximum_size_with_alias": "the same, with a topic alias",
    "packet_below_the_maximum_size": "a PUBLISH one byte smaller than the client takes",
    "packet_above_the_maximum_size": "a message one byte larger than its subscriber takes",
    "message_given_up": "PUBREL in place of a PUBLISH that is too large now",
    "resume_with_smaller_packet_size": "what is in flight is too large for the new connection",
    "writes_stalled": "the store stalled writes",
    "stall_ended": "a batch that a write stall had refused was taken once it was over",
    "stall_ended_with_publish_in_flight": "the same, while a PUBLISH waited for its ack",
    "version_changed": "a client came back with the other protocol version",
    "settings_changed": "the broker was restarted with other settings",
    "duplicate_qos2_publish": "a publisher re-sent a QoS 2 PUBLISH",
    "released_again": "a publisher re-sent PUBREL",
    "postponed_to_the_next_tick": "packets waited for the next tick",
    "wider_than_a_tick": "a message had more index rows and receivers than a tick may do work",
    "lost_with_packets_postponed": "a connection was lost while packets of it waited",
    "damaged_msg": "rows of messages were damaged",
    "damaged_idx": "rows of the index of messages were damaged",
    "damaged_sessions": "rows of sessions were damaged",
    "damaged_subscriptions": "rows of subscriptions were damaged",
    "damaged_incoming": "rows of inbound QoS 2 ids were damaged",
    "damaged_holders": "rows of holders of a filter were damaged",
    "damaged_mailbox": "rows of copies of retained messages were damaged",
    "damaged_retained": "rows of retained messages were damaged",
    "damaged_due": "rows of timers were damaged",
    "damaged_connections": "rows of connections and their wills were damaged",
    "damaged_history": "rows of the history were damaged",
    "met_damaged_session": "the broker met a damaged row of kind session",
    "met_damaged_message": "the broker met a damaged row of kind message",
    "met_damaged_retained": "the broker met a damaged row of kind retained",
    "met_damaged_timer": "the broker met a damaged row of kind timer",
    "met_damaged_connection": "the broker met a damaged row of kind connection",
    "damaged_message_lost": "a session never got a message that was in a damaged row",
    "refused_for_damage": "a client was refused because rows of its session were damaged",
    "wall_clock_jump": "a restart with the wall clock off by a day or more",
}

reached: Counter[str] = Counter()


def sometimes(name: str) -> None:
    """Note that a rare state was reached."""
    reached[name] += 1


def never_reached(found: Mapping[str, int]) -> list[str]:
    """Return the rare states that many worlds together did not reach."""
    unknown = found.keys() - RARE.keys()
    assert not unknown, f"not in RARE: {sorted(unknown)}"
    return [name for name in RARE if not found.get(name)]
