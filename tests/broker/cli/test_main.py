"""The command as a user meets it: quick, and clear about what it does not know."""

import subprocess
import sys
import tomllib

import pytest

from broker import build
from broker.version import VERSION
from tests.broker.cli.commands import ROOT, Run

pytestmark = pytest.mark.full  # starts processes


def test_the_version_is_the_projects(run: Run) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    assert run("--version").stdout == f"holdfast {VERSION}, {build.find()}\n"


def test_importing_the_command_loads_nothing_heavy(run: Run) -> None:
    script = (
        "import sys, broker.cli.main;"
        "heavy = {'asyncio', 'uvloop', 'rocksdict', 'argon2', 'prometheus_client', 'http'};"
        "heavy |= {'redis', 'hiredis', 'boto3', 'botocore', 'cassandra', 'confluent_kafka'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "required"),
        (("sreve",), "invalid choice"),
        (("serve", "--prot", "1"), "unrecognized arguments"),
    ],
)
def test_an_unknown_command_or_flag_exits_2(
    run: Run, arguments: tuple[str, ...], text: str
) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert text in result.stderr
    assert "Traceback" not in result.stderr
