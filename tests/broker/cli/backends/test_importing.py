"""`holdfast backend import`: TOML on stdout, what is missing on stderr, and the exit status."""

import argparse
from pathlib import Path

import pytest

from broker.cli.backends.importing import run_import
from broker.cli.command import EXIT_FAILED, EXIT_OK, EXIT_USAGE, CommandError

SERVER = "backend.redis.pool1.server = 127.0.0.1:6379\n"


def given(path: Path) -> argparse.Namespace:
    return argparse.Namespace(file=str(path))


def test_a_file_that_is_carried_over_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "redis.conf"
    path.write_text(SERVER)
    assert run_import(given(path)) == EXIT_OK
    assert 'servers = ["127.0.0.1:6379"]' in capsys.readouterr().out


def test_what_is_not_carried_over_is_counted_and_the_rest_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "redis.conf"
    path.write_text(SERVER + "nonsense\nbackend.redis.hook.message.publish.1 = {}\n")
    with pytest.raises(CommandError, match="1 lines not understood, 1 rules not") as failed:
        run_import(given(path))
    assert failed.value.exit_code == EXIT_FAILED
    out = capsys.readouterr().out
    assert "[backends.pool1]" in out and "# not understood, line 2: nonsense" in out


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff")
    for path in (tmp_path / "absent", binary):
        with pytest.raises(CommandError, match=path.name) as failed:
            run_import(given(path))
        assert failed.value.exit_code == EXIT_USAGE
