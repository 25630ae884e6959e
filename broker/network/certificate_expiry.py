"""When the certificate of a listener expires, read out of its PEM file.

The standard library tells the dates of a peer's certificate and of a CA's, but not of our own. So
this walks the few elements of the certificate (RFC 5280, 4.1) that come before its last date. Must
judge nothing: `broker.network.tls` has let OpenSSL load the same file. Read next:
`broker.network.listeners`.
"""

import binascii
import re
from datetime import UTC, datetime
from typing import Final

# The first certificate of the file is the one that is served; its chain and a key may be there too.
BLOCK: Final = re.compile(
    rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END "
)
# A certificate, a chain and a key have some kilobytes. What is more is not read.
FILE_BYTES_MAX: Final = 1 << 20

# Tags of DER.
VERSION: Final = 0xA0  # [0], left out by version 1
UTC_TIME: Final = 0x17
GENERALIZED_TIME: Final = 0x18
UNNAMED: Final = 3  # elements between the version and the dates: serialNumber, signature, issuer
LENGTH_BYTES_MAX: Final = 4  # of the length of an element


def read(path: str) -> int | None:
    """Return when the certificate in the file expires, in seconds since 1970.

    None if there is none, or if its date is not written as RFC 5280 says.
    """
    try:
        with open(path, "rb") as stream:
            return expires_at(stream.read(FILE_BYTES_MAX))
    except OSError:
        return None


def expires_at(pem: bytes) -> int | None:
    """Return when the first certificate of `pem` expires, in seconds since 1970, None = unknown."""
    block = BLOCK.search(pem)
    if block is None:
        return None
    try:
        return _not_after(binascii.a2b_base64(block[1]))
    except ValueError:  # which binascii.Error is
        return None


def _not_after(der: bytes) -> int:
    _, certificate, _ = _element(der, 0)
    _, signed, _ = _element(certificate, 0)
    kind, _, end = _element(signed, 0)
    at = end if kind == VERSION else 0
    for _ in range(UNNAMED):
        _, _, at = _element(signed, at)
    _, validity, _ = _element(signed, at)
    _, _, at = _element(validity, 0)  # notBefore
    kind, text, _ = _element(validity, at)
    return _seconds(kind, text.decode("ascii"))


def _element(der: bytes, at: int) -> tuple[int, bytes, int]:
    """Return the tag and the content of the element at `at`, and where the next one begins."""
    if at + 2 > len(der):
        raise ValueError("cut off")
    tag, size, begin = der[at], der[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        if not 1 <= count <= LENGTH_BYTES_MAX:
            raise ValueError(f"a length of {count} bytes")
        size = int.from_bytes(der[begin : begin + count], "big")
        begin += count
    end = begin + size
    if end > len(der):
        raise ValueError("cut off")
    return tag, der[begin:end], end


def _seconds(kind: int, text: str) -> int:
    """Return a date of a certificate as seconds since 1970."""
    if kind == UTC_TIME:  # two digits of the year: 1950 to 2049 (RFC 5280, 4.1.2.5.1)
        text = ("19" if text[:2] >= "50" else "20") + text
    elif kind != GENERALIZED_TIME:
        raise ValueError("not a date")
    if len(text) != len("YYYYMMDDHHMMSSZ"):
        raise ValueError(f"{text!r}: expected seconds, and UTC")
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp())
