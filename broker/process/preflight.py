"""Checks the files and addresses that a configuration names, for `--test-config`.

Changes nothing. Read next: `broker.configuration.config`, which checks the values themselves.
"""

import os
from importlib.util import find_spec
from typing import Final

from broker.configuration import backend_options, cluster_options
from broker.configuration.backend_options import Backend
from broker.configuration.config import Config, ConfigError
from broker.history import location
from broker.security import access_files
from storage.local.data_directory import is_in_use

# The packages that the processes of stores need; not imported here. A webhook needs none.
DRIVERS: Final = {
    backend_options.REDIS: "redis",
    backend_options.CASSANDRA: "cassandra",
    backend_options.DYNAMODB: "boto3",
    backend_options.KAFKA: "confluent_kafka",
}
KAFKA: Final = backend_options.KAFKA  # the extra of a cluster, too
# Those of the process of the HTTP API.
ADMIN_PACKAGES: Final = ("starlette", "uvicorn", "msgspec", "jinja2")
BACKEND_FILES: Final = (
    *("password_file", "secret_file", "secret_access_key_file"),
    *("tls_ca", "tls_certificate", "tls_key"),
)
CLUSTER_FILES: Final = ("password_file", "tls_ca", "tls_certificate", "tls_key")


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
    check_cluster(config)
    for backend in config.backends:
        _check_backend(backend)
    _check_admin(config)
    from broker.network import listeners  # the loop and TLS are not needed to read a configuration

    try:
        listeners.check(config.listeners, is_running=is_in_use(config.shell.data_dir))
    except listeners.ListenError as problem:
        raise ConfigError(str(problem)) from None


def check_cluster(config: Config) -> None:
    """Check what a replicated store needs, if there is one; raise `ConfigError`."""
    if config.cluster.is_replicated:
        check_cluster_files(config)


def check_cluster_files(config: Config) -> None:
    """Check that the package for Kafka and the files are there; raise `ConfigError`."""
    cluster, section = config.cluster, cluster_options.SECTION
    driver = DRIVERS[backend_options.KAFKA]
    if find_spec(driver) is None:
        raise ConfigError(f"{section}: the package {driver} is missing: {how_to_install(KAFKA)}")
    _check_readable(section, cluster, CLUSTER_FILES)


def admin_problem(config: Config) -> str:
    """Return why the process of the HTTP API could not start, "" if it can; imports nothing."""
    if config.shell.admin_listen is not None:
        for name in ADMIN_PACKAGES:
            if find_spec(name) is None:
                return (
                    f"admin.listen = {config.shell.admin_listen!r}: the package {name} is missing: "
                    f"{how_to_install('admin')}"
                )
    return ""


def _check_admin(config: Config) -> None:
    if missing := admin_problem(config):
        raise ConfigError(missing)
    for key in ("tls_certificate", "tls_key"):
        path = getattr(config.shell, f"admin_{key}")
        try:
            if path is not None:
                with open(path, "rb"):
                    pass
        except OSError as problem:
            raise ConfigError(f"admin.{key} = {path!r}: {problem.strerror}") from None


def _check_backend(backend: Backend) -> None:
    """Check the files of an external store, and that its driver is installed."""
    driver = DRIVERS.get(backend.type)
    if driver is not None and find_spec(driver) is None:
        raise ConfigError(
            f"{backend.section}.type = {backend.type!r}: the package {driver} is missing: "
            f"{how_to_install(backend.type)}"
        )
    _check_readable(backend.section, backend, BACKEND_FILES)


def how_to_install(name: str) -> str:
    """Return how the packages of an extra are installed."""
    return (
        f"pip install '.[{name}]' in a checkout of Holdfast, or 'FILE.whl[{name}]' with its wheel"
    )


def _check_readable(section: str, holder: object, keys: tuple[str, ...]) -> None:
    """Check that the files that keys of a table name can be read."""
    for key in keys:
        path = getattr(holder, key)
        try:
            if path is not None:
                with open(path, "rb"):
                    pass
        except OSError as problem:
            raise ConfigError(f"{section}.{key} = {path!r}: {problem.strerror}") from None
