"""From tables to what a person looks at: sums, bins, times of gaps, byte-hours."""

import pytest
from pyspark.sql import SparkSession

from audit.analytics import merge
from audit.report.summary import Boot, Gap, Picture
from tests.audit.numbers import Numbers
from tests.audit.scenario import BYTES, FLAPS, MESSAGES

HOUR = 3_600_000_000


@pytest.fixture(scope="module")
def shown(spark: SparkSession, halves: Numbers) -> Picture:
    """The picture of the scenario, merged from two batches."""
    return merge.picture(spark, str(halves.out), halves.document, made_us=0, seconds=1.5)


def test_the_frame_is_what_the_verdict_says(shown: Picture) -> None:
    assert shown.outcome == "ok"
    assert [(boot.boot, boot.end) for boot in shown.boots] == [(1, "crash"), (2, "clean")]
    assert (shown.batches, shown.details, shown.seconds) == (2, ["full"], 1.5)


def test_books_of_all_batches_are_one(shown: Picture) -> None:
    assert sum(minute.stages.get("accepted", 0) for minute in shown.minutes) == MESSAGES
    assert sum(minute.stages.get("pub_acked", 0) for minute in shown.minutes) == MESSAGES
    assert [b.at_us - a.at_us for a, b in zip(shown.minutes, shown.minutes[1:], strict=False)] == (
        [shown.bin_s * 1_000_000] * (len(shown.minutes) - 1)
    )


def test_who_talks_and_who_comes_and_goes(shown: Picture) -> None:
    talker = shown.talkers[0]
    assert (talker.client_id, talker.messages, talker.total_bytes) == (
        "gateway", MESSAGES, MESSAGES * BYTES,
    )  # fmt: skip
    assert (shown.churn[0].client_id, shown.churn[0].connects) == ("flapper", FLAPS)


def test_what_was_dropped_has_a_name(shown: Picture) -> None:
    assert [(drop.reason, drop.count) for drop in shown.drops] == [("queue_full", 2)]
    assert (shown.expired, shown.expired_bytes) == (1, BYTES)


def test_retained_topics_add_up_from_batch_to_batch(shown: Picture) -> None:
    assert shown.retained[-1][1:] == (1, 15)


def test_oddities_are_found_over_all_batches(shown: Picture) -> None:
    kinds = {finding.kind: finding for finding in shown.findings}
    assert kinds["flapping"].subject == "flapper"
    assert "-3600 s" in kinds["clock_step"].reason
    assert "books" not in kinds


def test_findings_are_a_table(spark: SparkSession, shown: Picture, halves: Numbers) -> None:
    for _ in range(2):  # written again it is not doubled
        merge.write_findings(spark, str(halves.out), shown.findings)
    assert {row["kind"] for row in halves.rows("findings")} == {"flapping", "clock_step"}
    assert len(halves.rows("findings")) == len(shown.findings)


def test_byte_hours_are_level_times_time() -> None:
    """100 bytes come in the middle of hour 0, 60 go at the start of hour 2; it ends in hour 3."""
    changes = {0: (100, 100 * 1800.0), 2 * HOUR: (-60, -60 * 3600.0)}
    assert merge.byte_hours(changes, 3 * HOUR + HOUR // 2) == [
        (0, 50.0), (HOUR, 100.0), (2 * HOUR, 40.0), (3 * HOUR, 20.0),
    ]  # fmt: skip


def test_the_hour_that_is_not_over_is_billed_so_far() -> None:
    changes = {0: (100, 100 * 3600.0)}
    assert merge.byte_hours(changes, HOUR // 4) == [(0, 25.0)]


@pytest.mark.parametrize(
    ("minutes", "bin_s"), [(1, 60), (240, 60), (241, 120), (1440, 600), (60 * 24 * 60, 21600)]
)
def test_a_chart_never_has_too_many_bins(minutes: int, bin_s: int) -> None:
    assert merge._bin_s(minutes * 60_000_000) == bin_s


def test_years_still_fit_a_chart() -> None:
    span = 3650 * 86_400_000_000
    assert span / (merge._bin_s(span) * 1_000_000) <= merge.BINS_MAX


ROW = {"node": "a", "first_us": 0, "last_us": 1, "clean": False}
MISSING = {"node": "a", "boot": 1, "seq": 5, "after_boot": 2}
CHANGED = {"node": "a", "boot": 2, "seq": 5}
ON_DISK = {"node": "a", "boot": 1, "seq": 5, "to_seq": 6}
ELSEWHERE = {"node": "b", "boot": 2}


def lives(
    losses: list[dict[str, object]], *, violated: int, unknown: int = 0, begins: int | None = None
) -> list[Boot]:
    """Return two boots, with what all batches found of S5."""
    boots = [{**ROW, "boot": 1}, {**ROW, "boot": 2, "recovered_count": 7}]
    start = {"node": "a", "from_gseq": 0, "to_gseq": (begins or 0) << 40 | 9}
    totals = {"checked": 9, "violated": violated, "unknown": unknown}
    document = {"boots": boots, "gaps": [start] if begins else [], "totals": {"S5": totals}}
    return merge._boots(document, losses)


@pytest.mark.parametrize(
    ("losses", "violated", "unknown", "before", "lost"),
    [
        ([], 0, 0, 7, 0),
        ([], 0, 1, None, 0),
        ([MISSING, CHANGED, ON_DISK, ELSEWHERE], 4, 0, None, 3),
        ([ELSEWHERE], 1, 0, 7, 0),
        ([ELSEWHERE], 200, 0, None, 0),
    ],
)
def test_what_survived_a_crash_is_what_the_next_boot_found(
    losses: list[dict[str, object]], violated: int, unknown: int, before: int | None, lost: int
) -> None:
    """Only where every loss is named, in whichever batch it was found, the others are none."""
    first, second = lives(losses, violated=violated, unknown=unknown)
    assert (first.end, first.sessions_before, first.sessions_after, first.lost) == (
        "crash", before, 7, lost,
    )  # fmt: skip
    assert (second.end, second.sessions_after) == ("open", None)


def test_what_was_there_before_the_history_began_cannot_be_missed() -> None:
    first, _ = lives([], violated=0, begins=1)
    assert (first.sessions_before, first.sessions_after) == (None, 7)


def document(**gap: object) -> dict[str, object]:
    """Return what a verdict says of one boot of 1,001 rows in 1,000 seconds, and one gap."""
    whole = {"node": "a", "reason": "rows are missing", "kind": "hole", "explained": False}
    boot = {"node": "a", "boot": 1, "first_seq": 1, "last_seq": 1001, "first_us": 0,
            "last_us": 1_000_000_000}  # fmt: skip
    return {"boots": [boot], "gaps": [{**whole, **gap}]}


def test_a_gap_lies_between_the_rows_around_it() -> None:
    (gap,) = merge._gaps(document(from_gseq=1 << 40 | 201, to_gseq=1 << 40 | 300))
    assert (gap.from_us, gap.to_us, gap.count) == (200_000_000, 299_000_000, 100)
    assert "Nothing explains it." in gap.detail


def test_a_gap_without_an_end_lasts_until_the_last_row() -> None:
    (gap,) = merge._gaps(
        document(from_gseq=1 << 40 | 501, to_gseq=1 << 40 | (1 << 40) - 1, kind="messages")
    )
    assert (gap.from_us, gap.to_us, gap.count) == (500_000_000, 1_000_000_000, None)


def test_what_was_before_the_history_is_no_gap_of_it() -> None:
    assert merge._gaps(document(from_gseq=0, to_gseq=1 << 40)) == []


def test_books_that_differ_are_found_where_nothing_explains_it(spark: SparkSession) -> None:
    def line(minute: int, source: str, stage: str, count: int) -> tuple[object, ...]:
        return (source, "t", minute * 60_000_000, stage, count, 0, count, count)

    rows = []
    for minute in range(10):
        rows.append(line(minute, "broker", "accepted", 5))
        rows.append(line(minute, "events", "accepted", 4 if minute in (0, 2, 5) else 5))
        rows.append(line(minute, "broker", "stored", 5))
        rows.append(line(minute, "broker", "persisted", 4 if minute == 7 else 5))
        rows.append(line(minute, "broker", "ack_owed", 5))
        if minute != 7:
            rows.append(line(minute, "broker", "pub_acked", 3 if minute in (1, 2) else 5))
        if minute == 1:
            rows.append(line(minute, "broker", "unanswered", 2))
    books = spark.createDataFrame(
        rows,
        "source string, tenant string, minute long, stage string, count long, total_bytes long, "
        "check1 long, check2 long",
    )
    shown = Picture("", "ok", [], 0)
    shown.boots = [Boot("a", 1, 0, 600_000_000, "open")]
    shown.gaps = [Gap("a", 1, 300_000_000, 310_000_000, "hole", 3)]
    found = merge._differences(books, shown)
    assert sorted((d.minute_us // 60_000_000, d.stage, d.other) for d in found) == [
        (2, "accepted", "the events"),
        (2, "pub_acked", "stage ack_owed"),
        (7, "persisted", "stage stored"),
        (7, "pub_acked", "stage ack_owed"),
    ]  # fmt: skip
