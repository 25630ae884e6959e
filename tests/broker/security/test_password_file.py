"""The password file: what is written, what is read, and what happens to a damaged one."""

import os
import stat
from pathlib import Path

import pytest

from broker.security import password_file, password_hashes
from broker.security.password_file import PasswordFileError
from tests.broker.security.stored import ARGON2ID, MOSQUITTO_6, MOSQUITTO_7, SCRAM


def test_a_saved_user_matches_its_own_password_only(tmp_path: Path) -> None:
    path = str(tmp_path / "users")
    password_file.save(path, {"anna": password_hashes.hasher().hash("right")})
    users = password_file.load(path)
    assert list(users) == ["anna"]
    assert password_hashes.verify(users["anna"], b"right")
    assert not password_hashes.verify(users["anna"], b"wrong")
    assert b"right" not in Path(path).read_bytes()


def test_a_new_file_is_private_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "users"
    password_file.save(str(path), {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    password_file.save(str(path), {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["users"]


def test_comments_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"# ours\n\n  \nanna:{ARGON2ID}\r\n")
    users = password_file.load(str(path))
    assert {name: stored.text for name, stored in users.items()} == {"anna": ARGON2ID}


def test_a_file_with_the_line_ends_of_windows_or_blanks_at_them_is_read(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_bytes(f"\r\na:{MOSQUITTO_6}\r\nb:{ARGON2ID}  \r\n".encode())
    assert {name: stored.text for name, stored in password_file.load(str(path)).items()} == {
        "a": MOSQUITTO_6,
        "b": ARGON2ID,
    }


def test_one_file_may_hold_every_kind_of_hash(tmp_path: Path) -> None:
    path = tmp_path / "users"
    lines = {"d": SCRAM, "a b": ARGON2ID, "c": MOSQUITTO_6, "bén": MOSQUITTO_7}
    path.write_text("".join(f"{name}:{text}\n" for name, text in lines.items()))
    users = password_file.load(str(path))
    assert [stored.scheme for stored in users.values()] == [
        password_hashes.SCRAM,
        password_hashes.ARGON2ID,
        password_hashes.SHA512,
        password_hashes.PBKDF2,
    ]
    password_file.save(str(path), {name: stored.text for name, stored in users.items()})
    assert path.read_text() == "".join(f"{name}:{text}\n" for name, text in lines.items())


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"anna\n", "line 1: expected USERNAME:HASH"),
        (b"\n:$6$x\n", "line 2: expected USERNAME:HASH"),
        (b"anna:$7$101$abc\n", "line 1: expected a hash of mosquitto_passwd, $7$ITERATIONS"),
        (b"anna:secret\n", "line 1: expected a hash of `holdfast passwd`"),
        (f"a:{MOSQUITTO_6}\n\na:{ARGON2ID}\n".encode(), "line 3: 'a' again"),
        # mosquitto would have this user with the blank in its name.
        (f" a:{MOSQUITTO_6}\n".encode(), "line 1: expected USERNAME:HASH"),
        (f"a\x0b:{MOSQUITTO_6}\n".encode(), "line 1: expected USERNAME:HASH"),
        (f"IX:{SCRAM}\n\u2168:{SCRAM}\n".encode(), "line 2: '\u2168' is the same name as 'IX'"),
        (f"\U0001f600:{SCRAM}\n".encode(), "line 1: user name '\U0001f600': U+1F600 is not in"),
        (b"\xff\xfe", "expected UTF-8"),
        (f"\ufeffa:{MOSQUITTO_6}\n".encode(), "line 1: expected USERNAME:HASH"),  # a BOM
        (b"a:\n", "line 1: expected a hash"),
        (f"a:b:{MOSQUITTO_6}\n".encode(), "line 1: expected a hash"),
        (f"a:{MOSQUITTO_6}\nb:{ARGON2ID[:-1]}".encode(), "line 2: expected"),  # half written
    ],
)
def test_a_damaged_file_is_refused_with_its_line(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "users"
    path.write_bytes(content)
    with pytest.raises(PasswordFileError) as caught:
        password_file.load(str(path))
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_names_that_are_the_same_to_scram_may_both_have_other_hashes(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"IX:{SCRAM}\n\u2168:{ARGON2ID}\n")
    assert list(password_file.load(str(path))) == ["IX", "\u2168"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(PasswordFileError, match="No such file"):
        password_file.save(str(tmp_path / "absent" / "users"), {})
    with pytest.raises(PasswordFileError, match="No such file"):
        password_file.load(str(tmp_path / "absent"))


@pytest.mark.parametrize("username", ["", "a:b", "a\nb", "#a", " a", "a ", "x" * 65_536])
def test_user_names_that_would_break_the_file_are_refused(username: str) -> None:
    assert password_file.username_problem(username) is not None


@pytest.mark.parametrize("username", ["anna", "ä ö", "a#b", "device/7", "日本"])
def test_ordinary_user_names_are_taken(username: str) -> None:
    assert password_file.username_problem(username) is None
