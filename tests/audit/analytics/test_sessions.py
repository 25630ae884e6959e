"""Absences, ages, comings and goings, retained topics."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from audit.analytics import sessions
from audit.report.summary import BUCKET_MAX, BUCKET_MIN, bucket_start_ms
from tests.audit.conftest import History, Views
from tests.audit.numbers import Numbers
from tests.audit.scenario import FLAPS


def test_absences_are_counted_in_half_octaves(whole: Numbers) -> None:
    rows = [row for row in whole.rows("durations") if row["kind"] == "offline"]
    away = {row["tenant"]: (row["bucket"], row["count"]) for row in rows}
    assert away["other"] == (0, FLAPS - 1)  # a millisecond each
    bucket, times = away["plant"]
    assert times == 2
    assert bucket_start_ms(bucket) <= 60_000 < bucket_start_ms(bucket + 1)


@pytest.mark.parametrize("micros", [0, 1, 1000, 1414, 1415, 2000, 60_000_000, 10**15])
def test_a_duration_is_in_the_bucket_that_starts_below_it(spark: SparkSession, micros: int) -> None:
    frame = spark.range(1).select(sessions.bucket_of(F.lit(micros).cast("long")))
    bucket = frame.collect()[0][0]
    assert BUCKET_MIN <= bucket <= BUCKET_MAX
    if BUCKET_MIN < bucket < BUCKET_MAX:
        assert bucket_start_ms(bucket) <= micros / 1000 < bucket_start_ms(bucket + 1)


def test_every_client_has_its_connects_and_takeovers(whole: Numbers) -> None:
    clients = {row["client_id"]: row for row in whole.rows("clients")}
    assert (clients["flapper"]["connects"], clients["flapper"]["takeovers"]) == (FLAPS, FLAPS)
    assert (clients["reader"]["connects"], clients["reader"]["lost"]) == (2, 1)
    assert clients["laggard"]["lost"] == 0  # the broker crashed: nothing the client did


def test_a_crash_is_no_disconnect_of_a_client(whole: Numbers) -> None:
    assert sum(row["ends"] for row in whole.rows("moves")) == FLAPS + 1


def test_retained_topics_count_once_until_they_are_cleared(whole: Numbers) -> None:
    rows = whole.rows("retained")
    assert sum(row["topics"] for row in rows) == 1
    assert sum(row["bytes"] for row in rows) == 15


def test_a_topic_retained_before_the_batch_is_not_counted_again(view: Views) -> None:
    history = History()
    history.boot()
    history.row("retained_set", topic="a", msg=1, bytes=10)
    history.row("retained_set", topic="a", msg=2, bytes=14)
    made = view(history)
    carried = F.col("seq") == 2
    object.__setattr__(made, "rare", made.rare.withColumn("carried", carried))
    rows = sessions.retained(made).collect()
    assert [(row.topics, row.bytes) for row in rows] == [(0, 4)]
    kept = sessions.still_retained(made).collect()
    assert [row.gseq & 0xFF for row in kept] == [3]


def test_a_session_has_an_age_when_it_ends(view: Views) -> None:
    history = History()
    history.boot()
    who = {"tenant": "t", "client_id": "c", "session": 5}
    history.row("session_created", **who, conn=1)
    history.row("session_disconnected", **who, conn=1, reason=0, wait=10)
    history.row("session_expired", **who, conn=0, wait=90)
    rows = sessions.durations(view(history)).collect()
    found = {row.kind: row.bucket for row in rows}
    assert bucket_start_ms(found["age"]) <= 100_000 < bucket_start_ms(found["age"] + 1)
    assert bucket_start_ms(found["offline"]) <= 90_000 < bucket_start_ms(found["offline"] + 1)


def test_clock_steps_are_kept_with_their_words(whole: Numbers) -> None:
    (row,) = whole.rows("clock_steps")
    assert (row["node"], row["detail"]) == ("a", "-3600 s")
