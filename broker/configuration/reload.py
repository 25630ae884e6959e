"""What SIGHUP changes: which keys of a new configuration take effect at once, and which cannot.

Compares only; `broker.process.reload` applies the result. A key takes effect at once if nothing
depends on its old value: not a CONNACK that announced it, not a file or thread that is open. Must
never open the broker wider than either configuration says: who is let in (passwords, client
certificates, anonymous clients) changes as a whole, at a restart. Read next: `session.settings`
(`CHANGEABLE`).
"""

from typing import Final

from broker.configuration.config import Config
from broker.configuration.listener_options import Endpoint
from broker.configuration.option_types import Setting
from broker.configuration.options import BACKEND_OPTIONS, OPTIONS, Option
from session.settings import CHANGEABLE, Settings
from storage.history import events

SHELL_CHANGEABLE: Final = ("drain_timeout_ms", "history_drain_ms", "log_level")
# Files of a listener: another path is as good as another content. Whether there is one is not.
TLS_FILES: Final = ("tls_certificate", "tls_key", "tls_client_ca")


class Changes:
    """What is different in a new configuration."""

    def __init__(self) -> None:
        self.settings: list[str] = []  # keys that take effect, as TOML
        self.restart: list[str] = []  # one line for each key that needs a restart
        self.names: list[str] = []  # of those keys, or of whole tables

    def need_restart(self, name: str, line: str) -> None:
        """Note a key or a table, "[NAME]", that changes only with a restart."""
        self.names.append(name)
        self.restart.append(line)


def apply(config: Config, new: Config) -> Changes:
    """Compare `config`, which is in force, with `new`; put into it what changes at once.

    `config.settings` is left alone: it is the engine's, which takes what has changed from
    `new.settings` (`Engine.change`). Listeners get the paths of new TLS files, not their content.
    """
    changes = Changes()
    for option in OPTIONS:
        if option.owner == "listener":
            continue
        before, after = config.value(option), new.value(option)
        if before == after:
            continue
        if _is_changeable(option, config.settings, new.settings):
            changes.settings.append(f"{option.name} = {option.kind.render(after)}")
            if option.owner == "shell":
                setattr(config.shell, option.attribute, after)
        else:
            _need_restart(changes, option, option.name, before, after)
            if option.owner == "settings":
                setattr(new.settings, option.attribute, before)
    _compare_listeners(config, new, changes)
    _compare_backends(config, new, changes)
    return changes


def _is_changeable(option: Option, old: Settings, new: Settings) -> bool:
    if option.attribute == "history_detail":
        # Below this level there is nothing that an added message could be counted in.
        return min(old.history_level, new.history_level) >= events.BOOKS_LEVEL
    return option.attribute in (SHELL_CHANGEABLE if option.owner == "shell" else CHANGEABLE)


def _compare_listeners(config: Config, new: Config, changes: Changes) -> None:
    present = {listener.section: listener for listener in config.listeners}
    for listener in new.listeners:
        old = present.pop(listener.section, None)
        if old is None:
            _change_table(changes, listener.section, "is new: it opens at the next start")
        else:
            _compare_listener(old, listener, changes)
    for section in present:
        _change_table(changes, section, "is gone: it closes with the next start")


def _compare_listener(old: Endpoint, new: Endpoint, changes: Changes) -> None:
    for option in OPTIONS:
        if option.owner != "listener":
            continue
        before = getattr(old, option.attribute)
        after = getattr(new, option.attribute)
        if before == after:
            continue
        is_file = option.attribute in TLS_FILES and old.has_tls and new.has_tls
        if is_file and (option.attribute != "tls_client_ca" or (before and after)):
            setattr(old, option.attribute, after)
        else:
            _need_restart(changes, option, f"{old.section}.{option.key}", before, after)


def _compare_backends(config: Config, new: Config, changes: Changes) -> None:
    present = {backend.section: backend for backend in config.backends}
    for backend in new.backends:
        old = present.pop(backend.section, None)
        if old is None:
            _change_table(changes, backend.section, "is new: it is used from the next start on")
            continue
        for option in BACKEND_OPTIONS:
            before, after = getattr(old, option.attribute), getattr(backend, option.attribute)
            if before != after:
                _need_restart(changes, option, f"{backend.section}.{option.key}", before, after)
    for section in present:
        _change_table(changes, section, "is gone: it is forgotten with the next start")
    if [each.as_tuple() for each in config.rules] != [each.as_tuple() for each in new.rules]:
        line = "[[rules]] need a restart; until then the ones of the start hold"
        changes.need_restart("[[rules]]", line)


def _change_table(changes: Changes, section: str, what: str) -> None:
    changes.need_restart(f"[{section}]", f"[{section}] {what}")


def _need_restart(
    changes: Changes, option: Option, name: str, before: Setting, after: Setting
) -> None:
    after_text, before_text = option.kind.render(after), option.kind.render(before)
    line = f"{name} = {after_text} needs a restart; until then {before_text} holds"
    changes.need_restart(name, line)
