"""A configuration file as a fixture."""

from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Return a function that writes a configuration file and returns its path."""

    def write_text(text: str) -> str:
        path = tmp_path / "holdfast.toml"
        path.write_text(text)
        return str(path)

    return write_text
