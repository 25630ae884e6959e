"""Does a configuration that points at what is not there get its answer before a start?"""

from pathlib import Path

import pytest

from broker.configuration.config import ConfigError
from broker.configuration.load import load
from broker.process import preflight
from broker.process.preflight import BACKEND_FILES, check_files


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


def test_the_driver_of_an_external_store_must_be_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(preflight.DRIVERS, "redis", "no_such_package")
    environment = {"HOLDFAST__BACKENDS__CACHE__SERVERS": "127.0.0.1:1"}
    with pytest.raises(ConfigError, match="the package no_such_package is missing: pip install"):
        check_files(load(environment=environment))
