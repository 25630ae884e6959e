"""A listener's TLS files, good and bad, and the names that certificates carry."""

import os
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from broker.configuration.listener_options import Endpoint
from broker.network.tls import IdentityError, TlsError, identity, server_context
from tests.broker.network.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def endpoint(certificate: Path, key: Path | None = None, ca: Path | None = None) -> Endpoint:
    made = Endpoint("tls")
    made.tls_certificate = str(certificate)
    made.tls_key = None if key is None else str(key)
    made.tls_client_ca = None if ca is None else str(ca)
    return made


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, Any]:
    """Shake hands in memory; return the server's side and the certificate it saw."""
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(one, other, server_hostname="localhost"),
        server.wrap_bio(other, one, server_side=True),
    ]
    waiting = list(sides)
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    return sides[1], sides[1].getpeercert()


def test_good_files_make_a_context_that_clients_get_through(authority: Authority) -> None:
    server = server_context(endpoint(*authority.server()))
    side, shown = handshake(server, authority.client_context())
    assert side.version() in ("TLSv1.2", "TLSv1.3")
    assert not shown
    assert server.minimum_version is ssl.TLSVersion.TLSv1_2


def test_the_key_may_be_in_the_certificate_s_file(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.server()
    both = tmp_path / "both.pem"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    handshake(server_context(endpoint(both)), authority.client_context())


def test_older_versions_than_tls_1_2_are_refused(authority: Authority) -> None:
    client = authority.client_context()
    with pytest.warns(DeprecationWarning):
        client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_1
    client.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        handshake(server_context(endpoint(*authority.server())), client)


def test_a_client_ca_makes_clients_show_what_it_signed(
    authority: Authority, tmp_path: Path
) -> None:
    server = server_context(endpoint(*authority.server(), authority.file))
    _, shown = handshake(server, authority.client_context(authority.issue("anna")))
    assert identity("cn", shown) == "anna"
    stranger = Authority(tmp_path, "stranger").issue("anna")
    for client in (authority.client_context(), authority.client_context(stranger)):
        with pytest.raises(ssl.SSLError):
            handshake(server, client)


@pytest.mark.parametrize(
    ("type", "offered", "chosen"),
    [
        ("tcp", ["mqtt"], "mqtt"),
        ("tcp", ["x-other"], None),
        ("websocket", ["h2", "http/1.1"], "http/1.1"),
    ],
)
def test_alpn_names_what_is_spoken(
    authority: Authority, type: str, offered: list[str], chosen: str | None
) -> None:
    made = endpoint(*authority.server())
    made.type = type
    client = authority.client_context()
    client.set_alpn_protocols(offered)
    side, _ = handshake(server_context(made), client)
    assert side.selected_alpn_protocol() == chosen


def test_whatever_is_wrong_with_a_file_is_one_line(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.server()
    _, other_key = authority.server()
    _, locked = authority.issue("x", password=b"secret")
    absent, empty, noise = tmp_path / "absent", tmp_path / "empty", tmp_path / "noise"
    empty.write_text("")
    noise.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    for made, words in [
        (endpoint(absent, key), f"listener.tls.tls_certificate = '{absent}': cannot read it: No s"),
        (endpoint(certificate, absent), f"listener.tls.tls_key = '{absent}': cannot read it"),
        (endpoint(certificate, key, absent), "listener.tls.tls_client_ca"),
        (endpoint(tmp_path, key), "cannot read it: Is a directory"),
        (endpoint(empty, key), f"tls_certificate = '{empty}': expected certificates in PEM"),
        (endpoint(noise, key), f"tls_certificate = '{noise}': expected certificates in PEM"),
        (endpoint(key, key), f"tls_certificate = '{key}': expected certificates in PEM"),
        (endpoint(certificate), f"tls_key = '{certificate}': expected an unencrypted private key"),
        (endpoint(certificate, noise), f"tls_key = '{noise}': expected an unencrypted private"),
        (endpoint(certificate, locked), f"tls_key = '{locked}': expected an unencrypted private"),
        (endpoint(certificate, other_key), f"'{other_key}' is not the key of '{certificate}'"),
        (endpoint(certificate, key, empty), f"tls_client_ca = '{empty}': expected certificates"),
    ]:
        with pytest.raises(TlsError) as caught:
            server_context(made)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_key_is_named(authority: Authority) -> None:
    certificate, key = authority.server()
    key.chmod(0)
    with pytest.raises(TlsError, match=r"tls_key.*Permission denied"):
        server_context(endpoint(certificate, key))


@pytest.mark.parametrize(
    ("kind", "common_names", "san", "name"),
    [
        ("cn", ["anna"], [], "anna"),
        ("cn", ["Änne 7"], [x509.DNSName("other")], "Änne 7"),
        ("san", ["anna"], [x509.DNSName("boat.example")], "boat.example"),
        ("san", [], [x509.RFC822Name("anna@example.org")], "anna@example.org"),
        ("san", [], [x509.UniformResourceIdentifier("urn:boat:7")], "urn:boat:7"),
        ("san", [], [x509.RegisteredID(x509.ObjectIdentifier("1.2.3")),
                     x509.RFC822Name("a@b"), x509.DNSName("c")], "a@b"),
    ],
)  # fmt: skip
def test_the_name_in_a_certificate_is_found(
    authority: Authority, kind: str, common_names: list[str], san: list[Any], name: str
) -> None:
    server = server_context(endpoint(*authority.server(), authority.file))
    shown = authority.issue(*common_names, san=san)
    _, certificate = handshake(server, authority.client_context(shown))
    assert identity(kind, certificate) == name


@pytest.mark.parametrize(
    ("kind", "common_names", "san", "complaint"),
    [
        ("cn", [], [x509.DNSName("boat")], "0 common names"),
        ("cn", ["anna", "admin"], [], "2 common names"),
        ("cn", ["anna\0admin"], [], "control character"),
        ("cn", ["anna\n"], [], "control character"),
        ("cn", ["anna\x9b"], [], "control character"),
        ("san", ["anna"], [], "no DNS, e-mail or URI name"),
        ("san", [], [x509.RegisteredID(x509.ObjectIdentifier("1.2.3"))], "no DNS"),
        ("san", [], [x509.DNSName("boat\0evil")], "control character"),
        ("san", [], [x509.DNSName("")], "is empty"),
    ],
)
def test_a_certificate_that_names_nobody_is_refused(
    authority: Authority, kind: str, common_names: list[str], san: list[Any], complaint: str
) -> None:
    server = server_context(endpoint(*authority.server(), authority.file))
    shown = authority.issue(*common_names, san=san)
    _, certificate = handshake(server, authority.client_context(shown))
    with pytest.raises(IdentityError, match=complaint):
        identity(kind, certificate)


def test_a_name_longer_than_a_user_name_can_be_is_refused() -> None:
    with pytest.raises(IdentityError, match="too long"):
        identity("cn", {"subject": ((("commonName", "é" * 32_768),),)})
    assert identity("cn", {"subject": ((("commonName", "é" * 32_767),),)})
