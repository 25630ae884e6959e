"""The run as JSON, one object per statement."""

import json
from typing import Any

from conformance.results import OUTCOMES, Report, Result
from conformance.statements import VERSION_NAMES


def render(report: Report) -> str:
    """Return the document; keys may be added but not removed."""
    document: dict[str, Any] = {
        "broker": report.broker,
        "adapter": report.adapter,
        "date": report.date,
        "strict": report.strict,
        "selection": report.selection,
        "seconds": round(report.seconds, 1),
        "passed": report.exit_code == 0,
        "summary": {
            VERSION_NAMES[version]: {o: report.counts(version)[o] for o in OUTCOMES}
            for version in report.versions
        },
        "statements": [_statement(result) for result in report.results],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _statement(result: Result) -> dict[str, Any]:
    return {
        "id": result.statement.id,
        "version": VERSION_NAMES[result.statement.version],
        "section": result.statement.section,
        "binds": result.statement.binds,
        "testable": result.statement.testable,
        "requirement": result.sentence,
        "outcome": result.outcome,
        "reason": result.reason,
        "packet": result.packet.hex() if result.packet else "",
        "packet_from": "client" if result.was_sent else "broker",
        "decoded": result.decoded,
        "expected": result.expected,
        "exchange": [str(line) for line in result.lines] if result.is_bad else [],
        "notes": list(result.notes),
        "check": result.check,
        "seconds": round(result.seconds, 3),
    }
