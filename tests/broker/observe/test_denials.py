"""A denial is told at once, and no number of denials or clients makes many lines or much memory."""

import io
import json
from typing import Any

from broker.observe.denials import (
    CLIENTS_MAX,
    LINES_PER_BEAT,
    NAME_CHARACTERS_MAX,
    PERIOD_S,
    Denials,
)
from broker.observe.structured_log import Log


class Watch:
    """Denials, what they have logged, and a clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.stream = io.StringIO()
        log = Log(self.stream, format="json", clock=lambda: self.now)
        self.denials = Denials(log, clock=lambda: self.now)

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines since the last call."""
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return [json.loads(line) for line in text.splitlines()]

    def later(self, seconds: float) -> list[dict[str, Any]]:
        """Beat once a second for so long; return the lines."""
        for _ in range(int(seconds)):
            self.now += 1
            self.denials.beat()
        return self.lines()


def test_the_first_denial_is_told_at_once_with_who_and_what() -> None:
    watch = Watch()
    watch.denials.note("subscribe", "boat", "anna", "secret/#")
    (line,) = watch.lines()
    del line["ts"]
    assert line == {
        "level": "info",
        "event": "client_denied",
        "message": "not authorized",
        "client_id": "boat",
        "user": "anna",
        "action": "subscribe",
        "topic": "secret/#",
        "count": 1,
    }


def test_a_client_has_one_line_a_minute_that_counts_and_tells_the_newest() -> None:
    watch = Watch()
    watch.denials.note("publish", "boat", "", "a")
    watch.lines()
    for number in range(1000):
        watch.denials.note("publish", "boat", "", f"t/{number}")
    assert watch.later(PERIOD_S - 1) == []
    (line,) = watch.later(1)
    assert (line["count"], line["topic"]) == (1000, "t/999")
    watch.denials.note("will", "boat", "", "w")
    (line,) = watch.later(PERIOD_S)
    assert (line["count"], line["action"]) == (1, "will")


def test_who_was_denied_nothing_for_a_minute_is_forgotten_and_new_again() -> None:
    watch = Watch()
    watch.denials.note("publish", "boat", "", "a")
    watch.lines()
    assert watch.later(PERIOD_S) == []
    assert not watch.denials._clients
    watch.denials.note("publish", "boat", "", "b")
    assert [line["topic"] for line in watch.lines()] == ["b"]


def test_clients_do_not_share_a_count() -> None:
    watch = Watch()
    for name in ("a", "b", "b", "b"):
        watch.denials.note("publish", name, "", "t")
    told = [(line["client_id"], line["count"]) for line in watch.lines() + watch.later(PERIOD_S)]
    assert told == [("a", 1), ("b", 1), ("b", 2)]


def test_any_number_of_clients_are_a_thousand_and_a_count() -> None:
    watch = Watch()
    for number in range(CLIENTS_MAX + 500):
        watch.denials.note("publish", f"client-{number}", "", "t")
    assert len(watch.denials._clients) == CLIENTS_MAX
    watch.lines()
    (line,) = watch.later(1)
    assert (line["event"], line["count"]) == ("clients_denied", 500)
    assert watch.later(PERIOD_S) == []  # nothing more was denied
    watch.denials.note("publish", "client-new", "", "t")
    assert [line["client_id"] for line in watch.lines()] == ["client-new"]  # there is room again


def test_lines_that_are_due_together_do_not_exceed_what_the_log_takes() -> None:
    watch = Watch()
    clients = 60
    for _ in range(2):
        for number in range(clients):
            watch.denials.note("publish", f"client-{number}", "", "t")
    watch.lines()
    watch.later(PERIOD_S - 1)
    lines: list[dict[str, Any]] = []
    while len(lines) < clients:
        now = watch.later(1)
        assert 0 < len(now) <= LINES_PER_BEAT
        lines += now
    assert {line["client_id"] for line in lines} == {f"client-{n}" for n in range(clients)}
    assert not any("suppressed" in line for line in lines[1:])


def test_long_names_are_cut_before_they_are_kept() -> None:
    watch = Watch()
    long = "x" * 65_535
    for _ in range(2):
        watch.denials.note("publish", long, long, long)
    ((name, denied),) = watch.denials._clients.items()
    assert {len(name), len(denied.user), len(denied.topic)} == {NAME_CHARACTERS_MAX}
