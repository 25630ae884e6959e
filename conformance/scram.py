"""The client's side of SCRAM-SHA-256 (RFC 5802, RFC 7677), for enhanced authentication.

The checks send its messages in Authentication Data (property 0x16). Names and passwords are not
normalized: the checks use ASCII, so SASLprep is not needed.
"""

import base64
import hashlib
import hmac
from typing import Final

from conformance.failure import Failure

METHOD: Final = "SCRAM-SHA-256"
"""The Authentication Method (property 0x15)."""

ITERATIONS_MAX: Final = 1_000_000
"""More rounds are refused, so that a check fails instead of computing for minutes."""


class ScramError(Failure):
    """The server's message breaks RFC 5802."""


class ScramClient:
    """One exchange: `first()`, then `final(server_first)`, then `verify(server_final)`.

    The default nonce is fixed, so that a failing check can be replayed byte for byte.
    """

    def __init__(self, user: str, password: str, *, nonce: str = "rOprNGfwEbeRWgbNEkqO") -> None:
        self.user = user
        self.password = password
        self.nonce = nonce
        self._server_signature = b""

    def first(self) -> bytes:
        """Return the client-first message with user and nonce, without channel binding."""
        return b"n,," + self._first_bare()

    def final(self, server_first: bytes) -> bytes:
        """Return the client-final message with the proof; ScramError if `server_first` is wrong."""
        fields = parse(server_first)
        nonce = fields.get("r", "")
        if not nonce.startswith(self.nonce) or nonce == self.nonce:
            raise ScramError(f"the server's nonce {nonce!r} does not continue ours {self.nonce!r}")
        try:
            salt = base64.b64decode(fields.get("s", ""), validate=True)
            iterations = int(fields.get("i", ""))
        except ValueError as error:
            raise ScramError(f"salt or iteration count of {server_first!r}: {error}") from None
        if not 1 <= iterations <= ITERATIONS_MAX:
            raise ScramError(f"iteration count {iterations}, expected 1..{ITERATIONS_MAX}")
        without_proof = f"c=biws,r={nonce}".encode()
        message = b",".join((self._first_bare(), server_first, without_proof))
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), salt, iterations)
        client_key = _hmac(salted, b"Client Key")
        signature = _hmac(hashlib.sha256(client_key).digest(), message)
        self._server_signature = _hmac(_hmac(salted, b"Server Key"), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return without_proof + b",p=" + base64.b64encode(proof)

    def verify(self, server_final: bytes) -> None:
        """Raise ScramError unless `server_final` proves that the server knows the password."""
        expected = b"v=" + base64.b64encode(self._server_signature)
        if not self._server_signature or server_final.split(b",")[0] != expected:
            raise ScramError(f"server-final message {server_final!r}, expected {expected!r}")

    def _first_bare(self) -> bytes:
        name = self.user.replace("=", "=3D").replace(",", "=2C")
        return f"n={name},r={self.nonce}".encode()


def parse(message: bytes) -> dict[str, str]:
    """Split a SCRAM message into its attributes; ScramError if it is malformed."""
    fields = {}
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise ScramError(f"SCRAM message {message!r} is not UTF-8") from None
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if len(name) != 1 or not equals:
            raise ScramError(f"SCRAM message {message!r}: {part!r} is not an attribute")
        fields[name] = value
    return fields


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()
