"""How long is a store left alone after each failure?"""

import pytest

from broker.backends.backoff import FIRST_MS, MAX_MS, Backoff
from broker.configuration.backend_options import Backend

TOLD = {"retry_first_ms": 200, "retry_max_ms": 1000}


def test_waits_double_up_to_the_limit() -> None:
    backoff = Backoff(TOLD, draw=lambda: 1.0)
    assert [backoff.failed() for _ in range(5)] == [0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_wait_is_drawn_between_half_of_it_and_all_of_it() -> None:
    assert Backoff(TOLD, draw=lambda: 0.0).failed() == 0.1
    assert Backoff(TOLD, draw=lambda: 0.75).failed() == pytest.approx(0.175)
    drawn = {Backoff(TOLD).failed() for _ in range(50)}
    assert len(drawn) > 1 and all(0.1 <= each <= 0.2 for each in drawn)


def test_after_it_worked_waits_begin_anew() -> None:
    backoff = Backoff(TOLD, draw=lambda: 1.0)
    assert not backoff.is_failing
    backoff.failed()
    backoff.failed()
    assert backoff.is_failing
    backoff.worked()
    assert not backoff.is_failing and backoff.failed() == 0.2


def test_without_options_it_waits_a_tenth_of_a_second_to_half_a_minute() -> None:
    backoff = Backoff({}, draw=lambda: 1.0)
    waits = [backoff.failed() for _ in range(20)]
    assert (waits[0], waits[-1]) == (0.1, 30.0)
    backend = Backend("cache")
    assert (backend.retry_first_ms, backend.retry_max_ms) == (FIRST_MS, MAX_MS)
