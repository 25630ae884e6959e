"""Which lines a trace wants, how many it keeps, and when it ends."""

import json

import pytest

from broker.operations.tracing.traces import (
    FOR_MS_MAX,
    LINES_MAX,
    LINES_PER_SECOND_MAX,
    TRACES_MAX,
    UNREAD_MS_MAX,
    Trace,
    TraceError,
    Traces,
    cut_names,
)


def trace(kind: str, value: str) -> Trace:
    return Trace(1, kind, value, "anna", 1000, 0)


def test_a_client_is_wanted_by_its_whole_name() -> None:
    one = trace("client", "boat-1")
    assert one.wants_client("boat-1", "10.0.0.1:5") and not one.wants_client("boat-17", "")
    assert not one.wants_topic("boat-1")


@pytest.mark.parametrize(
    ("value", "remote", "is_wanted"),
    [
        ("10.0.0.7", "10.0.0.7:1883", True),
        ("10.0.0.7", "10.0.0.70:1883", False),
        ("10.0.0.0/8", "10.255.0.1:9", True),
        ("10.0.0.9/8", "10.255.0.1:9", True),
        ("10.0.0.0/8", "[::ffff:10.1.1.1]:9", True),
        ("10.0.0.0/8", "[fd00::1]:9", False),
        ("fd00::/8", "[fd00::1]:9", True),
        ("fe80::/10", "[fe80::1%eth0]:9", True),
        ("10.0.0.0/8", "/run/socket", False),
        ("10.0.0.0/8", "", False),
    ],
)
def test_an_address_is_wanted_by_its_network(value: str, remote: str, is_wanted: bool) -> None:
    assert trace("address", value).wants_client("anyone", remote) is is_wanted


def test_a_topic_is_wanted_by_the_filter() -> None:
    one = trace("topic", "a/+")
    assert one.wants_topic("a/b") and not one.wants_topic("a/b/c") and not one.wants_topic("")
    assert not one.wants_client("a/b", "")


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("address", "10.0.0", "address '10.0.0': expected one such as"),
        ("topic", "a/#/b", "must be last"),
        ("user", "anna", "expected client, topic, address"),
    ],
)
def test_what_cannot_be_traced_is_refused(kind: str, value: str, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        trace(kind, value)


def test_a_trace_keeps_a_number_of_lines_and_counts_the_others() -> None:
    one = trace("client", "c")
    for number in range(LINES_MAX + 7):
        if one.has_room(number * 1000):
            one.add({"number": number})
    text, left_out = one.take(100)
    found = json.loads(text)
    assert left_out == 0 and found[0] == {"number": 0}  # those left out came behind what waits
    assert len(text) < 200 and len(found) > 3
    text, left_out = one.take(1 << 30)
    assert len(found) + len(json.loads(text)) == LINES_MAX and left_out == 7
    assert one.take(1 << 30) == ("[]", 0)


def test_a_trace_makes_a_number_of_lines_a_second() -> None:
    one = trace("client", "c")
    assert sum(one.has_room(5_000 + number % 1000) for number in range(2500)) == (
        LINES_PER_SECOND_MAX
    )
    assert one.has_room(6_000)


def test_the_number_of_traces_and_their_time_are_limited() -> None:
    traces = Traces()
    for wrong in (0, FOR_MS_MAX + 1):
        with pytest.raises(TraceError, match="expected 1 ms to 24 h"):
            traces.add("client", "c", "anna", now_ms=0, for_ms=wrong, payload_bytes=0)
    for _ in range(TRACES_MAX):
        traces.add("client", "c", "anna", now_ms=0, for_ms=1000, payload_bytes=10**9)
    with pytest.raises(TraceError, match="8 traces are on already"):
        traces.add("client", "c", "anna", now_ms=0, for_ms=1000, payload_bytes=0)
    assert {each.payload_bytes for each in traces} == {256}


def test_a_trace_ends_with_its_time_or_when_nobody_reads_it() -> None:
    traces = Traces()
    short = traces.add("client", "c", "anna", now_ms=0, for_ms=1000, payload_bytes=0)
    long = traces.add("client", "c", "anna", now_ms=0, for_ms=FOR_MS_MAX, payload_bytes=0)
    traces.look(999)
    assert list(traces) == [short, long]
    traces.look(1000)
    assert list(traces) == [long] and short.over == "its time is over"
    assert traces.find(short.number) is short  # its last lines can be read
    traces.forget(short)
    assert traces.find(short.number) is None
    traces.look(UNREAD_MS_MAX)
    assert traces
    traces.look(UNREAD_MS_MAX + 1)
    assert not traces and long.over == "nobody has read it for 30 s"


def test_ended_traces_are_not_kept_for_ever() -> None:
    traces = Traces()
    for _ in range(50):
        one = traces.add("client", "c", "anna", now_ms=0, for_ms=1, payload_bytes=0)
        traces.end(one, "over")
    assert sum(traces.find(number) is not None for number in range(60)) == TRACES_MAX


def test_names_in_a_line_have_a_limit() -> None:
    line = cut_names({"topic": "t" * 65_535, "client_id": "c", "text": "x" * 9000})
    assert len(line["topic"]) == 515 and line["client_id"] == "c" and len(line["text"]) == 1027
