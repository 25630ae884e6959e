"""Where the history goes and under which name: stable, and never two boots under one number."""

from pathlib import Path

import pytest

from broker.configuration.config import ConfigError, Shell
from broker.configuration.option_types import NAME
from broker.history import location
from tests.stand_in import replace_in


def shell(tmp_path: Path) -> Shell:
    """Return the shell's settings of a data directory."""
    made = Shell()
    made.data_dir = str(tmp_path / "data")
    (tmp_path / "data").mkdir(exist_ok=True)
    return made


@pytest.mark.parametrize(
    ("host", "node"),
    [
        ("edge-7.example.org", "edge_7.example.org"),
        ("_x", "x"),
        ("...", "node"),
        ("", "node"),
        ("é" * 3 + "a", "a"),
        ("h" * 100, "h" * 64),
    ],
)
def test_a_host_name_is_made_a_name_that_no_file_name_minds(host: str, node: str) -> None:
    assert location.clean(host) == node
    assert NAME.fullmatch(node)


def test_the_name_is_kept_when_the_host_gets_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = shell(tmp_path)
    replace_in(monkeypatch, location, "socket", gethostname=lambda: "first-host")
    place = location.settle(settings)
    assert place.node == "first_host"
    assert place.directory == tmp_path / "data" / "history"
    replace_in(monkeypatch, location, "socket", gethostname=lambda: "second-host")
    assert location.settle(settings).node == "first_host"
    settings.history_node = "chosen"
    assert location.find(settings).node == "chosen"
    (tmp_path / "data" / location.NODE_FILE).write_bytes(b"\xff\n")
    settings.history_node = None
    assert location.settle(settings).node == "second_host"


def test_the_members_of_a_cluster_have_one_name_whatever_their_hosts_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = shell(tmp_path)
    replace_in(monkeypatch, location, "socket", gethostname=lambda: "first-host")
    assert location.settle(settings).node == "first_host"  # before it was one of a cluster
    settings.history_cluster = "the-topic"
    assert location.settle(settings).node == "the_topic"
    settings.history_node = "chosen"
    assert location.find(settings).node == "chosen"


def test_looking_changes_nothing(tmp_path: Path) -> None:
    settings = shell(tmp_path)
    settings.history_dir = str(tmp_path / "elsewhere")
    assert location.find(settings).directory == tmp_path / "elsewhere"
    assert list(tmp_path.iterdir()) == [tmp_path / "data"]
    assert list((tmp_path / "data").iterdir()) == []


def test_a_directory_that_is_none_is_refused_with_the_key(tmp_path: Path) -> None:
    settings = shell(tmp_path)
    (tmp_path / "file").touch()
    for name in ("file", "file/under"):
        settings.history_dir = str(tmp_path / name)
        for use in (location.check, location.settle):
            with pytest.raises(
                ConfigError, match=r"^history\.dir = '.*': .*/file is not a directory$"
            ):
                use(settings)
    settings.history_dir = str(tmp_path / "new" / "one")
    location.check(settings)
    assert not (tmp_path / "new").exists()
    assert location.settle(settings).directory.is_dir()


def test_a_witness_that_is_a_directory_is_refused_with_the_key(tmp_path: Path) -> None:
    settings = shell(tmp_path)
    settings.history_witness = str(tmp_path)
    for use in (location.check, location.settle):
        with pytest.raises(ConfigError, match=r"witness = '.*': a directory, expected a file"):
            use(settings)
    # A volume that is away is told of at the start, which goes on.
    settings.history_witness = str(tmp_path / "away" / "witness")
    location.check(settings)
