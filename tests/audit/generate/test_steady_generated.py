"""Stamped traffic: patterns repeated with the numbers of their place."""

import random

import numpy as np

from audit.generate.model import Broker
from audit.generate.state import UNSTORED
from audit.generate.steady import Fleet, Plan
from storage.history import events as ev


def plan_of(ticks: int) -> Plan:
    broker = Broker("n", 1_000_000_000_000)
    broker.boot(broker.now)
    fleet = Fleet(broker, random.Random(1), 8, ("acme", "cobalt"))
    fleet.connect()
    patterns = [fleet.pattern(0.8), fleet.pattern(0.5)]
    return Plan(patterns, np.arange(ticks), np.arange(ticks) % 2)


def test_offsets_of_a_tick_follow_its_base() -> None:
    plan = plan_of(4)
    bases = 1 + np.cumsum(plan.stored) - plan.stored
    columns = plan.stamp(0, 4, bases, 1)
    accepted = columns["msg"][columns["ev"] == ev.MSG_ACCEPTED]
    stored = accepted[accepted < UNSTORED]
    assert sorted(stored.tolist()) == list(range(1, int(plan.stored.sum()) + 1))
    assert len(set(accepted.tolist())) == len(accepted)


def test_stamping_in_parts_is_the_same_as_at_once() -> None:
    plan = plan_of(6)
    bases = np.arange(6) * 1000
    whole = plan.stamp(0, 6, bases, 1)
    parts = [plan.stamp(low, low + 3, bases[low : low + 3], 1) for low in (0, 3)]
    for name in ("msg", "pid", "who"):
        assert np.array_equal(whole[name], np.concatenate([part[name] for part in parts]))


def test_a_session_never_has_one_packet_id_twice_in_a_tick() -> None:
    plan = plan_of(300)
    columns = plan.stamp(0, 300, np.arange(300) * 1000, 1)
    sent = (columns["ev"] == ev.MSG_DELIVERED) & (columns["pid"] > 0)
    keys = list(zip(*(columns[n][sent].tolist() for n in ("tick", "who", "pid")), strict=True))
    assert len(set(keys)) == len(keys) > 1000
