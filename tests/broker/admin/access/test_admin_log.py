"""The admin log: a line before and after each change; those that strangers cause are limited."""

import json
import os
import threading
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
    Place,
)

WHO = {"name": "ann", "role": "operator", "how": "token", "from": "127.0.0.1"}


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.s = 1.0

    def __call__(self) -> float:
        return self.s


def log_in(directory: Path, clock: Clock | None = None, **limits: int) -> AdminLog:
    return AdminLog(directory, lambda: 1_700_000_000_000, clock or Clock(), **limits)


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
    assert list(log.newest((1, 0))) == []
    assert list(log.newest((1, 1 << 60))) == found
    assert list(log.newest((2, 0))) == found


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


def names(log: AdminLog, before: Place | None = None) -> list[str]:
    return [line["name"] for _, line in log.newest(before)]


def test_a_full_file_is_put_aside_and_of_many_the_oldest_goes(tmp_path: Path) -> None:
    log = log_in(tmp_path, file_bytes=1000, files=3)
    for number in range(200):
        log.noted({"name": f"{number}"}, "x", "done")
        files = sorted(tmp_path.glob(f"{NAME_OF_FILE}*"))
        assert len(files) <= 3
        assert all(each.stat().st_size <= 1000 for each in files)
        assert names(log)[: number + 1][:10] == [str(each) for each in range(number, -1, -1)][:10]
    kept = names(log)
    assert kept == [str(199 - each) for each in range(len(kept))] and len(kept) > 20
    assert all(each.stat().st_mode & 0o777 == 0o600 for each in files)


def test_a_place_is_the_same_after_its_file_was_put_aside(tmp_path: Path) -> None:
    log = log_in(tmp_path, file_bytes=2000, files=9)
    for number in range(20):
        log.noted({"name": f"{number}"}, "x", "done")
    places = [place for place, _ in log.newest()]
    before = names(log, places[3])
    for number in range(20, 60):
        log.noted({"name": f"{number}"}, "x", "done")
    assert names(log, places[3]) == before


@pytest.mark.parametrize("moment", ["before the name", "after the name"])
def test_a_crash_while_a_file_is_put_aside_loses_no_line(tmp_path: Path, moment: str) -> None:
    log = log_in(tmp_path, file_bytes=1000, files=3)
    for number in range(30):
        log.noted({"name": f"{number}"}, "x", "done")
    kept = names(log)
    numbers = [int(each.suffix[1:]) for each in tmp_path.glob(f"{NAME_OF_FILE}.*")]
    if moment != "before the name":
        (tmp_path / NAME_OF_FILE).rename(tmp_path / f"{NAME_OF_FILE}.{max(numbers) + 1}")
    again = log_in(tmp_path, file_bytes=1000, files=3)
    assert names(again) == kept
    for number in range(30, 60):
        again.noted({"name": f"{number}"}, "x", "done")
        assert names(again)[:5] == [str(each) for each in range(number, number - 5, -1)]
    assert len(list(tmp_path.glob(f"{NAME_OF_FILE}*"))) <= 3


def test_two_processes_that_write_lose_nothing(tmp_path: Path) -> None:
    logs = [log_in(tmp_path, file_bytes=700, files=1000) for _ in range(4)]

    def write(log: AdminLog, which: int) -> None:
        for number in range(40):
            log.noted({"name": f"{which}-{number}"}, "x", "done")

    threads = [threading.Thread(target=write, args=(log, which)) for which, log in enumerate(logs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {f"{which}-{number}" for which in range(4) for number in range(40)}
    assert set(names(logs[0])) == expected and len(names(logs[0])) == 160


def test_files_of_other_names_are_left_alone(tmp_path: Path) -> None:
    others = ["admin.log.x", "admin.log.01", "admin.log.1.gz", "admin.log.0"]
    for name in others:
        (tmp_path / name).write_text("mine")
    log = log_in(tmp_path, file_bytes=1000, files=2)
    for number in range(40):
        log.noted({"name": f"{number}"}, "x", "done")
    assert all((tmp_path / name).read_text() == "mine" for name in others)
