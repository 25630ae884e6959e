"""Tell a verdict to a URL: one POST of a small JSON object, without a second attempt.

Redirects are not followed: they would send the verdict somewhere nobody named. Must never say more
than the verdict: no names of clients, no witnesses.
"""

import http.client
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

VERSION: Final = 1
TIMEOUT_S: Final = 10.0  # for the connection, and for each wait after it
KIND: Final = "holdfast.audit.verdict"


class WebhookFailed(Exception):
    """The verdict was not taken; one line without the secrets a URL may have."""


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **named: Any) -> None:
        """Follow none: the answer is then an error with its own code."""
        return None


def is_url(text: str) -> bool:
    """Return whether a verdict can be sent there."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def body(document: Mapping[str, Any], report: str | None, made_us: int) -> dict[str, Any]:
    """Return what is told: the status, and each invariant that is not ok, in numbers."""
    keys = ("status", "violated", "suppressed", "unknown")
    return {
        "kind": KIND,
        "version": VERSION,
        "status": document["status"],
        "at": made_us // 1_000_000,
        "batch": document["batch"],
        "from": document["from"],
        "to": document["to"],
        "history": document.get("history", ""),
        "report": report,
        "invariants": {
            name: {key: found.get(key, 0) for key in keys}
            for name, found in document["invariants"].items()
            if found["status"] != "ok" or found.get("suppressed")
        },
    }


def send(url: str, told: Mapping[str, Any], *, timeout_s: float = TIMEOUT_S) -> None:
    """POST it; raise WebhookFailed unless the answer is 2xx."""
    host = urlsplit(url).hostname
    request = Request(
        url,
        data=json.dumps(told).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "holdfast-audit"},
        method="POST",
    )
    opener: OpenerDirector = build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            status = answer.status
    except HTTPError as problem:
        problem.close()
        raise WebhookFailed(f"{host} answered {problem.code}") from None
    except URLError as problem:
        raise WebhookFailed(f"{host}: {problem.reason}") from None
    except (OSError, http.client.HTTPException) as problem:
        raise WebhookFailed(f"{host}: {str(problem) or type(problem).__name__}") from None
    if not 200 <= status < 300:
        raise WebhookFailed(f"{host} answered {status}")
