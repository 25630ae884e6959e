"""The adapter of mosquitto: how options become its configuration file."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.adapters import mosquitto
from conformance.adapters.base import AdapterError, Options, Place
from conformance.adapters.mosquitto import Mosquitto
from conformance.failure import NotRun


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program of the right name: these tests start nothing."""
    path = tmp_path / "bin" / "mosquitto"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho 'mosquitto version 2.9.9'\n")
    path.chmod(0o755)
    monkeypatch.setattr(mosquitto, "_SEARCH_PATH", str(path.parent))
    yield path


def config(tmp_path: Path, options: Options) -> list[str]:
    place = tmp_path / "place"
    place.mkdir(exist_ok=True)
    launch = Mosquitto().prepare(Place(place, "127.0.0.1", 20_001, 20_002), options)
    path = place / "mosquitto.conf"
    assert list(launch.command)[1:] == ["-c", str(path)]
    return path.read_text().splitlines()


def test_it_names_the_version() -> None:
    assert Mosquitto().describe() == "mosquitto 2.9.9"


def test_a_program_that_is_not_there_is_an_error(program: Path) -> None:
    program.unlink()
    with pytest.raises(AdapterError, match="not installed"):
        Mosquitto().describe()


def test_by_default_it_is_open_and_as_durable_as_it_can_be(tmp_path: Path) -> None:
    lines = config(tmp_path, {})
    for line in (
        "persistence true",
        "autosave_on_changes true",
        "allow_anonymous true",
        "listener 20001 127.0.0.1",
    ):
        assert line in lines


def test_options_are_lines_of_the_file(tmp_path: Path) -> None:
    options: Options = {
        "maximum_qos": 1,
        "retain_available": False,
        "receive_maximum": 5,
        "maximum_packet_size": 2000,
        "topic_alias_maximum": 3,
        "keep_alive_max": 20,
        "websocket": True,
    }
    lines = config(tmp_path, options)
    for line in (
        "max_qos 1",
        "retain_available false",
        "max_inflight_messages 5",
        "max_packet_size 2000",
        "max_topic_alias 3",
        "max_keepalive 20",
        "listener 20002 127.0.0.1",
        "protocol websockets",
    ):
        assert line in lines
    assert lines.index("max_qos 1") < lines.index("listener 20002 127.0.0.1")


def test_users_close_it_for_others_unless_told_otherwise(tmp_path: Path) -> None:
    lines = config(tmp_path, {"users": {"ann": "secret"}})
    assert "allow_anonymous false" in lines
    (path,) = [line.split()[1] for line in lines if line.startswith("password_file")]
    assert Path(path).read_text().startswith("ann:$7$")
    lines = config(tmp_path, {"users": {"ann": "secret"}, "allow_anonymous": True})
    assert "allow_anonymous true" in lines


def test_denials_are_the_plugins_and_bind_the_nameless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / "plugin.so"
    monkeypatch.setattr(mosquitto, "_PLUGINS", (str(plugin),))
    options: Options = {"deny_publish": ["a"], "deny_subscribe": ["b"], "users": {"ann": "x"}}
    with pytest.raises(NotRun, match="plugin"):
        config(tmp_path, options)
    plugin.touch()
    lines = config(tmp_path, options)
    assert f"plugin {plugin}" in lines
    assert not any(line.startswith("password_file") for line in lines)
    (path,) = [line.split()[1] for line in lines if line.startswith("plugin_opt_config_file")]
    document = json.loads(Path(path).read_text())
    assert [client["username"] for client in document["clients"]] == ["ann"]
    assert document["clients"][0]["roles"] == []
    denied = [(acl["acltype"], acl["topic"]) for acl in document["roles"][0]["acls"]]
    assert denied == [("publishClientSend", "a"), ("subscribeLiteral", "b")]


def test_what_it_does_not_have_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(NotRun, match=r"mosquitto cannot .*scram_users, shared_subscriptions"):
        config(tmp_path, {"shared_subscriptions": False, "scram_users": {}})
