"""The run as JUnit XML, for the test reports of CI servers."""

import re
from typing import Final
from xml.etree import ElementTree as xml

from conformance.reports.table import describe
from conformance.results import Report, Result, count
from conformance.statements import VERSION_NAMES

# What XML 1.0 cannot hold, not even escaped.
_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> str:
    """Return the document: a suite per version, a case per statement."""
    root = xml.Element("testsuites", name=_clean(f"MQTT conformance of {report.broker}"))
    for version in report.versions:
        results = [r for r in report.results if r.statement.version == version]
        counts = count(results)
        suite = xml.SubElement(
            root,
            "testsuite",
            name=f"MQTT {VERSION_NAMES[version]}",
            tests=str(len(results)),
            failures=str(counts["fail"]),
            errors=str(counts["error"]),
            skipped=str(counts["not run"] + counts["not testable"]),
            time=f"{sum(r.seconds for r in results):.3f}",
            timestamp=report.date,
        )
        for result in results:
            suite.append(_case(result))
    xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(root, "unicode") + "\n"


def _case(result: Result) -> xml.Element:
    version = VERSION_NAMES[result.statement.version]
    case = xml.Element(
        "testcase",
        classname=f"mqtt-{version}.section-{result.statement.section}",
        name=_clean(f"{result.statement.id} {result.sentence}"),
        time=f"{result.seconds:.3f}",
    )
    first = _clean(result.reason.strip().split("\n")[0])
    if result.is_bad:
        kind = "failure" if result.outcome == "fail" else "error"
        node = xml.SubElement(case, kind, message=first, type=result.outcome)
        exchange = ["  exchange", *(f"    {line}" for line in result.lines)] if result.lines else []
        node.text = _clean("\n".join([*describe(result), *exchange]))
    elif result.outcome != "pass":
        xml.SubElement(case, "skipped", message=f"{result.outcome}: {first}")
    if result.notes:
        xml.SubElement(case, "system-out").text = _clean("\n".join(result.notes))
    return case


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
