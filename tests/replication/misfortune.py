"""What goes wrong in a world, and how it is healed. Read next: `tests.replication.world`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from storage.replicated.record import Position
from tests.replication.node import Node
from tests.replication.oracle import Failure
from tests.replication.world import HEAL_MS, PLAIN, SITE, TWINS, World

GONE_MS: Final = 20_000
LOST_MAX: Final = 25  # records that the log loses of those it promised


def happen(world: World) -> None:
    """Let something happen."""
    if world.now < world.quiet_until:
        return
    random = world.random
    name = random.choice(list(world.nodes))
    leaders = [each for each, node in world.nodes.items() if node.is_leading]
    if leaders and random.random() < 0.5:
        name = random.choice(leaders)
    node = world.nodes[name]
    if node.replica is None and random.random() < 0.7:
        node.start(world.now)
        return
    what = random.choice([each for each in (*MISFORTUNES, *ZOMBIES) if each != "fork"])
    if any(each.has_claimed for each in world.nodes.values()) and random.random() < 0.5:
        what = "race"
    elif world.log.has_unkept and random.random() < 0.5:
        what = "fork"
    if MISFORTUNES[what](world, name, node):
        world.seen[what] += 1


def heal(world: World) -> None:
    """Let everything work again."""
    world.trouble = world.lateness = world.slowness = world.log.hesitation = 0.0
    for node in world.nodes.values():
        if node.replica is None:
            node.start(world.now)
        assert node.line is not None
        node.is_paused = node.line.is_cut = False


def _kill(world: World, name: str, node: Node) -> bool:
    if node.replica is not None:
        node.kill(power_cut=False)
    return True


def _power(world: World, name: str, node: Node) -> bool:
    if node.replica is not None:
        node.kill(power_cut=True)
    return True


def _cut(world: World, name: str, node: Node) -> bool:
    if node.line is not None:
        node.line.is_cut = True
    return True


def _cut_all(world: World, name: str, node: Node) -> bool:
    for each in world.nodes.values():
        if each.line is not None:
            each.line.is_cut = True
    return True


def _pause(world: World, name: str, node: Node) -> bool:
    """Stop a process; if it is a leader, best between an append and its read-back."""
    node.is_paused = node.replica is not None
    return True


def _pause_in_between(world: World, name: str, node: Node) -> bool:
    """Stop a leader whose appends are on their way, until others have had time to go on."""
    if not node.is_leading or node.line is None or not node.sent:
        return False
    node.is_paused = True
    world.quiet_until = world.now + 5000
    if world.random.random() < 0.5:
        node.line.is_cut = True  # and what it has appended arrives when it goes on
    return True


def _resume(world: World, name: str, node: Node) -> bool:
    node.is_paused = False
    if node.line is not None:
        node.line.is_cut = False
    return True


def _resume_all(world: World, name: str, node: Node) -> bool:
    for each in world.nodes.values():
        _resume(world, name, each)
    return True


def _lose(world: World, name: str, node: Node) -> bool:
    """The log loses what it did not promise; what was on its way for long may get to its place."""
    random = world.random
    gone = world.log.lose(random.randint(1, 5))
    if gone and random.random() < 0.5:
        world.log.arrive()
    for each in world.nodes.values():
        if gone and each.line is not None and each.line.is_cut and random.random() < 0.5:
            each.line.is_cut = False
            for _ in range(len(each.line.waiting)):
                each.line.deliver(world.trouble)
    return gone > 0


def _fork(world: World, name: str, node: Node) -> bool:
    """The log loses what counts and is not promised, and gets a claim in its place.

    The claim is of a node that has read everything before it, and so may have made it.
    """
    log = world.log
    at = world.random.choice([n for n, (place, _) in enumerate(log.chain) if log.may_lose(place)])
    base = log.chain[at - 1][1] if at else Position()
    rivals = [each for each in world.nodes.values() if each.may_have_claimed_behind(base)]
    if not rivals:
        return False
    log.lose(log.end - log.chain[at][0])
    log.add(world.random.choice(rivals).claim_behind(base))
    return True


def _race(world: World, name: str, node: Node) -> bool:
    """A claim is on its way for long, and those who can be heard meanwhile go on."""
    candidates = [each for each in world.nodes.values() if each.has_claimed]
    for each in world.nodes.values():
        _resume(world, name, each)
    for each in candidates:
        assert each.line is not None
        each.line.is_cut = True
    return bool(candidates)


def _site(world: World, name: str, node: Node) -> bool:
    return site(world)


def site(world: World) -> bool:
    """Power off for all; the log loses what it had promised, as nobody had flushed it."""
    if world.kind != SITE:
        return False
    for each in world.nodes.values():
        if each.replica is not None:
            each.kill(power_cut=True)
    world.log.late.clear()
    # What no tail begins with cannot be given back, nor what is before the first place.
    floor = max(each.tail_begins() for each in world.nodes.values())
    fresh = world.log.chain[-LOST_MAX:]
    count = sum(end.index >= floor and place > world.log.first for place, end in fresh)
    count = world.random.randint(0, count)
    if count:
        place = world.log.chain[-count][0]
        world.log.lose(world.log.end - place, promised=True)
    return True


def _disk(world: World, name: str, node: Node) -> bool:
    """A node comes back with nothing, or with a copy."""
    if world.kind != PLAIN:
        return False
    if world.random.random() < 0.5:
        world.renew(name, node)
    else:
        if node.replica is not None:
            node.kill(power_cut=False)
        node.lose_disk()
        node.start(world.now)
    return True


def _twin(world: World, name: str, node: Node) -> bool:
    if world.kind != TWINS or len(world.nodes) > len(world.names):
        return False
    world.twin(world.random.choice(world.names))
    return True


ZOMBIES: Final = ("pause in between", "pause in between", "pause in between")
MISFORTUNES: Final[dict[str, Callable[[World, str, Node], bool]]] = {
    "kill": _kill,
    "power": _power,
    "cut": _cut,
    "cut all": _cut_all,
    "pause": _pause,
    "pause in between": _pause_in_between,
    "resume": _resume,
    "resume all": _resume_all,
    "lose": _lose,
    "fork": _fork,
    "race": _race,
    "site": _site,
    "disk": _disk,
    "twin": _twin,
}


def never_return(world: World) -> None:
    """The site loses power and one node for good: nobody leads until an operator accepts that."""
    heal(world)
    world.settle()
    gone = world.random.choice(world.names)
    world.gone.add(gone)
    for node in world.nodes.values():
        node.kill(power_cut=True)
    world.log.late.clear()
    world.log.lose(world.random.randint(0, LOST_MAX), promised=True)
    rest = {name: node for name, node in world.nodes.items() if name != gone}
    for node in rest.values():
        node.start(world.now)
    elections = world.seen["elections"]
    deadline = world.now + GONE_MS
    while world.now < deadline:
        world.step()
    if world.seen["elections"] != elections:
        raise Failure(f"somebody leads who has not heard {gone}")
    if not any(gone in why for node in rest.values() for why in node.troubles[-1:]):
        raise Failure(f"nobody says that {gone} is waited for")
    world.seen["gone"] += 1
    node = max(rest.values(), key=lambda node: node.replica.longest if node.replica else (0, 0))
    node.kill(power_cut=False)
    node.settings = replace(node.settings, accepts_data_loss=True)
    node.start(world.now)
    while not node.is_leading:
        world.step()
        if world.now > deadline + HEAL_MS:
            raise Failure(f"nobody leads although an operator accepts the loss: {world.roles()}")
    world.oracle.forget(node)
    world.settle()
