"""Makes pages of templates, and answers of pages, with the headers that every answer has.

Templates escape whatever they are given; what clients chose goes through the filter `name` or
`plain`. Nothing inline is allowed to run, and nothing is asked of anyone else. Must never mark text
of a client as safe. Read next: `broker.admin.pages.words.names`, `broker.admin.pages.routes`.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import FileResponse, HTMLResponse, Response

from broker.admin.access.roles import Role, Who
from broker.admin.pages.words import amounts, links, names, states

FOLDER: Final = Path(__file__).parent
STATIC: Final = FOLDER / "static"
TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Files that a page names: no other one is served.
FILES: Final = frozenset(
    path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.suffix in TYPES
)
VERSION_DIGITS: Final = 12
CSP: Final = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'"),
        *("connect-src 'self'", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'"),
    )
)
HEADERS: Final = {
    "Content-Security-Policy": CSP,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
PLACES: Final = (
    ("/", "Owed"),
    ("/connections", "Connections"),
    ("/topics", "Topics"),
    ("/storage", "Storage"),
    ("/past", "Audit and crashes"),
)
TRACE_PLACE: Final = ("/trace", "Trace")
ADMIN_PLACES: Final = (("/broker", "Broker"), ("/access", "Access"))
LONG_TEXT: Final = 2000  # characters of a sentence that names something


def _or_none(number: int | None, write: Callable[[int], str]) -> str:
    return names.name(None) if number is None else write(number)


def _ago(text: str, now: datetime) -> Markup:
    """Return a time as a distance from now; a pointer that rests on it shows it exactly."""
    when = amounts.moment(text)
    if when is None:
        return names.name(text)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        when.isoformat(), amounts.exact(when), amounts.relative(when, now)
    )


def _exact_time(text: str) -> Markup:
    when = amounts.moment(text)
    if when is None:
        return names.name(text)
    return Markup('<time datetime="{}">{}</time>').format(when.isoformat(), amounts.exact(when))


def _payload(encoded: str, most: int) -> Markup:
    """Return the beginning of a payload in Base64: as text, or else hexadecimal, which it says."""
    return _labelled(base64.b64decode(encoded), most)


def _labelled(data: bytes, most: int) -> Markup:
    kind, shown = payload(data, most)
    return shown if kind == "text" else Markup("{}: {}").format(kind, shown)


def payload(data: bytes, most: int) -> tuple[str, Markup]:
    """Return what a payload is taken for, and the beginning of it as that."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        shown = data[: most // 2].hex(" ")
        return "hexadecimal", Markup("{}{}").format(shown, " …" if len(data) > most // 2 else "")
    return "text", names.body(text, most)


def _make() -> Environment:
    # StrictUndefined: a page that names what it is not given is a bug that tests find.
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        count=lambda number: _or_none(number, amounts.count),
        size=lambda number: _or_none(number, amounts.size),
        span=amounts.span,
        exact=amounts.exact,
        ago=_ago,
        exact_time=_exact_time,
        name=names.name,
        whole=names.whole,
        plain=names.plain,
        plain_long=lambda text: names.plain(text, LONG_TEXT),
        payload=_payload,
        raw_payload=_labelled,
        anchor=lambda text, kind: links.anchor(kind, text),
        client_url=lambda client_id, path="/session": links.of_client(path, client_id),
        trace_url=lambda client_id: links.url("/trace", client=client_id),
        ban_url=lambda client_id: links.url("/bans", client=client_id),
        mqtt=states.mqtt,
        gets=states.gets,
        queue_word=states.queue_word,
        queue_kind=states.queue_kind,
        queue_meaning=states.queue_meaning,
    )
    made.globals.update(static=static_url)
    return made


def places(who: Who) -> tuple[tuple[str, str], ...]:
    """Return the pages that somebody may see: address and word."""
    found = [*PLACES]
    if who.role >= Role.OPERATOR:
        found.insert(-1, TRACE_PLACE)
    if who.role >= Role.ADMIN:
        found.extend(ADMIN_PLACES)
    return tuple(found)


def static_url(name: str) -> str:
    """Return the address of a file, which is another one when the file is."""
    assert name in FILES, name
    return f"/static/{name}?v={_VERSIONS[name]}"


_VERSIONS: Final = {
    name: hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:VERSION_DIGITS]
    for name in FILES
}
_ENVIRONMENT: Final = _make()


def static_file(name: str) -> Response | None:
    """Return a file that pages ask for, None if there is none of that name."""
    if name not in FILES:
        return None
    kept = "public, max-age=31536000, immutable"
    headers = {**HEADERS, "Cache-Control": kept, "Content-Security-Policy": "default-src 'none'"}
    path = STATIC / name
    return FileResponse(path, media_type=TYPES[path.suffix], headers=headers)


def page(template: str, context: Mapping[str, Any], *, status: int = 200) -> HTMLResponse:
    """Return an answer: a template with what it is to show."""
    text = _ENVIRONMENT.get_template(f"{template}.html").render(context)
    return HTMLResponse(text, status_code=status, headers=HEADERS)
