"""The machines of a cluster: Holdfast nodes and Kafka brokers, each in a host of its own.

Each runs over the shim that knows what a power cut takes (`tests.durability.powercut`). What
happened to a machine is over after `heal`. Read next: `tests.replication.rounds.misfortunes`.
"""

import contextlib
import os
import random
import signal
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

from tests.durability.iofault import Faults
from tests.durability.powercut import HOW, NAMES, apply_power_cut, baseline
from tests.durability.process import READY_SECONDS, BrokerProcess, holdfast
from tests.replication.kafka_cluster import BROKERS, Home, KafkaCluster
from tests.replication.rounds.town import CLIENTS, LOG, Host, Town

CONFIG: Final = """\
[listener]
host = "0.0.0.0"

[auth]
allow_anonymous = true

[metrics]
host = "0.0.0.0"

[storage]
backend = "kafka"
generation_size = "64KiB"
generation_age = "2s"

[storage.kafka]
servers = {servers}
topic = "{topic}"
node = "{name}"
members = {names}
advertise = "{address}:{port}"
"""
KEPT: Final = {"retention_ms": "-1", "retention_bytes": "-1"}
# A broker is missed after the time that is Kafka's default. On a busy machine a controller may be
# slow to answer, and is not replaced because of that.
PATIENT: Final = "controller.quorum.fetch.timeout.ms=5000\n"
NAMES_OF_NODES: Final = ("ann", "bob", "cid")


class Machine(ABC):
    """A process on a host, and its disk."""

    def __init__(self, host: Host) -> None:
        self.host: Final = host
        self.is_down: bool = False  # killed, and not started again
        self.is_frozen: bool = False

    def cut(self, *nets: str) -> None:
        """Cut it off, or from some nets only."""
        self.host.cut(nets) if nets else self.host.cut()

    def heal(self) -> None:
        """Let it run and be reached again."""
        self.host.join()
        if self.is_frozen:
            self.is_frozen = False
            self._thaw()
        if self.is_down:
            self.is_down = False
            self._start()

    def kill(self) -> None:
        """Send SIGKILL."""
        self.is_down = True
        self._kill()

    def stop(self) -> None:
        """Send SIGSTOP."""
        self.is_frozen = True
        self._freeze()

    def cut_power(self, source: random.Random) -> int:
        """Kill, and take from the disk what was not synced; return how much was taken."""
        self.kill()
        return self._lose(source)

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _kill(self) -> None: ...

    @abstractmethod
    def _freeze(self) -> None: ...

    @abstractmethod
    def _thaw(self) -> None: ...

    @abstractmethod
    def _lose(self, source: random.Random) -> int: ...


class Node(Machine):
    """A Holdfast node."""

    def __init__(self, host: Host, directory: Path, shim: Path) -> None:
        super().__init__(host)
        self._side: Final = directory / "side"
        faults = Faults(shim, directory / "rules", side=self._side)
        self.process: Final[BrokerProcess] = holdfast(
            directory / "node", env=faults.environment(), prefix=host.prefix
        )
        self.process.name = host.name
        self.process.host = host.address(CLIENTS)
        self.process.data_dir.mkdir()
        baseline(self.process.data_dir, self._side)

    @property
    def name(self) -> str:
        """Return its name."""
        return self.host.name

    def configure(self, servers: list[str], topic: str, names: list[str]) -> None:
        """Write its configuration, and start it."""
        place = self.process.directory / "holdfast.toml"
        text = CONFIG.format(
            servers=servers, topic=topic, name=self.name, names=names,
            address=self.process.host, port=self.process.port,
        )  # fmt: skip
        place.write_text(text)
        self.process.arguments = ("-c", str(place))
        self._start()

    def _start(self) -> None:
        self.process.launch()

    def _kill(self) -> None:
        """End the process and what it has started: on a machine without power nothing goes on."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait_exit(READY_SECONDS)

    def _freeze(self) -> None:
        self.process.freeze()

    def _thaw(self) -> None:
        self.process.thaw()

    def _lose(self, source: random.Random) -> int:
        return apply_power_cut(
            self.process.data_dir, self._side, how=source.choice(HOW), source=source
        )


class KafkaMachine(Machine):
    """A Kafka broker of the cluster, by its number."""

    def __init__(self, host: Host, number: int, cluster: KafkaCluster, side: Path) -> None:
        super().__init__(host)
        self._number: Final = number
        self._cluster: Final = cluster
        self._side: Final = side

    def _start(self) -> None:
        self._cluster.revive(self._number)

    def _kill(self) -> None:
        self._cluster.kill(self._number)

    def _freeze(self) -> None:
        self._cluster.freeze(self._number)

    def _thaw(self) -> None:
        self._cluster.thaw(self._number)

    def _lose(self, source: random.Random) -> int:
        # Its names are those of a JVM and of temporary files, too: they stay.
        how = source.choice([each for each in HOW if each != NAMES])
        data = self._cluster.data(self._number)
        return apply_power_cut(data, self._side, how=how, source=source)


class Machines:
    """All machines of a run; `close` ends them."""

    def __init__(self, town: Town, directory: Path, shim: Path, *, nodes: int) -> None:
        self._stack: Final = contextlib.ExitStack()
        with contextlib.ExitStack() as begun:
            begun.callback(self._stack.close)
            self._start(town, directory, shim, nodes)
            begun.pop_all()

    def _start(self, town: Town, directory: Path, shim: Path, nodes: int) -> None:
        hosts = {number: town.host(f"kafka{number}", (LOG,)) for number in range(1, BROKERS + 1)}
        sides = {number: directory / f"kafka{number}" / "side" for number in hosts}
        homes = {}
        for number, host in hosts.items():
            sides[number].parent.mkdir(parents=True)
            faults = Faults(shim, sides[number].with_name("rules"), side=sides[number])
            # A session of its own: Linux shares a busy processor among sessions.
            prefix = (*host.prefix, "setsid")
            homes[number] = Home(host.address(LOG), prefix, faults.environment())
        self.cluster: Final = KafkaCluster(directory / "kafka", homes=homes, settings=PATIENT)
        self._stack.callback(self.cluster.end)
        self.kafka: Final = {
            number: KafkaMachine(host, number, self.cluster, sides[number])
            for number, host in hosts.items()
        }
        self.cluster.format()
        for number, side in sides.items():
            baseline(self.cluster.data(number), side)
        self.cluster.start()
        self.topic: Final = self.cluster.create(max_message_bytes="4194304", **KEPT)
        self.nodes: Final[list[Node]] = []
        for name in NAMES_OF_NODES[:nodes]:
            node = Node(town.host(name), directory / name, shim)
            self.nodes.append(node)
            self._stack.callback(node.process.close)
        names = [node.name for node in self.nodes]
        for node in self.nodes:
            node.configure(list(self.cluster.servers), self.topic, names)

    def heal(self) -> None:
        """Let everything run and be reached again."""
        for machine in (*self.kafka.values(), *self.nodes):
            machine.heal()

    def close(self) -> None:
        """End everything; raises `BrokerFailed` if a node has logged what it must not."""
        self._stack.close()
