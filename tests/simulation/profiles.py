"""What kinds of worlds there are: how many clients of which sort, which faults, which settings.

A profile is weights and ranges; a world draws from them with its own random numbers. The mixed
profile does a bit of everything, the others make one family of rare states common. Must never draw
at import time. Read next: `tests.simulation.world`.
"""

from random import Random
from typing import Final

from session.settings import Settings

EXPIRY_NEVER: Final = 0xFFFFFFFF

TOPICS: Final = ("a/b", "a/c", "x/y")
FILTERS: Final = ("a/b", "a/+", "a/#", "+/y", "x/y", "+/+", "x/#", "+/b")
RETAINED_FILTERS: Final = ("r/#", "r/+", "r/0", "r/1")
SHARED_TOPICS: Final = ("s/0", "s/1")
SHARED_FILTERS: Final = ("$share/g/s/#", "$share/g/s/+", "$share/h/s/0")


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


class Profile:
    """Weights and ranges of one kind of world. Times in ms, rates as a share of actions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.publishers = (2, 4)
        self.subscribers = (2, 4)
        self.shared_members = (0, 0)
        self.fault_ms = 9_000
        self.messages_max = 70  # per world: enough is enough
        self.crashes = (2, 4)
        self.shutdowns = (0, 1)
        self.reboot = 0.15  # share of restarts that are reboots
        self.downtime_ms = (20, 1_500)
        self.long_downtime = 0.1  # share of down times beyond most expiry intervals
        self.sync_ms = 8  # the longest a sync of a good disk takes
        self.traps = TRAPS  # where crashes are asked to happen
        self.slow_disk = 0.3  # share of worlds with phases of slow syncs
        self.sync_failure = 0.15
        self.full_disk = 0.0
        self.crash_when_full = 0.8  # share of full disks during which the process is killed
        self.qos = (1, 3, 4)  # weights of QoS 0, 1, 2
        self.burst = 0.0  # share of bursts with one topic and QoS, which arrive together
        self.retained = 0.12  # share of publishes that go to the publisher's retained topic
        self.message_expiry = 0.05
        self.will = 0.35
        self.qos2_id_reuse = 0.5  # share of clients that always take the lowest free packet id
        self.reconnect_ms = 500  # the longest a client usually waits before it comes back
        self.forgets = 0.4  # share of crashes that keep nothing un-synced
        self.cut = 1.0  # weights of a client's actions
        self.abandon = 0.5
        self.disconnect = 0.6
        self.stall = 0.2
        self.resubscribe = 1.0
        self.unsubscribe = 0.5
        self.publish = 7.0
        self.impatient = 0.05  # share of CONNECTs whose connection breaks soon after
        self.clean_start = 0.05  # share of a durable client's CONNECTs
        self.clean_client = 0.2  # share of clients without a durable session
        self.short_expiry = 0.35  # share of v5 durable clients whose session ends after 2 to 6 s
        self.other_expiry = 0.06  # share of v5 CONNECTs with another interval than usual
        self.version4 = 0.35
        self.other_version = 0.04  # share of CONNECTs with the other protocol version
        self.other_settings = 0.15  # share of restarts with other settings
        self.slow_passwords = 0.25  # share of worlds whose authenticator answers later
        self.freezes = 0.15  # share of worlds in which the process is stopped for a while
        self.refused_deliveries = 0.03  # share of v5 acknowledgements with an error code
        self.late_acks = 0.35
        self.step_ms = (20, 700)
        self.small_receive_maximum = 0.4
        self.wrap = 0.15  # share of worlds whose packet ids start near 65,535
        self.small_generations = 0.5
        self.timeline = 0.3
        self.limited = 0.0  # share of worlds with limits for what may be stored
        self.stalls = 0.1  # share of worlds with phases in which writes stall
        self.broken_disk = 0.1  # share of worlds in which some call of the store fails for good

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
        settings.topic_alias_maximum = choice((0, 2, 64))
        settings.outbound_topic_alias_maximum = choice((0, 2, 64))
        settings.expiry_slice = choice((1, 2, 256))
        settings.out_buffer_bytes_max = choice((200, 2_000, 1 << 20))
        settings.held_bytes_max = choice((200, 4 << 20))
        if settings.expiry_slice == 1:
            settings.tick_work_max = 1 if settings.max_inflight == 2 else 3
            settings.pending_bytes_max = settings.clean_queue_bytes_max = 30
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
        return settings


def _mixed() -> Profile:
    return Profile("mixed")


def _qos2() -> Profile:
    profile = Profile("qos2")
    profile.qos = (0, 1, 6)
    profile.crashes = (4, 6)
    profile.retained = 0.0
    profile.will = 0.0
    profile.clean_client = 0.0
    profile.short_expiry = 0.1
    profile.clean_start = 0.0
    profile.unsubscribe = 0.1
    profile.cut = 2.0
    profile.downtime_ms = (5, 150)
    profile.long_downtime = 0.0
    profile.step_ms = (10, 250)
    profile.fault_ms = 5_000
    return profile


def _sessions() -> Profile:
    profile = Profile("sessions")
    profile.impatient = 0.2
    profile.messages_max = 40
    profile.disconnect = 2.0
    profile.abandon = 1.5
    profile.cut = 2.0
    profile.clean_start = 0.2
    profile.short_expiry = 0.7
    profile.will = 0.7
    profile.publish = 3.0
    profile.long_downtime = 0.3
    profile.fault_ms = 14_000
    return profile


def _retained() -> Profile:
    profile = Profile("retained")
    profile.retained = 0.6
    profile.resubscribe = 3.0
    profile.unsubscribe = 1.5
    profile.publish = 4.0
    return profile


def _shared() -> Profile:
    profile = Profile("shared")
    profile.shared_members = (2, 3)
    profile.subscribers = (0, 1)
    profile.retained = 0.0
    profile.will = 0.0
    profile.message_expiry = 0.0
    return profile


def _backlog() -> Profile:
    profile = Profile("backlog")
    profile.messages_max = 140
    profile.publish = 14.0
    profile.stall = 1.5
    profile.late_acks = 0.7
    profile.step_ms = (10, 200)
    profile.small_receive_maximum = 0.8
    profile.small_generations = 0.9
    profile.downtime_ms = (20, 300)
    profile.fault_ms = 6_000
    profile.retained = 0.02
    return profile


def _gates() -> Profile:
    """Replies are quick, syncs are slow, and crashes come right after a reply."""
    profile = Profile("gates")
    profile.traps = REPLIES
    profile.sync_ms = 150
    profile.reconnect_ms = 60
    profile.forgets = 0.7
    profile.will = 0.8
    profile.slow_disk = 0.0
    profile.sync_failure = 0.0
    profile.crashes = (5, 8)
    profile.downtime_ms = (5, 100)
    profile.long_downtime = 0.0
    profile.resubscribe = 2.0
    profile.unsubscribe = 2.0
    profile.disconnect = 1.5
    profile.clean_start = 0.25
    profile.impatient = 0.25
    profile.other_expiry = 0.2
    profile.clean_client = 0.0
    profile.short_expiry = 0.1
    profile.step_ms = (20, 400)
    profile.fault_ms = 7_000
    return profile


def _bursts() -> Profile:
    """Messages of one topic come many at a time, to sessions that keep up or nearly do."""
    profile = Profile("bursts")
    profile.messages_max = 160
    profile.burst = 0.8
    profile.qos = (3, 6, 1)
    profile.retained = 0.02
    profile.will = 0.1
    profile.late_acks = 0.2
    profile.limited = 0.2
    profile.clean_client = 0.3
    profile.shared_members = (0, 1)
    profile.fault_ms = 6_000
    return profile


def _limits() -> Profile:
    profile = Profile("limits")
    profile.limited = 1.0
    profile.messages_max = 100
    profile.publish = 10.0
    profile.small_generations = 0.8
    profile.shared_members = (0, 2)
    return profile


def _disk() -> Profile:
    profile = Profile("disk")
    profile.stalls = 0.5
    profile.broken_disk = 0.5
    profile.full_disk = 1.0
    profile.other_settings = 0.4  # another layout needs room for a generation of its own
    profile.slow_disk = 0.8
    profile.sync_failure = 0.5
    return profile


PROFILES: Final[dict[str, Profile]] = {
    profile.name: profile
    for profile in (
        _limits(),
        _bursts(),
        _mixed(),
        _qos2(),
        _sessions(),
        _retained(),
        _shared(),
        _backlog(),
        _disk(),
        _gates(),
    )
}
# How often each is drawn.
WEIGHTS: Final = {
    "mixed": 6,
    "qos2": 3,
    "sessions": 3,
    "retained": 2,
    "shared": 3,
    "backlog": 2,
    "disk": 2,
    "gates": 2,
    "limits": 1,
    "bursts": 3,
}
