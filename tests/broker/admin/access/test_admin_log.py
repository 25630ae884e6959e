"""The admin log: a line before and after each change; those that strangers cause are limited."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from broker.admin.access.admin_log import (
    BLOCK_BYTES,
    FAILURES_MAX,
    FAILURES_S,
    NAME_OF_FILE,
    AdminLog,
    AdminLogError,
)

WHO = {"name": "ann", "role": "operator", "how": "token", "from": "127.0.0.1"}


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.s = 1.0

    def __call__(self) -> float:
        return self.s


def log_in(directory: Path, clock: Clock | None = None) -> AdminLog:
    return AdminLog(directory, lambda: 1_700_000_000_000, clock or Clock())


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / NAME_OF_FILE).read_text().splitlines()]


def test_a_change_has_two_lines_with_the_same_key(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    key = log.asked(WHO, "kick client", {"client_id": "boat\n17"})
    assert [line["outcome"] for line in lines(tmp_path)] == ["asked"]
    log.ended(key, WHO, "kick client", "done")
    asked, ended = lines(tmp_path)
    assert asked == {
        "at": "2023-11-14T22:13:20.000Z",
        "change": key,
        **WHO,
        "what": "kick client",
        "client_id": "boat\n17",
        "outcome": "asked",
    }
    assert (ended["change"], ended["outcome"]) == (key, "done")
    assert (tmp_path / NAME_OF_FILE).stat().st_mode & 0o777 == 0o600


def test_it_is_only_ever_appended_to(tmp_path: Path) -> None:
    log_in(tmp_path).noted(WHO, "log in", "done")
    before = (tmp_path / NAME_OF_FILE).read_bytes()
    log_in(tmp_path).noted(WHO, "log out", "done")
    assert (tmp_path / NAME_OF_FILE).read_bytes().startswith(before)


def test_a_line_that_a_crash_has_cut_spoils_no_other(tmp_path: Path) -> None:
    log_in(tmp_path).noted(WHO, "first", "done")
    with open(tmp_path / NAME_OF_FILE, "ab") as stream:
        stream.write(b'{"at": "2023-1')
    log = log_in(tmp_path)
    log.noted(WHO, "second", "done")
    assert [line["what"] for _, line in log.newest()] == ["second", "first"]


def test_without_a_place_for_the_line_there_is_an_error(tmp_path: Path) -> None:
    log = log_in(tmp_path / "absent")
    with pytest.raises(AdminLogError, match="No such file"):
        log.asked(WHO, "kick client", {})
    os.symlink("/dev/full", tmp_path / NAME_OF_FILE)
    with pytest.raises(AdminLogError, match="No space left"):
        log_in(tmp_path).asked(WHO, "kick client", {})


def test_long_texts_are_cut_and_a_line_is_never_too_long(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.asked(WHO, "kick client", {"client_id": "ä" * 65_535})
    assert len((tmp_path / NAME_OF_FILE).read_bytes()) < 4096
    with pytest.raises(AdminLogError, match="too long"):
        log.asked(WHO, "kick client", {f"field-{number}": "x" * 300 for number in range(100)})


def test_it_is_read_from_the_newest_line_on_and_page_by_page(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    assert list(log.newest()) == []
    count = 3 * BLOCK_BYTES // 100
    for number in range(count):
        log.noted({"name": f"{number}"}, "x" * (number % 7), "done")
    found = list(log.newest())
    assert [line["name"] for _, line in found] == [str(each) for each in reversed(range(count))]
    for index in (0, 1, 500, count - 2):
        place = found[index][0]
        assert next(log.newest(place)) == found[index + 1]
    assert list(log.newest(0)) == []
    assert list(log.newest(1 << 60)) == found


def test_failed_log_ins_of_strangers_are_limited_and_counted(tmp_path: Path) -> None:
    clock = Clock()
    log = log_in(tmp_path, clock)
    for number in range(FAILURES_MAX + 70):
        log.failed("log in", f"name-{number}", "10.0.0.1", "refused")
    assert len(lines(tmp_path)) == FAILURES_MAX
    clock.s += FAILURES_S + 1
    log.failed("log in", "later", "10.0.0.1", "refused")
    assert lines(tmp_path)[-1]["left_out"] == 70
    log.failed("log in", "later", "10.0.0.1", "refused")
    assert "left_out" not in lines(tmp_path)[-1]
