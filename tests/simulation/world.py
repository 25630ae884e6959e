"""A world: the real engine with simulated clients on a fake network, clock and disk.

One seed, one heap of events, no threads, no real time. A world has phases: faults (crashes, cuts,
slow and full disks), heal (no more faults, all clients come back), drain (everything owed is
delivered), a last crash after which nothing may be repeated, and the end of all sessions, which
must leave nothing behind. The oracle judges all the time and at the end. The same seed gives the
same trace hash in any process. Read next: `tests.simulation.process`, `tests.simulation.client`.
"""

import hashlib
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

from broker.security.authenticators import AllowAllPolicy
from session.ports import Exchange, Policy, Verdict
from storage.errors import DamagedRows, Recoverable, Unrecoverable, WriteStalled
from storage.history.events import BOOKS_LEVEL
from storage.local.memory import MemoryStore
from storage.tables.tables import FAMILIES
from storage.time.broker_clock import Heartbeat
from tests.simulation.client import Client
from tests.simulation.damage import Damages, mend
from tests.simulation.heal import heal_and_judge
from tests.simulation.left_out import LeftOut
from tests.simulation.mirror import Mirror
from tests.simulation.observer import note_crash, note_start
from tests.simulation.operator import Operator
from tests.simulation.oracle import Oracle
from tests.simulation.plans import draw_clients
from tests.simulation.presence import Closing
from tests.simulation.process import BrokerProcess, read_heartbeat, restart_time
from tests.simulation.profiles import PROFILES, WEIGHTS, Profile
from tests.simulation.rare import sometimes
from tests.simulation.retold import Retold
from tests.simulation.verdict import Violation

START_MS: Final = 1_700_000_000_000
DAY_MS: Final = 86_400_000
TRACE_TAIL: Final = 60  # events of the trace that a failure prints
# What is recorded of the history: nearly always everything, that most can be compared.
DETAILS: Final = ("full", "full", "full", "full", "full", "full", "sampled:1/2", "books")
GAPS: Final = 0.2  # share of worlds in which less of it is recorded for a while
EVENTS_MAX: Final = 200_000  # a world that needs more runs in circles


class AnyClient:
    """The authenticator: everybody is anonymous, and in some worlds that takes a while."""

    def __init__(self, world: "World", delay_max_ms: int) -> None:
        self._world = world
        self._delay_max_ms = delay_max_ms  # answers come in any order

    def authenticate(
        self,
        client_id: str,
        username: str | None,
        password: bytes | None,
        done: Callable[[Verdict], None],
    ) -> None:
        """Let the client in, at once or later."""
        world, process = self._world, self._world.process
        verdict = Verdict(ok=True, reason_code=0, identity="")
        if not self._delay_max_ms or process is None:
            done(verdict)
            return
        sometimes("password_checked_later")
        delay_ms = 1 + int(world.random.random() * self._delay_max_ms)
        world.after(delay_ms, process.judged, done, verdict)

    def exchange(self, method: str, client_id: str) -> Exchange | None:
        """Know no method."""
        return None


class World:
    """One simulated history."""

    reasons: frozenset[int] = frozenset()  # why else a client may be sent away

    def __init__(self, seed: int, profile: str | None = None, *, has_history: bool = True) -> None:
        """Make a world; without history nothing is recorded, nor judged by it."""
        self.seed = seed
        self.has_history = has_history
        self.random = Random(seed)
        self.forced_profile = profile
        names = list(WEIGHTS)
        drawn = self.random.choices(names, list(WEIGHTS.values()))[0]
        self.profile: Profile = PROFILES[profile or drawn]
        self.now = START_MS  # elapsed true time, ms
        self.step = 0
        self.trace: list[tuple[object, ...]] = []
        self.heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.pushed = 0
        self.oracle = Oracle()
        self.faults = True
        self.split = self.random.choice((0.0, 0.1, 0.5))
        self.link_count = 0
        self.client_id_count = 0
        self.settings = self.profile.settings(self.random)
        self.mirror = Mirror(self)
        # Its own random numbers: what is recorded changes nothing else.
        self.history_random = Random(seed)
        self.detail = self.history_random.choice(DETAILS) if has_history else "off"
        self.settings.history_detail = self.detail
        slow = self.chance(self.profile.slow_passwords)
        self.authenticator = AnyClient(self, 1 + int(self.random.random() * 80) if slow else 0)
        self.policy: Policy = AllowAllPolicy()
        self.wall_offset = 0  # wall clock minus true time
        self.boots = 0
        self.boot_id = "boot-0"
        self.booted_at = START_MS - DAY_MS
        self.crash_wanted = False
        self.trap: str | None = None
        self.slow_until = self.slow_ms = self.full_until = 0
        self.next_sync_fails = False
        self.starts = 0
        self.broker_high = 0  # the latest broker time of all processes before
        # Was the disk ever full, or may limits refuse?
        self.refusing_seen = self.settings.on_limit == "reject"
        # May limits drop what is in the log? Then a session's backlog has holes.
        self.lossy = bool(self.settings.max_age_s) or (
            bool(self.settings.total_bytes_max) and self.settings.on_limit != "reject"
        )
        self.unavailable_seen = False  # could the store ever not be written to?
        # May limits drop what is owed to a session?
        self.limited = self.lossy or (
            self.settings.on_limit != "reject"
            and bool(self.settings.max_offline_messages or self.settings.max_offline_bytes)
        )
        limits = self.settings
        self.has_limits = self.oracle.has_limits = bool(
            limits.max_offline_messages
            or limits.max_offline_bytes
            or limits.total_bytes_max
            or limits.max_age_s
        )
        self.dropped = 0  # counted by the processes before
        self.witness_ready = not self.profile.will
        self.settled = False  # everything is done: nothing may be delivered any more
        self.messages_made = 0
        self.wrap = self.random.random() < self.profile.wrap
        self.process: BrokerProcess | None = None
        self.store = MemoryStore(FAMILIES)
        self.damages = Damages(self)
        self.operator = Operator(self)
        self.retold, self.left_out = Retold(seed), LeftOut()
        self.cut: list[Closing] = []  # connections that ended with the broker
        self.pulse_ms = 0  # the sign of life beside the store: broker time, 0 = there is none
        self.clients: list[Client] = draw_clients(self)

    # Randomness and time

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return probability > 0 and self.random.random() < probability

    def prefix(self, size: int) -> int:
        """Return how many of `size` bytes arrive before a cut: often none or all."""
        kind = self.random.random()
        if size == 0 or kind < 0.25:
            return 0
        if kind < 0.5:
            return size
        return int(self.random.random() * (size + 1))

    def latency(self) -> int:
        """Return how long the next piece of a connection takes, ms."""
        kind = self.random.random()
        if kind < 0.9 or not self.faults:
            return 1 + int(kind * 4)
        return 5 + int(self.random.random() * 60)

    def tick_delay(self) -> int:
        """Return how long a tick collects, ms."""
        return int(self.random.random() * 2.2)

    def timer_lateness(self) -> int:
        """Return how late the event loop calls a timer, ms."""
        return int(self.random.random() * self.profile.timer_late_ms)

    def sync_time(self) -> int:
        """Return how long the sync that begins now takes, ms."""
        if self.faults and self.now < self.slow_until:
            sometimes("slow_sync")
            return self.slow_ms
        return int(self.random.random() * (self.profile.sync_ms if self.faults else 8))

    def report_delay(self) -> int:
        """Return how long the engine waits to hear of a finished sync, ms."""
        return int(self.random.random() * 2.5)

    def after(self, delay: int, call: Callable[..., None], *arguments: Any) -> None:
        """Call `call` in `delay` ms."""
        self.pushed += 1
        heappush(self.heap, (self.now + delay, self.pushed, call, arguments))

    def note(self, *event: object) -> None:
        """Add an event of ints, strings and bytes to the trace, which is hashed at the end."""
        self.trace.append((self.now - START_MS, *event))

    def new_client_id(self) -> str:
        """Return an identifier for a client that gave none."""
        self.client_id_count += 1
        return f"assigned-{self.client_id_count}"

    def broker_now(self) -> int:
        """Return broker time in ms, also while the broker is down."""
        process = self.process
        assert process is not None
        return process.broker_now()

    def latest(self) -> int:
        """Return the latest broker time there may have been: it can go back over a reboot."""
        return max(self.broker_high, self.broker_now())

    def up(self) -> BrokerProcess | None:
        """Return the running broker, if there is one."""
        process = self.process
        return None if process is None or process.dead else process

    def notice(self) -> int:
        """Return how long the broker needs to notice that a connection is cut, ms."""
        return int(self.random.random() * 40) if self.chance(0.8) else 300

    def heartbeat(self, broker_ms: int) -> bytes:
        """Return the heartbeat row for a broker time, as the shell does."""
        wall = self.now + self.wall_offset
        return Heartbeat(broker_ms, wall, self.boot_id, self.now - self.booted_at).encode()

    # Running

    def run(self) -> str:
        """Live through the whole world; returns the trace hash. Raises Violation."""
        self.start_broker()
        for client in self.clients:
            client.begin()
        self._plan_faults()
        self.run_until(START_MS + self.profile.fault_ms)
        self.heal()
        return self.hash()

    def heal(self) -> None:
        """Let everything work again, and judge."""
        heal_and_judge(self)

    def hash(self) -> str:
        """Return the hash of the trace so far."""
        return hashlib.blake2b(repr(self.trace).encode(), digest_size=16).hexdigest()

    def run_until(self, when: int, done: Callable[[], bool] | None = None) -> bool:
        """Let events happen until a time or until `done` says so; True if it did."""
        heap = self.heap
        while heap and heap[0][0] <= when:
            at, _, call, arguments = heappop(heap)
            self.now = at
            self.step += 1
            call(*arguments)
            if self.crash_wanted:
                self.crash()
            if done is not None and self.step & 7 == 0 and done():
                return True
            if self.step > EVENTS_MAX:
                raise Violation("liveness", f"{EVENTS_MAX} events and no end")
        self.now = max(self.now, when)
        return done is not None and done()

    # The broker's life

    def start_broker(self) -> None:
        """Start a process on the store as it is."""
        if self.up() is not None:
            return
        wall = self.now + self.wall_offset
        self.booted_at = min(self.booted_at, self.now)
        broker_ms = restart_time(
            self.store, self.pulse_ms, wall, self.boot_id, self.now - self.booted_at
        )
        self._judge_clock(broker_ms)
        self.begin_start(broker_ms)
        self.store.full = self.now < self.full_until
        try:
            self.process = BrokerProcess(self, self.store, broker_ms)
            self.left_out.started(self.process, self.clients, self.starts)
            self.mirror.proxied.started(self.process)
        except Recoverable:  # it says so and exits; who started it does so again
            self.note("no room to start")
            sometimes("start_refused")
            self.after(100 + int(self.random.random() * 400), self.start_broker)
        except DamagedRows:
            if not self.damages.start_refused():
                raise
            self.after(100 + int(self.random.random() * 400), self.start_broker)

    def begin_start(self, broker_ms: int) -> None:
        """Note that the broker is started, and change its settings perhaps."""
        for closing in self.cut:  # nothing has ended in the future, should broker time go back
            closing.lo = min(closing.lo, broker_ms)
        self.starts += 1
        if self.starts > 1 and self.faults and self.chance(self.profile.other_settings):
            sometimes("settings_changed")
            self.settings = self.profile.change(self.settings, self.random)
            self.settings.history_detail = self.detail
            self.settings.feeds = self.mirror.feeds()
        self.note("start", broker_ms)
        note_start(self)

    def _judge_clock(self, broker_ms: int) -> None:
        """Broker time never runs ahead of elapsed time, and keeps up with it within a boot."""
        previous, heartbeat = self.process, read_heartbeat(self.store)
        if previous is None or heartbeat is None:
            return
        ahead = broker_ms - previous.broker_now()
        if ahead > 0:
            raise Violation("no_session_expires_early", f"broker time is {ahead} ms ahead")
        if self.boot_id == heartbeat.boot_id and ahead < 0:
            raise Violation("liveness", f"broker time lost {-ahead} ms in one boot")

    def passing(self, point: str) -> None:
        """The process passes a point where a crash may have been asked for."""
        if self.trap == point:
            self.trap = None
            self.crash_wanted = True

    def fail_stop(self, why: str) -> None:
        """The process must end: a write or a sync failed for good."""
        self.note("fail stop", why)
        sometimes("sync_failed")
        self.crash_wanted = True
        if self.process is not None:
            self.process.failed = True

    def crash(self) -> None:
        """Kill the broker now; a random prefix of what was not synced survives."""
        self.crash_wanted = False
        process = self.up()
        if process is None:
            return
        unsynced = process.store.unsynced
        kind = self.random.random()
        if kind < self.profile.forgets:
            keep = 0
        elif kind < self.profile.forgets + 0.2:
            keep = unsynced
        else:
            keep = int(self.random.random() * (unsynced + 1))
        self._crash(process, unsynced, keep)

    def _crash(self, process: BrokerProcess, unsynced: int, keep: int) -> None:
        self.note("crash", unsynced, keep)
        self.broker_high = self.latest()
        note_crash(self, process, unsynced, keep)
        self.dropped += sum(process.counters.dropped.values())
        self.damages.process_ends()
        self.store = process.crash(keep)
        self.mirror.proxied.ended(process, self.store)
        self.judge_history()
        self.oracle.broker_crashed()
        for client in self.clients:
            client.broker_crashed(process)
        if self.faults:
            self._plan_restart()

    def shut_down(self) -> None:
        """Let the broker drain and exit, as on SIGTERM."""
        process = self.up()
        if process is None or process.store.fail_writes is not None:
            return  # it waits until the stall is over
        process.store.fail_at_call(0, Unrecoverable("never"))
        if process.store.full or process.engine.refused_by is not None:
            self._give_up(process)
            return
        self.note("shut down")
        self.broker_high = self.latest()
        sometimes("clean_shutdown")
        self.store = process.drain()
        self.mirror.proxied.ended(process, self.store)
        self.dropped += sum(process.counters.dropped.values())
        self.damages.process_ends()
        self.judge_history()
        if self.faults:
            self._plan_restart()

    def _give_up(self, process: BrokerProcess) -> None:
        """Let the broker exit although it cannot write what it has to: nothing else is lost."""
        self.note("shut down on a full disk")
        sometimes("shutdown_on_a_full_disk")
        process.store.full = True
        process.engine.drain(self.broker_now())
        process.engine.end_tick(self.broker_now())
        unsynced = process.store.unsynced
        self._crash(process, unsynced, unsynced)

    def judge_history(self) -> None:
        """Compare what the history says with the disk as it is now."""
        if not self.has_history:
            return
        damaged = mend(self.store)  # what cannot be read must not have changed
        self.retold.judge(self.store)
        self.mirror.judge_history(self.store)
        for family, keys in damaged.items():
            self.store.damage(family, [k for k in keys if self.store.get(family, k) is not None])

    def _plan_restart(self) -> None:
        """Decide how long the broker is down and what the clocks do meanwhile."""
        random = self.random
        low, high = self.profile.downtime_ms
        downtime = low + int(random.random() * (high - low))
        if self.chance(self.profile.long_downtime):
            downtime += 4_000 + int(random.random() * 4_000)
        if self.chance(self.profile.reboot) and self._wall_is_known():
            # The wall clock may be set back over a reboot; forwards looks like time passed.
            self.boots += 1
            self.boot_id = f"boot-{self.boots}"
            self.booted_at = self.now + int(random.random() * downtime)
            if self.chance(0.5):
                self.wall_offset -= int(random.random() * 10_000)
        elif self.chance(0.3) and self._same_boot():
            self.wall_offset += random.choice((-1, 1)) * int(random.random() * 20 * DAY_MS)
            sometimes("wall_clock_jump")
        self.note("down for", downtime, self.boot_id, self.wall_offset)
        self.after(downtime, self.start_broker)

    def _same_boot(self) -> bool:
        heartbeat = read_heartbeat(self.store)
        return heartbeat is not None and heartbeat.boot_id == self.boot_id

    def _wall_is_known(self) -> bool:
        """Would a reboot now find the wall clock as the heartbeat on disk knows it?

        A jump within a boot that no heartbeat has seen looks, after a reboot, like time passed.
        """
        heartbeat = read_heartbeat(self.store)
        if heartbeat is None or heartbeat.boot_id != self.boot_id:
            return True
        return heartbeat.wall_ms == heartbeat.boottime_ms + self.booted_at + self.wall_offset

    # Faults

    def _plan_faults(self) -> None:
        profile, random = self.profile, self.random

        def sometime() -> int:
            return int(random.random() * profile.fault_ms)

        for _ in range(random.randint(*profile.crashes)):
            self.after(sometime(), self._arm_crash)
        for _ in range(random.randint(*profile.shutdowns)):
            self.after(sometime(), self.shut_down)
        if self.chance(profile.slow_disk):
            for _ in range(random.randint(1, 4)):
                self.after(sometime(), self._slow_disk)
        if self.chance(profile.sync_failure):
            self.after(sometime(), self._fail_next_sync)
        if self.chance(profile.freezes):
            self.after(sometime(), self._freeze)
        if self.chance(profile.stalls):
            for _ in range(random.randint(1, 3)):
                self.after(sometime(), self._stall)
        if self.chance(profile.broken_disk):
            for _ in range(random.randint(1, 2)):
                self.after(sometime(), self._break_disk)
        if self.has_history and self.history_random.random() < GAPS:
            at = int(self.history_random.random() * profile.fault_ms)
            self.after(at, self._lower_detail)
        if self.has_history and profile.exports[1]:
            for _ in range(self.history_random.randint(*profile.exports)):
                self.after(int(self.history_random.random() * profile.fault_ms), self._export)
        self.operator.plan()
        if profile.damages[1]:
            for _ in range(random.randint(*profile.damages)):
                self.after(sometime(), self._damage)
        if self.chance(profile.full_disk):
            for _ in range(random.randint(1, 3)):
                self.after(sometime(), self._full_disk)

    def _arm_crash(self) -> None:
        if not self.faults:
            return
        trap = self.random.choice(self.profile.traps)
        if trap == "now":
            self.crash()
        else:
            self.trap = trap
            self.after(1_500, self._spring, trap)

    def _spring(self, trap: str) -> None:
        """What the crash waits for does not happen: crash all the same."""
        if self.faults and self.trap == trap:
            self.trap = None
            self.crash()

    def _freeze(self) -> None:
        """The process does not run for a while, as when its machine is suspended."""
        process = self.up()
        if not self.faults or process is None:
            return
        sometimes("process_frozen")
        length = 300 + int(self.random.random() * 2_500)
        self.note("frozen for", length)
        process.frozen_until = self.now + length
        process.frozen_ms += length

    def _stall(self) -> None:
        """Writes stall for a while, as RocksDB's do when it cannot keep up."""
        process = self.up()
        if not self.faults or process is None:
            return
        self.note("writes stall")
        sometimes("writes_stalled")
        self.unavailable_seen = True
        process.store.fail_writes = WriteStalled("write stall")
        self.after(20 + int(self.random.random() * 600), self.stall_ends, process.store)

    def stall_ends(self, store: MemoryStore) -> None:
        """Writes are taken again."""
        store.fail_writes = None
        process = self.up()
        if process is not None:
            if isinstance(process.engine.refused_by, WriteStalled):
                process.stalled_at = process.engine.written
            process.schedule_tick()

    def _break_disk(self) -> None:
        """One of the next calls of the store fails for good."""
        process = self.up()
        if not self.faults or process is None:
            return
        store = process.store
        call = store.io_calls + 1 + int(self.random.random() * 60)
        self.note("disk breaks", call)
        store.fail_at_call(call, Unrecoverable("injected I/O error"))

    def _lower_detail(self) -> None:
        """Nobody takes the history for a while: less of it is recorded."""
        process = self.up()
        if not self.faults or process is None:
            return
        sometimes("history_gap")
        self.retold.has_gap = True
        self.note("less history")
        process.engine.outbox.lower(BOOKS_LEVEL, 1)
        process.schedule_tick()
        self.after(int(self.history_random.random() * 3_000), self._restore_detail, process)

    def _restore_detail(self, process: BrokerProcess) -> None:
        if self.up() is process and not process.failed:
            self.note("all history")
            process.engine.outbox.restore()
            process.schedule_tick()

    def _export(self) -> None:
        """Delete what is durable of the history: it is exported, or the outbox is full."""
        process = self.up()
        if not self.faults or process is None or process.failed or process.frozen():
            return
        self.note("export")
        durable = process.store.crash()
        mend(durable)
        self.retold.export(durable, process.engine.outbox)
        process.schedule_tick()

    def _slow_disk(self) -> None:
        self.slow_ms = self.random.choice((150, 600, 1_500, 3_000))
        self.slow_until = self.now + 300 + int(self.random.random() * 1_500)

    def _fail_next_sync(self) -> None:
        self.next_sync_fails = True

    def sync_fails(self) -> bool:
        """Does the sync that ends now fail?"""
        if self.next_sync_fails and self.faults:
            self.next_sync_fails = False
            return True
        return False

    def _damage(self) -> None:
        """Rows cannot be read any more, which is noticed now or after a restart."""
        if not self.faults or self.up() is None:
            return
        self.damages.strike()
        if self.chance(0.6):
            self.crash()

    def _full_disk(self) -> None:
        process = self.up()
        if not self.faults or process is None:
            return
        self.full_until = self.now + 200 + int(self.random.random() * 1_500)
        self.note("disk full")
        self.refusing_seen = True
        if any(client.sender.flights for client in self.clients):
            sometimes("disk_full_with_publish_in_flight")
        if self.chance(0.5):
            process.engine.note_disk_space(is_low=True)  # the low-water mark saw it coming
            process.schedule_tick()
        else:
            process.store.full = True
        length = self.full_until - self.now
        self.after(length, self.space_returns)
        if self.chance(self.profile.shutdown_when_full):
            self.after(int(self.random.random() * length / 2), self._shut_down_on_full_disk)
        if self.chance(self.profile.crash_when_full):
            self.after(int(self.random.random() * length / 2), self._crash_on_full_disk)

    def _crash_on_full_disk(self) -> None:
        if self.faults and self.now < self.full_until:
            self.crash()

    def _shut_down_on_full_disk(self) -> None:
        if self.faults and self.now < self.full_until:
            self.shut_down()

    def space_returns(self) -> None:
        """The disk has room again."""
        process = self.up()
        if process is None or self.now < self.full_until:
            return
        self.note("space returned")
        process.store.full = False
        process.engine.note_disk_space(is_low=False)
        process.schedule_tick()
