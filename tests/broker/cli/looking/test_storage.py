"""`holdfast storage`: without a broker nothing is asked, and a wrong word is named."""

from pathlib import Path

from tests.broker.cli.commands import Run, complaint


def test_a_broker_has_to_run(run: Run, tmp_path: Path) -> None:
    for action in ("show", "reclaim"):
        result = run("storage", action, "--data-dir", str(tmp_path / "absent"))
        assert "no broker runs on data directory" in complaint(result, 1)
    assert run("storage", "shrink").returncode == 2
