"""The configuration as text: what is in force, and a template of all defaults."""

from collections.abc import Iterable, Iterator

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


class Shown:
    """One key with its value as text, and where that comes from."""

    __slots__ = ("key", "origin", "value")

    def __init__(self, key: str, value: str, origin: str) -> None:
        self.key: str = key
        self.value: str = value
        self.origin: str = origin


def sections(config: Config) -> Iterator[tuple[str, list[Shown]]]:
    """Yield each table of the configuration in force with its keys; secrets are hidden.

    Those of rules are called by number, `rules[1]`, and have only the keys that are set.
    """
    for section in SECTIONS:
        if section == "listener":
            for listener in config.listeners:
                yield listener.section, _listener(config, listener)
            continue
        options = [option for option in OPTIONS if option.section == section]
        yield (
            section,
            [
                Shown(
                    option.key,
                    option.kind.render(config.value(option)),
                    config.origins[option.name],
                )
                for option in options
            ],
        )
    for backend in config.backends:
        keys = backend.keys()
        options = [each for each in BACKEND_OPTIONS if each.key in keys]
        yield backend.section, _written(config, backend, options)
    for rule in config.rules:
        written = _written(config, rule, RULE_OPTIONS)
        yield rule.section, [each for each in written if each.origin != "default"]


def show(config: Config) -> str:
    """Return the configuration in force as TOML, each line with its origin."""
    rules = {rule.section for rule in config.rules}
    lines: list[str] = []
    for section, written in sections(config):
        lines += _show_section("[rules]" if section in rules else section, written)
    return "\n".join(lines)


def _written(config: Config, table: Table, options: Iterable[Option]) -> list[Shown]:
    """Return the keys of a table, each with its origin."""
    written = []
    for option in options:
        value: Setting = getattr(table, option.attribute)
        origin = config.origins.get(f"{table.section}.{option.key}", "default")
        written.append(Shown(option.key, option.kind.render(value), origin))
    return written


def _listener(config: Config, listener: Endpoint) -> list[Shown]:
    """Return the keys of one listener that mean something for its type."""
    keys = listener.keys()
    options = [each for each in OPTIONS if each.section == "listener" and each.key in keys]
    return _written(config, listener, options)


def _show_section(section: str, written: list[Shown]) -> list[str]:
    lines = [f"{each.key} = {each.value}" for each in written]
    width = max(map(len, lines))
    told = [f"{line:<{width}}  # {each.origin}" for line, each in zip(lines, written, strict=True)]
    return [f"[{section}]", *told, ""]


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
