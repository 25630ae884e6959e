"""`holdfast backend verify`: what is printed, and what is no request.

With real stores: `tests/broker/process/test_server_verify.py`.
"""

import argparse
from pathlib import Path

import pytest

from broker.backends.comparing.listing import INDEX, MESSAGE, SUBSCRIPTION
from broker.cli.backends.verify import MINUTES_SHOWN_MAX, _as_object, _lines, _seconds
from broker.operations.backend_verify import CHANGED, MISSING, Pass, Tally
from tests.broker.cli.commands import Run, complaint


def found(minutes: int = 1, kinds: tuple[str, ...] = (MESSAGE, INDEX)) -> Pass:
    result = Pass(kinds)
    for minute in range(minutes):
        tally = result.tally(minute * 60_000, MESSAGE)
        tally.told(1)
        tally.found(1)
    result.sets[SUBSCRIPTION] = Tally()
    return result


def differing(minutes: int = 1) -> Pass:
    result = found(minutes)
    result.tally(0, MESSAGE).told(5)
    result.differs(SUBSCRIPTION, CHANGED, b"name", "c\x1b a/#", "mqtt:sub:c\x1b")
    result.differs(MESSAGE, MISSING, 7, "ID")
    result.dead_letters, result.unreadable, result.in_motion = 2, 3, 4
    result.extra, result.not_ours, result.gaps = 5, 6, [(1, 9, "dropped")]
    return result


def test_minutes_and_sets_are_a_table() -> None:
    assert list(_lines("cache", found(), [], 9)) == [
        "MINUTE            KIND          BROKER  STORE  CHECKSUM",
        "1970-01-01T00:00  message       1       1      0000000000000001  equal",
        "1970-01-01T00:00  index         0       0      0000000000000000  equal",
        "now               subscription  0       0      0000000000000000  equal",
        "cache: equal; messages since 1970-01-01T00:00:00Z",
    ]


def test_a_store_without_lists_of_messages_has_no_line_for_them() -> None:
    lines = list(_lines("cache", found(kinds=(MESSAGE,)), [], 9))
    assert [line.split()[1] for line in lines[1:3]] == ["message", "subscription"]


def test_differences_are_named_up_to_the_limit_and_control_characters_are_shown() -> None:
    lines = list(_lines("cache", differing(), ["a/b from c"], 1))
    assert lines[1].split() == [
        "1970-01-01T00:00", "message", "2", "1", "0000000000000006", "0000000000000001", "differs",
    ]  # fmt: skip
    assert "message ID (a/b from c): missing" in lines
    assert "and 1 more: --limit 2 names them" in lines
    assert "in a gap, so in neither: offsets 1 to 9: dropped" in lines
    assert "not ours: 6 entries of other nodes or applications" in lines
    assert lines[-1] == "cache: 2 differences; messages since 1970-01-01T00:00:00Z"
    lines = list(_lines("cache", differing(), ["", ""], 9))
    assert "subscription c\\x1b a/#: changed: mqtt:sub:c\\x1b" in lines


def test_of_many_minutes_only_those_that_differ_are_shown() -> None:
    many = MINUTES_SHOWN_MAX + 5
    lines = list(_lines("cache", differing(many), ["", ""], 9))
    assert sum("1970" in line for line in lines) == 2 + 1
    assert any(line.startswith(f"{many - 1} minutes") for line in lines)


def test_json_has_everything() -> None:
    told = _as_object("cache", differing(), ["a/b from c"])
    assert (told["equal"], told["differences_count"]) == (False, 2)
    assert told["differences"] == [
        {"kind": "message", "what": "missing", "id": "ID", "place": None, "message": "a/b from c"}
    ]
    assert told["minutes"][0] == {
        "minute": "1970-01-01T00:00:00Z",
        "kind": "message",
        "broker": {"count": 2, "checksum": "0000000000000006"},
        "store": {"count": 1, "checksum": "0000000000000001"},
    }


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("7d", 604_800)]
)
def test_a_time_has_a_unit(text: str, seconds: int) -> None:
    assert _seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "15", "m", "-1m", "1.5h", "0s", "1w", "\u0663m", "1234567s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        _seconds(text)


@pytest.mark.full
def test_what_cannot_be_asked_is_one_line(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text(
        '[backends.cache]\nservers = "127.0.0.1:1"\n[[rules]]\non = "message.publish"\n'
        'topic = "#"\nbackend = "cache"\naction = "on_message_publish"\n'
    )
    result = run("backend", "verify", "cache", "-c", str(path), "--data-dir", "absent")
    assert "no broker runs on data directory absent" in complaint(result, 2)
    result = run("backend", "verify", "other", "-c", str(path))
    assert "no such backend in the configuration" in complaint(result, 2)
    assert run("backend", "verify", "cache", "--since", "1x").returncode == 2
