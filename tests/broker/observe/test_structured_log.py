"""Log lines are one line each, in two formats, and no peer can flood them."""

import io
import json
import logging

import pytest

from broker.observe.structured_log import (
    EVENT_LINES_MAX,
    EVENT_WINDOW_S,
    FIELD_CHARACTERS_MAX,
    Log,
    install_bridge,
)


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def open_log(
    format: str = "json", level: str = "info", clock: Clock | None = None
) -> tuple[Log, io.StringIO]:
    stream = io.StringIO()
    log = Log(
        stream,
        level=level,
        format="logfmt" if format == "logfmt" else "json" if format == "json" else "auto",
        wall_clock=lambda: 1_700_000_000.5,
        clock=clock or Clock(),
    )
    return log, stream


def test_json_lines_carry_timestamp_level_event_and_fields() -> None:
    log, stream = open_log()
    log.info("connected", "hello", client_id="a b", remote="127.0.0.1:5", reason=0)
    assert json.loads(stream.getvalue()) == {
        "ts": "2023-11-14T22:13:20.500Z",
        "level": "info",
        "event": "connected",
        "message": "hello",
        "client_id": "a b",
        "remote": "127.0.0.1:5",
        "reason": 0,
    }


def test_logfmt_quotes_only_what_needs_it() -> None:
    log, stream = open_log("logfmt")
    log.warning("e", client_id='a "b"\n', ok=True, none=None, seconds=0.25, id="", plain="x-1")
    assert stream.getvalue() == (
        'ts=2023-11-14T22:13:20.500Z level=warning event=e client_id="a \\"b\\"\\n" ok=true '
        'none= seconds=0.25 id="" plain=x-1\n'
    )


@pytest.mark.parametrize("format", ["json", "logfmt"])
def test_hostile_client_ids_stay_on_one_line(format: str) -> None:
    log, stream = open_log(format)
    log.info("e", client_id="a\r\nts=fake level=error\u2028\x1b[31m")
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("format", ["json", "logfmt"])
def test_a_name_that_turns_the_text_around_is_written_in_escapes(format: str) -> None:
    log, stream = open_log(format)
    log.info("client_connected", client_id="\u202eleft\u2028")
    assert r"\u202eleft\u2028" in stream.getvalue()
    log.info("client_connected", client_id="märz")
    assert "märz" in stream.getvalue()


def test_auto_is_json_when_nobody_watches() -> None:
    log, stream = open_log("auto")
    log.info("e")
    assert json.loads(stream.getvalue())["event"] == "e"


def test_events_below_the_level_are_not_written() -> None:
    log, stream = open_log(level="warning")
    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["w", "e"]
    assert not log.is_debug()
    assert open_log(level="debug")[0].is_debug()


def test_a_flood_of_one_event_is_cut_and_counted_without_touching_others() -> None:
    clock = Clock()
    log, stream = open_log(clock=clock)
    for _ in range(EVENT_LINES_MAX + 25):
        log.info("flood")
    log.info("other")
    lines = stream.getvalue().splitlines()
    assert len(lines) == EVENT_LINES_MAX + 1
    clock.seconds += EVENT_WINDOW_S
    log.info("flood")
    assert json.loads(stream.getvalue().splitlines()[-1])["suppressed"] == 25
    log.info("flood")
    assert "suppressed" not in json.loads(stream.getvalue().splitlines()[-1])


def test_who_asks_first_whether_an_event_is_suppressed_changes_no_line_and_no_count() -> None:
    clock, other_clock = Clock(), Clock()
    log, stream = open_log(clock=clock)
    asked, other_stream = open_log(clock=other_clock)
    for step in range(4 * EVENT_LINES_MAX):
        clock.seconds = other_clock.seconds = step * EVENT_WINDOW_S / (1.5 * EVENT_LINES_MAX)
        log.info("flood", number=step)
        if not asked.suppresses("flood"):
            asked.info("flood", number=step)
    assert other_stream.getvalue() == stream.getvalue()
    assert '"suppressed": ' in stream.getvalue()


def test_an_event_below_the_level_is_suppressed_and_not_counted() -> None:
    log, stream = open_log(level="warning")
    assert all(log.suppresses("e") for _ in range(2 * EVENT_LINES_MAX))
    log.set_level("info")
    assert not log.suppresses("e")
    log.info("e")
    assert "suppressed" not in json.loads(stream.getvalue())


def test_long_values_are_cut() -> None:
    log, stream = open_log()
    log.info("e", client_id="x" * 65_535)
    value = json.loads(stream.getvalue())["client_id"]
    assert len(value) < FIELD_CHARACTERS_MAX + 50
    assert value.endswith("(65535 characters)")


def test_a_closed_stream_does_not_stop_the_broker() -> None:
    log, stream = open_log()
    stream.close()
    log.error("e")


def test_library_warnings_come_out_as_our_lines() -> None:
    log, stream = open_log()
    handlers = logging.getLogger().handlers
    try:
        install_bridge(log)
        logging.getLogger("asyncio").warning("slow %s", "callback")
        logging.getLogger("asyncio").info("not this")
    finally:
        logging.getLogger().handlers = handlers
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["logger"] == "asyncio"
    assert json.loads(line)["message"] == "slow callback"
