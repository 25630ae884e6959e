"""Roles: each may do what those before it may; what is no role is an error."""

import pytest

from broker.admin.access.roles import NAME, Role, role_of


def test_a_higher_role_may_do_all_that_a_lower_one_may() -> None:
    assert Role.VIEWER < Role.OPERATOR < Role.ADMIN
    assert [role_of(role.word) for role in Role] == list(Role)


@pytest.mark.parametrize("word", ["", "Viewer", "VIEWER", "root", "1"])
def test_a_word_that_is_no_role_is_an_error(word: str) -> None:
    with pytest.raises(KeyError):
        role_of(word)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("ann", True), ("a.b-c_d@e", True), ("x" * 64, True), ("x" * 65, False), ("", False)]
    + [(bad, False) for bad in (".ann", "an n", "ann\n", "änn", "a/b", "ann (http)")],
)
def test_names_hold_nothing_that_a_log_could_mistake(name: str, is_one: bool) -> None:
    assert (NAME.fullmatch(name) is not None) == is_one
