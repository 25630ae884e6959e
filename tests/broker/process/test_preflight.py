"""Does a configuration that points at what is not there get its answer before a start?"""

from pathlib import Path

import pytest

from broker.configuration.config import ConfigError
from broker.configuration.load import load
from broker.process.preflight import check_files


def test_check_files_complains_about_what_the_configuration_points_at(tmp_path: Path) -> None:
    loaded = load(environment={"HOLDFAST__AUTH__PASSWORD_FILE": str(tmp_path / "absent")})
    with pytest.raises(ConfigError, match="No such file"):
        check_files(loaded)
    file = tmp_path / "file"
    file.write_text("")
    loaded = load(environment={"HOLDFAST__STORAGE__DATA_DIR": str(file)})
    with pytest.raises(ConfigError, match="not a directory"):
        check_files(loaded)
