"""Users: a right password lets in, anything else is the same work and nobody."""

from pathlib import Path

import pytest

from broker.admin.access.private_file import AccessFileError
from broker.admin.access.roles import Role
from broker.admin.access.users import NAME_OF_FILE, Users

PASSWORD = "correct horse battery"


def put(users: Users, name: str = "ann", password: str | None = PASSWORD) -> bool:
    return users.put(name, Role.OPERATOR, payloads=True, password=password, now_ms=7)


def test_the_right_password_of_the_user_lets_in(tmp_path: Path) -> None:
    users = Users(tmp_path)
    assert put(users)
    found = users.verify("ann", PASSWORD)
    assert found is not None
    assert (found.name, found.role, found.payloads) == ("ann", Role.OPERATOR, True)
    for name, password in (("ann", ""), ("ann", PASSWORD + "x"), ("bob", PASSWORD), ("bob", "")):
        assert users.verify(name, password) is None


def test_a_hash_is_argon2id_and_the_password_is_nowhere(tmp_path: Path) -> None:
    put(Users(tmp_path))
    text = (tmp_path / NAME_OF_FILE).read_text()
    assert "$argon2id$" in text and PASSWORD not in text


def test_a_user_is_changed_with_or_without_another_password(tmp_path: Path) -> None:
    users = Users(tmp_path)
    put(users)
    assert not put(users, password=None)
    assert users.verify("ann", PASSWORD) is not None
    assert not put(users, password="another password")
    assert users.verify("ann", PASSWORD) is None
    assert users.verify("ann", "another password") is not None
    assert len(users.all()) == 1


@pytest.mark.parametrize(
    ("name", "password", "words"),
    [
        ("an n", PASSWORD, "expected letters"),
        ("ann", "short", "too short: expected 12 characters"),
        ("ann", "x" * 2000, "longer than 1024 bytes"),
        ("ann", None, "a new one needs a password"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(
    tmp_path: Path, name: str, password: str | None, words: str
) -> None:
    with pytest.raises(AccessFileError, match=words):
        put(Users(tmp_path), name, password)
    assert not (tmp_path / NAME_OF_FILE).exists()


def test_a_user_is_removed(tmp_path: Path) -> None:
    users = Users(tmp_path)
    put(users)
    users.remove("ann")
    assert users.verify("ann", PASSWORD) is None
    with pytest.raises(AccessFileError, match="no user 'ann'"):
        users.remove("ann")


def test_an_unknown_name_is_hashed_against_as_a_known_one(tmp_path: Path) -> None:
    users = Users(tmp_path)
    assert users.verify("nobody", PASSWORD) is None
    put(users)
    known = users.all()[0].password_hash
    # The same parameters, so the same work: all but salt and hash are equal.
    assert users._nobody.split("$")[:4] == known.split("$")[:4]
