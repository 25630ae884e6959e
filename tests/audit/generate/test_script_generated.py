"""The clients act by the seed alone."""

import random

from audit.generate.model import Broker
from audit.generate.script import Cast, Plant
from audit.generate.state import SECOND
from storage.history import events as ev


def played(seed: int) -> Broker:
    broker = Broker("n", 60 * SECOND)
    broker.boot(broker.now)
    cast = Cast(broker, random.Random(seed), 6)
    for _ in range(60):
        broker.turn(broker.now + SECOND)
        cast.act(2)
        broker.commit()
        cast.acknowledge()
    cast.free_leases()
    return broker


def test_the_same_seed_plays_the_same() -> None:
    assert played(1).rows == played(1).rows
    assert played(1).rows != played(2).rows


def test_clients_do_all_sorts_of_things() -> None:
    kinds = {row["ev"] for row in played(3).rows}
    assert {ev.SESSION_RESUMED, ev.SESSION_TAKEN_OVER, ev.MSG_COMPLETED, ev.WILL_ARMED} <= kinds


def test_before_a_crash_no_member_of_a_group_holds_a_message() -> None:
    broker = played(4)
    flights = [f for session in broker.sessions.values() for f in session.flights.values()]
    assert flights
    assert all(flight.group is None for flight in flights)


def test_a_publisher_has_one_qos_per_topic() -> None:
    plant = Plant(3, random.Random(1))
    for topics in plant.topics.values():
        assert len({topic for topic, _ in topics}) == len(topics)


def test_who_takes_over_has_the_subscriptions_of_the_role() -> None:
    broker = Broker("n", 60 * SECOND)
    broker.boot(broker.now)
    cast = Cast(broker, random.Random(5), 1)
    (plant,) = cast.plants
    anew = 0
    for _ in range(100):
        before = cast.session(plant, "store")
        cast._take_over(plant, "store")
        after = broker.sessions[before.client_id]
        anew += after is not before
        assert set(after.subs) == {f"{plant.root}/temperature"}
    assert 0 < anew < 50
