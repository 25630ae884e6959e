"""The password file: what is written, what is read, and what happens to a damaged one."""

import os
import stat
from pathlib import Path

import pytest

from broker import passwords
from broker.passwords import PasswordFileError


def test_a_saved_user_matches_its_own_password_only(tmp_path: Path) -> None:
    path = str(tmp_path / "users")
    passwords.save(path, {"anna": passwords.hasher().hash("right")})
    users = passwords.load(path)
    assert list(users) == ["anna"]
    assert passwords.matches(users["anna"], b"right")
    assert not passwords.matches(users["anna"], b"wrong")
    assert b"right" not in Path(path).read_bytes()


def test_a_new_file_is_private_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "users"
    passwords.save(str(path), {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    passwords.save(str(path), {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["users"]


def test_comments_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("# ours\n\n  \nanna:$argon2id$x\n")
    assert passwords.load(str(path)) == {"anna": "$argon2id$x"}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"anna\n", "line 1: expected USERNAME:HASH"),
        (b"\n:$argon2id$x\n", "line 2: expected USERNAME:HASH"),
        (b"anna:$7$101$abc\n", "expected an argon2id hash for 'anna'"),
        (b"a:$argon2id$x\na:$argon2id$y\n", "line 2: 'a' again"),
        (b"\xff\xfe", "expected UTF-8"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "users"
    path.write_bytes(content)
    with pytest.raises(PasswordFileError) as caught:
        passwords.load(str(path))
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_hash_matches_nothing() -> None:
    assert not passwords.matches("$argon2id$x", b"x")
    assert not passwords.matches("", b"")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(PasswordFileError, match="No such file"):
        passwords.save(str(tmp_path / "absent" / "users"), {})
    with pytest.raises(PasswordFileError, match="No such file"):
        passwords.load(str(tmp_path / "absent"))


@pytest.mark.parametrize("username", ["", "a:b", "a\nb", "#a", " a", "a ", "x" * 65_536])
def test_user_names_that_would_break_the_file_are_refused(username: str) -> None:
    assert passwords.username_problem(username) is not None


@pytest.mark.parametrize("username", ["anna", "ä ö", "a#b", "device/7", "日本"])
def test_ordinary_user_names_are_taken(username: str) -> None:
    assert passwords.username_problem(username) is None
