"""A real Kafka broker with one more listener: TLS, and a user with a password (SCRAM-SHA-256).

One is enough for what does not stop it, and a third of the work.

Read next: `tests.replication.kafka_cluster`.
"""

from pathlib import Path
from typing import Any, Final, Self

import pytest

from tests.broker.network.certificates import Authority
from tests.durability.process import free_port
from tests.replication.kafka_cluster import START_S, KafkaCluster, insist

admin: Any = pytest.importorskip("confluent_kafka.admin")

USER: Final = "holdfast"
PASSWORD: Final = "a secret, with = and spaces"
ITERATIONS: Final = 4096
JAAS: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
SETTINGS: Final = """\
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL
inter.broker.listener.name=PLAINTEXT
listener.name.secure.sasl.enabled.mechanisms=SCRAM-SHA-256
listener.name.secure.scram-sha-256.sasl.jaas.config={jaas}
listener.name.secure.ssl.keystore.type=PEM
listener.name.secure.ssl.keystore.location={pem}
{role}.session.timeout.ms=60000
{role}.heartbeat.interval.ms=2000
"""


class SecureKafka(KafkaCluster):
    """A broker with a second port."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        super().__init__(directory, brokers=1)
        certificate, key = authority.server()
        pem = directory / "server.pem"
        pem.write_text(key.read_text() + certificate.read_text())
        self.secure_ports: Final = {node: free_port() for node in self.ports}
        for node, port in self.secure_ports.items():
            path = directory / f"broker{node}" / "server.properties"
            written = path.read_text()
            (listeners,) = (line for line in written.splitlines() if line.startswith("listeners="))
            more = f"{listeners},SECURE://127.0.0.1:{port}\n"
            path.write_text(written + more + SETTINGS.format(pem=pem, jaas=JAAS, role="broker"))

    @property
    def secure_servers(self) -> str:
        """Return the addresses of the second ports."""
        return ",".join(f"127.0.0.1:{port}" for port in self.secure_ports.values())

    def start(self) -> Self:
        """Start all, and add the user."""
        super().start()
        way = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_256, ITERATIONS)
        wanted = admin.UserScramCredentialUpsertion(USER, way, PASSWORD.encode())
        insist(
            lambda: self.admin.alter_user_scram_credentials([wanted], request_timeout=START_S)[USER]
        )
        return self
