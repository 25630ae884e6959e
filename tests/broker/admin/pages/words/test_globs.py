"""What somebody types to find client ids."""

from fnmatch import fnmatchcase

from broker.admin.pages.words import globs


def test_a_word_is_a_part_of_a_name_and_a_pattern_is_a_pattern() -> None:
    assert globs.wanted("") is None
    assert globs.wanted("boat") == "*boat*"
    assert globs.wanted("boat-?") == "boat-?"
    assert globs.wanted("[ab]") == "[ab]"


def test_the_pattern_of_a_beginning_takes_no_other_name() -> None:
    pattern = globs.beginning("a*[b]?")
    assert fnmatchcase("a*[b]?c", pattern)
    assert not fnmatchcase("axbyc", pattern)
