"""Run a command beside three Kafka brokers: `python -m tests.replication.with_kafka COMMAND ...`.

The command finds their addresses where Holdfast looks for them. `scripts/conformance --kafka` and
`scripts/crash-matrix --kafka` are run so.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.real_servers import lacks
from tests.replication.kafka_cluster import KafkaCluster

SERVERS: Final = "HOLDFAST__STORAGE__KAFKA__SERVERS"
EXIT_USAGE: Final = 2


def main(command: Sequence[str]) -> int:
    """Run it, and return its exit status."""
    if not command:
        print("with_kafka: expected a command", file=sys.stderr)
        return EXIT_USAGE
    if why := lacks("Kafka"):
        print(f"with_kafka: Kafka cannot be started: {why} (scripts/setup --test)", file=sys.stderr)
        return EXIT_USAGE
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that Kafka is ended too
    with tempfile.TemporaryDirectory(prefix="kafka-") as directory:
        cluster = KafkaCluster(Path(directory))
        try:
            cluster.start()
            environment = {**os.environ, SERVERS: ",".join(cluster.servers)}
            return subprocess.run(command, env=environment, check=False).returncode
        finally:
            cluster.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
