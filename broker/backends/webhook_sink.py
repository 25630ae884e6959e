"""POSTs batches of rows as JSON to a URL.

The receiver keeps no cursor, so the broker's own decides: every row arrives at least once. Requests
carry what a receiver needs to tell repeats, and are signed as the Standard Webhooks say, so that
existing libraries verify them: HMAC-SHA256 of identifier, time and body. Read next:
`broker.backends.json_rows` (the rows), `broker.backends.webhook_http` (the connection).

What an answer means: 2xx, the rows are taken. Some 4xx speak of the place or of the time: the batch
waits. Any other 4xx refuses what is in the batch: its halves are sent on their own, and so on, and
a single row that is refused is a dead letter. Everything else: the batch waits.
"""

import base64
import binascii
import email.utils
import hashlib
import hmac
import ssl
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from broker.backends.json_rows import JsonRow, JsonRows, encode
from broker.backends.rows import Cursor, RowBatch
from broker.backends.sink import (
    UNKNOWN,
    Fence,
    Options,
    Poison,
    Refusal,
    Unavailable,
    Unusable,
)
from broker.backends.webhook_http import Answer, HttpClient, HttpFailed, HttpPlace
from broker.version import VERSION

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
SECRET_PREFIX: Final = "whsec_"  # the rest is base64
# 4xx that are not about the rows: a wrong URL or password must not turn every row into a dead one.
ABOUT_THE_PLACE: Final = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.PAYMENT_REQUIRED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.METHOD_NOT_ALLOWED,
        HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
        HTTPStatus.GONE,
        HTTPStatus.MISDIRECTED_REQUEST,
        HTTPStatus.UPGRADE_REQUIRED,
    }
)
LATER: Final = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)
RETRY_AFTER_MAX_S: Final = 300.0
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class WebhookSink:
    """One receiver of rows."""

    def __init__(self, options: Options) -> None:
        """Raises `Unusable` for options that cannot work."""
        self._options: Final = options
        self._values: Final = options.values
        self._rows: Final = JsonRows(options)
        try:
            self._place: Final = HttpPlace(self._values["url"])
        except ValueError as problem:
            raise Unusable(f"backend {options.name}: url: expected {problem}") from None
        self._client: HttpClient | None = None
        self._headers: dict[str, str] = {}
        self._key = b""  # of the signature, b"" = none

    # The interface of a sink

    def open(self) -> Fence | None:
        """Connect, and send a batch without rows, to know whether batches are taken."""
        self.close()
        self._key = self._secret()
        self._headers = self._fixed_headers()
        self._client = HttpClient(
            self._place, self._values.get("timeout_ms", 5000) / 1000, self._tls()
        )
        self._probe()
        return UNKNOWN

    def start(self, fence: Fence, *, is_rewind: bool) -> None:
        """Nothing: the receiver keeps no cursor."""

    def apply(self, batch: RowBatch, instance: str) -> list[Poison]:
        """Send the rows of a batch; when it returns, all are taken or refused."""
        rows, poisons = self._rows.of(batch, instance)
        if rows:
            self._deliver(rows, batch.after, batch.upto, instance, poisons)
        return poisons

    def _deliver(
        self,
        rows: Sequence[JsonRow],
        after: Cursor,
        upto: Cursor,
        instance: str,
        poisons: list[Poison],
    ) -> None:
        """Send rows, in halves if they are refused together."""
        why = self._send(rows, after, upto, instance)
        if why is None:
            return
        if len(rows) == 1:
            poisons.append(Poison(rows[0].index, rows[0].rule.number, why))
            return
        half = len(rows) // 2
        middle = rows[half - 1].upto
        self._deliver(rows[:half], after, middle, instance, poisons)
        self._deliver(rows[half:], middle, upto, instance, poisons)

    def refusals(self, instance: str) -> list[Refusal]:
        """Return nothing: the receiver remembers none."""
        return []

    def look(self) -> Fence | None:
        """Say that the receiver keeps no cursor; it is not asked."""
        return UNKNOWN

    def health(self) -> dict[str, Any]:
        """Return what answers, and what an operator should change."""
        answer = self._probe()
        return {
            "server": answer.headers.get("Server") or "a server without a name",
            "version": f"answers {answer.status} to a batch without rows",
            "writable": True,
            "problems": list(self._problems()),
        }

    def create(self) -> list[str]:
        """Make nothing: there are no tables."""
        return []

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # Requests

    def _probe(self) -> Answer:
        """Send a batch without rows; a receiver that refuses it is there all the same."""
        return self._post((), (0, 0), (0, 0), "")

    def _send(
        self, rows: Sequence[JsonRow], after: Cursor, upto: Cursor, instance: str
    ) -> str | None:
        """Send rows; return why they were refused, None if they were taken."""
        answer = self._post(rows, after, upto, instance)
        return None if answer.status < 300 else _described(answer)

    def _post(self, rows: Sequence[JsonRow], after: Cursor, upto: Cursor, instance: str) -> Answer:
        """Return the answer: the rows were taken, or refused for good. Raises `Unavailable`."""
        if self._client is None:
            raise Unavailable("not connected")
        body = self._body(rows, after, upto, instance)
        name = "probe"
        if rows:  # the time, as in the identifiers of rows
            name = "-".join(map(str, (instance, *after, *upto, rows[-1].fields["timestamp"])))
        try:
            answer = self._client.post(body, {**self._headers, **self._signed(name, body)})
        except HttpFailed as problem:
            raise self._unavailable(str(problem)) from None
        status = answer.status
        if 200 <= status < 300:
            return answer
        if 400 <= status < 500 and status not in ABOUT_THE_PLACE and status not in LATER:
            return answer
        if 300 <= status < 400:
            raise self._unavailable(f"{_described(answer)} (redirects are not followed)")
        raise self._unavailable(_described(answer), _retry_after_s(answer))

    def _body(self, rows: Sequence[JsonRow], after: Cursor, upto: Cursor, instance: str) -> bytes:
        head = encode(
            {
                "backend": self._options.name,
                "node": self._options.node,
                "instance": instance,
                "after": list(after),
                "upto": list(upto),
            }
        )
        return b"".join((head[:-1], b',"rows":[', b",".join(row.body for row in rows), b"]}"))

    def _signed(self, name: str, body: bytes) -> dict[str, str]:
        """Return the headers of one request."""
        now = str(int(time.time()))
        headers = {ID: name, IDEMPOTENCY_KEY: name, TIMESTAMP: now}
        if self._key:
            headers[SIGNATURE] = signature(self._key, name, now, body)
        return headers

    # Options

    def _fixed_headers(self) -> dict[str, str]:
        headers = {
            **dict(self._values.get("headers") or ()),
            "Content-Type": "application/json",
            "User-Agent": f"holdfast/{VERSION}",
        }
        username = self._values.get("username")
        if username is not None:
            pair = f"{username}:{self._read('password') or ''}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        return headers

    def _secret(self) -> bytes:
        secret = self._read("secret") or ""
        if not secret.startswith(SECRET_PREFIX):
            return secret.encode()
        try:
            return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except binascii.Error as problem:
            raise Unavailable(f"secret: expected base64 after {SECRET_PREFIX}: {problem}") from None

    def _read(self, name: str) -> str | None:
        """Return a secret; a file is read at each connect, so that it can be changed."""
        path = self._values.get(f"{name}_file")
        if path is None:
            return self._values.get(name) or None
        try:
            with open(path, encoding="utf-8") as file:
                return file.readline().rstrip("\r\n") or None
        except (OSError, UnicodeDecodeError) as problem:
            raise Unavailable(f"{name}_file {path}: {problem}") from None

    def _tls(self) -> ssl.SSLContext | None:
        if not self._place.is_tls:
            return None
        values = self._values
        try:
            context = ssl.create_default_context(cafile=values.get("tls_ca"))
            if not values.get("tls_verify", True):
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if values.get("tls_certificate") is not None:
                # Without a password given, an encrypted key would make OpenSSL ask the terminal.
                context.load_cert_chain(
                    values["tls_certificate"], values.get("tls_key"), password=""
                )
        except OSError as problem:
            raise self._unavailable(f"certificates: {problem}") from None
        return context

    def _problems(self) -> Any:
        if not self._place.is_tls and self._place.host not in LOOPBACK:
            yield "rows, and passwords with them, are not encrypted on their way: use https"
        if not self._key and "Authorization" not in self._headers:
            yield "whoever knows the URL may send such rows: set a secret, and check signatures"
        if self._place.is_tls and not self._values.get("tls_verify", True):
            yield "tls_verify is false: whoever is on the way may read and change rows"

    def _unavailable(self, why: str, retry_s: float = 0.0) -> Unavailable:
        """Close, and return the error to raise."""
        self.close()
        return Unavailable(f"{self._place.origin}: {why}", retry_s)


def signature(key: bytes, name: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a request, as the Standard Webhooks write it."""
    signed = hmac.new(key, f"{name}.{timestamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(signed.digest()).decode()}"


def _described(answer: Answer) -> str:
    """Return an answer in one line."""
    line = f"{answer.status} {answer.reason}".rstrip()
    return f"{line}: {answer.text}" if answer.text else line


def _retry_after_s(answer: Answer) -> float:
    """Return how long the server asks to wait, with a bound; 0 = it says nothing."""
    value = (answer.headers.get("Retry-After") or "").strip()
    if value.isdecimal():
        return min(float(value), RETRY_AFTER_MAX_S)
    try:
        at = email.utils.parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(0.0, at - time.time()), RETRY_AFTER_MAX_S)
