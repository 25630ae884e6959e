"""What pip installs works beside packages that have the names of ours, and takes none from them.

tests/packaging/test_wheel.py asks the same of the wheel a user compiles.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.durability.process import ROOT
from tests.packaging.installation import (
    Installation,
    Surroundings,
    audit_judges,
    clean,
    other_wheel,
    others_are_themselves,
    works_beside_others,
)

PURE = r"pure Python \(HOLDFAST_BUILD=pure\)"
SOURCES = r"pure Python \(run from its sources\)"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the pure wheel."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "--wheel-dir", str(directory), str(ROOT)],
        env={**clean(), "HOLDFAST_BUILD": "pure"},
        check=True,
        capture_output=True,
    )
    (made,) = directory.iterdir()
    return made


@pytest.mark.parametrize("kind", ["wheel", pytest.param("editable", marks=pytest.mark.ci)])
def test_it_works_beside_packages_that_have_the_names_of_ours(
    kind: str, wheel: Path, tmp_path: Path
) -> None:
    ours, version = ([str(wheel)], PURE) if kind == "wheel" else (["-e", str(ROOT)], SOURCES)
    others = str(other_wheel(tmp_path))
    installed = Installation(tmp_path / "environment")
    empty = installed.files()
    installed.pip("install", *ours)
    installed.pip("install", others)
    works_beside_others(installed, tmp_path, version)
    others_are_themselves(installed, tmp_path)

    installed.pip("uninstall", "holdfast-mqtt")
    others_are_themselves(installed, tmp_path)
    installed.pip("install", *ours)  # after the others, this time
    assert "nothing was lost" in Surroundings(installed, tmp_path / "again").run(
        installed.command, "demo"
    )
    others_are_themselves(installed, tmp_path)

    installed.pip("uninstall", "holdfast-mqtt", "other-packages")
    assert installed.files() == empty


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_the_audit_works_there_too(kind: str, wheel: Path, tmp_path: Path) -> None:
    installed = Installation(tmp_path / "environment")
    installed.pip("install", str(other_wheel(tmp_path)))
    installed.pip("install", *([str(wheel)] if kind == "wheel" else ["-e", str(ROOT)]))
    version = PURE if kind == "wheel" else SOURCES
    audit_judges(installed, tmp_path, works_beside_others(installed, tmp_path, version))


def test_the_wheel_has_one_name_at_its_top_no_reports_of_the_suite_and_no_generator(
    wheel: Path,
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"holdfast_mqtt"}
    assert "holdfast_mqtt/packages/conformance/results.py" in names
    assert not [name for name in names if "conformance/results/" in name]
    sources = {
        os.path.relpath(path, ROOT)
        for folder in ("audit", "broker", "conformance", "mqtt", "session", "storage")
        for path in (ROOT / folder).rglob("*.py")
    }
    # Histories for tests are generated in a checkout only.
    generator = {name for name in sources if name.startswith("audit/generate/")}
    packed = {name.removeprefix("holdfast_mqtt/packages/") for name in names}
    assert sources - generator <= packed
    assert generator and not generator & packed
