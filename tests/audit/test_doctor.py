"""What an audit needs, found or not."""

import stat
from importlib import metadata
from pathlib import Path

import pytest

from audit import doctor
from tests.stand_in import replace_in


@pytest.mark.parametrize(
    ("text", "version"),
    [('openjdk version "17.0.12" 2026-07-16', 17), ('java version "1.8.0_402"', 8),
     ('openjdk version "21" 2023-09-19', 21), ("bash: no such thing", None)],
)  # fmt: skip
def test_the_version_of_java_is_read(text: str, version: int | None) -> None:
    assert doctor.java_version(text) == version


def fake_java(folder: Path, says: str) -> Path:
    """Write a java that only tells its version."""
    path = folder / "bin" / "java"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_java_of_java_home_is_the_one_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, 'openjdk version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = doctor.java()
    assert found.state == "missing"
    assert "is Java 11" in found.found
    assert found.help


def test_no_java_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = doctor.java()
    assert (found.state, found.help) == ("missing", doctor.java_help())


def test_a_java_home_without_java_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = doctor.java()
    assert found.state == "missing"
    assert str(tmp_path) in found.found


def test_help_suits_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDA_PREFIX", "/opt/conda")
    assert "conda-forge" in doctor.java_help()
    monkeypatch.delenv("CONDA_PREFIX")
    replace_in(monkeypatch, doctor, "sys", platform="darwin")
    assert "brew" in doctor.java_help()
    replace_in(monkeypatch, doctor, "sys", platform="linux")
    replace_in(monkeypatch, doctor, "shutil", which=lambda name: "/usr/bin/apt-get")
    assert "apt-get" in doctor.java_help()


@pytest.mark.parametrize(
    ("version", "state"), [("4.1.9", "missing"), ("4.2.0", "ok"), ("4.3.0.dev1", "ok"),
                           ("5.0.0", "missing")],
)  # fmt: skip
def test_versions_are_held_against_what_the_extra_pins(
    version: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_in(monkeypatch, doctor, "metadata", version=lambda name: version)
    found = doctor._package("pyspark")
    assert found.state == state
    if state == "missing":
        assert "pyspark>=4.2,<5" in found.help


def test_what_the_extra_pins_is_what_the_doctor_asks_for() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for line in project["optional-dependencies"]["audit"]:
        name, _, limits = line.partition(">=")
        if name not in doctor.NEEDS:
            continue
        lowest, _, too_new = limits.partition(",<")
        assert doctor.NEEDS[name][0] == doctor.version_of(lowest)
        assert doctor.NEEDS[name][1] == doctor.version_of(too_new)


def test_a_missing_package_comes_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    replace_in(monkeypatch, doctor, "metadata", version=missing)
    assert doctor._package("pandas").help == doctor.PIP
    assert "pip install '.[audit]' in a checkout" in doctor.PIP


def test_results_and_history_are_looked_at(tmp_path: Path) -> None:
    found = {f.name: f for f in doctor.examine(history=str(tmp_path), out=str(tmp_path / "a/b"))}
    assert found["results"].state == "ok"
    assert (found["history"].state, "no segment" in found["history"].found) == ("warning", True)
    (tmp_path / "other.parquet").touch()
    assert "no segment" in doctor._history(str(tmp_path)).found
    (tmp_path / "hour=03").mkdir()
    (tmp_path / "hour=03" / f"a-b-{1:08}-{1:016}-{9:016}.parquet").touch()
    assert doctor._history(str(tmp_path)).found.endswith(": 1 segment")
    found = {f.name: f for f in doctor.examine(history=str(tmp_path / "x"), out="s3a://b/out")}
    assert found["history"].state == "missing"
    assert found["results"].state == "ok"


def test_nothing_is_asked_of_the_machine_that_it_cannot_answer() -> None:
    names = [finding.name for finding in doctor.examine(history=None, out=".")]
    assert names == ["Python", "Java", "pyspark", "pyarrow", "pandas", "numpy", "jinja2", "memory",
                     "temporary space", "results"]  # fmt: skip


def test_missing_packages_are_found_without_importing_them() -> None:
    assert doctor.missing_packages(lambda name: None) == list(doctor.NEEDS)
    assert doctor.missing_packages(lambda name: object()) == []
