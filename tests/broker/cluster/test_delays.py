"""How long what was begun took, and how long what was not reached has waited."""

import pytest

from broker.cluster import delays
from broker.cluster.delays import Delay


def test_what_was_reached_counts_with_its_time() -> None:
    delay = Delay()
    delay.begin(5, 10.0)
    delay.begin(7, 11.0)
    assert delay.age(12.0) == 2.0
    delay.reach(4, 12.0)
    assert (delay.count, delay.seconds) == (0, 0.0)
    delay.reach(6, 12.0)
    assert (delay.count, delay.seconds, delay.age(12.5)) == (1, 2.0, 1.5)
    delay.reach(9, 13.0)
    assert (delay.count, delay.seconds, delay.age(99.0)) == (2, 4.0, 0.0)


def test_what_is_begun_again_is_no_news() -> None:
    delay = Delay()
    delay.begin(5, 10.0)
    delay.begin(5, 20.0)
    delay.reach(5, 30.0)
    assert (delay.count, delay.seconds) == (1, 20.0)


def test_it_keeps_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays, "WAITING_MAX", 2)
    delay = Delay()
    for index in range(5):
        delay.begin(index, float(index))
    delay.reach(9, 10.0)
    assert delay.count == 2
