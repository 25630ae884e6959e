"""`holdfast passwd` changes one user, or nothing."""

from pathlib import Path

import pytest

from broker.security import password_file, password_hashes
from tests.broker.cli.commands import Run, complaint
from tests.broker.security.stored import MOSQUITTO_7

pytestmark = pytest.mark.full  # starts processes


def test_passwd_creates_changes_and_deletes_users(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert run("passwd", "-c", "users", "anna", input="first\n").returncode == 0
    assert run("passwd", "-b", "users", "ben", "his").returncode == 0
    assert run("passwd", "users", "anna", input="second\n").returncode == 0
    users = password_file.load(str(path))
    assert list(users) == ["anna", "ben"]
    assert password_hashes.verify(users["anna"], b"second")
    assert password_hashes.verify(users["ben"], b"his")
    assert run("passwd", "-D", "users", "anna").returncode == 0
    assert list(password_file.load(str(path))) == ["ben"]


def test_passwd_writes_keys_for_scram_and_leaves_other_lines_alone(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "users"
    path.write_text(f"old:{MOSQUITTO_7}\n")
    assert run("passwd", "--scram", "-b", "users", "anna", "hers").returncode == 0
    assert path.read_text().startswith(f"old:{MOSQUITTO_7}\nanna:SCRAM-SHA-256$")
    users = password_file.load(str(path))
    assert users["anna"].scheme == password_hashes.SCRAM
    assert password_hashes.verify(users["anna"], b"hers")
    assert run("passwd", "--scram", "users", "ben", input="hers\n").returncode == 0
    assert password_file.load(str(path))["ben"].salt != users["anna"].salt
    assert run("passwd", "users", "anna", input="plain\n").returncode == 0
    assert password_file.load(str(path))["anna"].scheme == password_hashes.ARGON2ID


@pytest.mark.parametrize(
    ("arguments", "exit_code", "text"),
    [
        (("absent", "anna"), 1, "password file absent: No such file or directory (-c creates it)"),
        (("-c", "users", "anna"), 1, "exists; -c is for a new one"),
        (("-D", "users", "nobody"), 1, "no user 'nobody' in users"),
        (("users", "anna", "secret"), 2, "needs -b"),
        (("-b", "users", "anna"), 2, "-b needs the password"),
        (("users", "a:b"), 2, "user name 'a:b'"),
        (("-c", "-D", "users", "anna"), 2, "exclude each other"),
        (("users", "anna"), 1, "the password is empty"),
        (("--scram", "-b", "users", "anna", "\u0627a"), 1, "password for SCRAM: right-to-left"),
        (("--scram", "-b", "users", "😀", "x"), 2, "U+1F600 is not in the Unicode 3.2"),
    ],
)
def test_passwd_mistakes_are_one_line_and_change_nothing(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], exit_code: int, text: str
) -> None:
    (tmp_path / "users").write_text("")
    assert text in complaint(run("passwd", *arguments, input="\n"), exit_code)
    assert (tmp_path / "users").read_text() == ""
