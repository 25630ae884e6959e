"""TLS of a listener: the context made of its files, and the name in a client's certificate.

Every problem with a file is a `TlsError` whose text an operator can act on. Must never take a name
that a client could have chosen: only verified certificates are read, and a name that no user may
have is refused. Read next: `broker.network.listeners`.
"""

import ssl
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

from broker.configuration.listener_options import WEBSOCKET, Endpoint
from broker.network.tls_alerts import AlertingContext

# Our protocol name in ALPN; a client that offers only other names goes on without one.
ALPN_MQTT: Final = "mqtt"
ALPN_HTTP: Final = "http/1.1"
# A name is a user name, and that is an MQTT string.
IDENTITY_BYTES_MAX: Final = 65_535
SAN_KINDS: Final = frozenset({"DNS", "email", "URI"})
# Unicode categories that no name may hold: controls, and surrogates that stand alone.
REFUSED_CATEGORIES: Final = frozenset({"Cc", "Cs"})


class TlsError(Exception):
    """A listener's TLS cannot be set up; one line for the operator."""


class IdentityError(Exception):
    """A verified certificate without a usable user name; the message says why."""


def server_context(endpoint: Endpoint) -> ssl.SSLContext:
    """Return a new context of the endpoint's files as they are now; raises `TlsError`."""
    certificate = endpoint.tls_certificate
    assert certificate is not None
    key = endpoint.tls_key or certificate
    for name, path in (
        ("tls_certificate", certificate),
        ("tls_key", key),
        ("tls_client_ca", endpoint.tls_client_ca),
    ):
        if path is not None:
            _check_readable(f"{endpoint.section}.{name}", path)
    context = AlertingContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([ALPN_HTTP if endpoint.type == WEBSOCKET else ALPN_MQTT])
    # Into a context of its own first: that tells a bad certificate from a bad key.
    apart = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_certificates(apart, f"{endpoint.section}.tls_certificate", certificate)
    try:
        # Without a password given, an encrypted key would make OpenSSL ask the terminal for one.
        context.load_cert_chain(certificate, key, password="")
    except OSError as problem:  # which SSLError is; the file may also be gone by now
        what = f"{endpoint.section}.tls_key = {key!r}"
        if isinstance(problem, ssl.SSLError) and problem.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"{what} is not the key of {certificate!r}") from None
        raise TlsError(
            f"{what}: expected an unencrypted private key in PEM ({reason(problem)})"
        ) from None
    if endpoint.tls_client_ca is not None:
        _load_certificates(context, f"{endpoint.section}.tls_client_ca", endpoint.tls_client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_readable(name: str, path: str) -> None:
    try:
        with open(path, "rb") as stream:
            stream.read(1)
    except OSError as problem:
        raise TlsError(f"{name} = {path!r}: cannot read it: {problem.strerror}") from None


def _load_certificates(context: ssl.SSLContext, name: str, path: str) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except OSError as problem:
        raise TlsError(
            f"{name} = {path!r}: expected certificates in PEM ({reason(problem)})"
        ) from None


def reason(problem: OSError) -> str:
    """Return in a few words why a file or a peer was refused."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return str(problem.verify_message)
    words = problem.reason if isinstance(problem, ssl.SSLError) else problem.strerror
    return (words or str(problem)).replace("_", " ").lower()


def identity(kind: str, certificate: Mapping[str, Any]) -> str:
    """Return the user name in a verified certificate, as `SSLObject.getpeercert` describes it.

    `kind` is "cn" or "san". Raises `IdentityError` when there is no such name, when there are two
    common names, and when the name cannot be a user's.
    """
    if kind == "cn":
        subject = [pair for group in certificate.get("subject", ()) for pair in group]
        names = [value for key, value in subject if key == "commonName"]
        if len(names) != 1:
            raise IdentityError(f"{len(names)} common names in the certificate: expected one")
    else:
        assert kind == "san"
        alternatives = certificate.get("subjectAltName", ())
        names = [value for key, value in alternatives if key in SAN_KINDS]
        if not names:
            raise IdentityError("no DNS, e-mail or URI name in the certificate")
    name = names[0]
    assert isinstance(name, str)
    if not name:
        raise IdentityError("the name in the certificate is empty")
    if any(unicodedata.category(character) in REFUSED_CATEGORIES for character in name):
        raise IdentityError(f"the name in the certificate has a control character: {name!r}")
    if len(name.encode()) > IDENTITY_BYTES_MAX:
        raise IdentityError("the name in the certificate is too long")
    return name
