"""An operator at work: clients are kicked and banned, sessions ended, queues purged, at any moment.

What is asked is an event of the engine like a packet; what it promises is judged by
`tests.simulation.presence`, which learns here when a session was ended and when that was durable.
What is purged may be missing, if it is counted: `tests.simulation.heal` compares. Who is banned is
kept out: `tests.simulation.banned`.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final

from session.administration import Administration
from storage.errors import DamagedRows, Recoverable, Unrecoverable
from tests.simulation.banned import Banned
from tests.simulation.presence import Ended

if TYPE_CHECKING:
    from tests.simulation.world import World

# Shares of what an operator asks; the rest ends sessions.
KICKS: Final = 0.2
PURGES: Final = 0.3
BANS: Final = 0.2
PURGED_TOPICS: Final = ("#", "s/0", "a/+", "x/y")
NO_TOPIC: Final = "nothing/+"  # what it matches nobody publishes: so nothing may be missing


class Operator:
    """Somebody who asks for ends of connections and sessions."""

    def __init__(self, world: "World") -> None:
        self._world: Final = world
        self.banned: Final = Banned(world)
        self.done: Final[Counter[str]] = Counter()  # what was asked for, and became of it

    def plan(self) -> None:
        """Draw when to ask for something, if this world has an operator."""
        world, most = self._world, self._world.profile.interventions
        if not most[1]:
            return
        for _ in range(world.random.randint(*most)):
            world.after(int(world.random.random() * world.profile.fault_ms), self._act)

    def _act(self) -> None:
        world = self._world
        process = world.up()
        if not world.faults or process is None or process.failed or process.frozen():
            return
        # The witness of all wills is left alone.
        client = world.random.choice([each for each in world.clients if not each.plan.faithful])
        what = world.random.random()
        reason = world.random.choice(("", "why"))
        now = process.broker_now()
        world.note("operator", client.name, what)
        try:
            administration = process.engine.administer(now)
            if what < KICKS:
                if administration.kick(client.name, "operator", reason):
                    self.done["kicked"] += 1
            elif what < KICKS + PURGES:
                self._purge(administration, client.name)
            elif what < KICKS + PURGES + BANS:
                self.done[self.banned.change(process, client)] += 1
            elif administration.end_session(client.name, "operator", reason):
                engine = process.engine
                self.done["ended"] += 1
                client.session_ended(Ended(now, engine, engine.settled_by))
        except Recoverable:
            self.done["refused"] += 1
        except DamagedRows:
            assert client.name in world.damages.clients
        except Unrecoverable as error:
            world.fail_stop(str(error))
            return
        process.schedule_tick()

    def _purge(self, administration: Administration, client_id: str) -> None:
        """Ask for a purge of a session, or of any shared subscription."""
        world = self._world
        older_ms = world.random.choice((0, 0, 500))
        groups = [
            each.split("/", 2)[1:]
            for client in world.clients
            for each in client.plan.filters
            if each.startswith("$share/")
        ]
        if not groups or world.chance(0.4):
            topic = world.random.choice((None, None, *PURGED_TOPICS))
            away = [
                client.name
                for client in world.clients
                if client.link is None and client.plan.durable and not client.plan.faithful
            ]
            kick = world.chance(0.25)
            if not kick and away:
                client_id = world.random.choice(away)
            if administration.purge(
                client_id, "operator", older_ms=older_ms, topic=topic, kick=kick
            ):
                self.done["purges" if topic is None else "purges by topic"] += 1
                self.done["purges with a kick"] += kick
            return
        share_name, topic_filter = world.random.choice(groups)
        topic = world.random.choice((None, topic_filter, NO_TOPIC, NO_TOPIC, NO_TOPIC, NO_TOPIC))
        if administration.purge_group(
            share_name, topic_filter, "operator", older_ms=older_ms, topic=topic
        ):
            self.done["purges of nothing" if topic == NO_TOPIC else "purges of groups"] += 1
