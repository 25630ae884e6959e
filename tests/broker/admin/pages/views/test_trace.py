"""Traces that are on, and the lines of one."""

from broker.admin.pages.views import trace
from broker.admin.records import Trace


def test_only_a_trace_that_was_begun_here_can_be_watched() -> None:
    found = [Trace(number, "client", "boat", "anna", 590, 3) for number in (1, 2)]
    mine, other = trace.traces(found, {1: object()})
    assert (mine["href"], other["href"]) == ("/trace/lines?trace=1", "")
    assert (other["stop"], other["left"]) == ("/trace/stop?trace=2", "9 min")


def test_a_line_says_what_it_has_and_nothing_else() -> None:
    told = {"at_ms": 1_795_780_990_123, "client_id": "boat", "direction": "in"}
    assert trace.line(told)["details"] == ""
    assert trace.line(told)["at"].endswith(".123")
    full = {**told, "packet_id": 5, "qos": 1, "reason_code": 0x87, "size": 20, "payload": "ff00"}
    line = trace.line(full)
    assert line["details"] == "packet id 5, QoS 1, reason 0x87, 20 bytes"
    assert (line["direction"], line["payload"]) == ("from it", b"\xff\x00")
