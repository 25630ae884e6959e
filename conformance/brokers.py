"""The broker processes of one run, and which checks share them.

Checks that only need certain options share a broker with those options; a check that stops or kills
the broker gets its own. `close` always ends every process started here.
"""

import itertools
import json
import threading
from pathlib import Path
from typing import Final

from conformance.adapters.base import Adapter, AdapterError, Broker, Options, Ports, launch

IDLE_MAX: Final = 2  # unused brokers kept for the next check with the same options
SLOTS: Final = 4  # checks that may use these brokers at the same time


class Brokers:
    """Starts brokers of one adapter. Safe to use from several threads."""

    def __init__(self, adapter: Adapter, directory: Path) -> None:
        self._adapter = adapter
        self._directory = directory
        self._ports = Ports()
        self._names = itertools.count(1)
        self._lock = threading.Lock()
        self._all: list[Broker] = []
        self._configured: dict[str, _Configured] = {}  # in order of last use
        self._is_closed = False
        self.slots: threading.Semaphore = threading.Semaphore(SLOTS)

    def own(self, options: Options) -> Broker:
        """Return a new broker; end it with `end`. Raises `NotRun`, `AdapterError`."""
        with self._lock:
            if self._is_closed:
                raise AdapterError("the run is over: no broker is started any more")
            directory = self._directory / f"broker-{next(self._names)}"
        return launch(self._adapter, directory, self._ports, options, self._admit)

    def _admit(self, broker: Broker) -> None:
        with self._lock:
            self._all.append(broker)
            if self._is_closed:
                broker.close()

    def end(self, broker: Broker) -> None:
        """End a broker of `own`."""
        broker.close()
        with self._lock:
            self._all.remove(broker)

    def shared(self, options: Options) -> Broker:
        """Return a broker with these options that other checks may use too; `give_back` it."""
        key = json.dumps(options, sort_keys=True, default=list)
        with self._lock:
            found = self._configured.pop(key, None) or _Configured()
            self._configured[key] = found
            found.users += 1
        try:
            with found.lock:  # the first user starts it, the others wait
                if found.broker is None or not found.broker.is_running:
                    found.broker = self.own(options)
                return found.broker
        except BaseException:
            with self._lock:
                found.users -= 1
            raise

    def give_back(self, broker: Broker) -> None:
        """Return a broker of `shared`; old brokers without users are ended."""
        with self._lock:
            for found in self._configured.values():
                if found.broker is broker:
                    found.users -= 1
            idle = [key for key, found in self._configured.items() if not found.users]
            ended = [self._configured.pop(key) for key in idle[: max(0, len(idle) - IDLE_MAX)]]
        for found in ended:
            if found.broker is not None:
                self.end(found.broker)

    def close(self) -> None:
        """End every process and release the ports."""
        with self._lock:
            self._is_closed = True
            brokers = list(self._all)
        for broker in brokers:
            broker.close()
        self._ports.close()


class _Configured:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.broker: Broker | None = None
        self.users = 0
