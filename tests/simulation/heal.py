"""The end of a world after its faults: heal, drain, judge, crash once more, end all sessions.

Safety is judged all the time. Liveness is judged here: every owed message was delivered, a last
crash repeats nothing that was completed, and ended sessions leave nothing on disk.
Read next: `tests.simulation.world`.
"""

from typing import TYPE_CHECKING, Final

from mqtt.packets import Disconnect
from storage.errors import DamagedRows, Unrecoverable
from storage.tables import tables as state
from tests.simulation.client import ONLINE, Client
from tests.simulation.plans import Plan
from tests.simulation.verdict import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

HEAL_MS: Final = 30_000  # the longest any world may need to drain
CLEAN_TRIES: Final = 10  # a CONNECT may be refused for want of its list
QUIET_MS: Final = 1_500  # long enough for every lazy write and re-send there might be
END_MS: Final = 4_000  # the longest expiry used at the end, and the collection of what expired

# What an ended session may leave a row in.
SESSION_FAMILIES: Final = (
    state.SESSIONS,
    state.SUBSCRIPTIONS,
    state.HOLDERS,
    state.FILTERS,
    state.INCOMING,
    state.MAILBOX,
    state.FETCHES,
    state.GROUPS,
    state.CONNECTIONS,
    state.DUE,
    state.BANS,
)


def heal_and_judge(world: "World") -> None:
    """Heal the world and judge it."""
    world.note("heal")
    world.faults = False
    world.trap = None
    world.full_until = 0
    world.damages.rescue()
    if world.up() is None:
        world.start_broker()
    world.space_returns()
    process = world.up()
    assert process is not None
    world.stall_ends(process.store)
    process.store.fail_at_call(0, Unrecoverable("never"))
    if process.frozen():  # what it has not even read yet cannot be settled
        world.run_until(process.frozen_until)
    for client in world.clients:
        client.heal()
    _drain(world, "drain")
    _judge_losses(world)
    judge_invariants(world)
    _judge_mirror(world)
    _crash_once_more(world)
    world.oracle.judge_wills(times=not world.boots, lossy=world.has_limits)
    _audit_retained(world)
    _end_all_sessions(world)


def _judge_mirror(world: "World") -> None:
    """Wait until the store beside the broker has everything, and compare it with the clients."""
    if not world.mirror.is_on:
        return

    def done() -> bool:
        process = world.up()
        return process is not None and process.pump is not None and process.pump.is_done()

    if world.mirror.inbox.retained.is_on:
        if not world.run_until(world.now + HEAL_MS, done):
            raise Violation("stores_are_told_all", f"it has not everything after {HEAL_MS} ms")
        world.run_until(world.now + QUIET_MS)
        world.mirror.inbox.retained.judge_owed()
    world.mirror.inbox.ask_all()
    world.run_until(world.now + QUIET_MS)  # the last events may wait for a batch
    for _ in range(2):  # what was fetched last is delivered, and the store is told of it
        if not world.run_until(world.now + HEAL_MS, done):
            raise Violation("stores_are_told_all", f"it has not everything after {HEAL_MS} ms")
        world.run_until(world.now + QUIET_MS)
    world.mirror.judge()


def _drain(world: "World", what: str) -> None:
    """Wait until everybody is idle and stays so without one more delivery."""
    clients = world.clients
    deadline = world.now + HEAL_MS

    def done() -> bool:
        return all(client.is_idle() for client in clients)

    while world.run_until(deadline, done):
        before = world.oracle.deliveries
        world.run_until(world.now + QUIET_MS)
        if world.oracle.deliveries == before and done():
            return
    stuck = [describe(client) for client in clients if not client.is_idle()]
    raise Violation("liveness", f"failed to {what} in {HEAL_MS} ms: {'; '.join(stuck)}")


def describe(client: Client) -> str:
    """Say what a client waits for."""
    parts = [client.name, "online" if client.state == ONLINE else f"state {client.state}"]
    if client.requests:
        parts.append(f"waiting for the answer to {list(client.requests)}")
    if client.sender.flights:
        parts.append(f"un-acknowledged ids {list(client.sender.flights)}")
    if client.sender.queue:
        parts.append(f"{len(client.sender.queue)} messages to send")
    if client.receiver.must:
        parts.append(f"re-sends missing for ids {list(client.receiver.must)}")
    if client.receiver.ids:
        parts.append(f"PUBREL missing for ids {list(client.receiver.ids)}")
    return " ".join(parts)


def judge_invariants(world: "World") -> None:
    """Ask the engine what is wrong with its own state."""
    process = world.up()
    assert process is not None
    for problem in process.engine.invariants():
        raise Violation("invariants", problem)


def _judge_losses(world: "World") -> None:
    """Nothing owed is missing; limits may drop, but what they drop is counted and over them."""
    done = world.operator.done
    purges = done["purges"] + done["purges by topic"] + done["purges of groups"]
    if not (world.limited or purges):
        world.oracle.judge_losses()
        return
    process = world.up()
    assert process is not None
    lost = world.oracle.count_losses()
    dropped = world.dropped + sum(process.counters.dropped.values())
    if lost > dropped and not world.lossy:
        raise Violation(
            "no_acknowledged_message_is_lost", f"{lost} were lost, {dropped} counted as dropped"
        )
    if not (world.limited or world.lossy or done["purges of groups"]):
        world.oracle.judge_groups()
    settings = world.settings
    keeps_oldest = settings.on_limit == "drop_new"
    if world.limited and not world.lossy and not (keeps_oldest and purges):
        world.oracle.judge_limits(
            settings.max_offline_messages, settings.max_offline_bytes, keeps_oldest=keeps_oldest
        )


def _crash_once_more(world: "World") -> None:
    """Everything is done and durable: after another crash nothing may be delivered again."""
    world.settled = True
    world.crash()
    world.run_until(world.now + 300)
    world.start_broker()
    judge_invariants(world)
    _drain(world, "resume after the last crash")
    judge_invariants(world)


def _audit_retained(world: "World") -> None:
    if not world.oracle.retained:
        return
    plan = Plan("auditor", 5)
    plan.expiry_s = 0
    plan.faithful = True
    plan.filters = plan.first_filters = ()
    auditor = Client(world, plan)
    auditor.found = {}
    world.clients.append(auditor)
    auditor.connect()
    world.run_until(world.now + HEAL_MS, lambda: auditor.state == ONLINE)
    auditor.subscribe_audit()
    _drain(world, "audit")
    world.oracle.judge_retained(auditor.found)


def _end_all_sessions(world: "World") -> None:
    """End every session in one of the ways there are; then the disk holds nothing of any."""
    for client in world.clients:
        client.stopped = True
        if client.plan.version == 5 and client.plan.durable:
            expiry = world.random.choice((0, 0, 1))
            client.disconnect(Disconnect(session_expiry_interval=expiry))
        else:
            client.disconnect(Disconnect())
    world.run_until(world.now + 500)
    rest = [each for each in world.clients if each.plan.version == 4 and each.plan.durable]
    for client in rest:
        client.must_clean = True
    for _ in range(CLEAN_TRIES):
        for client in rest:
            client.stopped = not client.must_clean
            client.connect()
            client.stopped = True
        world.run_until(world.now + 500 + world.mirror.proxied.wait_ms)
        if not any(client.must_clean for client in rest):
            break
    for client in world.clients:
        if client.state == ONLINE:
            client.disconnect(Disconnect())
    world.run_until(world.now + END_MS)
    process = world.up()
    assert process is not None
    judge_invariants(world)
    world.damages.process_ends()
    world.judge_history()
    world.damages.judge()
    for family in SESSION_FAMILIES:
        damages: list[DamagedRows] = []
        rows = state.scan_readable(process.store, family, b"", None, damages, count=8)
        if damages and not (world.mirror.is_on and family == state.HOLDERS):
            raise damages[0]
        rows = [row for row in rows if not world.mirror.holds(family, row[0])]
        if rows:
            raise Violation(
                "expired_sessions_leave_nothing",
                f"rows in {family!r} after the end of all sessions: {[key for key, _ in rows]}",
            )
