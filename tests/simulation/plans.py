"""The clients of a world: what each publishes and subscribes to, and how it behaves.

It only draws random plans. Read next: `tests.simulation.client`.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from mqtt.packets import Subscription
from tests.simulation.profiles import (
    EXPIRY_NEVER,
    FILTERS,
    RETAINED_FILTERS,
    SHARED_FILTERS,
    SHARED_TOPICS,
    TOPICS,
    WIDE_FILTERS,
    WIDE_TOPICS,
    Profile,
)

if TYPE_CHECKING:
    from tests.simulation.client import Client
    from tests.simulation.world import World

# How a client acknowledges: at once, some time later, or only now and then all it has.
ACK_NOW: Final = 0
ACK_LATE: Final = 1
ACK_SELDOM: Final = 2


class Plan:
    """What one client does."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.expiry_s = EXPIRY_NEVER  # of its sessions; 0 = a clean client
        self.topics: tuple[str, ...] = ()  # what it publishes to
        self.retained_topic: str | None = None  # one that nobody else publishes to
        self.retained_qos = 1
        self.filters: tuple[str, ...] = ()  # what it may subscribe to
        self.first_filters: tuple[str, ...] = ()  # what it subscribes to at once
        self.shared = False
        self.ack_mode = ACK_NOW
        self.receive_maximums: tuple[int, ...] = (65_535,)
        self.keep_alive_s = 0
        self.will = 0.0
        self.lowest_id = False  # always take the lowest free packet id
        self.first_id = 1
        self.aliases = 0  # topic aliases it allows the broker
        self.faithful = False  # never misbehaves by itself: the witness

    @property
    def durable(self) -> bool:
        """Does its session outlive its connections?"""
        return self.expiry_s > 0


def draw_clients(world: "World") -> "list[Client]":
    """Draw the clients of a world, the witness of all wills first."""
    from tests.simulation.client import Client

    random, profile = world.random, world.profile
    plans = []
    if profile.will > 0:
        plans.append(_witness(random))
    for number in range(random.randint(*profile.publishers)):
        plan = _draw_common(f"p{number}", random, profile)
        plan.topics = SHARED_TOPICS if profile.shared_members[1] else TOPICS
        if profile.shared_members[1] and profile.subscribers[1] and random.random() < 0.4:
            plan.topics = TOPICS + SHARED_TOPICS
        if profile.wide:
            plan.topics = WIDE_TOPICS
        plan.retained_topic = f"r/{number}"
        plan.retained_qos = random.choice((0, 1, 1, 2, 2))
        if random.random() < 0.25 and not profile.shared_members[1]:
            plan.filters = plan.first_filters = (random.choice(FILTERS),)
        plans.append(plan)
    for number in range(random.randint(*profile.subscribers)):
        plan = _draw_common(f"s{number}", random, profile)
        pool = list(FILTERS) + list(RETAINED_FILTERS) * (2 if profile.retained > 0.3 else 1)
        plan.filters = tuple(dict.fromkeys(random.sample(pool, random.randint(2, 5))))
        plan.first_filters = plan.filters[: random.randint(1, 2)]
        if profile.wide:
            plan.filters = tuple(random.sample(WIDE_FILTERS, random.randint(2, len(WIDE_FILTERS))))
            plan.first_filters = plan.filters
        plans.append(plan)
    for number in range(random.randint(*profile.shared_members)):
        plan = _draw_common(f"m{number}", random, profile)
        plan.version = 5
        plan.shared = True
        if number == 0:
            plan.expiry_s = EXPIRY_NEVER
        plan.filters = plan.first_filters = (random.choice(SHARED_FILTERS),)
        plans.append(plan)
    world.mirror.inbox.join(plans)
    world.mirror.proxied.join(plans)
    return [Client(world, plan) for plan in plans]


def _witness(random: Random) -> Plan:
    plan = Plan("witness", random.choice((4, 5)))
    plan.filters = plan.first_filters = ("will/#",)
    plan.faithful = True
    return plan


def _draw_common(name: str, random: Random, profile: Profile) -> Plan:
    plan = Plan(name, 4 if random.random() < profile.version4 else 5)
    if random.random() < profile.clean_client:
        plan.expiry_s = 0
    elif plan.version == 5 and random.random() < profile.short_expiry:
        plan.expiry_s = random.choice((2, 4, 6))
    elif plan.version == 5 and random.random() < 0.3:
        plan.expiry_s = 3600
    if random.random() < profile.late_acks:
        plan.ack_mode = random.choice((ACK_LATE, ACK_LATE, ACK_SELDOM))
    if random.random() < profile.small_receive_maximum:
        plan.receive_maximums = random.choice(((1,), (2, 65_535), (1, 2, 3, 20)))
    if random.random() < 0.2:
        plan.keep_alive_s = random.choice((1, 3))
    if random.random() < 0.7:
        plan.will = profile.will
    plan.lowest_id = random.random() < profile.qos2_id_reuse
    if random.random() < profile.client_wrap:
        plan.first_id = 65_530
    plan.aliases = random.choice((0, 0, 1, 10))
    return plan


def draw_subscription(
    random: Random, plan: Plan, version: int, topic_filter: str
) -> tuple[Subscription, int]:
    """Draw the options of a subscription, and its identifier (0 = none)."""
    qos = random.choice((1, 2, 2)) if plan.shared else random.choice((0, 1, 1, 2, 2, 2, 2))
    if plan.faithful:
        qos = 2
    if version == 4:
        return Subscription(topic_filter, qos), 0
    identifier = random.choice((0, 0, 1, 7, 300))
    asked = Subscription(
        topic_filter,
        qos,
        no_local=not plan.shared and random.random() < 0.15,
        retain_as_published=not plan.shared and random.random() < 0.2,
        retain_handling=random.choice((0, 0, 0, 1, 2)),
    )
    return asked, identifier
