"""The kinds of worlds: how many clients of each kind, which faults, which settings.

A profile has weights and ranges; a world draws from them with its own random numbers. The mixed
profile has a bit of everything; each other profile makes one group of rare states common. Must
never draw at import time. Read next: `tests.simulation.world`.
"""

from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Final

from session.settings import Settings

EXPIRY_NEVER: Final = 0xFFFFFFFF

TOPICS: Final = ("a/b", "a/c", "x/y")
FILTERS: Final = ("a/b", "a/+", "a/#", "+/y", "x/y", "+/+", "x/#", "+/b")
RETAINED_FILTERS: Final = ("r/#", "r/+", "r/0", "r/1")
SHARED_TOPICS: Final = ("s/0", "s/1")
SHARED_FILTERS: Final = ("$share/g/s/#", "$share/g/s/+", "$share/h/s/0")
# A message on one of these topics has up to 22 index rows, and most sessions get it.
WIDE_TOPICS: Final = ("w/x/y/z", "w/x/y/z", "w/x/y/o")
WIDE_FILTERS: Final = (
    *("/".join(levels) for levels in product("+w", "+x", "+y", "+z")),
    "#",
    "+/#",
    "w/#",
    "w/x/#",
    "w/+/y/#",
    "+/x/y/#",
)


# A crash happens right after a client got such a packet, or its connection's end after DISCONNECT.
REPLIES: Final = (
    "got CONNACK",
    "got PUBLISH",
    "got PUBACK",
    "got PUBREC",
    "got PUBREL",
    "got PUBCOMP",
    "got SUBACK",
    "got UNSUBACK",
    "got the end",
)
# Or right after the next time the process passes there.
TRAPS: Final[tuple[str, ...]] = (
    "now",
    "now",
    "after_receive",
    "after_write",
    "after_write",
    "sync_running",
    "after_sync",
    "after_committed",
    *REPLIES,
)


# Settings that are the same for the whole of a world.
KEPT: Final = (
    "max_offline_messages",
    "max_offline_bytes",
    "total_bytes_max",
    "max_age_s",
    "on_limit",
    "store_qos0",
    "generation_size_bytes",
    "generation_age_s",
)


@dataclass(frozen=True, slots=True)
class Profile:
    """Weights and ranges of one kind of world. Times in ms, rates as a share of actions."""

    name: str
    publishers: tuple[int, int] = (2, 4)
    subscribers: tuple[int, int] = (2, 4)
    shared_members: tuple[int, int] = (0, 0)
    fault_ms: int = 9_000
    messages_max: int = 70  # per world: enough is enough
    crashes: tuple[int, int] = (2, 4)
    shutdowns: tuple[int, int] = (0, 1)
    reboot: float = 0.15  # share of restarts that are reboots
    downtime_ms: tuple[int, int] = (20, 1_500)
    long_downtime: float = 0.1  # share of down times beyond most expiry intervals
    sync_ms: int = 8  # the longest a sync of a good disk takes
    traps: tuple[str, ...] = TRAPS  # where crashes are asked to happen
    slow_disk: float = 0.3  # share of worlds with phases of slow syncs
    sync_failure: float = 0.15
    full_disk: float = 0.0
    crash_when_full: float = 0.8  # share of full disks during which the process is killed
    shutdown_when_full: float = 0.0  # or told to exit
    qos: tuple[int, int, int] = (1, 3, 4)  # weights of QoS 0, 1, 2
    large: float = 0.0  # share of messages with a payload of 2 KB to 500 KB
    burst: float = 0.0  # share of bursts with one topic and QoS, which arrive together
    wide: bool = False  # do many filters of each subscriber match every message?
    retained: float = 0.12  # share of publishes that go to the publisher's retained topic
    message_expiry: float = 0.05
    retained_expiry: float = 0.0  # share of these with an expiry interval, by v5 clients
    expiring: float = 0.0  # share of publishes that its will's topic retains for some seconds
    will: float = 0.35
    retained_wills: float = 0.15  # share of wills
    qos2_id_reuse: float = 0.5  # share of clients that always take the lowest free packet id
    reconnect_ms: int = 500  # the longest a client usually waits before it comes back
    forgets: float = 0.4  # share of crashes that keep nothing un-synced
    cut: float = 1.0  # weights of a client's actions
    abandon: float = 0.5
    disconnect: float = 0.6
    stall: float = 0.2
    resubscribe: float = 1.0
    unsubscribe: float = 0.5
    publish: float = 7.0
    impatient: float = 0.05  # share of CONNECTs whose connection breaks soon after
    clean_start: float = 0.05  # share of a durable client's CONNECTs
    clean_client: float = 0.2  # share of clients without a durable session
    short_expiry: float = 0.35  # share of v5 durable clients whose session ends after 2 to 6 s
    other_expiry: float = 0.06  # share of v5 CONNECTs with another interval than usual
    version4: float = 0.35
    other_version: float = 0.04  # share of CONNECTs with the other protocol version
    other_settings: float = 0.15  # share of restarts with other settings
    slow_passwords: float = 0.25  # share of worlds whose authenticator answers later
    freezes: float = 0.15  # share of worlds in which the process is stopped for a while
    refused_deliveries: float = 0.03  # share of v5 acknowledgements with an error code
    late_acks: float = 0.35
    step_ms: tuple[int, int] = (20, 700)
    timer_late_ms: int = 12  # the latest the event loop calls a timer
    small_receive_maximum: float = 0.4
    packet_size_maximum: float = 0.0  # share of v5 CONNECTs with one that some messages exceed
    wrap: float = 0.15  # share of worlds whose packet ids start near 65,535
    client_wrap: float = 0.1  # share of clients whose own packet ids do
    small_generations: float = 0.5
    timeline: float = 0.3
    limited: float = 0.0  # share of worlds with limits for what may be stored
    trimmed: float = 0.0  # share of worlds whose offline backlogs lose their oldest messages
    keeping: float = 0.0  # share of worlds whose offline backlogs keep their oldest messages
    absent: float = 0.12  # share of lost connections whose client stays away for seconds
    absent_ms: tuple[int, int] = (3_000, 8_000)  # how long
    damages: tuple[int, int] = (0, 0)  # how often rows of the store become unreadable
    stalls: float = 0.1  # share of worlds with phases in which writes stall
    exports: tuple[int, int] = (0, 0)  # how often the history is exported
    interventions: tuple[int, int] = (0, 0)  # how often an operator ends something
    nodes: bool = False  # is there a cluster?
    broken_disk: float = 0.1  # share of worlds in which some call of the store fails for good

    def change(self, old: Settings, random: Random) -> Settings:
        """Draw settings for a restart; what may be lost stays as it is."""
        settings = self.settings(random)
        for name in KEPT:
            setattr(settings, name, getattr(old, name))
        return settings

    def settings(self, random: Random) -> Settings:
        """Draw the broker's settings: small limits, so that every edge is met."""
        settings = Settings()
        choice = random.choice
        settings.sys_interval_s = 0
        settings.receive_maximum = choice((3, 8, 1024))
        settings.max_inflight = choice((2, 4, 16, 256))
        settings.pending_messages_max = choice((1, 3, 1000))
        settings.clean_queue_messages_max = choice((1, 3, 1000))
        if settings.max_inflight == 4:
            settings.followed_streams = 0
            settings.arrivals_max = settings.clean_queue_messages_max
        settings.ahead_after = {1: 0, 3: 2}.get(settings.pending_messages_max, 32)
        settings.topic_alias_maximum = choice((0, 2, 64))
        settings.outbound_topic_alias_maximum = choice((0, 2, 64))
        settings.expiry_slice = choice((1, 2, 256))
        settings.out_buffer_bytes_max = choice((200, 2_000, 1 << 20))
        settings.held_bytes_max = choice((200, 4 << 20))
        if settings.expiry_slice == 1:
            settings.tick_work_max = 1 if settings.max_inflight == 2 else 3
            settings.pending_bytes_max = settings.clean_queue_bytes_max = 30
        if self.large:
            # So that much may be in flight, and is sent again when its first part was committed.
            settings.max_inflight = choice((16, 256))
            settings.held_bytes_max = choice((200, 200, 4 << 20))
        if self.wide:
            # From less than one message to several: whatever comes together is divided.
            settings.tick_work_max = choice((1, 10, 30, 100))
        if random.random() < self.small_generations:
            settings.generation_size_bytes = choice((300, 1_500))
            settings.generation_age_s = choice((2, 3600))
        layout = random.random()
        settings.layout = "blocks" if layout < 0.75 else "filters"
        if layout < self.timeline:
            settings.layout = "timeline"
        settings.store = "all" if random.random() < 0.1 else "durable"
        settings.store_qos0 = random.random() < 0.2
        if random.random() < self.limited:
            settings.max_offline_messages = choice((0, 2, 5))
            settings.max_offline_bytes = choice((0, 0, 60))
            settings.total_bytes_max = choice((0, 0, 2_000))
            if settings.total_bytes_max:
                settings.generation_size_bytes = 300  # only what is closed can be dropped
            settings.max_age_s = choice((0, 0, 3))
            settings.on_limit = choice(("drop_oldest", "drop_new", "reject", "reject"))
        if self.trimmed and random.random() < self.trimmed:
            settings.max_offline_messages = choice((0, 1, 2, 4))
            settings.max_offline_bytes = choice((0, 0, 100))
            settings.on_limit = "drop_oldest"
            settings.generation_size_bytes = choice((300, 600))
            settings.generation_age_s = choice((1, 2))
            settings.expiry_slice = choice((1, 1, 2, 256))
        if self.keeping and random.random() < self.keeping:
            settings.max_offline_messages = choice((0, 1, 1, 2, 4))
            settings.max_offline_bytes = 0 if settings.max_offline_messages else 100
            settings.on_limit = "drop_new"
            settings.generation_size_bytes = choice((200, 400))
            settings.generation_age_s = choice((1, 2))
            settings.expiry_slice = choice((1, 1, 2, 256))
        return settings


PROFILES: Final[dict[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile(
            "limits",
            limited=1.0,
            messages_max=100,
            publish=10.0,
            small_generations=0.8,
            shared_members=(0, 2),
        ),
        # Messages of one topic come many at a time, to sessions that keep up or nearly do.
        Profile(
            "bursts",
            messages_max=160,
            burst=0.8,
            qos=(3, 6, 1),
            retained=0.02,
            will=0.1,
            late_acks=0.2,
            limited=0.2,
            clean_client=0.3,
            shared_members=(0, 1),
            fault_ms=6_000,
        ),
        # Each message is more work than a tick may do, or nearly.
        Profile(
            "fanout",
            wide=True,
            messages_max=100,
            publish=10.0,
            burst=0.5,
            qos=(2, 5, 2),
            retained=0.02,
            cut=2.0,
            clean_client=0.3,
            fault_ms=6_000,
        ),
        Profile("mixed"),
        Profile(
            "qos2",
            qos=(0, 1, 6),
            crashes=(4, 6),
            retained=0.0,
            will=0.0,
            clean_client=0.0,
            short_expiry=0.1,
            clean_start=0.0,
            unsubscribe=0.1,
            cut=2.0,
            downtime_ms=(5, 150),
            long_downtime=0.0,
            step_ms=(10, 250),
            fault_ms=5_000,
        ),
        Profile(
            "sessions",
            impatient=0.2,
            messages_max=40,
            disconnect=2.0,
            abandon=1.5,
            cut=2.0,
            clean_start=0.2,
            short_expiry=0.7,
            will=0.7,
            publish=3.0,
            long_downtime=0.3,
            fault_ms=14_000,
        ),
        Profile(
            "retained",
            retained=0.6,
            retained_expiry=0.2,
            resubscribe=3.0,
            unsubscribe=1.5,
            publish=4.0,
        ),
        Profile(
            "shared",
            shared_members=(2, 3),
            subscribers=(0, 1),
            retained=0.0,
            will=0.0,
            message_expiry=0.0,
        ),
        Profile(
            "backlog",
            messages_max=140,
            publish=14.0,
            stall=1.5,
            late_acks=0.7,
            step_ms=(10, 200),
            small_receive_maximum=0.8,
            small_generations=0.9,
            downtime_ms=(20, 300),
            fault_ms=6_000,
            retained=0.02,
        ),
        Profile(
            "disk",
            stalls=0.5,
            broken_disk=0.5,
            full_disk=1.0,
            shutdown_when_full=0.6,
            other_settings=0.4,  # another layout needs room for a generation of its own
            slow_disk=0.8,
            sync_failure=0.5,
        ),
        # Sessions stay away for long, and their backlogs are over low limits or expire.
        Profile(
            "absent",
            trimmed=0.75,
            absent=0.4,
            disconnect=1.5,
            abandon=1.5,
            timer_late_ms=120,  # so that a sweep takes a while
            step_ms=(10, 300),
            reconnect_ms=100,
            messages_max=70,  # all sent early: a backlog that is cut does not grow again
            publish=12.0,
            burst=0.3,
            subscribers=(3, 6),
            shared_members=(0, 1),
            small_generations=1.0,
            full_disk=0.4,
            short_expiry=0.5,
            retained=0.02,
            will=0.1,
            crashes=(1, 3),
        ),
        # Replies are quick, syncs are slow, and crashes come right after a reply.
        Profile(
            "gates",
            traps=REPLIES,
            sync_ms=150,
            reconnect_ms=60,
            forgets=0.7,
            will=0.8,
            slow_disk=0.0,
            sync_failure=0.0,
            crashes=(5, 8),
            downtime_ms=(5, 100),
            long_downtime=0.0,
            resubscribe=2.0,
            unsubscribe=2.0,
            disconnect=1.5,
            clean_start=0.25,
            impatient=0.25,
            other_expiry=0.2,
            clean_client=0.0,
            short_expiry=0.1,
            step_ms=(20, 400),
            fault_ms=7_000,
        ),
        # Packet ids wrap in both directions while messages are in flight.
        Profile(
            "wraps",
            wrap=1.0,
            client_wrap=1.0,
            qos2_id_reuse=0.0,
            qos=(0, 3, 5),
            late_acks=0.8,
            crashes=(4, 6),
            clean_start=0.15,
            clean_client=0.0,
            short_expiry=0.1,
            retained=0.0,
            will=0.0,
            downtime_ms=(5, 150),
            long_downtime=0.0,
            step_ms=(10, 300),
            fault_ms=5_000,
        ),
        # The history is exported, or thrown away, by this process or a later one.
        Profile(
            "exports",
            exports=(8, 20),
            messages_max=40,
            crashes=(4, 7),
            shutdowns=(0, 2),
            downtime_ms=(5, 300),
            fault_ms=6_000,
        ),
        # Rows cannot be read any more: of messages, indexes, sessions, timers, the history.
        Profile(
            "damage",
            damages=(3, 7),
            crashes=(1, 2),
            retained=0.25,
            will=0.6,
            retained_wills=0.4,
            message_expiry=0.0,
            limited=0.35,
            shared_members=(0, 2),
            absent=0.4,
            exports=(0, 4),
            burst=0.2,
            publish=10.0,
            late_acks=0.6,
            step_ms=(10, 400),
            downtime_ms=(5, 300),
            fault_ms=7_000,
        ),
        # Messages are about as large as their subscribers take.
        Profile(
            "sizes",
            packet_size_maximum=0.8,
            version4=0.1,
            qos=(1, 4, 4),
            messages_max=100,
            publish=10.0,
            retained=0.1,
            will=0.0,
            crashes=(3, 5),
            downtime_ms=(5, 300),
            fault_ms=6_000,
        ),
        # Messages that fill blocks of the log, and windows of bytes.
        Profile(
            "large",
            large=0.6,
            messages_max=40,
            publish=10.0,
            burst=0.3,
            qos=(0, 4, 4),
            publishers=(3, 4),
            retained=0.2,
            resubscribe=2.0,
            will=0.0,
            version4=0.6,
            small_receive_maximum=0.0,
            late_acks=1.0,
            cut=2.0,
            timeline=0.0,
            crashes=(3, 5),
            downtime_ms=(5, 300),
            fault_ms=5_000,
        ),
        # Wills, sessions and retained messages of one topic come due while the broker is down.
        Profile(
            "due",
            will=1.0,
            retained_wills=0.8,
            expiring=0.4,
            retained=0.02,
            version4=0.15,
            subscribers=(0, 1),
            clean_client=0.1,
            short_expiry=0.6,
            messages_max=40,
            crashes=(3, 4),
            downtime_ms=(20, 400),
            long_downtime=0.7,
            absent=0.4,
            fault_ms=12_000,
        ),
    )
}
# Never drawn: each makes one planted bug show within few worlds.
PROFILES["replays"] = replace(
    PROFILES["gates"],
    name="replays",
    retained=0.6,
    resubscribe=6.0,
    unsubscribe=4.0,
    publish=4.0,
    small_receive_maximum=1.0,
    late_acks=0.8,
)
PROFILES["unsubscribing"] = replace(
    PROFILES["sessions"],
    name="unsubscribing",
    clean_client=0.0,
    clean_start=0.0,
    short_expiry=0.0,
    unsubscribe=5.0,
    resubscribe=0.2,
    publish=8.0,
    will=0.0,
    version4=0.0,
)
PROFILES["leaving"] = replace(
    PROFILES["sessions"], name="leaving", disconnect=4.0, reconnect_ms=10, publish=5.0
)
# Sessions stay away for long, and what comes behind low limits frees its generations.
PROFILES["overflow"] = replace(
    PROFILES["absent"],
    name="overflow",
    trimmed=0.0,
    keeping=0.95,
    publish=6.0,
    messages_max=150,
    absent=0.7,
    cut=1.5,
    short_expiry=0.1,
    clean_client=0.05,
    shared_members=(0, 0),
    full_disk=0.2,
    absent_ms=(5_000, 16_000),
    fault_ms=22_000,
    step_ms=(20, 500),
    subscribers=(1, 2),
    will=0.0,
    interventions=(0, 2),
)
# An operator ends connections and sessions; worlds without one stay as they are.
PROFILES["operator"] = replace(
    PROFILES["sessions"],
    name="operator",
    interventions=(4, 16),
    shared_members=(0, 2),
    publish=6.0,
    messages_max=70,
    short_expiry=0.3,
    fault_ms=9_000,
)
# Two or three nodes have one log: `tests.simulation.cluster.world`.
PROFILES["cluster"] = Profile(
    "cluster",
    nodes=True,
    fault_ms=22_000,
    crashes=(2, 5),
    shutdowns=(0, 2),
    messages_max=110,
    shared_members=(0, 2),
    will=0.5,
    retained_wills=0.3,
    retained=0.1,
    slow_disk=0.0,
    sync_failure=0.0,
    freezes=0.0,
    stalls=0.0,
    broken_disk=0.0,
    exports=(0, 6),
)
# How often each is drawn.
WEIGHTS: Final = {
    "mixed": 5,
    "overflow": 1,
    "qos2": 3,
    "sessions": 3,
    "retained": 2,
    "shared": 3,
    "backlog": 2,
    "disk": 2,
    "gates": 2,
    "limits": 1,
    "bursts": 3,
    "fanout": 2,
    "absent": 2,
    "wraps": 1,
    "sizes": 2,
    "large": 1,
    "exports": 1,
    "due": 2,
    "damage": 3,
}
