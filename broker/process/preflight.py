"""Does what the configuration points at exist, and can it be used? Asked before a start.

Opens and changes nothing. Read next: `broker.configuration.config`, which judges the values
themselves.
"""

import os

from broker.configuration.config import Config, ConfigError
from broker.history import location
from broker.security import access_files
from storage.local.data_directory import is_in_use


def check_files(config: Config) -> None:
    """Check what the configuration points at, as `--test-config` does; raise `ConfigError`."""
    try:
        access_files.check(config)
    except access_files.AccessError as problem:
        raise ConfigError(str(problem)) from None
    if os.path.exists(config.shell.data_dir) and not os.path.isdir(config.shell.data_dir):
        raise ConfigError(f"storage.data_dir = {config.shell.data_dir!r}: not a directory")
    if config.settings.history_level:
        location.check(config.shell)
    from broker.network import listeners  # the loop and TLS are not needed to read a configuration

    try:
        listeners.check(config.listeners, is_running=is_in_use(config.shell.data_dir))
    except listeners.ListenError as problem:
        raise ConfigError(str(problem)) from None
