"""What goes together, and what a broker that can be reached from a network must be told."""

import pytest

from broker.configuration.config import is_loopback
from broker.configuration.load import load
from session.settings import Settings
from tests.broker.configuration.refused import refused


def test_without_anything_the_defaults_hold() -> None:
    loaded = load(environment={})
    assert vars(loaded.settings) == vars(Settings())
    (listener,) = loaded.listeners
    assert (listener.name, listener.address, listener.kind) == ("tcp", "127.0.0.1:1883", "tcp")
    assert loaded.shell.metrics_port == 18083
    assert loaded.shell.durability == "fsync"


def test_an_open_broker_on_a_network_must_be_asked_for_in_so_many_words() -> None:
    complaint = refused(None, HOLDFAST__LISTENER__HOST="0.0.0.0")
    assert "auth.allow_anonymous = true" in complaint
    opened = load(
        environment={
            "HOLDFAST__LISTENER__HOST": "0.0.0.0",
            "HOLDFAST__AUTH__ALLOW_ANONYMOUS": "true",
        }
    )
    assert opened.settings.allow_anonymous is True


def test_the_first_listener_may_be_a_unix_socket() -> None:
    environment = {"HOLDFAST__LISTENER__TYPE": "unix", "HOLDFAST__LISTENER__PATH": "/run/h.sock"}
    (listener,) = load(environment=environment).listeners
    assert (listener.name, listener.address) == ("unix", "/run/h.sock")
    complaint = refused(None, **environment, HOLDFAST__LISTENER__PORT="1")
    assert complaint == "listener.port has no meaning for a listener of type unix"


def test_a_redirection_to_nowhere_is_named_with_its_keys() -> None:
    complaint = refused(None, HOLDFAST__REDIRECT__WHEN="always")
    assert complaint == "redirect.when = 'always': expected redirect.server_reference as well"


def test_a_server_reference_that_fits_no_packet_is_refused() -> None:
    complaint = refused(None, HOLDFAST__REDIRECT__SERVER_REFERENCE="x" * 65_536)
    assert "redirect.server_reference = " in complaint
    assert "at most 65535 bytes" in complaint


def test_settings_of_a_listener_that_contradict_each_other_are_one_line() -> None:
    complaint = refused(None, HOLDFAST__LISTENER__WEB__TYPE="websocket")
    assert complaint == "listener.web.port is missing"
    complaint = refused(None, HOLDFAST__LISTENER__TCP__PORT="1")
    assert "choose another name" in complaint


@pytest.mark.parametrize("name", ["", "WEB__"])
def test_every_listener_on_a_network_must_be_asked_for_or_see_certificates(name: str) -> None:
    prefix = f"HOLDFAST__LISTENER__{name}"
    network = {f"{prefix}HOST": "0.0.0.0", f"{prefix}PORT": "2"}
    section = "listener.web" if name else "listener"
    assert refused(None, **network).startswith(f"{section}.host = '0.0.0.0' can be reached")
    encrypted = {**network, f"{prefix}TLS_CERTIFICATE": "c.pem"}
    assert "can be reached" in refused(None, **encrypted)
    load(environment={**encrypted, f"{prefix}TLS_CLIENT_CA": "ca.pem"})
    load(environment={**network, "HOLDFAST__AUTH__PASSWORD_FILE": "users"})
    load(environment={**network, "HOLDFAST__AUTH__ALLOW_ANONYMOUS": "true"})


def test_a_password_file_shuts_out_anonymous_clients_unless_told_otherwise() -> None:
    closed = load(environment={"HOLDFAST__AUTH__PASSWORD_FILE": "users"})
    assert closed.settings.allow_anonymous is False
    mixed = load(
        environment={
            "HOLDFAST__AUTH__PASSWORD_FILE": "users",
            "HOLDFAST__AUTH__ALLOW_ANONYMOUS": "true",
        }
    )
    assert mixed.settings.allow_anonymous is True


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.8.7", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("127.evil.example", False),
    ],
)
def test_loopback_is_told_from_the_network(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "[::]", "example.org"])
def test_the_http_api_is_not_open_to_a_network_without_tls(host: str) -> None:
    open_one = {"HOLDFAST__ADMIN__LISTEN": f"{host}:8080"}
    assert "set admin.tls_certificate, or listen on 127.0.0.1" in refused(None, **open_one)
    load(environment={**open_one, "HOLDFAST__ADMIN__TLS_CERTIFICATE": "c.pem"})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.1.2.3"])
def test_the_http_api_may_be_on_loopback_without_tls(host: str) -> None:
    loaded = load(environment={"HOLDFAST__ADMIN__LISTEN": f"{host}:0"})
    assert loaded.shell.admin_listen == f"{host}:0"
    assert load(environment={}).shell.admin_listen is None


def test_a_key_of_the_http_api_needs_its_certificate() -> None:
    complaint = refused(None, HOLDFAST__ADMIN__TLS_KEY="k.pem")
    assert complaint == "admin.tls_key needs admin.tls_certificate as well"
