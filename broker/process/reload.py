"""SIGHUP: reads users, rules, settings and certificates again, while clients wait.

All of it happens at once, rules first, before anything more that clients have sent is handled: no
packet that comes after the signal meets what the operator has replaced. Each file stands for
itself: one that cannot be used is an error in the log, and what it would replace stays in force.
Read next: `broker.configuration.reload` (which keys change at once) and
`broker.security.access_files`.
"""

import asyncio
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final, TypeAlias

from broker.configuration import reload
from broker.configuration.config import Config, ConfigError
from broker.loop.driver import Driver
from broker.process.open import OpenBroker
from broker.security import access_files
from session.settings import Settings

# Reads the configuration as at the start: same file, environment and flags.
ReadConfig: TypeAlias = Callable[[], Config]


class HangUps:
    """Notes a SIGHUP when it comes, and acts when nothing else is going on.

    The loop's own handlers run when the loop comes to them, which may be behind the packets of who
    connected after the signal. So each stream asks before it hands on what it has read.
    """

    def __init__(self) -> None:
        """Take the signal from now on; by default it would end the process."""
        self._came = False
        self._act: Callable[[], object] | None = None
        self._keeps = False
        signal.signal(signal.SIGHUP, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True

    def start(
        self, loop: asyncio.AbstractEventLoop, act: Callable[[], object], *, keeps: bool = False
    ) -> None:
        """From now on call `act` for each signal, or for several, also if one came before.

        `keeps`: `act` reads a part only. The next `act` is called for the same signals again.
        """
        self._act = act
        self._keeps = keeps
        loop.add_signal_handler(signal.SIGHUP, self.look)  # so that the signal wakes the loop
        signal.signal(signal.SIGHUP, self._note)
        signal.siginterrupt(signal.SIGHUP, False)
        self.look()

    def rest(self) -> None:
        """Only note the signal from now on. To call once the loop is closed.

        A loop that closes gives each of its signals back its default, which ends the process.
        """
        self._act = None
        signal.signal(signal.SIGHUP, self._note)

    def look(self) -> None:
        """Act if the signal has come. To call this lets Python run its signal handlers first."""
        if self._came and self._act is not None:
            self._came = self._keeps
            self._act()


class Outcome:
    """What a reload has done."""

    def __init__(self) -> None:
        self.changed: list[str] = []  # what is in force now: keys with values, files
        self.needs_restart: list[str] = []  # a line for each key that changes with a restart only
        self.problems: list[str] = []  # what could not be used, and what stays instead


class Reload:
    """Reads again what may change while the broker runs."""

    def __init__(self, opened: OpenBroker, driver: Driver, read: ReadConfig | None) -> None:
        """`read` raises `ConfigError`; None = there is no configuration file."""
        self._opened: Final = opened
        self._driver: Final = driver
        self._read: Final = read

    def run(self) -> Outcome:
        """Read everything again; log what has changed and what could not be used."""
        opened, outcome = self._opened, Outcome()
        if opened.access.has_files:
            read, wrong = access_files.reload_files(opened.access, opened.log, self._send_away)
            outcome.changed += [f"files of users and rules: {read}"] if read else []
            outcome.problems += [wrong] if wrong else []
        if self._read is not None:
            self._reload_settings(self._read, outcome)
        sections, problems = opened.listeners.reload()
        outcome.changed += [f"certificate of [{section}]" for section in sections]
        outcome.problems += problems
        opened.status.certificates = opened.listeners.expiries()
        if not (opened.access.has_files or self._read or opened.listeners.has_certificates):
            opened.log.info(
                "reload",
                "nothing to reload: no configuration file, password file, ACL file or certificate",
            )
        return outcome

    def _reload_settings(self, read: ReadConfig, outcome: Outcome) -> None:
        opened, log = self._opened, self._opened.log
        try:
            new = read()
        except ConfigError as problem:
            outcome.problems.append(f"{problem}; all settings stay as they were")
            log.error("reload_failed", outcome.problems[-1])
            return
        opened.fit(new.settings)
        changes = reload.apply(opened.config, new)
        if changes.settings:
            self._driver.run(self._change, new.settings)
        outcome.changed += changes.settings
        outcome.needs_restart += changes.restart
        for line in changes.restart:
            log.warning("restart_needed", line)
        changed = ", ".join(changes.settings) or "nothing"
        # The log leaves out lines where there are many of an event. This one names every key.
        waiting = ", ".join(changes.names) or "nothing"
        tell = log.warning if changes.names else log.info
        tell("reload", "settings read again", changed=changed, needs_restart=waiting)
        log.set_level(opened.config.shell.log_level)

    def _change(self, settings: Settings) -> None:
        self._opened.engine.change(settings, self._driver.now)

    def _send_away(self, users: frozenset[str]) -> None:
        """End the connections of users who are gone or have another password."""
        self._driver.run(self._end_connections, users)

    def _end_connections(self, users: frozenset[str]) -> None:
        self._opened.engine.send_away(users, self._driver.now)
