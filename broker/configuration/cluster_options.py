"""The options of a replicated store: `storage.backend` and `[storage.kafka]`.

Holds values and checks whether they go together; must open nothing. Read next: docs/cluster.md.
"""

from collections.abc import Iterator
from typing import Final

LOCAL: Final = "local"
KAFKA: Final = "kafka"
BACKENDS: Final = (LOCAL, KAFKA)

SECTION: Final = "storage.kafka"
MEMBERS_MAX: Final = 16
# Below it, a busy machine looks like one that is gone.
TAKEOVER_MS_MIN: Final = 2000
TAKEOVER_MS_MAX: Final = 600_000

_REQUIRED: Final = (
    ("servers", "host:port of the Kafka brokers"),
    ("node", "the name of this node"),
    ("members", "the names of all nodes"),
)
_CERTIFICATE_KEYS: Final = ("tls_ca", "tls_certificate", "tls_key")


class ClusterOptions:
    """What a node of a cluster is told; attributes are named after the keys."""

    def __init__(self) -> None:
        self.backend: str = LOCAL
        self.servers: tuple[str, ...] = ()  # host:port
        self.topic: str = "holdfast"
        self.replicas: int = 3  # that the topic must have at least
        self.node: str | None = None
        self.members: tuple[str, ...] = ()
        self.takeover_ms: int = 3000
        self.keep_ms: int = 3_600_000  # what members need of the log that are away
        self.advertise: str | None = None  # host:port; None = clients are not told where to go
        self.username: str | None = None
        self.password: str = ""
        self.password_file: str | None = None
        self.sasl_mechanism: str = "PLAIN"
        self.tls: bool = False
        self.tls_ca: str | None = None  # None = the system's
        self.tls_certificate: str | None = None
        self.tls_key: str | None = None  # None = in the certificate's file
        self.tls_verify: bool = True

    @property
    def is_replicated(self) -> bool:
        """Whether the store is replicated."""
        return self.backend == KAFKA

    def problems(self) -> Iterator[str]:
        """Yield what does not go together, each one line naming the keys."""
        if self.is_replicated:
            yield from self._required_problems()
        yield from self._member_problems()
        if self.advertise is not None and self.advertise.endswith(":0"):
            yield f"{SECTION}.advertise = {self.advertise!r}: expected a port that clients can use"
        yield from self._security_problems()
        if self.node is not None and not self.is_replicated:
            yield (
                f"{SECTION}.node = {self.node!r} needs storage.backend = {KAFKA!r} as well: "
                "without it nothing leaves this machine"
            )

    def _required_problems(self) -> Iterator[str]:
        for key, expected in _REQUIRED:
            if not getattr(self, key):
                yield f"{SECTION}.{key} is missing: expected {expected}"

    def _member_problems(self) -> Iterator[str]:
        members = self.members
        twice = sorted({name for name in members if members.count(name) > 1})
        if twice:
            yield f"{SECTION}.members: {twice[0]!r} is there twice: expected each name once"
        if len(members) > MEMBERS_MAX:
            yield f"{SECTION}.members: {len(members)} names: expected at most {MEMBERS_MAX}"
        if members and self.node is not None and self.node not in members:
            yield (
                f"{SECTION}.node = {self.node!r}: expected one of {SECTION}.members, "
                f"{', '.join(members)}"
            )

    def _security_problems(self) -> Iterator[str]:
        if self.password and self.password_file is not None:
            yield f"{SECTION}.password and {SECTION}.password_file: expected one of them"
        if self.username is None and (self.password or self.password_file is not None):
            yield f"{SECTION}.password needs {SECTION}.username as well"
        if self.username is not None and not self.password and self.password_file is None:
            yield f"{SECTION}.username needs {SECTION}.password or password_file as well"
        if not self.tls:
            for key in _CERTIFICATE_KEYS:
                if getattr(self, key) is not None:
                    yield f"{SECTION}.{key} needs {SECTION}.tls = true as well"
            if not self.tls_verify:
                yield f"{SECTION}.tls_verify needs {SECTION}.tls = true as well"
        if self.tls_key is not None and self.tls_certificate is None:
            yield f"{SECTION}.tls_key needs {SECTION}.tls_certificate as well"
