"""The run for a browser."""

import html.parser
import re

from conformance.reports.html import render
from conformance.results import Report
from tests.conformance.reports.sample import REPORT, result


class Page(html.parser.HTMLParser):
    """Takes a page apart, and sees that every element is closed in turn."""

    VOID = frozenset({"meta", "input", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words += data


def test_the_page_is_sound_and_needs_nothing_from_elsewhere() -> None:
    text = render(REPORT)
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object")
        assert not {"src", "href", "onclick"} & set(attributes)
    assert "url(" not in text
    assert "@import" not in text
    assert "http" not in text
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    assert "<script>alert" not in text.split("<script>\n")[0]
    assert "toy <1>" in page.words


def test_the_page_has_a_row_for_each_statement_that_the_filters_find() -> None:
    text = render(REPORT)
    rows = [a for tag, a in Page(text).tags if tag == "div" and "data-outcome" in a]
    assert len(rows) == len(REPORT.results)
    assert len({row["id"] for row in rows}) == len(rows)
    outcomes = {row["data-outcome"] for row in rows}
    buttons = {a["value"] for tag, a in Page(text).tags if tag == "button"}
    assert outcomes <= buttons
    assert {"4", "5"} <= buttons
    assert re.search(r'data-words="[^"]*mqtt-3\.3\.1-1[^"]*"', text)


def test_the_page_says_who_when_and_what_came_out() -> None:
    words = Page(render(REPORT)).words
    for said in ("2026-01-02 03:04 UTC", "strict profile", "3 statements not met", "1 of 4"):
        assert said in words


def test_a_run_without_a_failure_is_said_to_be_good() -> None:
    good = Report("toy", "", (4,), False, "3.1", REPORT.date, 1.0, (result("MQTT-3.1.2-1", 4),))
    words = Page(render(good)).words
    assert "Everything that was checked is met" in words
    assert "without an adapter" in words
    assert "only 3.1" in words
