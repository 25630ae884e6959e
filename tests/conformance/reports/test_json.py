"""The run for machines."""

import json as jsonlib

from conformance.reports.json import render
from tests.conformance.reports.sample import REPORT


def test_json_has_an_object_for_each_statement() -> None:
    document = jsonlib.loads(render(REPORT))
    assert document["passed"] is False
    assert document["strict"] is True
    assert document["summary"]["5.0"]["fail"] == 2
    failed = document["statements"][2]
    assert failed["packet"] == "40020007"
    assert failed["packet_from"] == "broker"
    assert failed["exchange"] == ["0.500 a <- PUBACK id 7 [40 02 00 07]"]
    assert document["statements"][4]["packet_from"] == "client"
    assert [s["outcome"] for s in document["statements"]][:2] == ["pass", "not run"]
