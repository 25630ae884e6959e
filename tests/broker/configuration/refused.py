"""What a configuration that cannot be used is refused with."""

import pytest

from broker.configuration.config import ConfigError
from broker.configuration.load import load


def refused(path: str | None = None, **environment: str) -> str:
    """Return the one-line complaint about a configuration."""
    with pytest.raises(ConfigError) as caught:
        load(path, environment=environment)
    text = str(caught.value)
    assert "\n" not in text
    return text
