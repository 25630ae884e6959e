"""Users: a right password lets in, anything else is the same work and nobody."""

from pathlib import Path

import pytest

from broker.admin.access.private_file import AccessFileError, EntryRefused, NoEntry
from broker.admin.access.roles import Role, role_of
from broker.admin.access.users import NAME_OF_FILE, Users

PASSWORD = "correct horse battery"


def add(users: Users, name: str = "ann", password: str = PASSWORD, role: str = "operator") -> None:
    users.add(name, role_of(role), payloads=True, password=password, now_ms=7)


def test_the_right_password_of_the_user_lets_in(tmp_path: Path) -> None:
    users = Users(tmp_path)
    add(users)
    found = users.verify("ann", PASSWORD)
    assert found is not None
    assert (found.name, found.role, found.payloads) == ("ann", Role.OPERATOR, True)
    for name, password in (("ann", ""), ("ann", PASSWORD + "x"), ("bob", PASSWORD), ("bob", "")):
        assert users.verify(name, password) is None


def test_a_hash_is_argon2id_and_the_password_is_nowhere(tmp_path: Path) -> None:
    add(Users(tmp_path))
    text = (tmp_path / NAME_OF_FILE).read_text()
    assert "$argon2id$" in text and PASSWORD not in text


def test_a_user_is_changed_with_or_without_another_password(tmp_path: Path) -> None:
    users = Users(tmp_path)
    add(users)
    users.change("ann", role=Role.VIEWER, now_ms=8)
    found = users.verify("ann", PASSWORD)
    assert found is not None
    assert (found.role, found.payloads, found.changed_ms) == (Role.VIEWER, True, 8)
    users.change("ann", payloads=False, password="another password", now_ms=8)
    assert users.verify("ann", PASSWORD) is None
    found = users.verify("ann", "another password")
    assert found is not None
    # Each change is another moment, whatever the clock says.
    assert (found.role, found.payloads, found.changed_ms) == (Role.VIEWER, False, 9)
    assert len(users.all()) == 1


def test_a_name_is_added_once(tmp_path: Path) -> None:
    users = Users(tmp_path)
    add(users)
    with pytest.raises(EntryRefused, match="there is a user 'ann' already"):
        add(users, password="x" * 12)
    assert users.verify("ann", PASSWORD) is not None


def test_the_last_admin_is_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    users = Users(tmp_path)
    add(users, "anna", role="admin")
    add(users, "bert", role="operator")
    for change in (
        lambda: users.remove("anna", keep_admin=True),
        lambda: users.change("anna", role=Role.OPERATOR, now_ms=8, keep_admin=True),
    ):
        with pytest.raises(EntryRefused, match="'anna' is the last user with the role admin"):
            change()
    users.change("anna", role=Role.ADMIN, password="x" * 12, now_ms=8, keep_admin=True)
    users.change("bert", role=Role.ADMIN, now_ms=8)
    users.remove("anna", keep_admin=True)
    users.remove("bert")  # on the command line
    assert users.all() == []


@pytest.mark.parametrize(
    ("name", "password", "words"),
    [
        ("an n", PASSWORD, "expected letters"),
        ("ann", "short", "too short: expected 12 characters"),
        ("ann", "x" * 2000, "longer than 1024 bytes"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(
    tmp_path: Path, name: str, password: str, words: str
) -> None:
    with pytest.raises(AccessFileError, match=words):
        add(Users(tmp_path), name, password)
    assert not (tmp_path / NAME_OF_FILE).exists()


def test_a_user_is_removed(tmp_path: Path) -> None:
    users = Users(tmp_path)
    add(users)
    users.remove("ann")
    assert users.verify("ann", PASSWORD) is None
    with pytest.raises(AccessFileError, match="no user 'ann'"):
        users.remove("ann")
    with pytest.raises(NoEntry, match="no user 'ann'"):
        users.change("ann", role=Role.VIEWER, now_ms=8)


def test_an_unknown_name_is_hashed_against_as_a_known_one(tmp_path: Path) -> None:
    users = Users(tmp_path)
    assert users.verify("nobody", PASSWORD) is None
    add(users)
    known = users.all()[0].password_hash
    # The same parameters, so the same work: all but salt and hash are equal.
    assert users._nobody.split("$")[:4] == known.split("$")[:4]
