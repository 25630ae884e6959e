"""`holdfast serve` refuses what it does not understand, in one line."""

import os
from pathlib import Path

import pytest

from tests.broker.cli.commands import Run, complaint

pytestmark = pytest.mark.full  # starts processes


def test_test_config_says_so_when_all_is_good(run: Run, tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text("[listener]\nport = 0\n")
    result = run("serve", "-c", "good.toml", "--test-config")
    assert (result.returncode, result.stdout, result.stderr) == (0, "configuration is good\n", "")
    assert sorted(os.listdir(tmp_path)) == ["good.toml"]


@pytest.mark.parametrize("extra", [(), ("--test-config",)])
def test_a_bad_configuration_is_one_line_and_exit_2(
    run: Run, tmp_path: Path, extra: tuple[str, ...]
) -> None:
    (tmp_path / "bad.toml").write_text("[session]\nmax_infligt = 5\n")
    line = complaint(run("serve", "-c", "bad.toml", *extra), 2)
    assert "file bad.toml: unknown key 'session.max_infligt'" in line
    assert "did you mean session.max_inflight?" in line


def test_bad_environment_and_flags_are_named(run: Run) -> None:
    line = complaint(run("serve", HOLDFAST__SYS__INTERVALL="5s"), 2)
    assert "did you mean HOLDFAST__SYS__INTERVAL?" in line
    line = complaint(run("serve", "-p", "http"), 2)
    assert "flag --port: listener.port = 'http': expected a whole number, 0 to 65535" in line


def test_test_config_looks_into_the_password_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "users").write_text("nonsense\n")
    line = complaint(run("serve", "--test-config", HOLDFAST__AUTH__PASSWORD_FILE="users"), 2)
    assert "password file users line 1" in line


def test_test_config_looks_into_the_acl_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "acl").write_text("topic read #\nallow all\n")
    line = complaint(run("serve", "--test-config", HOLDFAST__AUTH__ACL_FILE="acl"), 2)
    assert "acl file acl line 2: 'allow': expected" in line
    (tmp_path / "acl").write_text("topic read #\n")
    assert run("serve", "--test-config", HOLDFAST__AUTH__ACL_FILE="acl").returncode == 0


@pytest.mark.parametrize("variable", ["HOLDFAST__AUTH__ACL_FILE", "HOLDFAST__AUTH__PASSWORD_FILE"])
def test_a_broker_does_not_start_on_a_file_it_does_not_understand(
    run: Run, tmp_path: Path, variable: str
) -> None:
    (tmp_path / "file").write_text("nonsense\n")
    line = complaint(run("serve", "-p", "0", **{variable: "file"}), 1)
    assert "file line 1: " in line
    line = complaint(run("serve", "-p", "0", **{variable: "absent"}), 1)
    assert "absent: No such file or directory" in line
