"""`holdfast config` tells every value and its origin."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.broker.cli.commands import Run

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
