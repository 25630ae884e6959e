"""Histograms of durations in half octaves."""

import pytest

from audit.report.summary import Backlog, Histogram, Talker, bucket_start_ms


def test_two_buckets_are_an_octave() -> None:
    assert bucket_start_ms(0) == 1.0
    assert bucket_start_ms(2) == 2.0
    assert bucket_start_ms(-2) == 0.5


def test_a_quantile_lies_in_the_bucket_that_holds_it() -> None:
    durations = Histogram({0: 50, 10: 49, 40: 1})
    median = durations.quantile_ms(0.5)
    assert median == pytest.approx(bucket_start_ms(1))
    ninety = durations.quantile_ms(0.9)
    assert ninety is not None
    assert bucket_start_ms(10) <= ninety <= bucket_start_ms(11)
    assert durations.quantile_ms(1.0) == pytest.approx(bucket_start_ms(41))


def test_nothing_has_no_quantile() -> None:
    assert Histogram().quantile_ms(0.5) is None
    assert Histogram({3: 0}).quantile_ms(0.5) is None


def test_fan_out_is_deliveries_per_message() -> None:
    assert Talker("", "a", 4, 0, 10).fan_out == 2.5
    assert Talker("", "a", 4, 0, None).fan_out is None
    assert Talker("", "a", 0, 0, 10).fan_out is None


def test_the_worst_of_a_backlog_is_its_highest_point() -> None:
    assert Backlog("", "a", [(0, 3), (1, 9), (2, 4)], 1).worst == 9
    assert Backlog("", "a", [], 0).worst == 0
