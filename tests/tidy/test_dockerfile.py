"""The Dockerfile cannot be built in every checkout, so: does all that it copies and runs exist?"""

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest

from broker.cli.main import build_parser
from broker.configuration import listener_options
from broker.configuration.config import ConfigError, Shell
from broker.configuration.load import load
from broker.configuration.options import ENV_PREFIX, OPTIONS

ROOT: Final = Path(__file__).resolve().parents[2]
UID: Final = "1883"


def instructions() -> list[tuple[int, str, str]]:
    """Return (stage, instruction, arguments) with comments gone and continued lines joined."""
    text = "\n".join(
        line
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if not line.lstrip().startswith("#")
    )
    found = []
    stage = -1
    for line in re.sub(r"\\\n", " ", text).splitlines():
        word, _, arguments = line.strip().partition(" ")
        if word:
            stage += word == "FROM"
            found.append((stage, word, arguments.strip()))
    return found


def only(word: str) -> str:
    """Return the arguments of an instruction that the final stage has exactly once."""
    last = max(stage for stage, _, _ in instructions())
    (arguments,) = [a for stage, w, a in instructions() if w == word and stage == last]
    return arguments


def environment() -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(only("ENV")))


def command(text: str) -> list[str]:
    """Return an exec-form command; a shell form would put sh between the signals and us."""
    words = json.loads(text)
    assert isinstance(words, list) and all(isinstance(word, str) for word in words)
    return words


def copied() -> list[str]:
    return [
        source
        for _, word, arguments in instructions()
        if word == "COPY" and not arguments.startswith("--from=")
        for source in arguments.split()[:-1]
    ]


def test_everything_copied_from_the_checkout_exists_and_is_tracked() -> None:
    assert copied()
    for source in copied():
        listing = subprocess.run(
            ["git", "ls-files", "--", source], cwd=ROOT, check=True, capture_output=True, text=True
        )
        assert listing.stdout.strip(), f"COPY {source}: not in the repository"


def test_everything_copied_passes_the_ignore_file() -> None:
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in kept
    assert {line[1:] for line in kept if line.startswith("!")} == set(copied())


def test_all_that_the_build_needs_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "custom" in wheel["hooks"]
    needed = {
        *wheel["only-include"],
        "pyproject.toml",
        "hatch_build.py",
        project["project"]["readme"],
    }
    needed |= set(project["project"]["license-files"])
    assert needed == set(copied())


def test_what_the_build_made_is_what_the_runtime_takes() -> None:
    (*_, built) = [a for stage, word, a in instructions() if stage == 0 and word == "RUN"]
    (taken,) = [
        arguments.split()
        for _, word, arguments in instructions()
        if word == "COPY" and arguments.startswith("--from=build ")
    ]
    assert taken[1] == taken[2], "a virtual environment cannot be moved"
    assert f"-m venv {taken[1]} " in built and f"{taken[1]}/bin/pip install" in built
    assert environment()["PATH"].split(":")[0] == f"{taken[1]}/bin"
    bases = {a.split()[0] for _, word, a in instructions() if word == "FROM"} - {"build"}
    assert len(bases) == 1, "the interpreter must be the same one"


def stages() -> dict[str, str]:
    """Return what each stage says, in one line; the last one, which is the broker's, is ""."""
    said: dict[str, str] = {}
    name = ""
    for _, word, arguments in instructions():
        if word == "FROM":
            name = arguments.partition(" AS ")[2]
        said[name] = f"{said.get(name, '')} {word} {arguments}"
    return said


def test_it_is_compiled_or_not_built_and_the_compiler_stays_behind() -> None:
    said = stages()
    before, _, building = said["build"].partition("pip install")
    assert building, "nothing is installed"
    assert " ENV HOLDFAST_BUILD=compiled " in before
    assert re.search(r"apt-get install [^&]*\bgcc\b[^&]*\blibc6-dev\b", before)
    assert "apt-get" not in said[""] and "gcc" not in said[""] and "gcc" not in said["audit"]


def test_the_broker_exports_its_history_and_never_has_spark() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = r"pip install [^&]*'\.\[history,redis,dynamodb,cassandra,kafka,admin\]'$"
    assert re.search(wanted, stages()["build"])
    for requirement in [*extras["dependencies"], *extras["optional-dependencies"]["history"]]:
        assert not re.match(r"pyspark|pandas|duckdb", requirement)
    assert "audit" not in re.sub("COPY audit audit", "", stages()["build"])
    assert "audit" not in stages()[""] and "java" not in f"{stages()['build']}{stages()['']}"


def test_the_image_of_the_audit_has_java_and_the_extra() -> None:
    said = stages()
    assert said["build-audit"].startswith(" FROM build AS build-audit RUN ")
    assert said["build-audit"].endswith("/bin/pip install --no-cache-dir 'holdfast-mqtt[audit]'")
    assert re.search(r"apt-get install [^&]*\bopenjdk-17-jre-headless\b", said["audit"])
    (taken,) = re.findall(r"COPY --from=build-audit (\S+) (\S+)", said["audit"])
    assert taken[0] == taken[1] and f"{taken[0]}/bin/pip" in said["build-audit"]
    assert f"PATH={taken[0]}/bin:" in said["audit"]
    assert f"USER {UID}:{UID}" in said["audit"]


def test_the_base_image_has_a_python_we_support() -> None:
    (base, *_) = [a for _, word, a in instructions() if word == "FROM"]
    tag = re.fullmatch(r"python:3\.(\d+)-slim-bookworm(?: AS build)?", base)
    assert tag and 11 <= int(tag[1]) <= 14, base


@pytest.mark.parametrize("instruction", ["CMD", "HEALTHCHECK"])
def test_what_it_runs_is_a_command_of_ours(instruction: str) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    if instruction == "CMD":
        words = command(only("ENTRYPOINT")) + command(only("CMD"))
    else:
        words = command(only("HEALTHCHECK").partition(" CMD ")[2])
    assert scripts[words[0]] == "holdfast_mqtt:main"
    build_parser().parse_args(words[1:])  # exits, and so fails, on anything unknown


def test_its_environment_is_known_to_the_configuration() -> None:
    known = {option.variable for option in OPTIONS}
    ours = {name for name in environment() if name.startswith(ENV_PREFIX)}
    assert ours and ours <= known


def test_it_refuses_to_be_open_by_accident_and_starts_when_told() -> None:
    with pytest.raises(ConfigError, match="allow_anonymous"):
        load(environment=environment())
    told = {**environment(), "HOLDFAST__AUTH__ALLOW_ANONYMOUS": "true"}
    loaded = load(environment=told)
    (listener,) = loaded.listeners
    assert (listener.host, loaded.shell.data_dir) == ("0.0.0.0", only("VOLUME"))


def test_ports_and_health_address_are_the_defaults_of_the_configuration() -> None:
    shell, port = Shell(), listener_options.DEFAULT_PORT
    assert only("EXPOSE").split() == [str(port), str(shell.metrics_port)]
    words = command(only("HEALTHCHECK").partition(" CMD ")[2])
    assert words[-1] == f"http://127.0.0.1:{shell.metrics_port}"


def test_it_runs_as_nobody_special_and_owns_its_data() -> None:
    assert only("USER") == f"{UID}:{UID}"
    run = only("RUN")
    assert f"useradd --uid {UID} --gid {UID}" in run
    assert f"--owner={UID} --group={UID} --mode=0700 {only('VOLUME')}" in run
    assert only("STOPSIGNAL") == "SIGTERM"
