"""The matrix for a terminal."""

from conformance.reports.table import render
from tests.conformance.reports.sample import REPORT


def test_the_table_has_failures_in_full_and_the_summary_last() -> None:
    lines = render(REPORT).splitlines()
    start = lines.index("FAIL MQTT-3.3.1-1 (MQTT 5.0) Says MQTT-3.3.1-1.")
    assert lines[start + 1 : start + 5] == [
        "  received PUBACK",
        "  received 40 02 00 07",
        "  decoded  PUBACK id 7, 0x00 Success",
        "  expected PUBREC",
    ]
    assert "  sent     c0 00" in lines
    assert lines[-1] == REPORT.summary()
