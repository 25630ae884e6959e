"""Where every setting comes from: flags over environment over file over defaults.

Must never accept what it does not know: an unknown section or key, or a bad value, is a
`ConfigError` that names the place, the key and the nearest known one. Read next:
`broker.configuration.options`, the table of keys.
"""

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from typing import Final

from broker.configuration.config import Config, ConfigError, shown
from broker.configuration.options import (
    BACKEND_KEYS,
    BY_NAME,
    ENV_PREFIX,
    OPTIONS,
    RULE_KEYS,
    SECTIONS,
    Option,
)

# What mosquitto.conf may begin with, as far as people write it.
MOSQUITTO_WORDS: Final = frozenset(
    """
    acl_file allow_anonymous allow_zero_length_clientid autosave_interval autosave_on_changes
    bind_address cafile capath certfile connection connection_messages global_plugin http_dir
    include_dir keyfile listener log_dest log_timestamp log_timestamp_format log_type
    max_connections max_inflight_bytes max_inflight_messages max_keepalive max_packet_size
    max_queued_bytes max_queued_messages memory_limit message_size_limit password_file
    per_listener_settings persistence persistence_file persistence_location
    persistent_client_expiration pid_file plugin port protocol queue_qos0_messages
    require_certificate retain_available set_tcp_nodelay socket_domain sys_interval tls_version
    use_identity_as_username use_username_as_clientid user
    """.split()
)

BACKENDS: Final = "backends"
RULES: Final = "rules"
FILE_BYTES_MAX: Final = 1 << 20  # a configuration is a page; a megabyte is a mistaken path


def load(
    path: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Config:
    """Return the configuration from `path`, `environment` (default: the process's) and `flags`.

    `flags` maps option names ("listener.port") to values; None means "not given". Raises
    `ConfigError`.
    """
    config = Config()
    if path is not None:
        _apply_file(config, path)
    _apply_environment(config, os.environ if environment is None else environment)
    for name, raw in (flags or {}).items():
        if raw is not None:
            option = BY_NAME[name]
            config.set(option, raw, "flag --" + option.key.replace("_", "-"))
    config.finish()
    return config


def _apply_file(config: Config, path: str) -> None:
    origin = f"file {path}"
    try:
        with open(path, "rb") as stream:
            text = stream.read(FILE_BYTES_MAX + 1)
    except OSError as problem:
        raise ConfigError(f"{origin}: cannot read it: {problem.strerror}") from None
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError(f"{origin}: larger than {FILE_BYTES_MAX} bytes; is this the right file?")
    try:
        document = tomllib.loads(text.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"{origin}: not UTF-8 text; is this the right file?") from None
    except tomllib.TOMLDecodeError as problem:
        if line := _mosquitto_line(text.decode()):
            raise ConfigError(
                f"{origin}: {shown(line)} is of mosquitto's configuration, expected TOML; "
                "docs/mosquitto.md translates it"
            ) from None
        raise ConfigError(f"{origin}: not valid TOML: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{origin}: its lists are nested too deeply") from None
    for section, keys in document.items():
        if section == RULES:
            _apply_rules(config, keys, origin)
            continue
        if section not in (*SECTIONS, BACKENDS):
            raise ConfigError(f"{origin}: {_unknown_section(section)}")
        if not isinstance(keys, dict):
            raise ConfigError(f"{origin}: {section} = {shown(keys)}: expected a table [{section}]")
        for key, raw in keys.items():
            option = BY_NAME.get(f"{section}.{key}")
            if section == BACKENDS:
                _apply_backend(config, key, raw, origin)
            elif option is not None:
                config.set(option, raw, origin)
            elif section == "listener" and isinstance(raw, dict):
                _apply_listener(config, key, raw, origin)
            elif f"{section}.{key}" in SECTIONS:
                _apply_section(config, f"{section}.{key}", raw, origin)
            else:
                raise ConfigError(f"{origin}: {_unknown_key(section, key, _dotted)}")


def _mosquitto_line(text: str) -> str:
    """Return the first line that says something if it is one of mosquitto.conf, otherwise ""."""
    for line in map(str.strip, text.splitlines()):
        if line and not line.startswith("#"):
            word, *values = line.split(maxsplit=1)
            is_theirs = word in MOSQUITTO_WORDS and not "".join(values).startswith("=")
            return line if is_theirs else ""
    return ""


def _apply_listener(config: Config, name: str, keys: dict[str, object], origin: str) -> None:
    listener = config.listener(name, origin)
    for key, raw in keys.items():
        option = BY_NAME.get(f"listener.{key}")
        if option is None:
            complaint = _unknown_key("listener", key, _dotted, listener=name)
            raise ConfigError(f"{origin}: {complaint}")
        config.set(option, raw, origin, listener)


def _apply_section(config: Config, section: str, keys: object, origin: str) -> None:
    """Apply a table within a table, such as `[storage.kafka]`."""
    if not isinstance(keys, dict):
        raise ConfigError(f"{origin}: {section} = {shown(keys)}: expected a table [{section}]")
    for key, raw in keys.items():
        option = BY_NAME.get(f"{section}.{key}")
        if option is None:
            raise ConfigError(f"{origin}: {_unknown_key(section, key, _dotted)}")
        config.set(option, raw, origin)


def _apply_backend(config: Config, name: str, keys: object, origin: str) -> None:
    if not isinstance(keys, dict):
        raise ConfigError(
            f"{origin}: {BACKENDS}.{name} = {shown(keys)}: expected a table [{BACKENDS}.NAME]"
        )
    backend = config.backend(name, origin)
    for key, raw in keys.items():
        if key not in BACKEND_KEYS:
            place = f"{backend.section}.{key}"
            nearest = f"{backend.section}.{_nearest(key, BACKEND_KEYS)}"
            raise ConfigError(f"{origin}: unknown key {shown(place)}; did you mean {nearest}?")
        config.set(BACKEND_KEYS[key], raw, origin, backend)


def _apply_rules(config: Config, tables: object, origin: str) -> None:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{origin}: {RULES} = {shown(tables)}: expected tables [[{RULES}]]")
    for table in tables:
        rule = config.rule(origin)
        for key, raw in table.items():
            if key not in RULE_KEYS:
                place = f"{rule.section}.{key}"
                nearest = f"{rule.section}.{_nearest(key, RULE_KEYS)}"
                raise ConfigError(f"{origin}: unknown key {shown(place)}; did you mean {nearest}?")
            config.set(RULE_KEYS[key], raw, origin, rule)


def _nearest(key: str, keys: Mapping[str, Option]) -> str:
    return difflib.get_close_matches(key, list(keys), 1, 0.0)[0]


def _apply_environment(config: Config, environment: Mapping[str, str]) -> None:
    for variable in sorted(environment):
        if not variable.upper().startswith(ENV_PREFIX):
            continue
        origin = f"environment {variable}"
        section, _, key = variable[len(ENV_PREFIX) :].lower().partition("__")
        inner, _, rest = key.partition("__")
        if rest and f"{section}.{inner}" in SECTIONS:
            section, key = f"{section}.{inner}", rest
        if section == BACKENDS:
            _apply_backend_variable(config, variable, environment[variable])
            continue
        if section == RULES:
            raise ConfigError(f"{origin}: rules are written in the configuration file only")
        name, _, last = key.rpartition("__") if section == "listener" else ("", "", key)
        option = BY_NAME.get(f"{section}.{last}")
        if option is None or variable != _named_variable(option, name):
            if section not in SECTIONS:
                raise ConfigError(f"{origin}: {_unknown_section(section)}")
            complaint = _unknown_key(section, last, _as_variable, listener=name)
            raise ConfigError(f"{origin}: {complaint}")
        listener = config.listener(name, origin) if name else None
        config.set(option, environment[variable], origin, listener)


def _apply_backend_variable(config: Config, variable: str, raw: str) -> None:
    origin = f"environment {variable}"
    name, _, key = variable.partition("__")[2].partition("__")[2].lower().rpartition("__")
    prefix = f"{ENV_PREFIX}{BACKENDS.upper()}__{name.upper() or 'NAME'}__"
    if not name or key not in BACKEND_KEYS or variable != f"{prefix}{key.upper()}":
        nearest = f"{prefix}{_nearest(key, BACKEND_KEYS).upper()}"
        place = ".".join(filter(None, (BACKENDS, name, key)))
        raise ConfigError(f"{origin}: unknown key {shown(place)}; did you mean {nearest}?")
    config.set(BACKEND_KEYS[key], raw, origin, config.backend(name, origin))


def _named_variable(option: Option, listener: str) -> str:
    """Return the variable that sets `option` of the named `listener`, "" = of `[listener]`."""
    if not listener or option.section != "listener":
        return option.variable
    return f"{ENV_PREFIX}LISTENER__{listener.upper()}__{option.key.upper()}"


def _dotted(option: Option, listener: str) -> str:
    if not listener or option.section != "listener":
        return option.name
    return f"listener.{listener}.{option.key}"


def _as_variable(option: Option, listener: str) -> str:
    return _named_variable(option, listener)


def _unknown_section(section: str) -> str:
    nearest = difflib.get_close_matches(section, (*SECTIONS, BACKENDS, RULES), 1, 0.0)[0]
    return f"unknown section {shown(section)}; did you mean [{nearest}]?"


def _unknown_key(
    section: str, key: str, spell: Callable[[Option, str], str], *, listener: str = ""
) -> str:
    """Return the complaint about `key`, naming the nearest key as `spell` writes it.

    The same key in another section is nearest of all, in a table of its own if there is one; then
    its own section, then any.
    """
    elsewhere = [option for option in OPTIONS if option.key == key]
    here = {option.key: option for option in OPTIONS if option.section == section}
    if elsewhere:
        nearest = min(elsewhere, key=lambda option: "." in option.section)
    elif close := difflib.get_close_matches(key, list(here), 1, 0.6):
        nearest = here[close[0]]
    else:
        tails = {option.key: option for option in OPTIONS}
        close = difflib.get_close_matches(key, list(tails), 1, 0.6)
        nearest = (
            tails[close[0]]
            if close
            else here[difflib.get_close_matches(key, list(here), 1, 0.0)[0]]
        )
    place = f"{section}.{listener}" if listener else section
    return f"unknown key {shown(f'{place}.{key}')}; did you mean {spell(nearest, listener)}?"
