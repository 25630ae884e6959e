"""SCRAM-SHA-256 (RFC 5802, RFC 7677), the server's side: a password proved without being sent.

Must never let a client tell an unknown user from a wrong password: an unknown name gets a made-up
salt and iteration count from `broker.security.accounts`, and fails at the proof. The client does
the costly derivation and only its result is stored here, so an exchange takes a few hashes (about
30 us) and runs on the event loop. Pure: nonces come in from outside. No channel
binding, as nothing here knows about TLS. Read next: `broker.security.authenticators` (whose
accounts these are).

Written here although the package `scramp` exists: that one imports an ASN.1 parser for a channel
binding we do not offer, and prepares the names of strangers character by character in Python, 11 ms
of the event loop for one message of 1 KiB. It is the foreign client of our tests.
"""

import base64
import binascii
import hashlib
import hmac
import stringprep
import unicodedata
from collections.abc import Callable
from typing import Final

from mqtt import reasons
from session.ports import STEP_CONTINUE, STEP_REFUSED, STEP_SUCCESS, Step

METHOD: Final = "SCRAM-SHA-256"  # the Authentication Method

# RFC 7677 asks for 4,096 at least and calls 15,000 the tenth of a second a client should bear.
# Higher would be better against somebody who has the file, and too much for small devices.
ITERATIONS: Final = 15_000
SALT_BYTES: Final = 16
KEY_BYTES: Final = 32  # of SHA-256

MESSAGE_BYTES_MAX: Final = 1024  # names of people and devices, two nonces; a page is a mistake
NORMALIZATION: Final = unicodedata.ucd_3_2_0  # the Unicode of RFC 3454; it must not move

_WELCOME: Final = ("n", "y")  # no channel binding; "y": "I could, but think you cannot"; "p=" asks
_NONCE: Final = frozenset(map(chr, range(0x21, 0x7F))) - {","}

# RFC 4013 section 2.3: what a prepared string must not hold.
_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


class Account:
    """What the server keeps of one user, or what it shows for a name it does not know."""

    __slots__ = ("iterations", "name", "salt", "server_key", "stored_key")

    def __init__(
        self, name: str, *, iterations: int, salt: bytes, stored_key: bytes, server_key: bytes
    ) -> None:
        self.name: str = name  # the identity it proves; "" = nobody's, no proof is good enough
        self.iterations: int = iterations
        self.salt: bytes = salt
        self.stored_key: bytes = stored_key
        self.server_key: bytes = server_key


class ScramExchange:
    """One client proving who it is: client-first, server-first, client-final, server-final."""

    __slots__ = (
        "_account",
        "_bare",
        "_find",
        "_header",
        "_is_invited",
        "_name",
        "_nonce",
        "_server_first",
    )

    def __init__(self, find: Callable[[str], Account], nonce: str) -> None:
        """`find` gives the account of a name prepared by `mapped`; `nonce` is used only here."""
        assert nonce and _NONCE.issuperset(nonce)
        self._find: Final = find
        self._nonce: str = nonce  # ours, then the client's and ours
        self._account: Account | None = None  # of whoever said client-first
        self._is_invited: bool = False  # have we sent an empty challenge?
        self._name: str = ""
        self._header: str = ""
        self._bare: str = ""
        self._server_first: str = ""

    def step(self, data: bytes | None, done: Callable[[Step], None]) -> None:
        """Answer the client's message, before this returns."""
        try:
            done(self._answer(data))
        except _Refusal:
            # One code for all that can be wrong; 0x87 is one that CONNACK and DISCONNECT share.
            done(Step(STEP_REFUSED, reason_code=reasons.NOT_AUTHORIZED))

    def _answer(self, data: bytes | None) -> Step:
        if not data and self._account is None and not self._is_invited:
            self._is_invited = True
            return Step(STEP_CONTINUE)  # no initial response: an empty challenge asks for it
        if not data or len(data) > MESSAGE_BYTES_MAX:
            raise _Refusal
        try:
            message = data.decode()
        except UnicodeDecodeError:
            raise _Refusal from None
        if self._account is None:
            return self._client_first(message)
        return self._client_final(message, self._account)

    def _client_first(self, message: str) -> Step:
        flag, first_comma, rest = message.partition(",")
        authzid, second_comma, self._bare = rest.partition(",")
        if flag not in _WELCOME or not first_comma or not second_comma:
            raise _Refusal
        self._header = f"{flag},{authzid},"
        fields = self._bare.split(",")  # "m=", a mandatory extension, would stand before "n="
        if len(fields) < 2 or fields[0][:2] != "n=" or fields[1][:2] != "r=":
            raise _Refusal
        if not all(map(_is_extension, fields[2:])):
            raise _Refusal
        if authzid and authzid != "a=" + fields[0][2:]:
            raise _Refusal  # an authorization identity is not supported
        self._name = mapped(_unescaped(fields[0][2:]))
        client_nonce = fields[1][2:]
        if not client_nonce or not _NONCE.issuperset(client_nonce):
            raise _Refusal
        self._nonce = client_nonce + self._nonce
        account = self._account = self._find(self._name)
        salt = base64.b64encode(account.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={account.iterations}"
        return Step(STEP_CONTINUE, self._server_first.encode())

    def _client_final(self, message: str, account: Account) -> Step:
        without_proof, _, proof = message.rpartition(",p=")
        fields = without_proof.split(",")
        if len(fields) < 2 or not all(map(_is_extension, fields[2:])):
            raise _Refusal
        header = base64.b64encode(self._header.encode()).decode()
        if fields[0] != f"c={header}" or fields[1] != f"r={self._nonce}":
            raise _Refusal
        about = ",".join((self._bare, self._server_first, without_proof)).encode()
        is_proved = _proves(account.stored_key, about, _decoded(proof))
        # What was true when the exchange began may have been revoked since.
        is_current = self._find(self._name).stored_key == account.stored_key
        if not is_proved or not is_current or not account.name:
            raise _Refusal
        signature = base64.b64encode(hmac.digest(account.server_key, about, "sha256"))
        return Step(STEP_SUCCESS, b"v=" + signature, account.name)


def mapped(name: str) -> str:
    """Return `name` as SASLprep maps it, the form in which names are compared.

    What SASLprep prohibits is not looked for: no account has such a name, see `prepared`.
    """
    if name.isascii():
        return name
    kept = (c for c in name if not stringprep.in_table_b1(c))
    spaced = "".join(" " if stringprep.in_table_c12(c) else c for c in kept)
    return NORMALIZATION.normalize("NFKC", spaced)


def prepared(text: str) -> str:
    """Return `text` prepared by SASLprep (RFC 4013), as a string to be stored.

    Raises `ValueError` if it is empty or holds what SASLprep prohibits. Takes about 5 us for each
    character of a text that is not ASCII.
    """
    if text and text.isascii() and text.isprintable():
        return text
    result = mapped(text)
    if not result:
        raise ValueError("expected at least one character that SASLprep keeps")
    for character in result:
        if any(is_in(character) for is_in in _PROHIBITED):
            raise ValueError(f"U+{ord(character):04X} is prohibited by SASLprep (RFC 4013)")
        if stringprep.in_table_a1(character):
            raise ValueError(f"U+{ord(character):04X} is not in the Unicode 3.2 of SASLprep")
    if any(map(stringprep.in_table_d1, result)):  # RFC 3454 section 6
        is_mixed = any(map(stringprep.in_table_d2, result))
        ends = stringprep.in_table_d1(result[0]) and stringprep.in_table_d1(result[-1])
        if is_mixed or not ends:
            raise ValueError("right-to-left and other text mixed in a way SASLprep prohibits")
    return result


def derive(password: bytes, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    """Return the StoredKey and ServerKey of a prepared password; costs `iterations` hashes."""
    salted = hashlib.pbkdf2_hmac("sha256", password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return hashlib.sha256(client_key).digest(), hmac.digest(salted, b"Server Key", "sha256")


class _Refusal(Exception):
    """The client's message breaks the rules of SCRAM, or its proof is wrong."""


def _proves(stored_key: bytes, about: bytes, proof: bytes) -> bool:
    if len(proof) != KEY_BYTES:
        return False
    signature = hmac.digest(stored_key, about, "sha256")
    client_key = bytes(a ^ b for a, b in zip(signature, proof, strict=True))
    return hmac.compare_digest(hashlib.sha256(client_key).digest(), stored_key)


def _unescaped(name: str) -> str:
    """Return a saslname with its "=2C" and "=3D" read."""
    parts = name.split("=")
    if any(part[:2] not in ("2C", "3D") for part in parts[1:]):
        raise _Refusal
    plain = parts[0] + "".join(("," if p[:2] == "2C" else "=") + p[2:] for p in parts[1:])
    if not plain or "\0" in plain:
        raise _Refusal
    return plain


def _is_extension(field: str) -> bool:
    """Tell whether `field` is an optional extension, `x=value`; we know none and skip them all."""
    return len(field) > 2 and field[0].isascii() and field[0].isalpha() and field[1] == "="


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _Refusal from None
