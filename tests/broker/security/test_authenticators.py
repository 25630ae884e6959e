"""Who is let in, as whom, and that no hash is computed on the caller's thread."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.security import authenticators, password_hashes
from broker.security.accounts import Accounts
from broker.security.authenticators import (
    AllowAll,
    AllowAllPolicy,
    AllowNobody,
    PasswordFile,
    PlainNames,
)
from broker.security.password_hashes import StoredHash, parse
from conformance.scram import ScramClient
from mqtt import reasons
from session.ports import STEP_CONTINUE, STEP_REFUSED, STEP_SUCCESS, Step, Verdict
from tests.broker.event_loop import Loop
from tests.broker.security.stored import MOSQUITTO_6, SCRAM

KEY = b"k" * 32


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture(scope="module")
def anna() -> dict[str, StoredHash]:
    """Return a file of one user whose password is "right"."""
    return {"anna": parse(password_hashes.hasher().hash("right"))}


@pytest.fixture
def open_file(loop: Loop, anna: dict[str, StoredHash]) -> Iterator[Callable[..., PasswordFile]]:
    opened: list[PasswordFile] = []

    def open_one(
        allow_anonymous: bool = False, users: dict[str, StoredHash] | None = None
    ) -> PasswordFile:
        opened.append(
            PasswordFile(
                Accounts(anna if users is None else users, KEY),
                allow_anonymous=allow_anonymous,
                threads_max=1,
                call_soon_threadsafe=loop.call_soon_threadsafe,
                new_nonce=lambda: "fixed",
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


def test_allow_nobody_refuses_whatever_is_claimed() -> None:
    verdicts: list[Verdict] = []
    for username in (None, "", "anna"):
        AllowNobody().authenticate("c", username, b"x", verdicts.append)
    assert [(v.ok, v.reason_code) for v in verdicts] == [(False, reasons.NOT_AUTHORIZED)] * 3
    assert AllowNobody().exchange("SCRAM-SHA-256", "c") is None
    assert AllowAll().exchange("SCRAM-SHA-256", "c") is None


def test_a_name_that_nobody_checks_or_asks_for_owns_nothing() -> None:
    verdicts: list[Verdict] = []
    AllowAll(names_count=False).authenticate("c", "ann", b"x", verdicts.append)
    assert verdicts[0].ok and verdicts[0].identity == ""


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


def test_a_stranger_is_refused_even_with_the_password_of_who_stands_in(
    open_file: Callable[..., PasswordFile], loop: Loop
) -> None:
    file = open_file()
    assert password_hashes.verify(file.accounts.to_verify("nobody"), b"right")
    verdict, _ = ask(file, loop, "nobody", b"right")
    assert (verdict.ok, verdict.reason_code) == (False, reasons.BAD_USER_NAME_OR_PASSWORD)


@pytest.mark.parametrize("users", [None, {"anna": parse(MOSQUITTO_6)}, {}])
def test_a_stranger_costs_a_hash_as_dear_as_a_users(
    open_file: Callable[..., PasswordFile], loop: Loop, users: dict[str, StoredHash] | None
) -> None:
    """So that the time an answer takes does not tell who exists (in a file of one kind)."""
    file = open_file(users=users)
    verified: list[tuple[int, tuple[int, ...]]] = []

    def observed(stored: StoredHash, password: bytes) -> bool:
        verified.append((stored.scheme, stored.cost))
        return False

    file._verify = observed
    for name in ("anna", "nobody", "", "Anna"):
        ask(file, loop, name, b"wrong")
    assert len(verified) == 4
    assert len(set(verified)) == 1


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
    monkeypatch.setattr(authenticators, "WAITING_CHECKS_MAX", 1)
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
    original = file._verify

    def observed(stored: StoredHash, password: bytes) -> bool:
        threads.append(threading.current_thread().name)
        return original(stored, password)

    file._verify = observed
    ask(file, loop, "anna", b"right")
    assert threads != [threading.current_thread().name]


@pytest.mark.skipif(sys.platform != "linux", reason="niceness by thread is Linux's")
def test_threads_that_hash_let_the_others_go_first(
    open_file: Callable[..., PasswordFile], loop: Loop
) -> None:
    file = open_file()
    found: list[int] = []

    def observed(stored: StoredHash, password: bytes) -> bool:
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return False

    file._verify = observed
    ask(file, loop, "anna", b"right")
    ours = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert found == [min(ours + authenticators.HASHING_NICENESS, 19)]


def test_new_accounts_count_from_the_next_check(
    open_file: Callable[..., PasswordFile], loop: Loop, anna: dict[str, StoredHash]
) -> None:
    file = open_file()
    file.accounts = Accounts({"ben": parse(MOSQUITTO_6)}, KEY)
    assert ask(file, loop, "ben", b"right pass")[0].ok
    assert not ask(file, loop, "anna", b"right")[0].ok
    file.accounts = Accounts(anna, KEY)
    assert ask(file, loop, "anna", b"right")[0].ok


def test_a_password_revoked_while_it_was_checked_is_refused(
    open_file: Callable[..., PasswordFile], loop: Loop, anna: dict[str, StoredHash]
) -> None:
    file = open_file()
    for users, ok in (
        ({}, False),
        ({"anna": parse(MOSQUITTO_6)}, False),
        ({"anna": parse(anna["anna"].text)}, True),  # read again, and still the same
    ):
        file.accounts = Accounts(anna, KEY)
        verdicts: list[Verdict] = []
        file.authenticate("c", "anna", b"right", verdicts.append)
        file.accounts = Accounts(users, KEY)
        loop.run_one()
        assert [verdict.ok for verdict in verdicts] == [ok]


def test_a_check_that_fails_is_refused_and_reported_and_takes_no_place_from_others(
    open_file: Callable[..., PasswordFile], loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the system has no memory or no file descriptor for what a hash needs."""
    monkeypatch.setattr(authenticators, "WAITING_CHECKS_MAX", 1)
    file = open_file()
    verify = file._verify

    def failing(stored: StoredHash, password: bytes) -> bool:
        raise MemoryError("no memory for a hash")

    for _ in range(2):
        file._verify = failing
        verdicts: list[Verdict] = []
        file.authenticate("c", "anna", b"right", verdicts.append)
        with pytest.raises(MemoryError, match="no memory for a hash"):
            loop.run_one()  # where the broker logs and counts it
        assert [(one.ok, one.reason_code) for one in verdicts] == [(False, reasons.SERVER_BUSY)]
        file._verify = verify
        assert ask(file, loop, "anna", b"right")[0].ok


class OneThread(ThreadPoolExecutor):
    """A pool on a system that starts no second thread."""

    def _adjust_thread_count(self) -> None:
        if self._threads:
            raise RuntimeError("can't start new thread")
        super()._adjust_thread_count()  # type: ignore[misc]  # the pool's own


def test_where_no_thread_can_be_started_those_that_run_check_all_passwords(
    open_file: Callable[..., PasswordFile], loop: Loop
) -> None:
    file = open_file()
    file._threads = OneThread(2)
    file._threads.submit(int).result()
    verdicts: list[Verdict] = []
    for _ in range(3):
        file.authenticate("c", "anna", b"right", verdicts.append)
    for _ in range(3):
        loop.run_one()
    assert [verdict.ok for verdict in verdicts] == [True] * 3


def test_an_answer_after_the_loop_has_ended_is_dropped() -> None:
    def ended(*arguments: object) -> None:
        raise RuntimeError("Event loop is closed")

    file = PasswordFile(
        Accounts({}, KEY),
        allow_anonymous=False,
        threads_max=1,
        call_soon_threadsafe=ended,
        new_nonce=lambda: "fixed",
    )
    file._check(parse(MOSQUITTO_6), "anna", b"right", lambda verdict: pytest.fail("answered"))
    file.close()


# Enhanced authentication.


def converse(file: PasswordFile, client: ScramClient) -> list[Step]:
    """Return the server's steps, all of them taken at once."""
    exchange = file.exchange("SCRAM-SHA-256", "c")
    assert exchange is not None
    steps: list[Step] = []
    exchange.step(client.first(), steps.append)
    assert steps[0].outcome == STEP_CONTINUE
    assert steps[0].data is not None
    exchange.step(client.final(steps[0].data), steps.append)
    return steps


def test_a_user_of_scram_is_let_in_as_that_user(open_file: Callable[..., PasswordFile]) -> None:
    file = open_file(users={"user": parse(SCRAM)})
    client = ScramClient("user", "pencil")
    steps = converse(file, client)
    assert (steps[1].outcome, steps[1].identity) == (STEP_SUCCESS, "user")
    assert steps[1].data is not None
    client.verify(steps[1].data)


def test_the_same_line_also_takes_the_plain_password(
    open_file: Callable[..., PasswordFile], loop: Loop
) -> None:
    file = open_file(users={"user": parse(SCRAM)})
    assert ask(file, loop, "user", b"pencil")[0].ok
    assert not ask(file, loop, "user", b"pen")[0].ok


@pytest.mark.parametrize("name", ["user", "anna", "nobody"])
def test_scram_answers_strangers_and_users_without_it_as_it_answers_a_wrong_password(
    open_file: Callable[..., PasswordFile], anna: dict[str, StoredHash], name: str
) -> None:
    file = open_file(users={"user": parse(SCRAM), **anna})
    first, second = converse(file, ScramClient(name, "right"))
    assert first.data is not None
    nonce, salt, iterations = first.data.split(b",")
    assert nonce.endswith(b"fixed")
    assert len(salt) == len(b"s=W22ZaJ0SNY7soEsUEjb6gQ==")
    assert iterations == b"i=4096"
    assert (second.outcome, second.reason_code) == (STEP_REFUSED, reasons.NOT_AUTHORIZED)
    again, _ = converse(file, ScramClient(name, "right"))
    assert again.data == first.data


def test_a_reload_ends_an_exchange_that_it_makes_wrong(
    open_file: Callable[..., PasswordFile], anna: dict[str, StoredHash]
) -> None:
    file = open_file(users={"user": parse(SCRAM)})
    for users in (anna, {}):
        file.accounts = Accounts({"user": parse(SCRAM)}, KEY)
        client = ScramClient("user", "pencil")
        exchange = file.exchange("SCRAM-SHA-256", "c")
        assert exchange is not None
        steps: list[Step] = []
        exchange.step(client.first(), steps.append)
        assert steps[0].data is not None
        file.accounts = Accounts(users, KEY)
        exchange.step(client.final(steps[0].data), steps.append)
        assert steps[1].outcome == STEP_REFUSED


@pytest.mark.parametrize(
    "method", ["SCRAM-SHA-1", "SCRAM-SHA-256-PLUS", "scram-sha-256", "PLAIN", ""]
)
def test_other_methods_are_not_known(open_file: Callable[..., PasswordFile], method: str) -> None:
    assert open_file(users={"user": parse(SCRAM)}).exchange(method, "c") is None


def test_scram_is_not_known_where_nobody_could_use_it(
    open_file: Callable[..., PasswordFile],
) -> None:
    assert open_file().exchange("SCRAM-SHA-256", "c") is None


# Names.

CONTROLS = [*map(chr, range(0x20)), "\x7f"]


@pytest.mark.parametrize("control", CONTROLS)
def test_names_with_control_characters_are_refused_unseen(control: str) -> None:
    inner = Witness()
    names, verdicts = PlainNames(inner), list[Verdict]()
    names.authenticate(f"a{control}", "anna", b"x", verdicts.append)
    names.authenticate("c", f"{control}anna", b"x", verdicts.append)
    names.authenticate(control, None, None, verdicts.append)
    assert [verdict.ok for verdict in verdicts] == [False] * 3
    assert [verdict.reason_code for verdict in verdicts] == [
        reasons.CLIENT_IDENTIFIER_NOT_VALID,
        reasons.BAD_USER_NAME_OR_PASSWORD,
        reasons.CLIENT_IDENTIFIER_NOT_VALID,
    ]
    exchange = names.exchange("known", f"a{control}")
    assert exchange is not None
    steps: list[Step] = []
    exchange.step(b"x", steps.append)
    assert [(s.outcome, s.reason_code) for s in steps] == [
        (STEP_REFUSED, reasons.CLIENT_IDENTIFIER_NOT_VALID)
    ]
    assert inner.asked == []
    assert names.exchange("unknown", f"a{control}") is None


@pytest.mark.parametrize("name", ["c", "ä ö", "a/b", "+#", "\x85", "$SYS", "日本", "%c"])
def test_other_names_are_passed_on(name: str) -> None:
    inner = Witness()
    names, verdicts = PlainNames(inner), list[Verdict]()
    names.authenticate(name, name, b"x", verdicts.append)
    names.authenticate(name, None, None, verdicts.append)
    assert [verdict.ok for verdict in verdicts] == [True, True]
    assert inner.asked == [(name, name, b"x"), (name, None, None)]
    assert names.exchange("known", name) is inner


class Witness:
    """An authenticator that lets everybody in and remembers who came; its own exchange, too."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None, bytes | None]] = []

    def authenticate(
        self,
        client_id: str,
        username: str | None,
        password: bytes | None,
        done: Callable[[Verdict], None],
    ) -> None:
        """Let the client in."""
        self.asked.append((client_id, username, password))
        done(Verdict(ok=True, reason_code=0, identity=username or ""))

    def exchange(self, method: str, client_id: str) -> "Witness | None":
        """Know one method."""
        return self if method == "known" else None

    def step(self, data: bytes | None, done: Callable[[Step], None]) -> None:
        """Let the client in."""
        done(Step(STEP_SUCCESS, identity="anna"))


def test_the_policy_without_an_acl_file_allows_everything() -> None:
    policy = AllowAllPolicy()
    assert policy.is_open
    assert policy.may_publish("", "c", "a/b")
    assert policy.may_subscribe("", "c", "#")
    assert policy.may_receive("", "c", "a/b")
