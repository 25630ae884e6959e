"""The configuration as text: what is in force, and a template of all defaults."""

from collections.abc import Iterable

from broker.configuration.config import Config, Table
from broker.configuration.listener_options import Endpoint
from broker.configuration.option_types import Setting
from broker.configuration.options import (
    BACKEND_OPTIONS,
    ENV_PREFIX,
    OPTIONS,
    RULE_OPTIONS,
    SECTIONS,
    Option,
)


def show(config: Config) -> str:
    """Return the configuration in force as TOML, each line with its origin."""
    lines: list[str] = []
    for section in SECTIONS:
        if section == "listener":
            for listener in config.listeners:
                lines += _show_listener(config, listener)
            continue
        options = [option for option in OPTIONS if option.section == section]
        lines += _show_section(
            section,
            [
                (
                    f"{option.key} = {option.kind.render(config.value(option))}",
                    config.origins[option.name],
                )
                for option in options
            ],
        )
    for backend in config.backends:
        keys = backend.keys()
        options = [each for each in BACKEND_OPTIONS if each.key in keys]
        lines += _show_section(backend.section, _written(config, backend, options))
    for rule in config.rules:
        written = _written(config, rule, RULE_OPTIONS)
        lines += _show_section("[rules]", [line for line in written if line[1] != "default"])
    return "\n".join(lines)


def _written(config: Config, table: Table, options: Iterable[Option]) -> list[tuple[str, str]]:
    """Return the lines of a table, each with its origin."""
    written = []
    for option in options:
        value: Setting = getattr(table, option.attribute)
        origin = config.origins.get(f"{table.section}.{option.key}", "default")
        written.append((f"{option.key} = {option.kind.render(value)}", origin))
    return written


def _show_listener(config: Config, listener: Endpoint) -> list[str]:
    """Return the section of one listener, with the keys that mean something for its type."""
    keys = listener.keys()
    options = [each for each in OPTIONS if each.section == "listener" and each.key in keys]
    return _show_section(listener.section, _written(config, listener, options))


def _show_section(section: str, written: list[tuple[str, str]]) -> list[str]:
    width = max(len(line) for line, _ in written)
    lines = [f"{line:<{width}}  # {origin}" for line, origin in written]
    return [f"[{section}]", *lines, ""]


def template() -> str:
    """Return a configuration file of all keys at their defaults, commented out and explained."""
    config = Config()
    lines = [
        "# Holdfast configuration. Every line below is a default: uncomment what you change.",
        f"# Sizes take KiB, MiB, GiB; durations ms, s, m, h, d. {ENV_PREFIX}SECTION__KEY wins.",
        "",
    ]
    for section in SECTIONS:
        lines.append(f"[{section}]")
        for option in OPTIONS:
            if option.section == section:
                lines.append(f"# {option.help}")
                lines.append(f"#{option.key} = {option.kind.render(config.value(option))}")
        lines.append("")
    lines += ["# [backends.NAME] and [[rules]]: external stores, see docs/backends.md.", ""]
    return "\n".join(lines)
