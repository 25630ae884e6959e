"""Numbers, sizes and times as an operator reads them."""

from datetime import UTC, datetime, timedelta

import pytest

from broker.admin.pages.words import amounts

NOW = datetime(2026, 11, 27, 12, 3, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "0.98 KiB"),
        (1536, "1.50 KiB"),
        (20 << 10, "20.0 KiB"),
        (999 << 10, "999 KiB"),
        (1000 << 10, "0.98 MiB"),
        (5 << 40, "5.00 TiB"),
        (5 << 60, "5,120 PiB"),
        (-1536, "-1.50 KiB"),
        (None, amounts.NONE),
    ],
)
def test_a_size_has_a_unit_in_which_it_is_short(number: int | None, text: str) -> None:
    assert amounts.size(number) == text


def test_numbers_have_separators() -> None:
    assert (amounts.count(1204331), amounts.count(None)) == ("1,204,331", amounts.NONE)
    assert amounts.plural(1, "message") == "1 message"
    assert amounts.plural(1200, "message") == "1,200 messages"
    assert amounts.plural(2, "entry", "entries") == "2 entries"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119.9, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"),
     (172_799, "47 h"), (172_800, "2 d"), (86_400 * 4000, "4,000 d")],
)  # fmt: skip
def test_a_span_is_in_its_largest_unit(seconds: float, text: str) -> None:
    assert amounts.span(seconds) == text


def test_a_time_is_past_or_to_come() -> None:
    assert amounts.relative(NOW, NOW) == "now"
    assert amounts.relative(NOW - timedelta(hours=3), NOW) == "3 h ago"
    assert amounts.relative(NOW + timedelta(days=9), NOW) == "in 9 d"


def test_times_are_read_as_the_records_write_them() -> None:
    assert amounts.moment("2026-11-27T12:03:10Z") == NOW
    assert amounts.moment("2026-11-27 12:03:10") == NOW
    assert amounts.moment("12345678901234 ms") is None
    assert amounts.exact(NOW) == "2026-11-27 12:03:10 UTC"
    assert amounts.of_ms(int(NOW.timestamp() * 1000)) == NOW
