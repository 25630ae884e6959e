"""The clients of a synthetic history: their actions on the broker of `audit.generate.model`.

Clients are grouped in small plants, each with publishers, durable and clean subscribers,
overlapping and shared subscriptions, wills and retained topics; a watcher per tenant subscribes to
all its plants. In every round a few plants act, then clients acknowledge, some of them slowly. All
randomness comes from the seed.
"""

import random
from typing import Final

from audit.generate.model import Broker
from audit.generate.state import NEVER, Client, Session, Will

TENANTS: Final = ("acme", "borealis", "cobalt", "")
LOST: Final = 1001
SLOW_SHARE: Final = 0.5


class Plant:
    """A few clients that exchange messages."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.tenant = rng.choice(TENANTS)
        self.root = f"{self.tenant or 'public'}/plant{number}"
        self.shared = number % 3 == 0
        self.began = False
        name = f"{self.tenant or 'anon'}-{number}"
        made = [
            Client(f"{name}-sensor", self.tenant, 5, 0),
            Client(f"{name}-panel", self.tenant, 5, rng.choice((600, 3600)), 10),
            Client(f"{name}-store", self.tenant, 5, 3600, rng.choice((1, 2, 3))),
            Client(f"{name}-twin", self.tenant, 5, NEVER, 20),
            Client(f"{name}-old", self.tenant, 4, NEVER),
            Client(f"{name}-view", self.tenant, 5, 0, rng.choice((2, 65535))),
            Client(f"{name}-roamer", self.tenant, 5, rng.choice((20, 45, 90)), 5),
        ]
        if self.shared:
            made.append(Client(f"{name}-worker-a", self.tenant, 5, NEVER, 8))
            made.append(Client(f"{name}-worker-b", self.tenant, 5, 0, 4))
        self.clients = {client.client_id.removeprefix(f"{name}-"): client for client in made}
        if rng.random() < 0.3:
            self.clients["twin"].size_max = 900
        self.subscriptions: dict[str, list[tuple[str, int, bool]]] = {
            "store": [("temperature", 1, False)],
            "twin": [("#", 2, False)],
            "old": [("+", 1, False), ("command", 2, False)],
            "view": [("#", rng.choice((0, 1)), False)],
            "roamer": [("state", 1, False), ("temperature", 1, False)],
            "panel": [("command", 2, True), ("alarm", 1, False)],
        }
        # Topic and QoS of the publisher: fixed per publisher, otherwise QoS 0 would overtake.
        self.topics = {
            "sensor": (("temperature", 1), ("log", 0), ("alarm", 2), ("state", 1)),
            "panel": (("command", 2), ("temperature", 1)),
        }


class Cast:
    """All clients, and their actions in a round."""

    def __init__(self, broker: Broker, rng: random.Random, plants: int, first: int = 0) -> None:
        self.broker = broker
        self.rng = rng
        self.plants = [Plant(first + number, rng) for number in range(plants)]
        self.watchers = [
            Client(f"{tenant or 'anon'}-watcher-{broker.node}", tenant, 5, NEVER, 40)
            for tenant in TENANTS
        ]
        self.busy: dict[int, Session] = {}

    def act(self, plants: int) -> None:
        """Let some plants act; nothing is durable yet."""
        for watcher in self.watchers:
            self._watch(watcher)
        for plant in self.rng.sample(self.plants, min(plants, len(self.plants))):
            self._act(plant)

    def _watch(self, client: Client) -> None:
        known = self.broker.sessions.get(client.client_id)
        if known is not None and known.conn and self.rng.random() > 0.005:
            self.busy[known.number] = known
            return
        session = self.broker.connect(client)
        if known is not session:
            root = client.tenant or "public"
            self.broker.subscribe(session, f"{root}/+/command", 2)
            self.broker.subscribe(session, f"{root}/+/alarm", 1)
        self.busy[session.number] = session

    # Actions of clients.

    def session(self, plant: Plant, role: str, clean_start: bool = False) -> Session:
        """Return the session of a client; connect it if it is offline."""
        client = plant.clients[role]
        known = self.broker.sessions.get(client.client_id)
        if known is not None and known.conn and not clean_start:
            return known
        if role in ("roamer", "panel") and self.rng.random() < 0.8:
            delay_s = self.rng.choice((0, 0, 5, 30))
            client.will = Will(f"{plant.root}/gone", self.rng.choice((0, 1)), delay_s)
        session = self.broker.connect(client, clean_start)
        if session is not known:
            for topic, qos, no_local in plant.subscriptions.get(role, ()):
                self.broker.subscribe(session, f"{plant.root}/{topic}", qos, no_local)
            if role.startswith("worker"):
                self.broker.subscribe(session, f"$share/crew/{plant.root}/temperature", 1)
        elif session.incoming:
            self._again(session)
        self.busy[session.number] = session
        return session

    def _again(self, session: Session) -> None:
        for pid in list(session.incoming):
            if self.rng.random() < 0.7:
                self.broker.resend_publish(session, pid)
            self.broker.release_publish(session, pid)

    def _act(self, plant: Plant) -> None:
        if not plant.began:
            plant.began = True
            for role in plant.clients:
                self.session(plant, role)
        for role in plant.clients:
            known = self.broker.sessions.get(plant.clients[role].client_id)
            if known is not None and known.conn:
                self.busy[known.number] = known
        self._publish(plant)
        choice = self.rng.random()
        role = self.rng.choice(list(plant.clients))
        if role == "worker-a" and choice < 0.6:
            choice = 0.3
        if choice < 0.22:
            self._leave(plant, role)
        elif choice < 0.60:
            for name in plant.clients:
                if self.rng.random() < 0.5:
                    self.session(plant, name)
        elif choice < 0.64:
            self._take_over(plant, role)
        elif choice < 0.67 and not role.startswith("worker"):
            self.session(plant, role, clean_start=True)
        elif choice < 0.73:
            self._change(plant)
        elif choice < 0.75:
            self._clear_state(plant)
        elif choice < 0.76:
            self.broker.refuse(self.session(plant, "sensor"))
        elif choice < 0.78:
            self._age(plant)

    def _publish(self, plant: Plant) -> None:
        role = "sensor" if self.rng.random() < 0.7 else "panel"
        session = self.session(plant, role)
        count = 80 if self.rng.random() < 0.003 else self.rng.randint(1, 5)
        for _ in range(count):
            topic, qos = self.rng.choice(plant.topics[role])
            retain = topic == "state"
            expiry_s = None
            if not plant.shared and self.rng.random() < 0.15:
                expiry_s = self.rng.choice((5, 30, 600))
            size = self.rng.randint(8, 1000)
            if retain:
                self.broker.wait(1)  # no two values of a topic in one millisecond
            name = f"{plant.root}/{topic}"
            self.broker.publish(session, name, qos, size, retain, expiry_s)

    def _clear_state(self, plant: Plant) -> None:
        self.broker.wait(1)  # not in the millisecond of the last value
        session = self.session(plant, "sensor")
        self.broker.publish(session, f"{plant.root}/state", 1, 0, retain=True)

    def _leave(self, plant: Plant, role: str) -> None:
        session = self.broker.sessions.get(plant.clients[role].client_id)
        if session is None or not session.conn:
            return
        how = self.rng.random()
        if how < 0.35:
            self.broker.disconnect(session, 0)
        elif how < 0.42:
            self.broker.disconnect(session, 4)
        elif how < 0.50 and role in ("panel", "store", "roamer"):
            self.broker.disconnect(session, 0, expiry_s=self.rng.choice((0, 30, 300)))
        else:
            self.broker.disconnect(session, LOST, actor=0)

    def _take_over(self, plant: Plant, role: str) -> None:
        session = self.session(plant, role)
        if not role.startswith("worker"):
            again = self.broker.connect(session.client, self.rng.random() < 0.1)
            if again is not session:
                for topic, qos, no_local in plant.subscriptions.get(role, ()):
                    self.broker.subscribe(again, f"{plant.root}/{topic}", qos, no_local)
            self.busy[again.number] = again

    def _change(self, plant: Plant) -> None:
        role = self.rng.choice(("old", "roamer", "panel"))
        session = self.session(plant, role)
        topic, qos, no_local = self.rng.choice(plant.subscriptions[role])
        name = f"{plant.root}/{topic}"
        if name in session.subs and self.rng.random() < 0.5:
            self.broker.unsubscribe(session, name)
        elif not session.queue:
            self.broker.subscribe(session, name, qos, no_local)

    def _age(self, plant: Plant) -> None:
        for role in ("old", "twin", "store"):
            session = self.broker.sessions.get(plant.clients[role].client_id)
            if session is not None and not session.conn and len(session.queue) > 5:
                self.broker.drop_oldest(session, self.rng.randint(1, 4))
                return

    # Acknowledgements.

    def acknowledge(self, everything: bool = False) -> None:
        """Acknowledge deliveries; some clients only a part, and the rest in a later round."""
        broker, rng = self.broker, self.rng
        broker.wait(2)
        for number, session in list(self.busy.items()):
            if not session.conn or broker.sessions.get(session.client_id) is not session:
                del self.busy[number]
                continue
            for pid in list(session.incoming):
                if everything or rng.random() < 0.9:
                    broker.release_publish(session, pid)
            flights = list(session.flights)
            slow = not everything and rng.random() < 0.25
            for pid in flights[: rng.randint(0, len(flights))] if slow else flights:
                self._answer(session, pid, everything)
            if everything and not session.flights and not session.queue:
                del self.busy[number]

    def _answer(self, session: Session, pid: int, everything: bool) -> None:
        flight = session.flights[pid]
        if not flight.released:
            refuses = flight.qos == 2 and session.client.proto == 5 and self.rng.random() < 0.01
            self.broker.acknowledge(session, pid, 0x83 if refuses else 0)
        known = session.flights.get(pid)
        if known is flight and flight.released and (everything or self.rng.random() < 0.9):
            self.broker.complete(session, pid)

    def free_leases(self) -> None:
        """Acknowledge everything held by members of shared subscriptions. Call before a crash."""
        for plant in self.plants:
            for role in ("worker-a", "worker-b"):
                client = plant.clients.get(role)
                session = self.broker.sessions.get(client.client_id) if client else None
                while session is not None and session.conn and session.flights:
                    for pid in list(session.flights):
                        self.broker.acknowledge(session, pid)
