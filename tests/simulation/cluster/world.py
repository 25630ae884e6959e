"""A world with a cluster: clients of the simulation, and a broker that is on one node at a time.

What a crash is on one disk is here the end of a leader: it dies, for some time or until the faults
are over, or is stopped, or cut off from the log, and goes on while another node leads. Clients come
to whoever leads, as a load balancer sends them. The same oracle judges. Read next:
`tests.simulation.cluster.machines`, `tests.simulation.world`.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final

from broker.cluster.lead import alive_ms
from mqtt.reasons import USE_ANOTHER_SERVER
from storage.replicated.roles.terms import Leads
from storage.tables.tables import BOOT_KEY, META
from storage.time.broker_clock import Heartbeat, crash_time, resume
from tests.replication.misfortune import MISFORTUNES
from tests.replication.oracle import Failure
from tests.simulation.cluster.leader import LeaderProcess
from tests.simulation.cluster.machines import Machines
from tests.simulation.cluster.node import BrokerNode
from tests.simulation.presence import Closing
from tests.simulation.process import read_heartbeat
from tests.simulation.verdict import Violation
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.client import Client

CALM_MS: Final = 60_000  # until one node leads and all have everything, once nothing goes wrong
TURN_MS: Final = 20
# How a leader ends. Of a process that is stopped or cut off nobody knows what it still believes.
ENDS: Final = ("kill", "power", "kill", "power", "pause", "pause in between", "cut")
BACK_MS: Final = ((20, 1_500), (1_500, 5_000), (1 << 40, 1 << 40))  # until it is there again


class ClusterWorld(World):
    """One simulated history of a cluster."""

    process: LeaderProcess | None
    reasons = frozenset((USE_ANOTHER_SERVER,))

    def __init__(self, seed: int, profile: str | None = None, *, has_history: bool = True) -> None:
        super().__init__(seed, profile, has_history=has_history)
        self.retold.trims = False  # the log would not know of it
        self.machines: Final = Machines(self)
        self._last_on: Final[dict[str, LeaderProcess]] = {}  # where clients were, by their names
        self._has_begun = False
        self._epoch = 0  # of the newest leader
        self._offset = 0  # broker time minus true time, of the last one that committed something

    # The nodes

    def start_broker(self) -> None:
        """Start all nodes; later wait until one of them leads."""
        if not self._has_begun:
            self._has_begun = True
            self.machines.start()
            self.after(0, self._turn)
            self.after(self.machines.every_ms, self._go_wrong)
            return
        if not self.run_until(self.now + CALM_MS, lambda: self.up() is not None):
            raise Violation("liveness", f"nobody leads: {self.machines.roles()}")

    def _turn(self) -> None:
        self.after(2 + int(self.machines.random.random() * TURN_MS), self._turn)
        try:
            self.machines.pass_time(self.now)
        except Failure as failure:
            raise Violation("what_is_released_is_kept", str(failure)) from failure

    def _go_wrong(self) -> None:
        if self.faults:
            self.after(
                1 + int(self.machines.random.random() * 2 * self.machines.every_ms), self._go_wrong
            )
            self.machines.misfortune()

    def up(self) -> LeaderProcess | None:
        """Return the broker that clients are sent to, if there is one."""
        process = self.process
        return None if process is None or process.dead or process.is_superseded else process

    # Who leads

    def begin_to_lead(self, node: BrokerNode, leads: Leads) -> None:
        """A node leads, and starts a broker on what its database has."""
        broker_ms = self._resumed(node, leads)
        previous = self.process
        self.note("leads", node.settings.node, leads.epoch, broker_ms)
        if leads.epoch < self._epoch:
            self._leads_late(node, leads, broker_ms)
            return
        self._epoch = leads.epoch
        if previous is not None:
            self._judge_time(node, previous, broker_ms)
            if not (previous.dead or previous.is_superseded):
                self.machines.seen["zombies"] += 1
                previous.supersede()
                self._ended(previous)
        if broker_ms < self.broker_high:  # by what nobody has heard of the leader before
            for presence in self.oracle.presences.values():
                presence.time_went_back(broker_ms)
        self._date_ends(node, leads)
        self.store = node.disk.store
        if self.starts and self.store.get(META, BOOT_KEY) is not None:
            self.judge_history()
        self.begin_start(broker_ms)
        self.process = node.process = LeaderProcess(
            self, node, broker_ms, alive_ms(leads, node.disk.store)
        )
        self.left_out.started(self.process, self.clients, self.starts)

    def _leads_late(self, node: BrokerNode, leads: Leads, broker_ms: int) -> None:
        """A node was stopped when it was elected, and does not know that another one leads now."""
        self.machines.seen["led late"] += 1
        node.process = LeaderProcess(self, node, broker_ms, alive_ms(leads, node.disk.store))
        node.process.supersede()

    def _resumed(self, node: BrokerNode, leads: Leads) -> int:
        """Return the time at which a leader starts, as the shell does."""
        heartbeat = read_heartbeat(node.disk.store)
        not_before = 0 if heartbeat is None else heartbeat.broker_ms
        alive = alive_ms(leads, node.disk.store)
        least = alive + leads.silent_ms if alive else 0
        if alive and leads.is_timed:
            return max(least, not_before)
        # Wall clocks of two machines need not agree, and a cold start believes them: here they do.
        if heartbeat is None:
            return max(least, self.now)
        last = Heartbeat(heartbeat.broker_ms, heartbeat.boottime_ms, "", 0)
        return max(least, resume(last, self.now, "", self.now))

    def _judge_time(self, node: BrokerNode, previous: LeaderProcess, broker_ms: int) -> None:
        """Broker time never runs ahead, and goes on from when the leader was heard last."""
        if previous.durable_serial:
            self._offset = previous.offset
        ahead = broker_ms - self.now - self._offset
        if ahead > 0:
            raise Violation("no_session_expires_early", f"broker time is {ahead} ms ahead")
        assert node.line is not None
        for epoch, said_ms, read_at in node.line.beats:
            behind = said_ms + self.now - read_at - broker_ms
            if behind > 0 and not (self.machines.log.lost or self._have_written(epoch)):
                raise Violation("liveness", f"broker time lost {behind} ms at a takeover")

    def _have_written(self, epoch: int) -> bool:
        """Have leaders of later epochs written anything? Their time may have been behind."""
        written = Counter(end.epoch for _, end in self.machines.log.chain)
        return any(count > 1 and epoch < each < self._epoch for each, count in written.items())

    def _date_ends(self, node: BrokerNode, leads: Leads) -> None:
        """The new leader will say that connections ended a while after the last sign of life."""
        heartbeat = read_heartbeat(node.disk.store)
        alive_ms = max(leads.alive_ms, 0 if heartbeat is None else heartbeat.broker_ms)
        dated = crash_time(alive_ms, self.settings.heartbeat_ms)
        for closing in self.cut:
            closing.lo, closing.hi = min(closing.lo, dated), max(closing.hi, dated)

    def settle_ends(self, ends: list[Closing]) -> None:
        """What a leader has said of these ends is durable."""
        settled = set(map(id, ends))
        ends.clear()
        self.cut = [each for each in self.cut if id(each) not in settled]

    # Who does not any more

    def broker_ends(self, process: LeaderProcess) -> None:
        """The process of a leader ends."""
        was_known = process.is_superseded
        self.note("leader dies", process.node.settings.node)
        process.die(process.store, whole=False)
        if not was_known:
            self._ended(process)

    def send_away(self, process: LeaderProcess) -> None:
        """A leader hears that another node leads."""
        was_known = process.is_superseded
        self.note("deposed", process.node.settings.node)
        process.send_away()
        if not was_known:
            self._ended(process)

    def resigns(self, process: LeaderProcess) -> None:
        """A leader has drained and resigned."""
        self.machines.seen["resigned"] += 1
        process.node.process = None
        self.broker_ends(process)

    def kill(self, node: BrokerNode) -> None:
        """Kill the process of a node, which is started again soon."""
        node.kill(power_cut=False)
        self.after(100, self._back, node)

    def _ended(self, process: LeaderProcess) -> None:
        self.broker_high = max(self.broker_high, process.broker_now())
        self.dropped += sum(process.counters.dropped.values())
        self.oracle.broker_crashed()
        for client in self.clients:
            client.broker_crashed(process)

    def arrives(self, client: "Client", process: LeaderProcess) -> None:
        """A client comes to a broker, from another one perhaps, which may not be durable."""
        last = self._last_on.get(client.name)
        self._last_on[client.name] = process
        if last is not None and last is not process:
            client.broker_crashed(last)
            self.machines.seen["moved"] += 1

    # Faults

    def crash(self) -> None:
        """End the leader, for clients at least."""
        self.crash_wanted = False
        process = self.up()
        if process is None:
            return
        random, machines = self.machines.random, self.machines
        node, name = process.node, process.node.settings.node
        how = random.choice(ENDS if self.faults else ("kill", "power"))
        low, high = random.choice(BACK_MS if self.faults else BACK_MS[:1])
        self.note("crash", name, how)
        MISFORTUNES[how](machines, name, node)
        machines.seen[f"leader: {how}"] += 1
        if high < self.profile.fault_ms or not self.faults:
            self.after(low + int(random.random() * (high - low)), self._back, node)

    def _back(self, node: BrokerNode) -> None:
        if node.replica is None:
            node.start(self.now)
        assert node.line is not None
        node.is_paused = node.line.is_cut = False

    def shut_down(self) -> None:
        """Let the leader send its clients away and resign."""
        process = self.up()
        if process is not None and not process.frozen():
            successor = self.machines.random.choice(("", *self.machines.names))
            self.note("shut down", successor)
            process.begin_drain(successor)

    # The end

    def heal(self) -> None:
        """Let everything work again, and judge."""
        self.faults = False
        self.trap = None
        self.machines.calm()
        self.wait_for_calm()
        super().heal()
        self.wait_for_calm()
        self.machines.judge_alike()

    def wait_for_calm(self) -> None:
        """Wait until one node leads and all have everything."""
        if not self.run_until(self.now + CALM_MS, self.machines.is_calm):
            said = {name: node.troubles[-1:] for name, node in self.machines.nodes.items()}
            raise Violation("liveness", f"no calm: {self.machines.roles()}, {said}")
