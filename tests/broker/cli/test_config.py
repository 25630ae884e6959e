"""`holdfast config` tells every value and its origin."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.broker.cli.commands import Run
from tests.durability.process import BrokerProcess

pytestmark = pytest.mark.full  # starts processes


def test_config_show_tells_value_and_origin(run: Run) -> None:
    result = run("config", "show", "--data-dir", "here", HOLDFAST__SESSION__MAX_AGE="7d")
    assert result.returncode == 0
    assert re.search(
        r'^max_age = "7d" +# environment HOLDFAST__SESSION__MAX_AGE$', result.stdout, re.M
    )
    assert re.search(r'^data_dir = "here" +# flag --data-dir$', result.stdout, re.M)
    assert re.search(r"^port = 1883 +# default$", result.stdout, re.M)
    tomllib.loads(result.stdout)


def test_config_init_prints_a_configuration_that_passes(run: Run, tmp_path: Path) -> None:
    result = run("config", "init")
    (tmp_path / "holdfast.toml").write_text(result.stdout)
    assert run("serve", "-c", "holdfast.toml", "--test-config").returncode == 0


def test_config_show_origin_is_a_table_with_lines(run: Run, tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text('\n[log]\nlevel = "debug"\n')
    table = run("config", "show", "--origin", "-c", "holdfast.toml")
    title, *rows = table.stdout.splitlines()
    assert title.split() == ["NAME", "VALUE", "ORIGIN"]
    assert any(
        re.fullmatch(r'log\.level +"debug" +file holdfast\.toml, line 3', row) for row in rows
    )
    assert any(re.fullmatch(r"listener\.port +1883 +default", row) for row in rows)
    as_json = json.loads(run("config", "show", "-o", "json", "-c", "holdfast.toml").stdout)
    assert len(as_json) == len(rows) and {"name", "value", "origin"} == set(as_json[0])
    assert "\nlog.level," in run("config", "show", "-o", "csv", "-c", "holdfast.toml").stdout


def test_config_reload_says_what_changed_what_needs_a_restart_and_what_is_wrong(
    run: Run, prepare: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    toml = tmp_path / "holdfast.toml"
    toml.write_text("")
    broker = prepare()
    broker.arguments = ("-c", str(toml))
    broker.start()

    def reload() -> CompletedProcess[str]:
        return run("config", "reload", "--data-dir", str(broker.data_dir))

    same = reload()
    assert (same.returncode, same.stdout, same.stderr) == (0, "nothing has changed\n", "")
    toml.write_text("[session]\nmax_inflight = 7\n[listener]\nbacklog = 5\n")
    done = reload()
    assert (done.returncode, done.stderr) == (0, "")
    in_force, restart = done.stdout.splitlines()
    assert in_force == "in force: session.max_inflight = 7"
    assert restart == "listener.backlog = 5 needs a restart; until then 1024 holds"
    toml.write_text("[session]\nmax_infligt = 9\n")
    wrong = reload()
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "unknown key 'session.max_infligt'; did you mean session.max_inflight?" in wrong.stderr
    assert "all settings stay as they were" in wrong.stderr
