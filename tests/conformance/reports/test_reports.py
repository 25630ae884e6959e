"""Reports of one and the same run, in every form."""

import html.parser
import json as jsonlib
import re
from xml.etree import ElementTree as xml

import pytest

from conformance.record import Line
from conformance.reports import RENDERERS
from conformance.reports.chapters import chapter_name
from conformance.results import Report, Result
from conformance.statements import Statement

EVIL = "<script>alert('x')</script> & \"quotes\" \x00\x1b\ufffe"


def result(identifier: str, version: int = 5, outcome: str = "pass", **fields: object) -> Result:
    statement = Statement(identifier, version, identifier[5:8], "server", "yes", "")
    return Result(statement, outcome, f"Says {identifier}.", **fields)  # type: ignore[arg-type]


REPORT = Report(
    broker="toy <1>",
    adapter="toy",
    versions=(4, 5),
    strict=True,
    selection="",
    date="2026-01-02T03:04:05Z",
    seconds=12.3,
    results=(
        result("MQTT-3.1.2-1", 4),
        result("MQTT-3.1.2-2", 4, "not run", reason="needs a broker adapter (restart)"),
        result(
            "MQTT-3.3.1-1",
            outcome="fail",
            reason="received PUBACK",
            packet=b"\x40\x02\x00\x07",
            decoded="PUBACK id 7, 0x00 Success",
            expected="PUBREC",
            lines=(Line(0.5, "a", "<-", "PUBACK id 7", b"\x40\x02\x00\x07"),),
            check="conformance.v50.publish.mqtt_3_3_1_1",
            seconds=1.25,
        ),
        result("MQTT-3.3.1-2", outcome="error", reason=f"Traceback\n  line\n{EVIL}"),
        result("MQTT-3.3.2-1", outcome="fail", reason="x", packet=b"\xc0\x00", was_sent=True),
        result("MQTT-3.3.2-2", outcome="not testable", reason="binds the client"),
        result("MQTT-3.3.2-3", notes=("a choice of the broker", EVIL)),
    ),
)


@pytest.mark.parametrize("form", sorted(RENDERERS))
def test_every_form_names_every_statement_and_the_broker(form: str) -> None:
    text = RENDERERS[form](REPORT)
    for found in REPORT.results:
        assert found.statement.id in text
    assert "toy" in text
    assert "40 02 00 07" in text or "40020007" in text
    assert "PUBREC" in text


def test_the_table_has_failures_in_full_and_the_summary_last() -> None:
    lines = RENDERERS["table"](REPORT).splitlines()
    start = lines.index("FAIL MQTT-3.3.1-1 (MQTT 5.0) Says MQTT-3.3.1-1.")
    assert lines[start + 1 : start + 5] == [
        "  received PUBACK",
        "  received 40 02 00 07",
        "  decoded  PUBACK id 7, 0x00 Success",
        "  expected PUBREC",
    ]
    assert "  sent     c0 00" in lines
    assert lines[-1] == REPORT.summary()


def test_json_has_an_object_for_each_statement() -> None:
    document = jsonlib.loads(RENDERERS["json"](REPORT))
    assert document["passed"] is False
    assert document["strict"] is True
    assert document["summary"]["5.0"]["fail"] == 2
    failed = document["statements"][2]
    assert failed["packet"] == "40020007"
    assert failed["packet_from"] == "broker"
    assert failed["exchange"] == ["0.500 a <- PUBACK id 7 [40 02 00 07]"]
    assert document["statements"][4]["packet_from"] == "client"
    assert [s["outcome"] for s in document["statements"]][:2] == ["pass", "not run"]


def test_junit_is_xml_that_counts_right() -> None:
    root = xml.fromstring(RENDERERS["junit"](REPORT))
    assert root.tag == "testsuites"
    old, new = root.findall("testsuite")
    assert (old.get("name"), old.get("tests"), old.get("skipped")) == ("MQTT 3.1.1", "2", "1")
    assert (new.get("failures"), new.get("errors"), new.get("skipped")) == ("2", "1", "1")
    for suite in (old, new):
        assert len(suite.findall("testcase")) == int(suite.get("tests") or 0)
        for kind in ("failure", "error", "skipped"):
            name = {"failure": "failures", "error": "errors"}.get(kind, kind)
            assert len(suite.findall(f"testcase/{kind}")) == int(suite.get(name) or 0)
    failure = new.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "received PUBACK"
    assert "40 02 00 07" in (failure.text or "")


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
    text = RENDERERS["html"](REPORT)
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
    text = RENDERERS["html"](REPORT)
    rows = [a for tag, a in Page(text).tags if tag == "div" and "data-outcome" in a]
    assert len(rows) == len(REPORT.results)
    assert len({row["id"] for row in rows}) == len(rows)
    outcomes = {row["data-outcome"] for row in rows}
    buttons = {a["value"] for tag, a in Page(text).tags if tag == "button"}
    assert outcomes <= buttons
    assert {"4", "5"} <= buttons
    assert re.search(r'data-words="[^"]*mqtt-3\.3\.1-1[^"]*"', text)


def test_the_page_says_who_when_and_what_came_out() -> None:
    words = Page(RENDERERS["html"](REPORT)).words
    for said in ("2026-01-02 03:04 UTC", "strict profile", "3 statements not met", "1 of 4"):
        assert said in words


def test_a_run_without_a_failure_is_said_to_be_good() -> None:
    good = Report("toy", "", (4,), False, "3.1", REPORT.date, 1.0, (result("MQTT-3.1.2-1", 4),))
    words = Page(RENDERERS["html"](good)).words
    assert "Everything that was checked is met" in words
    assert "without an adapter" in words
    assert "only 3.1" in words


def test_chapters_are_named_by_version() -> None:
    assert chapter_name(4, "4.8") == "4.8 Errors"
    assert chapter_name(5, "4.8") == "4.8 Shared subscriptions"
    assert chapter_name(5, "X") == "Rules without a number"
