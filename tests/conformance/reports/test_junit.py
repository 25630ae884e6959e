"""The run for build servers."""

from xml.etree import ElementTree as xml

from conformance.reports.junit import render
from tests.conformance.reports.sample import EVIL, REPORT


def test_junit_is_xml_that_counts_right() -> None:
    root = xml.fromstring(render(REPORT))
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
    assert "received 40 02 00 07" in (failure.text or "")
    assert "0.500 a <- PUBACK id 7 [40 02 00 07]" in (failure.text or "")


def test_what_xml_cannot_hold_is_replaced() -> None:
    text = render(REPORT)
    root = xml.fromstring(text)
    error = root.find("testsuite/testcase/error")
    assert error is not None
    assert "<script>alert('x')</script> & \"quotes\" \ufffd\ufffd\ufffd" in (error.text or "")
    assert EVIL not in text
