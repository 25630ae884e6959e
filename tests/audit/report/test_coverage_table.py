"""The table of what could be tested."""

import re

import pytest

from audit.report import coverage
from audit.report import page as report
from audit.report.coverage import Cell
from audit.report.summary import Traced
from tests.audit import pictures

OF_MESSAGES = "DFOE"
OF_SESSIONS = "S"
OF_BOTH = "WR"


def cell(letters: str, *spans: tuple[int, str], sample: int = 1) -> Cell:
    """Return the cell of a broker of which that was recorded."""
    checks = [check for check in pictures.checks() if check.id[0] in letters]
    return coverage.cell(checks, pictures.recorded("n", *spans, sample=sample))


@pytest.mark.parametrize("letters", ["H", "L", OF_MESSAGES, OF_SESSIONS, OF_BOTH, "G"])
def test_where_everything_was_recorded_everything_could_be_tested(letters: str) -> None:
    assert cell(letters, (60, "full")) == Cell("ok", "yes")


def test_without_messages_deliveries_could_not_be_tested() -> None:
    spans = (60, "sessions")
    assert cell(OF_MESSAGES, spans) == Cell("unknown", "no", "detail books")
    assert cell(OF_SESSIONS, spans) == Cell("ok", "yes", "not what was in flight")
    assert cell(OF_BOTH, spans) == Cell("unknown", "in part", "only W1")
    assert cell("G", spans) == Cell("ok", "yes")


def test_a_part_of_the_time_is_never_rounded_to_all_or_nothing() -> None:
    assert cell("L", (30, "full"), (30, "sessions")).note == "50 % of the time"
    assert cell("L", (100_000, "full"), (1, "nothing")).note == "99 % of the time"
    assert cell("L", (1, "full"), (100_000, "nothing")).note == "1 % of the time"
    assert cell("L", (0, "full"), (0, "nothing")).word == "in part"


def test_a_sample_is_named() -> None:
    assert cell("L", (60, "sample"), sample=50) == Cell("ok", "yes", "1 message in 50")
    assert cell("G", (60, "sample"), sample=50) == Cell("ok", "yes")
    assert cell("L", (60, "lowered"), sample=100).word == "no"


@pytest.mark.parametrize("letters", ["H", "L", OF_MESSAGES, OF_SESSIONS, OF_BOTH, "G"])
def test_where_nothing_was_recorded_nothing_could_be_tested(letters: str) -> None:
    assert cell(letters, (60, "nothing")) == Cell("unknown", "no", "nothing recorded")


def test_the_brokers_with_most_missing_come_first_and_the_others_are_counted() -> None:
    picture = pictures.uneven()
    for number in range(60):
        picture.coverage += pictures.recorded(f"good-{number:02}", (240, "full"))
    page = report.render(picture)
    table = page[page.index('id="coverage-title"') : page.index('id="what-title"')]
    nodes = re.findall(r'<th scope="row"><bdi>([^<]+)</bdi>', table)
    assert nodes[0] == "holdfast-6"
    assert set(nodes[:5]) >= {"holdfast-2", "holdfast-3", "holdfast-5.plant-a.example"}
    assert len(nodes) == 40
    assert "and 26 more brokers" in table


def test_a_page_without_a_broker_has_no_table() -> None:
    assert 'id="coverage-title"' not in report.render(pictures.empty())


def test_an_invariant_that_was_not_tested_everywhere_says_where() -> None:
    page = report.render(pictures.uneven())
    assert re.search(r'<a class="tile unknown" href="#D1">.*?not recorded everywhere', page)
    assert "holdfast-2, 2026-11-01 08:00:00 to 12:00:00 UTC: single messages were not" in page
    assert "All 20 invariants hold" not in page


def test_what_traces_had_recorded_is_told_with_what_of_it_was_not_judged() -> None:
    picture = pictures.uneven()
    assert "by a trace" not in coverage.table(picture, [("Sessions", ("S",))])
    picture.traces = [Traced("n", "c", 1, 0), Traced("n", "c", 2, 0), Traced("n", "d", 1, 0)]
    said = coverage.table(picture, [("Sessions", ("S",))])
    assert "2 clients recorded in full by a trace: 4 sessions judged there.</p>" in said
    picture.traces.append(Traced("n", "e", 0, 7))
    said = coverage.table(picture, [("Sessions", ("S",))])
    assert "4 sessions judged there, 7 sessions not judged: there are too many." in said
