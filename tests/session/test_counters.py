"""Plain integers count, and power-of-two buckets put every sample where Prometheus expects it."""

import pytest

from session.counters import BUCKETS_MAX, CONNECT_RESULTS, REFUSALS, Counters, LogBuckets


@pytest.mark.parametrize(
    ("value", "bucket"),
    [(0, 0), (-5, 0), (0.5, 0), (1, 0), (1.5, 1), (2, 1), (2.5, 2), (4, 2), (4.5, 3), (5, 3)],
)
def test_a_sample_falls_in_the_smallest_bucket_that_holds_it(value: float, bucket: int) -> None:
    buckets = LogBuckets(1.0)
    buckets.add(value)
    assert buckets.buckets.index(1) == bucket


def test_a_huge_sample_falls_in_the_last_bucket() -> None:
    buckets = LogBuckets(1e-6)
    buckets.add(1e9)
    assert buckets.buckets[BUCKETS_MAX - 1] == 1


def test_cumulative_bounds_ascend_and_end_unbounded_with_every_sample() -> None:
    buckets = LogBuckets(1e-6)
    for value in (1e-7, 3e-6, 0.004, 1e9):
        buckets.add(value)
    bounds = [bound for bound, _ in buckets.cumulative()]
    counts = [count for _, count in buckets.cumulative()]
    assert bounds == sorted(bounds)
    assert bounds[-1] == float("inf")
    assert counts == sorted(counts)
    assert counts[-1] == buckets.count == 4
    assert buckets.total == pytest.approx(1e9 + 0.004 + 3e-6 + 1e-7)


def test_every_sample_is_at_or_below_its_cumulative_bound() -> None:
    for exponent in range(25):
        for factor in (0.99, 1.0, 1.01):
            value = factor * 2.0**exponent
            buckets = LogBuckets(1.0)
            buckets.add(value)
            bound = next(bound for bound, count in buckets.cumulative() if count)
            assert value <= bound
            assert bound <= max(1.0, 2 * value)


def test_drops_are_counted_by_known_reasons_only() -> None:
    counters = Counters()
    counters.drop("queue_full")
    counters.drop("queue_full", 2)
    assert counters.dropped["queue_full"] == 3
    with pytest.raises(AssertionError):
        counters.drop("made up by a client")


def test_refusals_are_counted_by_listener_and_known_results_only() -> None:
    counters = Counters()
    counters.add_listener("tcp")
    counters.refuse("tcp", "malformed")
    counters.add_listener("tcp")
    counters.refuse("web", "malformed")
    assert counters.refused["tcp"] == {**dict.fromkeys(REFUSALS, 0), "malformed": 1}
    assert counters.refused["web"]["malformed"] == 1
    assert counters.connects["malformed"] == 2
    for result in ("accepted", "made up by a client"):
        with pytest.raises(AssertionError):
            counters.refuse("tcp", result)
    assert set(REFUSALS) < set(CONNECT_RESULTS)


def test_publishes_sent_are_counted_once_and_shown_by_type() -> None:
    counters = Counters()
    counters.messages_sent[0] = 2
    counters.messages_sent[1] = 3
    counters.packets_sent[4] = 7
    sent = counters.sent_by_type()
    assert (sent[3], sent[4], sum(sent)) == (5, 7, 12)
