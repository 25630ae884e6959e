"""Browser sessions end when they are idle, old, too many, or told to."""

from typing import Any

import pytest

from broker.admin.access.logins import (
    FORM_S,
    IDLE_S,
    OLDEST_S,
    SESSIONS_MAX,
    SESSIONS_PER_USER_MAX,
    Logins,
)
from broker.admin.access.users import User


def user(name: str = "ann") -> User:
    entry: dict[str, Any] = {"name": name, "role": "viewer", "payloads": False}
    return User({**entry, "argon2id": "$hash", "changed_ms": 1})


def test_a_cookie_finds_its_session_and_no_other_text_does() -> None:
    logins = Logins()
    cookie, login = logins.begin(user(), 0.0)
    assert logins.find(cookie, 1.0) is login
    for wrong in ("", cookie[:-1], cookie + "=", login.csrf, "\udcff"):
        assert logins.find(wrong, 1.0) is None


def test_a_session_is_of_its_user_as_it_was_when_it_began() -> None:
    _, login = Logins().begin(user(), 0.0)
    assert login.is_of(user()) and not login.is_of(None)
    changed = user()
    changed.changed_ms += 1
    assert not login.is_of(changed)


def test_an_idle_session_ends_and_one_in_use_does_not() -> None:
    logins = Logins()
    idle, _ = logins.begin(user(), 0.0)
    used, _ = logins.begin(user(), 0.0)
    for turn in range(1, 4):
        assert logins.find(used, turn * (IDLE_S - 1)) is not None
    assert logins.find(idle, IDLE_S) is None
    assert len(logins) == 1


def test_a_session_ends_when_it_is_old_however_busy_it_is() -> None:
    logins = Logins()
    cookie, _ = logins.begin(user(), 0.0)
    now = 0.0
    while now + 60 < OLDEST_S:
        now += 60
        assert logins.find(cookie, now) is not None
    assert logins.find(cookie, OLDEST_S) is None


def test_log_out_ends_one_session() -> None:
    logins = Logins()
    one, _ = logins.begin(user(), 0.0)
    other, _ = logins.begin(user(), 0.0)
    logins.end(one)
    logins.end(one)
    assert logins.find(one, 1.0) is None
    assert logins.find(other, 1.0) is not None


def test_a_user_has_few_sessions_and_all_together_have_a_limit() -> None:
    logins = Logins()
    first, _ = logins.begin(user(), 0.0)
    for _ in range(SESSIONS_PER_USER_MAX):
        logins.begin(user(), 1.0)
    assert len(logins) == SESSIONS_PER_USER_MAX
    assert logins.find(first, 1.0) is None
    for number in range(SESSIONS_MAX + 5):
        logins.begin(user(f"user-{number}"), 2.0)
    assert len(logins) == SESSIONS_MAX


def test_every_session_has_secrets_of_its_own() -> None:
    logins = Logins()
    made = [logins.begin(user(), 0.0) for _ in range(10)]
    assert len({cookie for cookie, _ in made} | {login.csrf for _, login in made}) == 20


def test_a_form_is_of_this_process_this_browser_and_not_old() -> None:
    logins = Logins()
    cookie, field = logins.new_form(100.0)
    other, _ = logins.new_form(100.0)
    assert logins.is_form(cookie, field, 100.0)
    assert logins.is_form(cookie, field, 100.0 + FORM_S - 2)
    assert not logins.is_form(cookie, field, 100.0 + FORM_S)
    assert not logins.is_form(other, field, 100.0)
    assert not logins.is_form(cookie, "", 100.0)
    assert not Logins().is_form(cookie, field, 100.0)


@pytest.mark.parametrize("cookie", ["", ".", "x.", "x.-5", "x.1e9", "ä.1"])
def test_what_is_no_form_is_refused(cookie: str) -> None:
    logins = Logins()
    assert not logins.is_form(cookie, logins._sign(cookie), 100_000.0)
