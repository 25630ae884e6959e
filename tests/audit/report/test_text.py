"""Numbers, times and names as a person reads them."""

import pytest

from audit.report import text as words


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (7, "7"), (0.5, "0.5"), (999, "999"), (1000, "1k"), (1250, "1.2k"), (12_500, "12k"),
     (999_999, "1M"), (2_500_000, "2.5M"), (-1500, "-1.5k"), (3e15, "3P")],
)  # fmt: skip
def test_large_numbers_are_short_on_axes(number: float, text: str) -> None:
    assert words.compact(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (5_000_000, "4.8 MiB"), (2**60, "1.0 EiB")],
)
def test_bytes_have_a_unit(number: int, text: str) -> None:
    assert words.size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0000078, "7.8 µs"), (0.0014, "1.4 ms"), (0.9999, "1 s"), (59, "59 s"), (60, "60 s"),
     (600, "10 min"), (7200, "2 h"), (86400, "24 h"), (864000, "10 d"), (-2, "-2 s")],
)  # fmt: skip
def test_durations_have_the_unit_that_suits_them(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


def test_a_name_cannot_be_markup() -> None:
    assert words.name("<b onclick='x'>&") == "<bdi>&lt;b onclick=&#39;x&#39;&gt;&amp;</bdi>"


@pytest.mark.parametrize("hidden", ["\u202e", "\u2066", "\u200b", "\ufeff", "\u2028"])
def test_what_would_not_be_seen_is_shown(hidden: str) -> None:
    assert hidden not in words.visible(f"a{hidden}b")
    assert len(words.visible(f"a{hidden}b")) == 3


def test_control_characters_are_pictures_of_themselves() -> None:
    assert words.visible("a\x00\n\x7f") == "a␀␊␡"


def test_a_long_name_is_cut_and_an_empty_one_says_so() -> None:
    assert "…</bdi>" in words.name("n" * 65_535)
    assert len(words.name("n" * 65_535)) < 1400
    assert words.name("", empty="(no tenant)") == '<span class="none">(no tenant)</span>'


def test_a_name_in_any_script_stays_as_it_is() -> None:
    assert words.name("датчик 温度") == "<bdi>датчик 温度</bdi>"


def test_a_time_is_for_people_and_machines() -> None:
    text = words.when(1_793_520_000_500_000)
    assert text == ('<time datetime="2026-11-01T08:00:00.500000+00:00">2026-11-01 08:00:00</time>')


def test_one_is_not_many() -> None:
    assert words.plural(1, "crash", "crashes") == "1 crash"
    assert words.plural(2000, "crash", "crashes") == "2,000 crashes"
    assert words.plural(0, "session") == "0 sessions"


def test_what_a_chain_does_not_prove_is_said() -> None:
    assert words.chain_words({"invariants": {"H1": {"facts": {}}}}) == []
    assert words.chain_words({"invariants": {}}) == []
    place = {"from": {"boot": 4, "seq": 3}, "to": {"boot": 4, "seq": 5}}
    chain = {
        "chained": 5,
        "not_chained": 2,
        "not_chained_files": ["one\n.parquet", "two.parquet"],
        "not_read": 3,
        "unproven_files": ["three.parquet"],
        "witness_ahead": [{"node": "edge", "what": "they were not exported", **place}],
    }
    assert words.chain_words({"invariants": {"H1": {"facts": {"chain": chain}}}}) == [
        "not chained: 2 of 7 segments: one␊.parquet ...",
        "the chain of 3 segments was not read: they are on no local disk",
        "the chain proves nothing behind a damaged or copied segment: three.parquet",
        "edge, boot 4, events 3 to 5: they were not exported",
    ]
