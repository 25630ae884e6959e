"""A real Kafka server, one node: started, killed and read by tests.

Everybody may do everything on the plain listener. On another one clients have names and only the
rights that a test gives them; on the third, both ends show certificates.
"""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import pytest

from tests.broker.network.certificates import Authority
from tests.durability.process import POLL_SECONDS, free_port, suspend
from tests.real_servers import KAFKA as LIBRARY
from tests.real_servers import needs

kafka: Any = pytest.importorskip("confluent_kafka")
admin: Any = pytest.importorskip("confluent_kafka.admin")

needs_kafka = needs("Kafka")
START_S: Final = 120.0
JAVA: Final = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
USER: Final = "limited"
PASSWORD: Final = "secret"
SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAIN://127.0.0.1:{port},NAMED://127.0.0.1:{named},TLS://127.0.0.1:{tls},\
CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAIN:PLAINTEXT,NAMED:SASL_PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAIN
controller.listener.names=CONTROLLER
sasl.enabled.mechanisms=PLAIN
listener.name.named.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{user}="{password}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:CN=holdfast
listener.name.tls.ssl.keystore.type=PEM
listener.name.tls.ssl.keystore.location={directory}/server.pem
listener.name.tls.ssl.truststore.type=PEM
listener.name.tls.ssl.truststore.location={authority}
listener.name.tls.ssl.client.auth=required
log.dirs={directory}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
{role}.session.timeout.ms=4000
{role}.heartbeat.interval.ms=500
"""


def rights(prefix: str | None = None) -> Any:
    """Return what finds the rights of the named user, those for topics that begin so or all."""
    return admin.AclBindingFilter(
        admin.ResourceType.TOPIC, prefix, admin.ResourcePatternType.ANY,
        f"User:{USER}", None, admin.AclOperation.WRITE, admin.AclPermissionType.ALLOW,
    )  # fmt: skip


class KafkaServer:
    """One server, over any number of starts."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory: Final = directory
        self.port: Final = free_port()
        self.named_port: Final = free_port()
        self.tls_port: Final = free_port()
        self.authority: Final = Authority(directory / "certificates")
        certificate, key = self.authority.server()
        (directory / "server.pem").write_bytes(key.read_bytes() + certificate.read_bytes())
        self._settings: Final = directory / "server.properties"
        self._settings.write_text(
            SETTINGS.format(
                port=self.port, named=self.named_port, controller=free_port(),
                tls=self.tls_port, authority=self.authority.file, directory=directory,
                user=USER, password=PASSWORD, role="broker",
            )
        )  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._admin: Final = admin.AdminClient(
            {"bootstrap.servers": self.address, "log_level": 0, "reconnect.backoff.max.ms": 200}
        )
        self._run("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c")

    @property
    def address(self) -> str:
        """Return where everybody may do everything."""
        return f"127.0.0.1:{self.port}"

    def _run(self, program: str, *words: str) -> None:
        command = [*JAVA, "-cp", f"{LIBRARY}/*", program, *words, str(self._settings)]
        with open(self.directory / "format.log", "wb") as log:
            subprocess.run(command, stdout=log, stderr=log, check=True, timeout=START_S)

    def start(self) -> Self:
        """Start it and return once it answers."""
        command = [*JAVA, "-cp", f"{LIBRARY}/*", "kafka.Kafka", str(self._settings)]
        with open(self.directory / "kafka.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < deadline and self._process.poll() is None
            time.sleep(POLL_SECONDS)
        return self

    def _answers(self) -> bool:
        with contextlib.suppress(kafka.KafkaException):
            return bool(self._admin.list_topics(timeout=1).brokers)
        return False

    def create(self, topic: str, partitions: int = 1, **settings: str) -> str:
        """Create a topic; return its name."""
        names = {name.replace("_", "."): value for name, value in settings.items()}
        new = admin.NewTopic(topic, partitions, 1, config=names)
        self._admin.create_topics([new])[topic].result(START_S)
        self._until_heard(topic, is_there=True)
        return topic

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._admin.delete_topics([topic])[topic].result(START_S)
        self._until_heard(topic, is_there=False)

    def _until_heard(self, topic: str, *, is_there: bool) -> None:
        """Wait until the server acts on its topics, which comes after its answer."""
        deadline = time.monotonic() + START_S
        while (topic in self._admin.list_topics(timeout=START_S).topics) != is_there:
            assert time.monotonic() < deadline, "the server does not hear of its own topic"
            time.sleep(POLL_SECONDS)

    def allow(self, prefix: str) -> None:
        """Let the named user write to topics that begin so."""
        rule = admin.AclBinding(
            admin.ResourceType.TOPIC, prefix, admin.ResourcePatternType.PREFIXED,
            f"User:{USER}", "*", admin.AclOperation.WRITE, admin.AclPermissionType.ALLOW,
        )  # fmt: skip
        self._admin.create_acls([rule])[rule].result(START_S)
        self._until_known(prefix, is_allowed=True)

    def forbid(self) -> None:
        """Take from the named user what he was allowed."""
        every = rights()
        self._admin.delete_acls([every])[every].result(START_S)
        self._until_known(is_allowed=False)

    def _until_known(self, prefix: str | None = None, *, is_allowed: bool) -> None:
        """Wait until the server acts on a change of rights, which comes after its answer."""
        deadline = time.monotonic() + START_S
        while bool(self._admin.describe_acls(rights(prefix)).result(START_S)) != is_allowed:
            assert time.monotonic() < deadline, "the server does not hear of a change of rights"
            time.sleep(POLL_SECONDS)

    def messages(self, topic: str) -> list[Any]:
        """Return everything in a topic, partition by partition, in order."""
        client = kafka.Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": uuid.uuid4().hex,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        found: dict[int, list[Any]] = {}
        try:
            partitions = client.list_topics(topic, timeout=START_S).topics[topic].partitions
            client.assign([kafka.TopicPartition(topic, each, 0) for each in partitions])
            ended: set[int] = set()
            while len(ended) < len(partitions):
                for each in client.consume(500, 1.0):
                    if each.error() is None:
                        found.setdefault(each.partition(), []).append(each)
                    elif each.error().code() == kafka.KafkaError._PARTITION_EOF:
                        ended.add(each.partition())
        finally:
            client.close()
        return [each for partition in sorted(found) for each in found[partition]]

    def values(self, topic: str) -> list[bytes]:
        """Return the values of everything in a topic."""
        return [each.value() for each in self.messages(topic)]

    def kill(self) -> None:
        """Send SIGKILL and wait. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(START_S)

    def freeze(self) -> None:
        """Suspend it: connections stay open, and nothing is answered."""
        assert self._process is not None
        suspend(self._process)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)


def servers(directory: Path) -> Iterator[KafkaServer]:
    """Yield a server that runs, for a fixture."""
    server = KafkaServer(directory).start()
    yield server
    server.kill()
