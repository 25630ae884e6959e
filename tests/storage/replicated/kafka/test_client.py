"""Do all clients of a node reach Kafka as its configuration says?"""

from pathlib import Path
from typing import Any

import pytest

kafka: Any = pytest.importorskip("confluent_kafka")
client: Any = pytest.importorskip("storage.replicated.kafka.client")


def test_without_user_and_tls_it_is_plain_text() -> None:
    found = client.settings(client.Access(("a:1", "b:2"), "n1"))
    assert found["bootstrap.servers"] == "a:1,b:2"
    assert found["client.id"] == "holdfast-n1"
    assert found["security.protocol"] == "PLAINTEXT"
    assert not [key for key in found if key.startswith(("sasl.", "ssl.", "enable.ssl"))]


def test_a_user_is_proved_by_sasl() -> None:
    found = client.settings(
        client.Access(("a:1",), username="u", password="p", sasl_mechanism="SCRAM-SHA-512")
    )
    assert found["security.protocol"] == "SASL_PLAINTEXT"
    assert found["sasl.mechanism"] == "SCRAM-SHA-512"
    assert (found["sasl.username"], found["sasl.password"]) == ("u", "p")


def test_tls_checks_the_server_and_may_show_a_certificate() -> None:
    found = client.settings(client.Access(("a:1",), username="u", tls=True))
    assert found["security.protocol"] == "SASL_SSL"
    assert found["ssl.ca.location"] == "probe"
    assert found["enable.ssl.certificate.verification"] is True
    assert "ssl.key.location" not in found
    found = client.settings(
        client.Access(("a:1",), tls=True, tls_ca="ca", tls_certificate="c", tls_verify=False)
    )
    assert found["security.protocol"] == "SSL"
    assert found["ssl.ca.location"] == "ca"
    assert found["ssl.certificate.location"] == found["ssl.key.location"] == "c"
    assert found["enable.ssl.certificate.verification"] is False


def test_a_password_is_the_first_line_of_its_file_each_time(tmp_path: Path) -> None:
    file = tmp_path / "password"
    access = client.Access(("a:1",), username="u", password_file=str(file))
    for password in ("one", "two"):
        file.write_text(f"{password}\nsecond line\n")
        assert client.settings(access)["sasl.password"] == password
    file.write_bytes(b"\xff")
    with pytest.raises(OSError, match=r"password_file .*password: .*utf-8"):
        client.settings(access)
    file.write_text("\nsecret")  # as while it is being written
    with pytest.raises(OSError, match=r"password_file .*password: its first line is empty"):
        client.settings(access)
    file.unlink()
    with pytest.raises(OSError, match=r"password_file .*password: No such file"):
        client.settings(access)


def test_every_client_can_be_made_with_the_settings() -> None:
    kafka.Producer(client.settings(client.Access(("127.0.0.1:1",), username="u", password="p")))


def test_an_error_is_one_line() -> None:
    error = kafka.KafkaError(kafka.KafkaError._TRANSPORT, "one\n two\x07")
    assert client.text(error) == client.text(kafka.KafkaException(error)) == "one two"
    assert client.text(ValueError("bad\nvalue")) == "bad value"


def test_the_cause_of_a_failure_is_found_where_it_is_raised_late() -> None:
    problem = kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._FATAL, "gone"))
    assert client.cause(problem) is problem
    late = SystemError("returned a result with an exception set")
    late.__cause__ = problem
    assert client.cause(late) is problem
    with pytest.raises(SystemError, match="another"):
        client.cause(SystemError("another"))


@pytest.mark.parametrize(
    ("code", "text", "is_refusal"),
    [
        ("_AUTHENTICATION", "Authentication failed due to invalid credentials", True),
        ("_AUTHENTICATION", "SaslAuthenticateRequest failed: Local: Timed out", False),
        ("_SSL", "SSL handshake failed: certificate verify failed", True),
        ("_SSL", "SSL handshake failed: Disconnected", False),
        ("_TRANSPORT", "the certificate of a broker", False),
    ],
)
def test_a_refusal_is_told_from_a_connection_that_was_lost(
    code: str, text: str, is_refusal: bool
) -> None:
    error = kafka.KafkaError(getattr(kafka.KafkaError, code), text)
    assert client.is_refusal(error) is is_refusal
