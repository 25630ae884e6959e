"""Books per minute, tenant and stage, and the checksums that tell which messages were meant."""

import random

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from audit.analytics import stage_counts
from storage.history.events import CHECK_BITS
from tests.audit.conftest import History, Views
from tests.audit.numbers import Numbers
from tests.audit.scenario import BYTES, MESSAGES

MODULUS = 1 << CHECK_BITS


def test_stages_are_counted_by_minute(whole: Numbers) -> None:
    sums: dict[str, int] = {}
    for row in whole.rows("books_minute"):
        sums[row["stage"]] = sums.get(row["stage"], 0) + row["count"]
    assert sums == {
        "accepted": MESSAGES, "stored": MESSAGES, "ack_owed": MESSAGES, "persisted": MESSAGES,
        "pub_acked": MESSAGES, "delivered": MESSAGES + 10, "acked": MESSAGES + 10,
        "dropped": 2, "expired": 1,
    }  # fmt: skip


def test_bytes_are_known_where_rows_have_them(whole: Numbers) -> None:
    rows = [row for row in whole.rows("books_minute") if row["stage"] == "accepted"]
    assert sum(row["total_bytes"] for row in rows) == MESSAGES * BYTES
    assert len(rows) == 2  # a minute each


def test_what_is_persisted_is_booked_when_it_was_accepted(whole: Numbers) -> None:
    books = {
        (row["stage"], row["minute"]): (row["count"], row["check1"], row["check2"])
        for row in whole.rows("books_minute")
    }
    for (stage, minute), numbers in books.items():
        if stage in ("persisted", "pub_acked"):
            assert numbers == books["stored", minute]


def test_checksums_are_those_of_the_broker_for_any_id(spark: SparkSession) -> None:
    """Without an overflow, for ids up to 2**63; those that no log has add nothing."""
    chosen = random.Random(5)
    ids = [chosen.randrange(1 << 63) for _ in range(400)] + [0, 1, (1 << 63) - 1, MODULUS]
    rows = spark.createDataFrame([("events", "t", 0, "accepted", 1, 0, i) for i in ids],
                                 "source string, tenant string, minute long, stage string, "
                                 "count long, total_bytes long, msg long")  # fmt: skip
    checked = rows.select("*", *stage_counts._checks(F.col("msg"))).drop("msg")
    row = stage_counts._added(checked).collect()[0]
    assert row["count"] == len(ids)
    stored = [each for each in ids if each < 1 << 62]
    assert row.check1 == sum(stored) % MODULUS
    assert row.check2 == sum((each % (1 << 30)) ** 2 for each in stored) % MODULUS


def test_books_of_two_batches_add_up(spark: SparkSession) -> None:
    half = ("broker", "t", 0, "accepted", 2, 7, MODULUS - 1, MODULUS - 5)
    names = [*stage_counts.KEYS, *stage_counts.NUMBERS]
    row = stage_counts.added_up(spark.createDataFrame([half, half], names)).collect()[0]
    assert tuple(row) == ("broker", "t", 0, "accepted", 4, 14, MODULUS - 2, MODULUS - 10)


def test_only_what_asked_for_it_is_owed_an_acknowledgement(view: Views) -> None:
    history = History()
    history.boot()
    who = {"tenant": "t", "client_id": "c", "session": 1, "conn": 1}
    unstored = 1 << 62 | 1
    history.row("msg_accepted", actor="client", **who, msg=unstored, pub_qos=0, bytes=1)
    history.row("msg_accepted", actor="client", **who, msg=2, pub_qos=2, bytes=10)
    history.row("msg_accepted", actor="broker", **{**who, "conn": 0}, msg=3, pub_qos=1, bytes=100)
    made = view(history)
    messages = stage_counts.from_events(made, _messages(made))
    found = {row.stage: (row["count"], row.total_bytes) for row in messages.collect()}
    assert found == {"accepted": (3, 111), "stored": (2, 110), "ack_owed": (1, 10)}


def _messages(made):  # type: ignore[no-untyped-def]
    from audit.analytics.messages import messages

    return messages(made, None)
