"""What is on the screen, whatever its size, and whatever clients are called."""

from typing import Any

import pytest

from broker.cli.watching.top_screen import Figures, Owing, Rates, duration, fit, lines, number, size


def figures(**changes: Any) -> Figures:
    return {
        "at_s": 100.0,
        "up_s": 93_784,
        "version": "0.1.0",
        "phase": "ready",
        **dict.fromkeys(
            ("messages_in", "messages_out", "bytes_in", "bytes_out", "accepted", "refused"), 0
        ),
        "dropped": 0,
        "expired": 0,
        "commits": 0,
        "commit_seconds": 0.0,
        "commit_buckets": [[0.001, 0], [0.002, 0], [0.004, 0]],
        "connections": 12,
        "sessions_online": 12,
        "sessions_stored": 340,
        "sessions_stored_online": 10,
        "retained_messages": 1,
        "log_bytes": 3 << 30,
        "generations": 5,
        "waiting_replies": 0,
        "writes_refused": 0,
        "disk": {"free_bytes": 1 << 30, "total_bytes": 4 << 30, "low_water_bytes": 1 << 20},
        **changes,
    }


OWING = Owing({"messages": "6010", "bytes": "218000", "oldest_ms": "7380000", "age_ms": "12000"})
TOP = [
    {"client_id": f"boat-{n}", "state": "offline", "messages": 9, "bytes": 90, "oldest_ms": 1}
    for n in range(20)
]


def page(before: Figures, now: Figures, **more: Any) -> str:
    arguments = {"owing": OWING, "top": TOP, "width": 80, "height": 24, **more}
    shown = lines(before, now, arguments.pop("owing"), arguments.pop("top"), **arguments)
    return "\n".join(shown)


def test_rates_are_of_a_second_and_states_of_now() -> None:
    before = figures()
    now = figures(at_s=102.0, messages_in=24_690, messages_out=5, bytes_in=4 << 20, refused=1)
    shown = page(before, now)
    assert "holdfast 0.1.0   ready   up 1d 2h" in shown
    assert "messages in 12,345/s   out 2.5/s   dropped 0/s   expired 0/s" in shown
    assert "bytes    in 2.0 MiB/s   out 0 bytes/s" in shown
    assert "clients  12   new 0/s   refused 0.5/s" in shown
    assert "sessions 340 stored   10 of them online   2 clean" in shown
    assert "backlog  6,010 messages   212.9 KiB   oldest 2h 3m   counted 12s ago" in shown
    assert "disk     1.0 GiB free (25%)   log 3.0 GiB in 5 generations" in shown
    assert "TAKES NO WRITES" not in shown and "LOW" not in shown


def test_commits_have_a_mean_and_what_nearly_all_stay_below() -> None:
    before = figures(commits=5, commit_seconds=1.0, commit_buckets=[[0.001, 1], [0.002, 3], [4, 5]])
    now = figures(
        at_s=101.0,
        commits=105,
        commit_seconds=1.15,
        commit_buckets=[[0.001, 1], [0.002, 102], [4, 105]],
    )
    assert "commits  100/s   mean 1.5 ms   99% 2.0 ms   0 wait" in page(before, now)
    assert Rates(now, now).commits() is None
    assert "commits  0/s   -   0 wait" in page(now, now)


def test_a_broker_that_has_begun_again_has_no_negative_rates() -> None:
    before = figures(messages_in=1000, commits=10)
    shown = page(before, figures(at_s=101.0))
    assert "messages in 0/s" in shown and "commits  0/s   -" in shown


def test_what_is_wrong_stands_out() -> None:
    low = {"free_bytes": 1, "total_bytes": 4 << 30, "low_water_bytes": 1 << 20}
    shown = page(figures(), figures(writes_refused=1, disk=low))
    assert "THE STORE TAKES NO WRITES" in shown and "1 bytes free (0%)   LOW" in shown
    assert "disk     cannot be looked at" in page(figures(), figures(disk=None))
    unknown = page(figures(), figures(), owing=Owing(None, "it was not counted"), top=[])
    assert "backlog  not known: it was not counted" in unknown and "OWED MOST" not in unknown


@pytest.mark.parametrize("height", [1, 5, 12, 14, 24, 60])
@pytest.mark.parametrize("width", [1, 20, 80, 200])
def test_a_screen_is_never_overfull(width: int, height: int) -> None:
    shown = page(figures(), figures(), width=width, height=height).split("\n")
    assert len(shown) <= height and {len(line) for line in shown} == {width}


def test_at_80_by_24_the_first_are_shown() -> None:
    shown = page(figures(), figures()).split("\n")
    assert len(shown) == 24
    (title,) = [line for line in shown if line.startswith("OWED MOST")]
    rows = shown[shown.index(title) + 1 :]
    assert len(rows) == 13 and rows[0].startswith("boat-0") and rows[0].endswith("0s")


def test_names_of_clients_cannot_break_the_screen() -> None:
    top = [{**TOP[0], "client_id": name} for name in ("x\x1b[2J" * 50, "漢" * 50, "é" * 50)]
    shown = page(figures(), figures(), top=top)
    assert "\x1b" not in shown
    rows = shown.split("\n")[-3:]
    assert len({line.rindex("offline") + line.count("漢") for line in rows}) == 1


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [("abc", 5, "abc  "), ("abcdef", 3, "abc"), ("漢字", 3, "漢 "), ("e\u0301x", 1, "e\u0301")],
)
def test_a_text_has_its_columns(text: str, width: int, expected: str) -> None:
    assert fit(text, width) == expected


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0.0, 0.25, 3.0, 9.96, 12_345.6)] == [
        *("0", "0.2", "3", "10.0", "12,346")
    ]
    assert [size(value) for value in (0, 1023, 1024, 5 << 40)] == [
        *("0 bytes", "1023 bytes", "1.0 KiB", "5.0 TiB")
    ]
    assert [duration(value) for value in (0, 59.9, 61, 3600, 90_061)] == [
        *("0s", "59s", "1m 1s", "1h 0m", "1d 1h")
    ]
