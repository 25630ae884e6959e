"""Three Apache Kafka brokers on loopback for the show of a cluster, of an installation that exists.

Kafka is Java and not part of this package. Every broker is a controller as well, keeps little
memory, and writes into the directory of the show. Read next: `broker.cli.cluster_demo.play`.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from broker.cli.cluster_demo.children import end, free_ports, wait_for
from broker.cli.demo import DemoError

BROKERS: Final = 3
START_S: Final = 300.0  # on a busy machine
JVM: Final = ("-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
CLUSTER_ID: Final = "SG9sZGZhc3RfRGVtb18wMQ"
SETTINGS: Final = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={directory}/data
auto.create.topics.enable=false
{role}.session.timeout.ms=20000
controller.quorum.fetch.timeout.ms=20000
controller.quorum.election.timeout.ms=5000
"""
HOW: Final = (
    "no Kafka: say --kafka DIR (or set KAFKA_HOME), where kafka_2.13-4.1.0.tgz from "
    "https://kafka.apache.org/downloads is unpacked; or --servers HOST:PORT of a running one"
)


def find(directory: str | None, environment: Mapping[str, str]) -> tuple[Path, str]:
    """Return the folder of Kafka's libraries, and the Java to run them. Raises `DemoError`."""
    named = directory or environment.get("KAFKA_HOME")
    if not named:
        raise DemoError(HOW)
    for folder in (Path(named) / "libs", Path(named)):
        if any(folder.glob("kafka_2.*.jar")):
            return folder.absolute(), _java(environment)
    raise DemoError(f"{named}: no Kafka in it: expected libs/kafka_2.13-VERSION.jar")


def _java(environment: Mapping[str, str]) -> str:
    home = environment.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java", path=environment.get("PATH"))
    if java is None:
        raise DemoError("Kafka needs Java 17 or newer: expected java in PATH, or JAVA_HOME")
    return java


class Kafka:
    """Three brokers; `close` ends them."""

    def __init__(self, libraries: Path, java: str, directory: Path) -> None:
        self._command: Final = (java, *JVM, "-cp", f"{libraries}/*")
        self._directory: Final = directory
        self._processes: Final[list[subprocess.Popen[bytes]]] = []
        ports = free_ports(2 * BROKERS)
        self.ports: Final = ports[:BROKERS]
        voters = [f"{node}@127.0.0.1:{port}" for node, port in enumerate(ports[BROKERS:], 1)]
        for node, port in enumerate(self.ports, 1):
            place = self._place(node)
            place.mkdir()
            text = SETTINGS.format(
                node=node,
                voters=",".join(voters),
                port=port,
                controller=ports[BROKERS + node - 1],
                directory=place,
                role="broker",
            )
            (place / "server.properties").write_text(text)

    @property
    def servers(self) -> str:
        """Return the addresses of all brokers."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def start(self) -> float:
        """Start all; return the seconds until each of them listens. Raises `DemoError`."""
        self._run("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c")
        took = wait_for("preparing three Kafka brokers", self._are_formatted, START_S)
        self._processes.clear()
        self._run("kafka.Kafka")
        return took + wait_for("starting three Kafka brokers", self._listen, START_S)

    def _place(self, node: int) -> Path:
        return self._directory / f"kafka{node}"

    def _run(self, program: str, *words: str) -> None:
        environment = {**os.environ, "LC_ALL": "C"}
        for node in range(1, BROKERS + 1):
            place = self._place(node)
            command = [*self._command, program, *words, str(place / "server.properties")]
            with open(place / "kafka.log", "ab") as log:
                self._processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        cwd=place,
                        env=environment,
                    )
                )

    def _are_formatted(self) -> bool:
        codes = [process.poll() for process in self._processes]
        self._complain([code for code in codes if code])
        return None not in codes

    def _listen(self) -> bool:
        codes = [process.poll() for process in self._processes]
        self._complain([code for code in codes if code is not None])
        return all(_listens(port) for port in self.ports)

    def _complain(self, codes: Sequence[int]) -> None:
        """Raise `DemoError` with Kafka's last words if one of the brokers has ended."""
        if not codes:
            return
        logs = [self._place(node) / "kafka.log" for node in range(1, BROKERS + 1)]
        said = [line for log in logs for line in log.read_text("utf-8", "replace").splitlines()]
        last = next((line for line in reversed(said) if line.strip()), "it said nothing")
        raise DemoError(f"Kafka ended with {codes[0]}: {last.strip()[:200]}")

    def close(self) -> None:
        """Kill all. Idempotent."""
        for process in self._processes:
            end(process)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True
