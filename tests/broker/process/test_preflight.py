"""Does a configuration that points at what is not there get its answer before a start?"""

import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from broker.configuration.backend_options import CASSANDRA, DYNAMODB, KAFKA, REDIS, TYPES, WEBHOOK
from broker.configuration.config import ConfigError
from broker.configuration.load import load
from broker.process import preflight
from broker.process.preflight import ADMIN_PACKAGES, BACKEND_FILES, DRIVERS, check_files
from tests.real_servers import ROOT

# What a backend of each type cannot do without.
NEEDED: Final = {
    REDIS: {"SERVERS": "127.0.0.1:1"},
    CASSANDRA: {"SERVERS": "127.0.0.1:1"},
    DYNAMODB: {},
    KAFKA: {"SERVERS": "127.0.0.1:1", "TOPIC": "t"},
    WEBHOOK: {"URL": "http://127.0.0.1:1"},
}


def of_backend(backend_type: str) -> dict[str, str]:
    """Return the environment that configures a backend of a type."""
    given = {"TYPE": backend_type, **NEEDED[backend_type]}
    return {f"HOLDFAST__BACKENDS__CACHE__{name}": value for name, value in given.items()}


def test_check_files_complains_about_what_the_configuration_points_at(tmp_path: Path) -> None:
    loaded = load(environment={"HOLDFAST__AUTH__PASSWORD_FILE": str(tmp_path / "absent")})
    with pytest.raises(ConfigError, match="No such file"):
        check_files(loaded)
    file = tmp_path / "file"
    file.write_text("")
    loaded = load(environment={"HOLDFAST__STORAGE__DATA_DIR": str(file)})
    with pytest.raises(ConfigError, match="not a directory"):
        check_files(loaded)


@pytest.mark.parametrize("key", BACKEND_FILES)
def test_files_of_an_external_store_must_be_there(tmp_path: Path, key: str) -> None:
    pytest.importorskip("redis")
    absent = str(tmp_path / "absent")
    given = {"SERVERS": "127.0.0.1:1", "TLS": "true", "TLS_CERTIFICATE": __file__}
    if key == "secret_file":
        given = {"TYPE": "webhook", "URL": "https://127.0.0.1:1"}
    elif key == "secret_access_key_file":
        pytest.importorskip("boto3")
        given = {"TYPE": "dynamodb", "ACCESS_KEY_ID": "me"}
    environment = {
        f"HOLDFAST__BACKENDS__CACHE__{name}": value
        for name, value in {**given, key.upper(): absent}.items()
    }
    with pytest.raises(ConfigError) as caught:
        check_files(load(environment=environment))
    assert str(caught.value) == f"backends.cache.{key} = {absent!r}: No such file or directory"


@pytest.mark.parametrize("backend_type", sorted(DRIVERS))
def test_the_driver_of_an_external_store_must_be_installed(
    monkeypatch: pytest.MonkeyPatch, backend_type: str
) -> None:
    driver = DRIVERS[backend_type]
    monkeypatch.setitem(sys.modules, driver, None)  # as where it is not installed
    with pytest.raises(ConfigError) as caught:
        check_files(load(environment=of_backend(backend_type)))
    assert str(caught.value) == (
        f"backends.cache.type = {backend_type!r}: the package {driver} is missing: "
        f"pip install '.[{backend_type}]' in a checkout of Holdfast, or "
        f"'FILE.whl[{backend_type}]' with its wheel"
    )


def test_the_extras_that_are_named_for_external_stores_are_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for backend_type, driver in DRIVERS.items():
        packages = project["optional-dependencies"][backend_type]
        assert any(each.startswith(driver.replace("_", "-")) for each in packages)


def test_a_webhook_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for driver in DRIVERS.values():
        monkeypatch.setitem(sys.modules, driver, None)
    assert set(TYPES) - set(DRIVERS) == {WEBHOOK}
    check_files(load(environment=of_backend(WEBHOOK)))


@pytest.mark.parametrize("package", ADMIN_PACKAGES)
def test_the_packages_of_the_http_api_must_be_installed_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as where it is not installed
    check_files(load(environment={}))
    with pytest.raises(ConfigError) as caught:
        check_files(load(environment={"HOLDFAST__ADMIN__LISTEN": "127.0.0.1:0"}))
    assert str(caught.value) == (
        f"admin.listen = '127.0.0.1:0': the package {package} is missing: pip install '.[admin]' "
        "in a checkout of Holdfast, or 'FILE.whl[admin]' with its wheel"
    )


def test_the_extra_of_the_http_api_has_its_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = project["optional-dependencies"]["admin"]
    assert {each.partition(">")[0] for each in packages} == set(ADMIN_PACKAGES)


@pytest.mark.parametrize("key", ["tls_certificate", "tls_key"])
def test_files_of_the_http_api_must_be_there(tmp_path: Path, key: str) -> None:
    absent = str(tmp_path / "absent")
    given = {"LISTEN": "127.0.0.1:0", "TLS_CERTIFICATE": __file__, key.upper(): absent}
    environment = {f"HOLDFAST__ADMIN__{name}": value for name, value in given.items()}
    with pytest.raises(ConfigError) as caught:
        check_files(load(environment=environment))
    assert str(caught.value) == f"admin.{key} = {absent!r}: No such file or directory"


def of_cluster(**values: str) -> dict[str, str]:
    """Return the environment of a node of a cluster."""
    values = {"SERVERS": "127.0.0.1:1", "NODE": "n1", "MEMBERS": "n1,n2", **values}
    keys = {f"HOLDFAST__STORAGE__KAFKA__{key}": value for key, value in values.items()}
    return {"HOLDFAST__STORAGE__BACKEND": "kafka", **keys}


def test_a_replicated_store_is_not_served_yet() -> None:
    pytest.importorskip("confluent_kafka")
    config = load(environment=of_cluster())
    for check in (preflight.check_cluster, check_files):
        with pytest.raises(ConfigError, match="the replicated store can not be served yet") as told:
            check(config)
        assert "\n" not in str(told.value)
    preflight.check_cluster(load(environment={}))


def test_the_package_of_a_replicated_store_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        preflight.check_cluster(load(environment=of_cluster()))
    assert str(caught.value) == (
        "storage.kafka: the package confluent_kafka is missing: pip install '.[kafka]' in a "
        "checkout of Holdfast, or 'FILE.whl[kafka]' with its wheel"
    )


@pytest.mark.parametrize("key", ["password_file", "tls_ca", "tls_certificate"])
def test_files_of_a_replicated_store_must_be_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str
) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda name: name)
    absent = str(tmp_path / "absent")
    given = {"TLS": "true", "USERNAME": "u", key.upper(): absent}
    if key != "password_file":
        given["PASSWORD"] = "p"
    with pytest.raises(ConfigError) as caught:
        preflight.check_cluster(load(environment=of_cluster(**given)))
    assert str(caught.value) == f"storage.kafka.{key} = {absent!r}: No such file or directory"
