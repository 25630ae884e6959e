"""The OpenAPI 3.1 document, made of the table of endpoints and of the records.

Nothing of it is written by hand but the words. Read next: `broker.admin.api.endpoints`,
`broker.admin.records`.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from broker.admin import problems, records
from broker.admin.api.endpoints import Endpoint
from broker.admin.web.gate import CSRF_HEADER, session_cookie
from broker.version import VERSION

JSON: Final = "application/json"
REFERENCE: Final = "#/components/schemas/{name}"
ABOUT: Final = (
    "What the commands of Holdfast answer, over HTTP. A name in a path is percent-encoded, slashes "
    "too; a level that begins with `~` is Base64url of the name. Every error is problem+json "
    "(RFC 9457). 503 with Retry-After: the broker does not answer, or too many ask at once."
)


def document(endpoints: Iterable[Endpoint], base: str) -> dict[str, Any]:
    """Return the document of these endpoints, whose paths are below `base`."""
    endpoints = tuple(endpoints)
    types = [records.Problem]
    types += [each.result for each in endpoints if each.media == JSON]
    types += [each.later for each in endpoints if each.later is not None]
    types += [each.body for each in endpoints if each.body is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    by_type = dict(zip(map(_key, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(base + endpoint.path, {})[endpoint.method.lower()] = _operation(
            endpoint, by_type
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": VERSION,
            "description": ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"login": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "login": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": session_cookie(False),
                    "description": f"What changes something also needs {CSRF_HEADER}.",
                },
            },
        },
    }


def _key(kind: Any) -> str:
    return repr(kind)


def _operation(endpoint: Endpoint, by_type: dict[str, Any]) -> dict[str, Any]:
    needs = f"Role: {endpoint.role.word}" + (
        ", and the permission `payloads`." if endpoint.is_payload else "."
    )
    found: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.helps,
        "description": needs,
        "tags": [endpoint.levels[0]],
        "responses": {
            "200": {
                "description": endpoint.helps,
                "content": {endpoint.media: {"schema": _result(endpoint, by_type)}},
            },
            "default": {
                "description": "it was not done",
                "content": {problems.MEDIA_TYPE: {"schema": by_type[_key(records.Problem)]}},
            },
        },
    }
    if endpoint.later is not None:
        found["responses"]["202"] = {
            "description": "it is being worked out: ask again after `Retry-After` seconds",
            "content": {JSON: {"schema": by_type[_key(endpoint.later)]}},
        }
    if endpoint.parameters:
        found["parameters"] = [
            {
                "name": each.name,
                "in": "path" if each.in_path else "query",
                "required": each.in_path,
                "description": each.help,
                "schema": each.schema,
            }
            for each in endpoint.parameters
        ]
    if endpoint.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {JSON: {"schema": by_type[_key(endpoint.body)]}},
        }
    return found


def _result(endpoint: Endpoint, by_type: dict[str, Any]) -> dict[str, Any]:
    if endpoint.media != JSON:
        return {"type": "string"}
    found: dict[str, Any] = by_type[_key(endpoint.result)]
    return found
