"""The rate meter: bursts, the long run, and what it says how long to wait."""

from hypothesis import given
from hypothesis import strategies as st

from session.live.rate_meter import Meter


def test_a_burst_of_a_second_may_come_at_once() -> None:
    meter = Meter(10)
    assert [meter.take(1, 5000) for _ in range(10)] == [0] * 10
    assert meter.take(1, 5000) == 100


def test_the_wait_ends_when_everything_has_come_at_the_rate() -> None:
    meter = Meter(10)
    assert meter.take(15, 5000) == 500
    assert meter.take(0, 5499) == 1
    assert meter.take(0, 5500) == 0


def test_a_silence_gives_no_more_than_one_burst() -> None:
    meter = Meter(10)
    assert meter.take(10, 1000) == 0
    assert meter.take(10, 3_600_000) == 0
    assert meter.take(1, 3_600_000) == 100


def test_no_pause_is_longer_than_five_seconds() -> None:
    meter = Meter(1)
    assert meter.take(500, 1000) == 5000
    assert meter.take(1, 6000) == 1000


def test_what_is_refused_is_not_counted() -> None:
    meter = Meter(2)
    assert [meter.try_take(1000) for _ in range(5)] == [True, True, False, False, False]
    assert meter.try_take(1500)
    assert not meter.try_take(1500)


@given(
    st.integers(50, 1000),
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 50)), max_size=60),
)
def test_who_waits_as_told_never_exceeds_rate_and_burst(
    per_second: int, steps: list[tuple[int, int]]
) -> None:
    meter = Meter(per_second)
    now = start = 1_000_000
    taken = 0
    for pause, count in steps:
        now += pause
        now += meter.take(count, now)
        taken += count
        assert taken <= per_second * (now - start) / 1000 + per_second + 1
