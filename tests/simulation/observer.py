"""Count the rare states that worlds reach inside the engine and on the disk.

It may read private state, as it only counts: it never judges or changes a world. Read next:
`tests.simulation.rare` (the names).
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from session.engine import Engine
from session.state.will_record import decode_connection
from storage.api import Change
from storage.log.layouts.block_format import BLOCK_BYTES, Block
from storage.tables.tables import DUE, HISTORY, INCOMING, SESSIONS, retained_topic, unseal
from storage.tables.timers import RETAINED, SESSION, WILL
from tests.simulation.left_out import note_freed, note_passed
from tests.simulation.rare import sometimes

FEW_BYTES: Final = 100  # what a block has beside its messages, and the sizes of two

if TYPE_CHECKING:
    from tests.simulation.process import BrokerProcess
    from tests.simulation.world import World


def unsynced_batches(process: "BrokerProcess") -> Iterator[list[Change]]:
    """Yield the batches that a crash now may forget."""
    store = process.store
    for entry in store._log[store._durable :]:
        if isinstance(entry, list):
            yield entry


def note_start(world: "World") -> None:
    """Count what the start that comes now finds of the history."""
    if world.has_history and world.starts > 1:
        has_rows = bool(world.store._families[HISTORY].keys)
        sometimes("boot_with_inherited_history" if has_rows else "boot_after_a_whole_export")


def note_crash(world: "World", process: "BrokerProcess", unsynced: int, keep: int) -> None:
    """Count what the crash that is about to happen is an example of."""
    if 0 < keep < unsynced:
        sometimes("crash_kept_a_prefix")
    if unsynced > 1 and keep == 0:
        sometimes("crash_lost_everything_unsynced")
    if process.syncing:
        done = process.durable_serial == process.requested
        sometimes("crash_after_sync_before_report" if done else "crash_mid_sync")
    if process.tick_due:
        sometimes("crash_between_receive_and_write")
    if any(link.down for link in process.links):
        sometimes("crash_with_bytes_on_the_wire")
    for batch in unsynced_batches(process):
        families = {change[0] for change in batch if change[2] is not None}
        if INCOMING in families:
            sometimes("crash_before_pubrec_sync")
        if any(family.startswith("msg.") for family in families):
            sometimes("crash_before_puback_sync")
        if SESSIONS in families:
            sometimes("crash_with_session_unsynced")
        if any(change[0] == HISTORY and change[2] is None for change in batch):
            sometimes("crash_with_trim_unsynced")
    _note_clients(world)
    for connection in process.engine._sessions.live.values():
        if connection.ahead:
            sometimes("crash_with_packet_ids_bound_ahead")
    if any(key[8] == WILL for key in process.store._families[DUE].keys):
        sometimes("will_pending_at_crash")


def _note_clients(world: "World") -> None:
    members = [client for client in world.clients if client.plan.shared]
    if members and all(client.link is None for client in members):
        sometimes("group_offline_over_crash")
    for client in world.clients:
        if client.is_connecting():
            sometimes("crash_while_waiting_for_connack")
        attempt = client.link.attempt if client.link is not None else None
        if attempt is not None and attempt.will is not None and attempt.acked_ms:
            sometimes("connected_with_will_at_crash")


def note_write(process: "BrokerProcess") -> None:
    """Count what the batch that was just written is an example of."""
    if process.world.profile.large and process.engine.settings.layout == "blocks":
        last = process.store._log[-1]
        assert isinstance(last, list)
        _note_blocks(last)
    if 0 <= process.stalled_at < process.engine.written:
        process.stalled_at = -1
        sometimes("stall_ended")
        if any(client.sender.flights for client in process.world.clients):
            sometimes("stall_ended_with_publish_in_flight")


def _note_blocks(batch: list[Change]) -> None:
    """Count blocks of the log that are full to a few bytes, or nearly were."""
    blocks = [
        Block(value, int.from_bytes(key))
        for family, key, value in batch
        if family.startswith("msg.") and value is not None
    ]
    before = 0  # size of the block before, if it has one message
    for block in blocks:
        if block.size > BLOCK_BYTES + FEW_BYTES:
            sometimes("message_larger_than_a_block")
        elif block.count > 1 and block.size > BLOCK_BYTES - FEW_BYTES:
            sometimes("block_just_full")
        elif before and block.count == 1 and before + block.size < BLOCK_BYTES + FEW_BYTES:
            sometimes("block_just_too_full")
        before = block.size if block.count == 1 else 0


def note_due(process: "BrokerProcess", now: int) -> None:
    """Count what is due in one slice before the engine handles it."""
    keys = process.store._families[DUE].keys
    count = bisect_left(keys, (now + 1).to_bytes(8, "big"))
    if count < 2:
        return
    wills: set[bytes] = set()  # clients
    willed: set[str] = set()  # topics of the retained ones
    expiring: set[bytes] = set()
    for key in keys[: min(count, process.engine.settings.expiry_slice)]:
        kind, name = key[8], key[9:]
        if kind == WILL:
            will = decode_connection(unseal(process.store._families[DUE].values[key], "due")).will
            assert will is not None
            wills.add(name)
            if will.retain:
                willed.add(will.topic)
        elif kind == SESSION and name in wills:
            sometimes("will_and_session_due_at_once")
        elif kind == RETAINED:
            if retained_topic(name) in willed:
                sometimes("will_and_retained_due_at_once")
            if name in expiring:
                sometimes("replaced_and_new_expire_at_once")
            expiring.add(name)


def note_tick(process: "BrokerProcess") -> None:
    """Count what a tick has just done."""
    engine = process.engine
    lagging = process.lagging
    for client_id, connection in engine._sessions.live.items():
        if connection.ahead and connection.is_lagging:
            sometimes("backlog_bound_ahead")
        elif connection.ahead and connection.pending:
            sometimes("queue_behind_what_is_bound_ahead")
        if connection.resend and connection.session and connection.session.has_doubts:
            sometimes("perhaps_sent_and_waiting_for_room")
        if connection.is_lagging:
            lagging.add(client_id)
            if connection.arrivals is not None and not connection.arrivals.is_complete:
                sometimes("arrivals_incomplete")
        elif lagging and client_id in lagging:
            lagging.discard(client_id)
            sometimes("session_lagged_then_live")
    _note_work(engine)
    counters = process.counters
    generations = counters.generations_added, counters.generations_dropped
    if generations != process.generations:
        added, dropped = process.generations
        process.generations = generations
        if generations[0] != added:
            sometimes("generation_rotated")
            if any(connection.is_lagging for connection in engine._sessions.live.values()):
                sometimes("generation_rotated_during_lag")
        if generations[1] != dropped:
            sometimes("generation_dropped")
        stored = {each.number: each for each in engine._log.list_generations()}
        gone = [each for number, each in process.stored.items() if number not in stored]
        if gone and gone[-1].number > min(stored):
            sometimes("generation_dropped_between")
        if gone and engine.settings.on_limit == "drop_new":
            note_freed(process, gone)
        process.stored = stored
    _note_housekeeping(process)
    if process.world.profile.large:
        _note_windows(engine)
    if process.world.profile.shared_members[1]:
        for group in engine._groups.all():
            if group.owed:
                sometimes("group_took_message_back")


def _note_windows(engine: Engine) -> None:
    """Count readers that a limit of bytes has stopped."""
    for connection in engine._tick.readers:
        session = connection.session
        if session is None or not session.send_quota:
            continue
        if connection.resend and not engine._gate.is_full(connection):
            sometimes("resend_divided")
        elif session.replays and connection.writable:
            sometimes("replay_divided")


def _note_work(engine: Engine) -> None:
    """Count what the budget of work has postponed."""
    waiting = engine._turns.waiting
    if not waiting:
        return
    sometimes("postponed_to_the_next_tick")
    if any(connection in waiting for connection in engine._lost):
        sometimes("lost_with_packets_postponed")
    if any(route.weight > engine._turns.work_max for route in engine._routes._cache.values()):
        sometimes("wider_than_a_tick")


def _note_housekeeping(process: "BrokerProcess") -> None:
    engine = process.engine
    trimming, collection = engine._housekeeping.trimming, engine._collection
    counts = {
        "backlog_trimmed": trimming.trimmed,
        "trimming_given_up": trimming.given_up,
        "generation_closed_early": collection.closed_early,
        "left_during_sweep": collection._sweep.left,
    }
    if counts != process.housekept:
        for name, count in counts.items():
            if count != process.housekept.get(name, 0):
                sometimes(name)
        process.housekept = counts


def note_connect(process: "BrokerProcess", client_id: str) -> None:
    """Count a CONNECT to a session with un-synced changes."""
    key = client_id.encode()
    for batch in unsynced_batches(process):
        if any(change[0] == SESSIONS and change[1] == key for change in batch):
            sometimes("resume_with_unsynced_state")
            return


def note_resume(process: "BrokerProcess", client_id: str) -> None:
    """Count a session that was resumed with a backlog."""
    connection = process.engine._sessions.live.get(client_id)
    if connection is not None and connection.is_lagging:
        sometimes("catch_up_from_disk")
        note_passed(process.engine, client_id)


def near_the_wrap(process: "BrokerProcess", client_id: str) -> None:
    """Let a new session's packet ids start shortly before 65,535."""
    connection = process.engine._sessions.live.get(client_id)
    if connection is not None and connection.session is not None:
        connection.session.next_packet_id = 65_533
