"""The verdicts of all runs: a mark each, and what changed."""

from audit.report import page as report
from audit.report import trend
from tests.audit import pictures


def document(batch: int, status: str, violated: int = 0, suppressed: int = 0) -> dict[str, object]:
    """Return what verdict.json of a run says, of what the strip needs."""
    return {
        "batch": batch, "status": status, "rows": 10, "to": "2026-11-01T08:00:00.000+00:00",
        "invariants": {"L2": {"status": status, "violated": violated, "unknown": 1,
                              "suppressed": suppressed}},
    }  # fmt: skip


def test_a_run_is_what_its_verdict_says() -> None:
    run = trend.run_of(document(3, "violated", 5, 2))
    assert (run.batch, run.status, run.violated, run.unknown) == (3, "violated", 3, 1)
    assert run.to_us == pictures.BEGIN
    old = document(0, "ok")
    del old["invariants"]["L2"]["suppressed"]  # type: ignore[index]
    assert trend.run_of(old).violated == 0


def test_what_changed_since_the_run_before_is_told() -> None:
    runs = [trend.run_of(document(0, "ok")), trend.run_of(document(1, "violated", 1))]
    assert trend.changes(runs) == ["L2: violated, ok before"]
    assert trend.changes(runs[:1]) == []


def test_one_run_is_no_trend() -> None:
    picture = pictures.busy()
    assert 'id="trend-title"' not in report.render(picture)
    picture.runs = pictures.runs(1)
    assert 'id="trend-title"' not in report.render(picture)


def test_every_run_has_a_mark_with_words_and_no_more_than_fit() -> None:
    picture = pictures.violated()
    page = report.render(picture)
    assert page.count("history up to") == 31
    assert "run 30: violated" in page
    assert "Since the run before: L2: violated, ok before." in page
    picture.runs = pictures.runs(200)
    assert report.render(picture).count("history up to") == trend.RUNS_MAX
