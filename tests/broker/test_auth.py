"""Who is let in, as whom, and that no hash is computed on the caller's thread."""

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker import auth, passwords
from broker.auth import AllowAll, AllowAllPolicy, PasswordFile
from broker.ports import Verdict
from mqtt import reasons


class Loop:
    """The engine's thread, reduced to a queue that the test runs."""

    def __init__(self) -> None:
        self.calls: queue.Queue[tuple[Callable[..., None], tuple[object, ...]]] = queue.Queue()

    def call_soon_threadsafe(self, call: Callable[..., None], *arguments: object) -> None:
        self.calls.put((call, arguments))

    def run_one(self) -> None:
        call, arguments = self.calls.get(timeout=30)
        call(*arguments)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    passwords.save(str(path), {"anna": passwords.hasher().hash("right")})
    return path


@pytest.fixture
def open_file(loop: Loop, users: Path) -> Iterator[Callable[..., PasswordFile]]:
    opened: list[PasswordFile] = []

    def open_one(allow_anonymous: bool = False) -> PasswordFile:
        opened.append(
            PasswordFile(
                str(users),
                allow_anonymous=allow_anonymous,
                threads_max=1,
                call_soon_threadsafe=loop.call_soon_threadsafe,
            )
        )
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def ask(
    file: PasswordFile, loop: Loop, username: str | None, password: bytes | None
) -> tuple[Verdict, bool]:
    """Return the verdict and whether it came at once."""
    verdicts: list[Verdict] = []
    file.authenticate("c", username, password, verdicts.append)
    at_once = bool(verdicts)
    if not at_once:
        loop.run_one()
    (verdict,) = verdicts
    return verdict, at_once


@pytest.mark.parametrize(("username", "identity"), [("anna", "anna"), (None, ""), ("", "")])
def test_allow_all_takes_the_claimed_name_as_identity(username: str | None, identity: str) -> None:
    verdicts: list[Verdict] = []
    AllowAll().authenticate("c", username, b"whatever", verdicts.append)
    assert [(v.ok, v.reason_code, v.identity) for v in verdicts] == [(True, 0, identity)]


def test_the_right_password_is_accepted_as_its_user(
    open_file: Callable[..., PasswordFile], loop: Loop
) -> None:
    verdict, at_once = ask(open_file(), loop, "anna", b"right")
    assert (verdict.ok, verdict.identity, at_once) == (True, "anna", False)


@pytest.mark.parametrize(
    ("username", "password"),
    [("anna", b"wrong"), ("anna", None), ("anna", b""), ("nobody", b"right"), ("", b"right")],
)
def test_wrong_passwords_and_unknown_users_get_the_same_answer_after_a_hash(
    open_file: Callable[..., PasswordFile],
    loop: Loop,
    username: str,
    password: bytes | None,
) -> None:
    verdict, at_once = ask(open_file(), loop, username, password)
    assert not verdict.ok
    assert verdict.reason_code == reasons.BAD_USER_NAME_OR_PASSWORD
    assert verdict.identity == ""
    assert not at_once


def test_an_unknown_user_does_not_match_the_dummy_hash(
    open_file: Callable[..., PasswordFile], loop: Loop
) -> None:
    verdict, _ = ask(open_file(), loop, "nobody", b"nobody's password")
    assert not verdict.ok


@pytest.mark.parametrize(
    ("allowed", "password", "ok"),
    [(False, None, False), (True, None, True), (True, b"password without a name", False)],
)
def test_anonymous_clients_get_what_the_setting_says(
    open_file: Callable[..., PasswordFile],
    loop: Loop,
    allowed: bool,
    password: bytes | None,
    ok: bool,
) -> None:
    verdict, at_once = ask(open_file(allowed), loop, None, password)
    assert at_once
    assert verdict.ok is ok
    assert verdict.reason_code == (0 if ok else reasons.NOT_AUTHORIZED)


def test_more_checks_than_can_wait_are_refused_as_busy(
    open_file: Callable[..., PasswordFile], loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "WAITING_CHECKS_MAX", 1)
    file = open_file()
    verdicts: list[Verdict] = []
    file.authenticate("c", "anna", b"right", verdicts.append)
    file.authenticate("d", "anna", b"right", verdicts.append)
    assert [v.reason_code for v in verdicts] == [reasons.SERVER_BUSY]
    loop.run_one()
    assert verdicts[-1].ok
    assert ask(file, loop, "anna", b"right")[0].ok


def test_hashing_happens_off_the_callers_thread(
    open_file: Callable[..., PasswordFile], loop: Loop
) -> None:
    file = open_file()
    threads: list[str] = []
    original = file._matches

    def observed(stored_hash: str, password: bytes) -> bool:
        threads.append(threading.current_thread().name)
        return original(stored_hash, password)

    file._matches = observed
    ask(file, loop, "anna", b"right")
    assert threads != [threading.current_thread().name]


def test_reload_takes_new_users_and_keeps_the_old_ones_when_the_file_is_damaged(
    open_file: Callable[..., PasswordFile], loop: Loop, users: Path
) -> None:
    file = open_file()
    passwords.save(
        str(users), {**passwords.load(str(users)), "ben": passwords.hasher().hash("his")}
    )
    assert file.reload() == 2
    assert ask(file, loop, "ben", b"his")[0].ok
    users.write_text("nonsense\n")
    with pytest.raises(passwords.PasswordFileError):
        file.reload()
    assert ask(file, loop, "ben", b"his")[0].ok


def test_an_answer_after_the_loop_has_ended_is_dropped(
    open_file: Callable[..., PasswordFile], users: Path
) -> None:
    def ended(*arguments: object) -> None:
        raise RuntimeError("Event loop is closed")

    file = PasswordFile(
        str(users), allow_anonymous=False, threads_max=1, call_soon_threadsafe=ended
    )
    file._check(None, "anna", b"right", lambda verdict: pytest.fail("answered"))
    file.close()


def test_the_only_policy_so_far_allows_everything() -> None:
    policy = AllowAllPolicy()
    assert policy.may_publish("", "c", "a/b")
    assert policy.may_subscribe("", "c", "#")
    assert policy.may_receive("", "c", "a/b")
