"""A certificate authority of the tests: makes what a TLS listener and its clients show."""

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# Fixed, so that no test depends on when it runs; far enough away for any clock.
_FROM = datetime.datetime(2020, 1, 1)
_UNTIL = datetime.datetime(2120, 1, 1)
_EXPIRED = (_FROM, datetime.datetime(2021, 1, 1))
_NOT_YET = (datetime.datetime(2110, 1, 1), _UNTIL)
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
LOOPBACK = (x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost"))


class Authority:
    """Signs certificates; everything it makes lies in `directory`."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._count = 0
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        valid: tuple[datetime.datetime, datetime.datetime] = (_FROM, _UNTIL),
    ) -> Any:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(valid[0])
            .not_valid_after(valid[1])
            # Newer versions of Python are strict with what a certificate has to say.
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )

    def issue(
        self,
        *common_names: str,
        san: Sequence[x509.GeneralName] = (),
        extension: x509.ExtensionType | None = None,
        password: bytes | None = None,
        is_expired: bool = False,
        is_not_yet_valid: bool = False,
    ) -> tuple[Path, Path]:
        """Return the files of a new certificate and of its key."""
        self._count += 1
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name) for name in common_names]
        valid = _EXPIRED if is_expired else _NOT_YET if is_not_yet_valid else (_FROM, _UNTIL)
        builder = self._builder(x509.Name(attributes), key, valid)
        if san:
            builder = builder.add_extension(x509.SubjectAlternativeName(san), critical=False)
        if extension is not None:
            builder = builder.add_extension(extension, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        paths = (
            self.directory / f"{self.file.stem}-{self._count}.pem",
            self.directory / f"{self.file.stem}-{self._count}.key",
        )
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        protection = (
            serialization.NoEncryption()
            if password is None
            else (serialization.BestAvailableEncryption(password))
        )
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection
            )
        )
        return paths

    def server(self) -> tuple[Path, Path]:
        """Return the files of a certificate for 127.0.0.1 and of its key."""
        return self.issue("broker", san=LOOPBACK)

    def client_context(self, shown: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Return a client's context that trusts us, and shows a certificate if it has one."""
        context = ssl.create_default_context(cafile=self.file)
        if shown is not None:
            context.load_cert_chain(*shown)
        return context
