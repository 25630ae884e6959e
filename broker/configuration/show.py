"""The configuration as text: what is in force, and a template of all defaults."""

from broker.configuration.config import Config
from broker.configuration.listener_options import Endpoint
from broker.configuration.option_types import Setting
from broker.configuration.options import ENV_PREFIX, OPTIONS, SECTIONS


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
    return "\n".join(lines)


def _show_listener(config: Config, listener: Endpoint) -> list[str]:
    """Return the section of one listener, with the keys that mean something for its type."""
    written = []
    for option in OPTIONS:
        if option.section == "listener" and option.key in listener.keys():
            value: Setting = getattr(listener, option.attribute)
            origin = config.origins.get(f"{listener.section}.{option.key}", "default")
            written.append((f"{option.key} = {option.kind.render(value)}", origin))
    return _show_section(listener.section, written)


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
    return "\n".join(lines)
