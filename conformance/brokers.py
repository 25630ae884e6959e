"""Who may use which broker process: the brokers of one run, by what the checks ask for.

A check that only configures shares a broker with others that ask for the same; a check that stops
or kills gets one of its own. Every process started here is ended by `close`, whatever happened.
"""

import itertools
import json
import threading
from pathlib import Path
from typing import Final

from conformance.adapters.base import Adapter, AdapterError, Broker, Options, Ports, launch

IDLE_MAX: Final = 2  # configured brokers kept for the next check that asks for the same
SLOTS: Final = 4  # checks that may have brokers from here at the same time


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
        """Return a new broker; give it back with `end`. Raises `NotRun`, `AdapterError`."""
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
        """Return a broker with these options that others use as well; `give_back` it."""
        key = json.dumps(options, sort_keys=True, default=list)
        with self._lock:
            found = self._configured.pop(key, None) or _Configured()
            self._configured[key] = found
            found.users += 1
        try:
            with found.lock:  # whoever comes first starts it, the others wait
                if found.broker is None or not found.broker.is_running:
                    found.broker = self.own(options)
                return found.broker
        except BaseException:
            with self._lock:
                found.users -= 1
            raise

    def give_back(self, broker: Broker) -> None:
        """A user of `shared` is done; old brokers without users are ended."""
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
        """End every process, and let go of their ports."""
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
