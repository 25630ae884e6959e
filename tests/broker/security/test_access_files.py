"""The files of users and rules: read together, and never half in force."""

import errno
import io
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.configuration.config import Config
from broker.observe.structured_log import Log
from broker.security import access_files
from broker.security.access_files import KEY_FILE, Access, AccessError, secret_key
from broker.security.acl import Rules
from session.ports import Verdict
from tests.broker.descriptors import no_files_left
from tests.broker.event_loop import Loop
from tests.broker.security.stored import ARGON2ID, MOSQUITTO_6, MOSQUITTO_7, SCRAM

RULES = "topic read public/#\nuser anna\ntopic a\npattern read own/%c/#\n"


class Site:
    """The files of one broker, in a directory of the test."""

    def __init__(self, directory: Path) -> None:
        self.users = directory / "users"
        self.acl = directory / "acl"
        self.opened: list[Access] = []
        self.loop = Loop()

    def write(self, users: str | None = None, rules: str | None = None) -> None:
        """Write the files, private as they should be."""
        for path, text in ((self.users, users), (self.acl, rules)):
            if text is not None:
                path.write_text(text)
                path.chmod(0o600)

    def configure(self, *, allow_anonymous: bool | None = None) -> Config:
        """Return a configuration of the files that are there."""
        config = Config()
        config.shell.password_file = str(self.users) if self.users.exists() else None
        config.shell.acl_file = str(self.acl) if self.acl.exists() else None
        config.shell.allow_anonymous = allow_anonymous
        config.finish()
        return config

    def open(self, *, allow_anonymous: bool | None = None) -> Access:
        """Return what a broker would use."""
        config = self.configure(allow_anonymous=allow_anonymous)
        self.opened.append(
            Access(
                config,
                key=b"k" * 32,
                call_soon_threadsafe=self.loop.call_soon_threadsafe,
            )
        )
        return self.opened[-1]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for one in site.opened:
        one.close()


def judged(opened: Access, client_id: str, username: str | None = None) -> Verdict:
    """Return the verdict on a client without a password; it must need no hash."""
    verdicts: list[Verdict] = []
    opened.authenticator.authenticate(client_id, username, None, verdicts.append)
    (verdict,) = verdicts
    return verdict


# What a configuration asks for.


def test_without_files_everybody_may_everything(site: Site) -> None:
    opened = site.open()
    assert opened.policy.is_open
    assert judged(opened, "c").ok
    assert judged(opened, "c\x01").ok
    assert not opened.has_files
    assert opened.warnings == []


def test_nobody_is_let_in_where_nameless_clients_are_not_and_no_name_can_be_checked(
    site: Site,
) -> None:
    opened = site.open(allow_anonymous=False)
    assert not judged(opened, "c").ok
    assert not judged(opened, "c", "anna").ok


def test_an_acl_file_alone_lets_everybody_in_and_judges_what_they_do(site: Site) -> None:
    site.write(rules=RULES)
    opened = site.open()
    assert judged(opened, "c").ok
    assert not opened.policy.is_open
    assert opened.policy.may_receive("", "c", "public/x")
    assert not opened.policy.may_publish("", "c", "public/x")


@pytest.mark.parametrize(
    ("users", "rules"), [(f"anna:{ARGON2ID}\n", None), (None, RULES), ("", RULES)]
)
def test_where_a_file_is_in_use_names_have_no_control_characters(
    site: Site, users: str | None, rules: str | None
) -> None:
    site.write(users, rules)
    opened = site.open()
    assert not judged(opened, "c\x07").ok
    assert not judged(opened, "c", "anna\n").ok
    assert opened.authenticator.exchange("SCRAM-SHA-256", "c") is None


def test_scram_users_can_begin_an_exchange(site: Site) -> None:
    site.write(users=f"user:{SCRAM}\n")
    opened = site.open()
    assert opened.authenticator.exchange("SCRAM-SHA-256", "c") is not None
    assert opened.authenticator.exchange("SCRAM-SHA-256-PLUS", "c") is None


# Files that are not right.


@pytest.mark.parametrize(
    ("users", "rules", "complaint"),
    [
        ("anna\n", None, "users line 1: expected USERNAME:HASH"),
        (f"anna:{ARGON2ID}\nben:{MOSQUITTO_6[:-6]}\n", None, "users line 2: expected a hash"),
        (None, "topic\n", "acl line 1: expected a topic filter"),
        (f"anna:{ARGON2ID}\n", RULES + "tpoic x\n", "acl line 5: 'tpoic'"),
        ("garbled\n", RULES, "users line 1"),
    ],
)
def test_a_file_that_is_not_right_keeps_the_broker_from_starting(
    site: Site, users: str | None, rules: str | None, complaint: str
) -> None:
    site.write(users, rules)
    with pytest.raises(AccessError) as caught:
        site.open()
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(AccessError):
        access_files.check(site.configure())


@pytest.mark.parametrize("name", ["users", "acl"])
def test_a_file_that_cannot_be_read_keeps_the_broker_from_starting(site: Site, name: str) -> None:
    site.write("", "")
    config = site.configure()
    path = site.users if name == "users" else site.acl
    path.unlink()
    with pytest.raises(AccessError, match=f"{name}: No such file"):
        access_files.check(config)
    path.mkdir()
    with pytest.raises(AccessError, match=f"{name}: Is a directory"):
        access_files.check(config)
    path.rmdir()
    path.write_bytes(b"topic read \xff\n")
    with pytest.raises(AccessError, match=f"{name}: expected UTF-8 text"):
        access_files.check(config)


def test_an_acl_file_of_absurd_size_is_a_mistake(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_files, "ACL_BYTES_MAX", 20)
    site.write(rules="#" * 21)
    with pytest.raises(AccessError, match="larger than 20 bytes"):
        site.open()


# Reload.


def test_a_reload_is_seen_by_the_next_question(site: Site) -> None:
    site.write(f"anna:{MOSQUITTO_6}\n", RULES)
    opened = site.open(allow_anonymous=True)
    policy = opened.policy
    assert policy.may_publish("anna", "c", "a")
    assert opened.authenticator.exchange("SCRAM-SHA-256", "c") is None
    site.write(f"anna:{MOSQUITTO_6}\nuser:{SCRAM}\n", "user anna\ntopic b\n")
    assert opened.reload().counts == {"users": 2, "rules": 1}
    assert not policy.may_publish("anna", "c", "a")
    assert policy.may_publish("anna", "c", "b")
    assert not policy.may_receive("anna", "c", "own/c/x")
    assert opened.authenticator.exchange("SCRAM-SHA-256", "c") is not None


@contextmanager
def with_text(site: Site, users: str | None, rules: str | None) -> Iterator[None]:
    site.write(users, rules)
    yield


@contextmanager
def without(*paths: Path) -> Iterator[None]:
    for path in paths:
        path.unlink()
    yield


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda s: with_text(s, "garbled", "user anna\ntopic b\n"), "users line 1"),
        (lambda s: with_text(s, f"user:{SCRAM}\n", "garbled"), "acl line 1"),
        (lambda s: without(s.users), "users: No such file"),
        (lambda s: without(s.acl), "acl: No such file"),
        (lambda s: without(s.users, s.acl), "No such file"),
        (lambda s: no_files_left(), os.strerror(errno.EMFILE)),
    ],
)
def test_a_reload_that_fails_changes_nothing_in_any_file(
    site: Site, damage: Callable[[Site], object], complaint: str
) -> None:
    site.write(f"anna:{MOSQUITTO_7}\n", RULES)
    opened = site.open(allow_anonymous=True)
    before = (opened._password_file.accounts, opened._acl_policy.rules)  # type: ignore[union-attr]
    with damage(site), pytest.raises(AccessError, match=complaint):  # type: ignore[attr-defined]
        opened.reload()
    after = (opened._password_file.accounts, opened._acl_policy.rules)  # type: ignore[union-attr]
    assert after == before
    assert opened.policy.may_publish("anna", "c", "a")
    assert opened.authenticator.exchange("SCRAM-SHA-256", "c") is None
    site.write(f"anna:{MOSQUITTO_7}\n", RULES)
    assert opened.reload().counts == {"users": 1, "rules": 3}


def test_new_rules_are_in_force_when_the_reload_returns(site: Site) -> None:
    site.write(rules="topic a\n")
    opened = site.open()
    site.write(rules="topic b\n")
    opened.reload()
    assert not opened.policy.may_publish("", "c", "a")
    assert opened.policy.may_publish("", "c", "b")
    assert site.loop.calls.empty()


def test_a_reload_tells_whose_password_is_not_theirs_any_more(site: Site) -> None:
    site.write(f"anna:{MOSQUITTO_6}\nben:{MOSQUITTO_6}\n", RULES)
    opened = site.open()
    assert opened.reload().revoked == frozenset()
    site.write(f"anna:{MOSQUITTO_6}\nben:{MOSQUITTO_7}\n")
    assert opened.reload().revoked == {"ben"}
    site.write("")
    assert opened.reload().revoked == {"anna", "ben"}


def test_files_too_large_for_the_memory_leave_everything_as_it_was(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(path: str, known: Rules) -> None:
        raise MemoryError

    site.write(rules="topic a\n")
    opened = site.open()
    monkeypatch.setattr(access_files, "_read_acl", no_memory)
    with pytest.raises(AccessError, match="not enough memory"):
        opened.reload()
    assert opened.policy.may_publish("", "c", "a")


def test_an_empty_acl_file_denies_everything_at_a_reload_too(site: Site) -> None:
    site.write(rules="topic #\n")
    opened = site.open()
    assert opened.policy.may_publish("", "c", "a")
    site.write(rules="")
    assert opened.reload().counts == {"rules": 0}
    assert not opened.policy.may_publish("", "c", "a")
    assert not opened.policy.may_subscribe("", "c", "#")


# What the operator is told.


@pytest.mark.parametrize(
    ("name", "mode", "deed"),
    [
        ("users", 0o640, "lets others read it"),
        ("users", 0o604, "lets others read it"),
        ("users", 0o666, "lets others read and write it"),
        ("users", 0o620, "lets others write it"),
        ("acl", 0o660, "lets others write it"),
    ],
)
def test_files_that_others_can_use_are_warned_of(
    site: Site, name: str, mode: int, deed: str
) -> None:
    site.write("", "")
    path = site.users if name == "users" else site.acl
    path.chmod(mode)
    (warning,) = site.open().warnings
    assert str(path) in warning
    assert deed in warning
    assert f"{mode:04o}" in warning


def test_private_files_and_a_readable_acl_file_are_not_warned_of(site: Site) -> None:
    site.write("", "")
    site.acl.chmod(0o644)
    assert site.open().warnings == []


def test_rules_for_users_that_nobody_checks_are_warned_of(site: Site) -> None:
    site.write(rules="user anna\ntopic a\n")
    (warning,) = site.open().warnings
    assert "no password file" in warning
    site.write(users="")
    assert site.open().warnings == []


def test_a_reload_warns_of_the_files_of_now(site: Site) -> None:
    site.write("", None)
    opened = site.open()
    site.users.chmod(0o644)
    assert len(opened.reload().warnings) == 1
    site.users.chmod(0o600)
    assert opened.reload().warnings == []


class Lines:
    """A log that can be read."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.log = Log(self.stream, format="json")

    def take(self) -> list[dict[str, Any]]:
        """Return the lines since the last time."""
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        self.stream.seek(0)
        self.stream.truncate()
        return lines


def test_start_and_reload_are_logged_with_one_line_for_each_thing_to_know(
    site: Site, tmp_path: Path
) -> None:
    site.write(f"anna:{MOSQUITTO_7}\n", RULES)
    site.users.chmod(0o644)
    config = site.configure()
    config.shell.data_dir = str(tmp_path)
    lines = Lines()
    opened = access_files.open_files(config, lines.log, site.loop.call_soon_threadsafe)
    site.opened.append(opened)
    assert [(line["level"], line["event"]) for line in lines.take()] == [("warning", "access")]
    assert (tmp_path / KEY_FILE).exists()
    site.users.chmod(0o600)
    sent_away: list[frozenset[str]] = []
    access_files.reload_files(opened, lines.log, sent_away.append)
    (line,) = lines.take()
    assert (line["level"], line["event"], line["users"], line["rules"]) == ("info", "reload", 1, 3)
    assert (line["revoked"], sent_away) == (0, [])
    site.write("", None)
    access_files.reload_files(opened, lines.log, sent_away.append)
    (line,) = lines.take()
    assert (line["revoked"], sent_away) == (1, [frozenset({"anna"})])
    site.write(None, "garbled\n")
    access_files.reload_files(opened, lines.log, sent_away.append)
    (line,) = lines.take()
    assert (line["level"], line["event"]) == ("error", "reload_failed")
    assert f"acl file {site.acl} line 1: 'garbled'" in line["message"]
    assert len(sent_away) == 1


def test_without_files_there_is_no_key_and_nothing_to_read_again(
    site: Site, tmp_path: Path
) -> None:
    config = site.configure()
    config.shell.data_dir = str(tmp_path / "data")
    lines = Lines()
    opened = access_files.open_files(config, lines.log, site.loop.call_soon_threadsafe)
    assert lines.take() == []
    assert not (tmp_path / "data").exists()
    assert not opened.has_files


def test_a_key_that_cannot_be_kept_is_logged(site: Site, tmp_path: Path) -> None:
    site.write("", None)
    config = site.configure()
    config.shell.data_dir = str(tmp_path / "absent")
    lines = Lines()
    site.opened.append(access_files.open_files(config, lines.log, lambda call, *arguments: None))
    (line,) = lines.take()
    assert line["level"] == "warning"
    assert "for this run only" in line["message"]


# The key.


def test_the_key_of_a_data_directory_is_made_once_and_private(tmp_path: Path) -> None:
    key, problem = secret_key(tmp_path)
    assert (len(key), problem) == (32, None)
    assert secret_key(tmp_path) == (key, None)
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [KEY_FILE]


def test_a_key_cut_short_by_a_crash_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_bytes(b"short")
    key, problem = secret_key(tmp_path)
    assert problem is None
    assert secret_key(tmp_path) == (key, None)


def test_a_key_that_cannot_be_kept_is_good_for_this_run(tmp_path: Path) -> None:
    key, problem = secret_key(tmp_path / "absent")
    assert len(key) == 32
    assert problem is not None
    assert "No such file" in problem
    (tmp_path / KEY_FILE).mkdir()
    key, problem = secret_key(tmp_path)
    assert len(key) == 32
    assert problem is not None
    assert "Is a directory" in problem
