"""When certificates expire, in every form that a file may have."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from broker.network.certificate_expiry import expires_at, read
from tests.broker.network.certificates import Authority

FAR = int(datetime(2120, 1, 1, tzinfo=UTC).timestamp())  # of the tests' certificates
PAST = int(datetime(2021, 1, 1, tzinfo=UTC).timestamp())  # of those that have expired


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize(("is_expired", "moment"), [(False, FAR), (True, PAST)])
def test_both_kinds_of_dates_are_read(authority: Authority, is_expired: bool, moment: int) -> None:
    """Years from 2050 on are written with four digits, earlier ones with two."""
    certificate, _ = authority.issue("broker", is_expired=is_expired)
    assert read(str(certificate)) == moment
    theirs = x509.load_pem_x509_certificate(certificate.read_bytes())
    assert theirs.not_valid_after_utc.timestamp() == moment


def test_the_standard_library_says_the_same_of_a_ca(authority: Authority) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.file)
    (told,) = context.get_ca_certs()
    assert read(str(authority.file)) == ssl.cert_time_to_seconds(str(told["notAfter"]))


def test_of_a_chain_the_first_certificate_counts_whatever_is_around_it(
    authority: Authority,
) -> None:
    certificate, key = authority.issue("broker", is_expired=True)
    chain = certificate.read_bytes() + authority.file.read_bytes()
    assert expires_at(key.read_bytes() + b"subject=CN = broker\n" + chain) == PAST
    assert expires_at(authority.file.read_bytes() + certificate.read_bytes()) == FAR
    assert expires_at(chain.replace(b"\n", b"\r\n")) == PAST
    assert expires_at(chain.replace(b" CERTIFICATE-", b" X509 CERTIFICATE-")) == PAST


def test_a_file_that_says_nothing_is_unknown_and_no_error(
    authority: Authority, tmp_path: Path
) -> None:
    _, key = authority.server()
    assert read(str(key)) is None
    assert read(str(tmp_path / "absent")) is None
    assert expires_at(b"") is None


def pem(der: bytes) -> bytes:
    return ssl.DER_cert_to_PEM_cert(der).encode()


def element(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    assert len(content) < 128
    return bytes((tag, len(content))) + content


def certificate(date: bytes, *version: bytes) -> bytes:
    """Return as much of a certificate as there is up to its dates."""
    first, empty = element(0x17, b"200101000000Z"), element(0x30)
    signed = element(0x30, *version, element(2, b"\1"), empty, empty, element(0x30, first, date))
    return pem(element(0x30, signed))


@pytest.mark.parametrize("version", [(), (element(0xA0, element(2, b"\2")),)])
@pytest.mark.parametrize(
    ("kind", "text", "year"),
    [
        (0x17, b"491231235959Z", 2049),
        (0x17, b"501231235959Z", 1950),
        (0x18, b"20501231235959Z", 2050),
        (0x18, b"99991231235959Z", 9999),  # never, by RFC 5280, 4.1.2.5
    ],
)
def test_the_century_follows_the_standard_with_and_without_a_version(
    version: tuple[bytes, ...], kind: int, text: bytes, year: int
) -> None:
    wanted = datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
    assert expires_at(certificate(element(kind, text), *version)) == wanted


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (0x17, b"4912312359Z"),  # no seconds
        (0x18, b"20501231235959"),  # no zone
        (0x18, b"20501231235959+01"),
        (0x18, b"20501331235959Z"),
        (0x18, b"2050123123595\xffZ"),
        (0x04, b"20501231235959Z"),
    ],
)
def test_another_date_than_the_standard_allows_is_unknown(kind: int, text: bytes) -> None:
    assert expires_at(certificate(element(kind, text))) is None


def test_a_certificate_that_is_cut_off_anywhere_is_unknown(authority: Authority) -> None:
    der = ssl.PEM_cert_to_DER_cert(authority.file.read_text())
    for size in range(len(der)):
        assert expires_at(pem(der[:size])) is None, size
    for length in (0x80, 0x85):  # of no bytes, of five
        assert expires_at(pem(bytes((0x30, length)) + der[2:])) is None
    assert expires_at(b"-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n") is None
