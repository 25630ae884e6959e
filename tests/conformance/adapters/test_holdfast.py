"""The adapter of Holdfast: how options become its configuration."""

from pathlib import Path

import pytest

import broker
from broker.configuration import config as configuration
from broker.process.preflight import check_files
from conformance.adapters.base import OPTIONS, Launch, Options, Place
from conformance.adapters.holdfast import Holdfast

ALL: Options = {
    "users": {"ann": "secret"},
    "allow_anonymous": True,
    "deny_publish": ["a/b"],
    "deny_subscribe": ["c/d"],
    "maximum_qos": 1,
    "retain_available": False,
    "wildcard_subscriptions": False,
    "shared_subscriptions": False,
    "subscription_identifiers": False,
    "receive_maximum": 5,
    "maximum_packet_size": 2000,
    "topic_alias_maximum": 3,
    "keep_alive_max": 20,
    "session_expiry_max": 30,
    "client_id_bytes_max": 23,
    "connect_timeout": 2,
    "scram_users": {"bob": "pencil"},
    "websocket": True,
}


def launch(tmp_path: Path, options: Options) -> Launch:
    return Holdfast().prepare(Place(tmp_path, "127.0.0.1", 20_001, 20_002), options)


def test_it_knows_every_option_there_is() -> None:
    assert set(ALL) == set(OPTIONS)


def test_every_option_is_one_the_configuration_accepts(tmp_path: Path) -> None:
    made = launch(tmp_path, ALL)
    ours = {k: v for k, v in made.environment.items() if k.startswith(configuration.ENV_PREFIX)}
    config = configuration.load(environment=ours)
    check_files(config)
    settings = config.settings
    assert settings.maximum_qos == 1
    assert settings.retain_available is False
    assert settings.receive_maximum == 5
    assert settings.maximum_packet_size == 2000
    assert settings.topic_alias_maximum == 3
    assert settings.keep_alive_max_s == 20
    assert settings.session_expiry_max_s == 30
    assert settings.client_id_bytes_max == 23
    assert settings.connect_timeout_ms == 2000


def test_without_options_it_is_open_and_as_it_comes(tmp_path: Path) -> None:
    made = launch(tmp_path, {})
    names = {name for name in made.environment if name.startswith(configuration.ENV_PREFIX)}
    assert not any("AUTH" in name or "LIMITS" in name for name in names)
    assert list(tmp_path.iterdir()) == []
    assert "--data-dir" in made.command
    assert str(tmp_path / "data") in made.command


def test_the_broker_beside_the_suite_comes_before_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "other")
    path = launch(tmp_path, {}).environment["PYTHONPATH"].split(":")
    assert path == [str(Path(broker.__file__).parents[1]), str(tmp_path / "other")]


def test_it_names_the_version() -> None:
    assert Holdfast().describe().startswith("holdfast ")
