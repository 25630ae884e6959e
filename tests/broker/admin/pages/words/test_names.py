"""What clients chose is harmless to look at, whatever it is."""

import html
import re

from hypothesis import example, given
from hypothesis import strategies as st

from broker.admin.pages.words import names

# Any character that MQTT allows in a name.
TEXT = st.text(st.characters(codec="utf-8"), max_size=300)


@given(TEXT, st.integers(1, 200))
@example("<script>alert('x')</script>", 96)
@example("\u202eevil\u2066", 96)
@example("e" + "\u0301" * 100, 96)
@example('" onmouseover="x', 4)
def test_a_name_has_no_markup_and_nothing_that_cannot_be_seen(text: str, most: int) -> None:
    shown = str(names.name(text, most))
    tags = {re.sub(r' (title|class)="[^"<>]*"', "", tag) for tag in re.findall(r"<[^>]*>", shown)}
    assert tags <= {"<bdi>", "</bdi>", "<span>", "</span>"}
    assert html.unescape(re.sub(r"<[^>]*>", "", shown)).isprintable()
    assert names.plain(text, most).isprintable()


@given(TEXT)
def test_a_short_name_is_told_whole(text: str) -> None:
    shown = html.unescape(re.sub(r"<[^>]*>", "", str(names.name(text, 10_000))))
    if text and text.isprintable() and "\u0301" not in text and names.plain(text, 10_000) == text:
        assert shown == text
    assert names.ELLIPSIS not in shown or names.ELLIPSIS in text


def test_controls_and_marks_are_escaped() -> None:
    assert str(names.name("a\x1b[2Jb")) == (
        '<bdi class="name">a<span class="esc">\\x1b</span>[2Jb</bdi>'
    )
    assert names.plain("a\u202eb\n") == "a\\u202eb\\n"
    assert names.plain("e\u0301\u0301\u0301") == "e\u0301\u0301\\u0301"


def test_a_long_name_is_cut_and_says_how_long_it_is() -> None:
    shown = str(names.name("y" * 60_000))
    assert "(60,000 bytes)" in shown and len(shown) < 1000
    assert names.plain("\x01" * 60_000, 20) == "\\x01" * 5 + names.ELLIPSIS


def test_nothing_is_said_to_be_nothing() -> None:
    assert 'class="none"' in str(names.name(None))
    assert "(empty)" in str(names.name(""))


def test_lines_of_a_payload_stay() -> None:
    assert str(names.body("a\r\n<b>\n\x07", 100)) == (
        'a\n&lt;b&gt;\n<span class="esc">\\x07</span>'
    )
    assert str(names.body("abc", 2)) == 'ab<span class="more">\N{HORIZONTAL ELLIPSIS}</span>'
    assert names.whole("w" * 1000).count("w") == 1000
