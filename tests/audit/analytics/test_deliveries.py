"""What became of deliveries, how long they took, who fell behind."""

from audit.report.summary import bucket_start_ms
from tests.audit.numbers import Numbers
from tests.audit.scenario import MESSAGES


def test_each_delivery_is_owed_once_and_ends_once(whole: Numbers) -> None:
    sums: dict[str, int] = {}
    for row in whole.rows("fates"):
        sums[row["fate"]] = sums.get(row["fate"], 0) + row["count"]
    assert sums == {"owed": 2 * MESSAGES, "delivered": MESSAGES + 10, "dropped": 2, "expired": 1}


def test_latency_is_from_stored_to_acknowledged(whole: Numbers) -> None:
    latency = {row["client_id"]: row for row in whole.rows("latency")}
    assert latency["reader"]["count"] == MESSAGES
    assert (
        bucket_start_ms(latency["reader"]["bucket"])
        <= 7
        < 2 * bucket_start_ms(latency["reader"]["bucket"])
    )
    assert bucket_start_ms(latency["laggard"]["bucket"]) > 60_000


def test_a_backlog_is_what_is_owed_less_what_is_done(whole: Numbers) -> None:
    rows = whole.rows("backlog")
    assert {row["client_id"] for row in rows} == {"laggard"}  # the reader keeps up
    level = 0
    levels = []
    for row in sorted(rows, key=lambda row: row["minute"]):
        level += row["delta"]
        levels.append(level)
    assert levels[-1] == 47
    assert max(levels) == 57
