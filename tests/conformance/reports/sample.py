"""One run that has everything in it, for the tests of every form of report."""

from conformance.record import Line
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
