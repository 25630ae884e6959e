"""The version of this build; a test holds pyproject.toml to it."""

from typing import Final

VERSION: Final = "0.1.0"
