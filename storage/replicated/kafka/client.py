"""How a node reaches Kafka: the settings that all its clients share, and errors as text.

Read next: `storage.replicated.kafka.sender`, `storage.replicated.kafka.reader`.
"""

import logging
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

METADATA_MS: Final = 1000  # how old what a client knows of leaders may become
RECONNECT_MS_MAX: Final = 500

# Errors are heard by `error_cb`. Without a logger librdkafka writes the fatal ones to stderr, too.
UNHEARD: Final = logging.Logger("librdkafka", logging.CRITICAL + 1)


@dataclass(frozen=True, slots=True)
class Access:
    """Where the servers are and how they are spoken to. Texts that are None were not given."""

    servers: tuple[str, ...]  # host:port
    node: str = "holdfast"
    username: str | None = None
    password: str = ""
    password_file: str | None = None
    sasl_mechanism: str = "PLAIN"
    tls: bool = False
    tls_ca: str | None = None  # None = the system's
    tls_certificate: str | None = None
    tls_key: str | None = None  # None = in the certificate's file
    tls_verify: bool = True
    # A server that does not answer for so long counts as gone. Less than the time after which a
    # follower takes over, or it might do so while the leader still waits for a dead server.
    timeout_ms: int = 2000


def settings(access: Access) -> dict[str, Any]:
    """Return the settings of every client. Raises `OSError` if the password cannot be read."""
    protocol = "SSL" if access.tls else "PLAINTEXT"
    found: dict[str, Any] = {
        "bootstrap.servers": ",".join(access.servers),
        "client.id": f"holdfast-{access.node}",
        "socket.timeout.ms": access.timeout_ms,
        "socket.connection.setup.timeout.ms": max(access.timeout_ms, 1000),
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
        "topic.metadata.refresh.interval.ms": METADATA_MS,
        "metadata.max.age.ms": 3 * METADATA_MS,
        "security.protocol": protocol if access.username is None else f"SASL_{protocol}",
        "log_level": 0,
    }
    if access.username is not None:
        found |= {
            "sasl.mechanism": access.sasl_mechanism,
            "sasl.username": access.username,
            "sasl.password": _password(access),
        }
    if access.tls:
        found |= {
            "ssl.ca.location": access.tls_ca or "probe",
            "enable.ssl.certificate.verification": access.tls_verify,
        }
        if access.tls_certificate is not None:
            found["ssl.certificate.location"] = access.tls_certificate
            found["ssl.key.location"] = access.tls_key or access.tls_certificate
    return found


def _password(access: Access) -> str:
    """Return the password; a file is read again for each client, so that it can be changed."""
    if access.password_file is None:
        return access.password
    try:
        with open(access.password_file, encoding="utf-8") as file:
            password = file.readline().rstrip("\r\n")
    except UnicodeDecodeError as problem:
        raise OSError(f"password_file {access.password_file}: {problem}") from None
    except OSError as problem:
        raise OSError(f"password_file {access.password_file}: {problem.strerror}") from None
    if not password:  # perhaps it is just being written
        raise OSError(f"password_file {access.password_file}: its first line is empty")
    return password


def is_refusal(error: KafkaError) -> bool:
    """Return whether a server does not let this node in, or shows a wrong certificate.

    That does not go away by asking again, unless somebody changes the file of the password. The
    same codes tell of connections that were lost meanwhile.
    """
    if error.code() == KafkaError._AUTHENTICATION:
        return "Local:" not in error.str()
    return error.code() == KafkaError._SSL and "certificate" in error.str()


def cause(problem: KafkaException | SystemError) -> KafkaException:
    """Return the error that ended a client.

    confluent-kafka raises it from whatever call hears of it. If that call then also hears the ends
    of messages, it is the cause of a `SystemError`.
    """
    if isinstance(problem, KafkaException):
        return problem
    if isinstance(problem.__cause__, KafkaException):
        return problem.__cause__
    raise problem


def text(error: KafkaError | KafkaException | Exception) -> str:
    """Return an error in one line."""
    if isinstance(error, KafkaException):
        error = error.args[0]
    found = error.str() if isinstance(error, KafkaError) else str(error)
    return "".join(filter(str.isprintable, " ".join(found.split())))
