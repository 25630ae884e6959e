"""The process of the HTTP API and the dashboard: puts the application together and serves it.

It asks the broker by the control socket and reads the data directory; a crash of it touches
nothing. Must never be imported by the broker. Read next: `broker.admin.services`,
`broker.admin.api.calls`, `broker.admin.pages.routes`.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import sys
import traceback
from collections.abc import AsyncIterator
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from broker.admin import problems
from broker.admin.api.router import Router
from broker.admin.api.table import BASE, ENDPOINTS
from broker.admin.pages.routes import ROUTES, error_page
from broker.admin.problems import EXPECTED, Refused, refused
from broker.admin.services import Services
from broker.admin.web import connections
from broker.admin.web.connections import PatientProtocol
from broker.admin.web.counting import Counting
from broker.admin.web.gate import Gate
from broker.admin.web.hygiene import HEADERS, LOOPBACK_NAMES, Hygiene
from broker.admin.web.signing_in import SigningIn
from broker.configuration.config import Config, is_loopback
from broker.observe.structured_log import Log, install_bridge

BACKLOG: Final = 64
CERTIFICATE_S: Final = 60.0  # between two looks at its file
END_S: Final = 3  # for what is being answered, at the end


class CannotServe(Exception):
    """It cannot listen; one line for the operator."""


def run(config: Config, *, until_stdin_ends: bool = False) -> None:
    """Serve until a signal, or until stdin ends. Raises `CannotServe`."""
    os.umask(0o077)
    shell = config.shell
    log = Log(level=shell.log_level, format=_log_format(config))
    install_bridge(log)
    assert shell.admin_listen is not None
    bound = _bind(shell.admin_listen)
    app = build(Services(config, log))
    try:
        settings = uvicorn.Config(
            app,
            http=PatientProtocol,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=connections.HEADERS_BYTES_MAX,
            timeout_keep_alive=connections.KEEP_ALIVE_S,
            timeout_graceful_shutdown=END_S,
            ssl_certfile=shell.admin_tls_certificate,
            ssl_keyfile=shell.admin_tls_key,
        )
        settings.load()
    except (OSError, ssl.SSLError) as problem:
        raise CannotServe(f"admin.tls_certificate: {problem}") from None
    server = uvicorn.Server(settings)
    log.info(
        "admin_ready",
        "the HTTP API is served",
        host=bound.getsockname()[0],
        port=bound.getsockname()[1],
        tls=shell.admin_tls_certificate is not None,
    )
    asyncio.run(_serve(server, bound, until_stdin_ends, log))


def _log_format(config: Config) -> Any:
    return config.shell.log_format  # one of the log's words: config has checked it


def _bind(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, int(port)))
        bound.listen(BACKLOG)
    except OSError as problem:
        bound.close()
        raise CannotServe(f"admin.listen = {address!r}: {problem.strerror}") from None
    return bound


async def _serve(
    server: uvicorn.Server, bound: socket.socket, until_stdin_ends: bool, log: Log
) -> None:
    if until_stdin_ends:
        loop = asyncio.get_running_loop()

        def look() -> None:
            """End when the other end of the pipe is closed: by the broker, or by its death."""
            if not os.read(sys.stdin.fileno(), 1024):
                loop.remove_reader(sys.stdin.fileno())
                server.should_exit = True

        loop.add_reader(sys.stdin.fileno(), look)
    renewing = asyncio.create_task(_renew(server.config, log))
    await server.serve(sockets=[bound])
    renewing.cancel()


async def _renew(settings: uvicorn.Config, log: Log) -> None:
    """Use a new certificate for new connections, soon after it is in its file."""
    if settings.ssl is None or settings.ssl_certfile is None:
        return
    before = _changed(settings.ssl_certfile)
    while True:
        await asyncio.sleep(CERTIFICATE_S)
        now = _changed(settings.ssl_certfile)
        if now == before:
            continue
        before = now
        try:
            settings.ssl.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile)
        except (OSError, ssl.SSLError) as problem:
            log.error("admin_certificate", f"{problem}; the one before stays in use")
        else:
            log.info("admin_certificate", "a new certificate is in use")


def _changed(path: str | os.PathLike[str]) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def build(services: Services) -> Starlette:
    """Return the application: the API, log in and out, health, and the pages."""
    host = (services.config.shell.admin_listen or "127.0.0.1:0").rpartition(":")[0]
    names = {*LOOPBACK_NAMES, host} if is_loopback(host.strip("[]")) else None
    signing_in = SigningIn(services, error_page)
    app = Starlette(
        routes=[
            Route("/healthz", _health),
            Mount(BASE, app=Router(services, ENDPOINTS)),
            *signing_in.routes(),
            *ROUTES,
        ],
        middleware=[
            Middleware(Hygiene, has_tls=services.has_tls, names=names),
            Middleware(Counting, counts=services.counts),
            Middleware(Gate, services=services, error_page=error_page),
        ],
        exception_handlers={
            **dict.fromkeys((*EXPECTED, HTTPException), _error),
            Exception: _internal_error,
        },
        lifespan=_lifespan,
    )
    app.state.services = services
    app.state.signing_in = signing_in
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    """Look at the broker's figures as long as the application runs."""
    services: Services = app.state.services
    looking = asyncio.create_task(services.figures.run())
    try:
        yield
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
        services.close()


def _error(request: Request, problem: Exception) -> Response:
    """Answer what a page raises, and what is not there."""
    if isinstance(problem, HTTPException):
        headers = dict(problem.headers or {})
        return error_page(request, Refused(problem.status_code, problem.detail, headers=headers))
    return error_page(request, refused(problem))


def _internal_error(request: Request, problem: Exception) -> Response:
    """Answer for a bug, and log where it is."""
    place = traceback.extract_tb(problem.__traceback__)[-1]
    log: Log = request.app.state.services.events
    log.error(
        "admin_bug",
        f"{type(problem).__name__}: {problem}",
        where=f"{os.path.basename(place.filename)}:{place.lineno}",
        path=request.url.path,
    )
    answer = problems.answer(Refused(500, "an internal error, which is in the log"))
    answer.headers.update(HEADERS)
    return answer


async def _health(request: Request) -> Response:
    """Say that this process serves, and whether the broker answers."""
    services: Services = request.app.state.services
    last = services.figures.last
    answers = last is not None and last.broker_answers
    return JSONResponse({"status": "ok", "broker_answers": answers})
