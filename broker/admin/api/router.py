"""Serves the table of endpoints: finds the one that is meant, reads its parameters, writes JSON.

Paths are cut before they are decoded, so that a name may have slashes, as `%2F`. A level that
begins with `~` is Base64url of the name, for names that no path can carry (`.` and `..`). Must
never answer without a check of the role. Read next: `broker.admin.api.endpoints`.
"""

import base64
import binascii
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from broker.admin import problems
from broker.admin.api.endpoints import Call, Endpoint
from broker.admin.api.table import BASE
from broker.admin.problems import EXPECTED, Refused, refused
from broker.admin.services import Services, demand, demand_payloads
from broker.admin.web.gate import who_of
from broker.admin.web.hygiene import BODY

JSON: Final = "application/json"
ENCODED: Final = "~"
PARAMETERS_MAX: Final = 20


class Router:
    """The application below /api/v1."""

    def __init__(self, services: Services, endpoints: Iterable[Endpoint]) -> None:
        self._services: Final = services
        self._endpoints: Final = tuple(endpoints)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            response = await self._answer(Request(scope, receive))
        except EXPECTED as problem:
            response = problems.answer(refused(problem))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.scope["raw_path"].decode("ascii", "replace").partition("?")[0]
        endpoint, given = self._find(request.method, path.removeprefix(BASE))
        who = who_of(request)
        demand(who, endpoint.role)
        assert who is not None
        if endpoint.is_payload:
            demand_payloads(who)
        values = _values(endpoint, given, request.scope["query_string"])
        call = Call(self._services, who, values, _body(endpoint, request))
        result = await endpoint.work(call)
        if isinstance(result, Response):
            return result
        return Response(msgspec.json.encode(result), media_type=JSON)

    def _find(self, method: str, path: str) -> tuple[Endpoint, dict[str, str]]:
        """Return the endpoint that is meant, and the levels that are its parameters."""
        levels = path.removeprefix("/").split("/")
        allowed: set[str] = set()
        for endpoint in self._endpoints:
            given = _matched(endpoint.levels, levels)
            if given is None:
                continue
            is_head = method == "HEAD" and endpoint.method == "GET" and endpoint.media == JSON
            if endpoint.method == method or is_head:
                return endpoint, given
            allowed.add(endpoint.method)
        if allowed:
            words = ", ".join(sorted(allowed))
            raise Refused(405, f"expected {words}", headers={"Allow": words})
        raise Refused(404, f"there is nothing at {path[:200]!r}; {BASE}/openapi.json has the list")


def _matched(pattern: list[str], levels: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(levels):
        return None
    given: dict[str, str] = {}
    for expected, level in zip(pattern, levels, strict=True):
        if expected.startswith("{"):
            given[expected.strip("{}")] = level
        elif expected != level:
            return None
    return given


def _values(endpoint: Endpoint, given: dict[str, str], query: bytes) -> dict[str, Any]:
    """Return the value of each parameter. Raises `Refused`."""
    texts = {name: _level(name, level) for name, level in given.items()}
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=PARAMETERS_MAX,
        )
    except ValueError:
        raise Refused(400, "the part behind '?' is not name=value&..., in UTF-8") from None
    known = [each.name for each in endpoint.parameters if not each.in_path]
    for name, text in pairs:
        if name not in known:
            expected = ", ".join(known) or "none"
            raise Refused(400, f"unknown parameter {name[:80]!r}: expected {expected}")
        if name in texts:
            raise Refused(400, f"{name} is given twice")
        texts[name] = text
    values = {each.name: each.default for each in endpoint.parameters}
    for parameter in endpoint.parameters:
        if parameter.name in texts:
            try:
                values[parameter.name] = parameter.parse(texts[parameter.name])
            except ValueError as problem:
                shown = repr(texts[parameter.name][:80])
                raise Refused(400, f"{parameter.name} = {shown}: {_words(problem)}") from None
    return values


def _words(problem: ValueError) -> str:
    return "expected UTF-8" if isinstance(problem, UnicodeError) else str(problem)


def _level(name: str, level: str) -> str:
    """Return what a level of the path means."""
    try:
        if level.startswith(ENCODED):
            raw = level.removeprefix(ENCODED)
            padded = raw + "=" * (-len(raw) % 4)
            return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
        return unquote(level, errors="strict")
    except (UnicodeError, binascii.Error, ValueError):
        raise Refused(
            400, f"{name} = {level[:80]!r}: expected UTF-8, percent-encoded, or ~ and Base64url"
        ) from None


def _body(endpoint: Endpoint, request: Request) -> Any:
    """Return the record in the body. Raises `Refused`."""
    body = request.scope["state"][BODY]
    if endpoint.body is None:
        return None
    content_type = Headers(scope=request.scope).get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != JSON:
        raise Refused(415, f"Content-Type: expected {JSON}")
    try:
        return msgspec.json.decode(body, type=endpoint.body)
    except (msgspec.DecodeError, UnicodeError) as problem:
        raise Refused(400, f"the body: {problem}") from None
