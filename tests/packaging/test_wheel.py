"""What does `pip install` make, with a C compiler and without, and does it say so?

The quick tests build with the tools of .venv; those that only CI runs do as a user does:
pip makes an environment for the build and installs into an empty one, from the package index.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.durability.process import ROOT
from tests.packaging.installation import (
    Installation,
    clean,
    other_wheel,
    others_are_themselves,
    works_beside_others,
)
from tests.tidy import test_dockerfile as dockerfile

PYPROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())
INDEPENDENT: Final = "py3-none-any.whl"
Built = subprocess.CompletedProcess[str]
Build = Callable[..., Built]


@pytest.fixture
def no_compiler(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which no program is found, so no C compiler either."""
    empty = tmp_path / "empty"
    empty.mkdir()
    return {"PATH": str(empty)}


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Build the wheel into tmp_path/wheels and return what pip said, in full."""

    def run_pip(source: Path = ROOT, **environment: str) -> Built:
        command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation"]
        return subprocess.run(
            [*command, "--wheel-dir", str(tmp_path / "wheels"), str(source)],
            env={**clean(), **environment},
            capture_output=True,
            text=True,
        )

    return run_pip


def unpack(tmp_path: Path) -> Path:
    """Return a directory with the contents of the one wheel."""
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert wheel.name.endswith(INDEPENDENT)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "unpacked")
    return tmp_path / "unpacked"


def version(place: Path) -> str:
    """Return what `holdfast --version` says when it is imported from `place`."""
    return subprocess.run(
        [sys.executable, "-m", "holdfast_mqtt", "--version"],
        cwd=place,
        env={**clean(), "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_without_a_compiler_it_is_pure_python_and_says_so_ever_after(
    build: Build, no_compiler: dict[str, str], tmp_path: Path
) -> None:
    made = build(**no_compiler)
    assert made.returncode == 0, made.stdout
    assert re.search(r"holdfast: PURE PYTHON: no C compiler was found: \S+", made.stderr)
    place = unpack(tmp_path)
    assert re.search(r", pure Python \(no C compiler was found: \S+\)\n$", version(place))
    command = [sys.executable, "-m", "holdfast_mqtt", "serve", "-p", "0"]
    broker = subprocess.Popen(
        [*command, "--data-dir", str(tmp_path / "data")],
        cwd=place,
        env={**clean(), "PYTHONPATH": str(place), "HOLDFAST__METRICS__PORT": "0"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert broker.stderr is not None
    ready, warning = [json.loads(broker.stderr.readline()) for _ in range(2)]
    broker.terminate()
    broker.stderr.close()
    assert broker.wait(30) == 0
    assert ready["event"] == "ready"
    assert ready["build"].startswith("pure Python (no C compiler was found: ")
    assert (warning["level"], warning["event"]) == ("warning", "not_compiled")
    assert "no C compiler was found" in warning["message"]


def test_pure_python_that_is_asked_for_needs_no_compiler_and_no_mypy(
    build: Build, tmp_path: Path
) -> None:
    made = build(HOLDFAST_BUILD="pure", CC="/bin/false")
    assert made.returncode == 0, made.stdout
    assert version(unpack(tmp_path)).endswith(", pure Python (HOLDFAST_BUILD=pure)\n")


def test_a_compiler_that_does_not_work_is_as_good_as_none(build: Build, tmp_path: Path) -> None:
    assert build(CC=f"{sys.executable} -c exit(1)").returncode == 0
    assert ", pure Python (the C compiler does not work: " in version(unpack(tmp_path))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("compiled", r"HOLDFAST_BUILD=compiled, but no C compiler was found: \S+\n.*apt-get"),
        ("fast", "HOLDFAST_BUILD='fast': expected auto, compiled or pure"),
    ],
)
def test_a_build_that_cannot_be_as_it_is_wanted_fails(
    build: Build, no_compiler: dict[str, str], tmp_path: Path, wanted: str, said: str
) -> None:
    made = build(HOLDFAST_BUILD=wanted, **no_compiler)
    assert made.returncode == 1
    assert re.search(said, made.stdout + made.stderr), made.stdout + made.stderr
    assert not list((tmp_path / "wheels").glob("*"))


def test_the_sdist_holds_what_the_build_needs(build: Build, tmp_path: Path) -> None:
    names = []
    for source in (ROOT, sdist(tmp_path)):
        made = build(source, HOLDFAST_BUILD="pure")
        assert made.returncode == 0, made.stdout
        (wheel,) = (tmp_path / "wheels").iterdir()
        with zipfile.ZipFile(wheel) as archive:
            names.append(sorted(archive.namelist()))
        wheel.unlink()
    assert names[0] == names[1]
    assert "holdfast_mqtt/packages/broker/build.txt" in names[0]


def sdist(tmp_path: Path) -> Path:
    """Make the sdist and return the directory it unpacks to."""
    script = "import sys, hatchling.build as b; b.build_sdist(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=True, capture_output=True
    )
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "sdist", filter="data")
    (unpacked,) = (tmp_path / "sdist").iterdir()
    return unpacked


def test_mypy_is_asked_for_only_where_it_compiles(no_compiler: dict[str, str]) -> None:
    def asked_for(**environment: str) -> list[str]:
        script = "import hatchling.build as b; print(*b.get_requires_for_build_wheel(), sep='\\n')"
        ran = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**clean(), **environment},
            check=True,
            capture_output=True,
            text=True,
        )
        return ran.stdout.split("\n")[:-1]

    everything = PYPROJECT["tool"]["holdfast"]["compile-with"]
    assert asked_for(HOLDFAST_BUILD="compiled", **no_compiler) == everything
    assert asked_for(HOLDFAST_BUILD="pure") in ([], [""])
    assert asked_for(**no_compiler) in ([], [""])


def test_what_compiles_a_users_wheel_is_what_the_tests_are_run_with() -> None:
    development = PYPROJECT["project"]["optional-dependencies"]["dev"]
    wanted = [
        *PYPROJECT["build-system"]["requires"],
        *PYPROJECT["tool"]["holdfast"]["compile-with"],
    ]
    assert set(wanted) <= set(development)


# As a user does.


def install(
    python: str, *arguments: str, cwd: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run pip of an environment, with a build of its own."""
    ran = subprocess.run(
        [python, "-m", "pip", "install", "--no-cache-dir", *arguments],
        cwd=cwd,
        env={**clean(), **environment},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


@pytest.mark.ci
def test_the_steps_of_the_image_make_a_compiled_broker_that_works(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for source in dockerfile.copied():
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, tmp_path / "src" / source)
    steps = [(w, a) for stage, w, a in dockerfile.instructions() if stage == 0]
    environment = dict(
        word.split("=", 1) for w, a in steps if w == "ENV" for word in shlex.split(a)
    )
    place = tmp_path / "holdfast"
    (step,) = [a for w, a in steps if w == "RUN" and "pip install" in a]
    step = step.replace("/opt/holdfast", str(place)).replace("python -m", f"{sys.executable} -m", 1)
    ran = subprocess.run(
        ["sh", "-c", step],
        cwd=tmp_path / "src",
        env={**clean(), **environment},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    command = str(place / "bin" / "holdfast")
    said = subprocess.run([command, "--version"], capture_output=True, text=True, cwd=tmp_path)
    assert re.search(r", compiled \(mypyc [0-9.]+\)\n$", said.stdout), said
    # What is compiled is all there, and of nothing that the list does not name.
    listed = {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for kind in ("compiled", "native")
        for pattern in PYPROJECT["tool"]["holdfast"][kind]
        for path in ROOT.glob(pattern)
    }
    installed = Installation(place, is_made=True)
    folder = installed.packages / "holdfast_mqtt" / "packages"
    made = {path.relative_to(folder).as_posix().partition(".")[0] for path in folder.rglob("*.so")}
    assert made == {*listed, "holdfast__mypyc"}
    # Beside packages that have the names of ours, too.
    installed.pip("install", str(other_wheel(tmp_path)))
    works_beside_others(installed, tmp_path, r"compiled \(mypyc [0-9.]+\)")
    others_are_themselves(installed, tmp_path)
    installed.pip("uninstall", "holdfast-mqtt")
    assert not list(installed.packages.glob("holdfast_mqtt*"))


@pytest.mark.ci
def test_an_installation_without_a_compiler_works_too(
    tmp_path: Path, no_compiler: dict[str, str]
) -> None:
    unpacked = sdist(tmp_path)
    place = tmp_path / "holdfast"
    venv.create(place, with_pip=True)
    install(str(place / "bin" / "python"), str(unpacked), cwd=tmp_path, environment=no_compiler)
    command = str(place / "bin" / "holdfast")
    said = subprocess.run([command, "--version"], capture_output=True, text=True, cwd=tmp_path)
    assert ", pure Python (no C compiler was found: " in said.stdout, said
    show = subprocess.run([command, "demo"], capture_output=True, text=True, cwd=tmp_path)
    assert show.returncode == 0, show.stdout + show.stderr
