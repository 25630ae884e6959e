"""The process of the HTTP API and the dashboard: puts the application together and serves it.

It asks the broker by the control socket and reads the data directory; a crash of it touches
nothing. Must never be imported by the broker. Read next: `broker.admin.services`,
`broker.admin.api.calls`, `broker.admin.pages.routes`.
"""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
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
from broker.admin.pages import routes as pages
from broker.admin.problems import EXPECTED, Refused, refused
from broker.admin.services import Services
from broker.admin.web import connections
from broker.admin.web.connections import PatientProtocol
from broker.admin.web.counting import Counting
from broker.admin.web.forwarded import Forwarded
from broker.admin.web.gate import Gate
from broker.admin.web.hygiene import HEADERS, LOOPBACK_NAMES, Hygiene
from broker.admin.web.origins import Origins, names_of
from broker.admin.web.signing_in import SigningIn
from broker.configuration.config import Config, is_loopback
from broker.configuration.listener_options import WEBSOCKET, Endpoint
from broker.network import tls
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
    context = tls_context(config)
    bound = _bind(shell.admin_listen)
    settings = uvicorn.Config(
        build(Services(config, log)),
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
    )
    settings.load()
    settings.ssl = context
    server = _Child(settings) if until_stdin_ends else uvicorn.Server(settings)
    log.info(
        "admin_ready",
        "the HTTP API is served",
        host=bound.getsockname()[0],
        port=bound.getsockname()[1],
        tls=context is not None,
    )
    asyncio.run(_serve(server, bound, config, log))


class _Child(uvicorn.Server):
    """Ends with its stdin alone: a signal for all processes is the broker's to obey."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ignore what a terminal or a service manager sends to everybody."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        yield

    def look(self) -> None:
        """End when the other end of the pipe is closed: by the broker, or by its death."""
        if not os.read(sys.stdin.fileno(), 1024):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.should_exit = True


def tls_context(config: Config) -> ssl.SSLContext | None:
    """Return what TLS is done with, None = it is not. Raises `CannotServe`."""
    shell = config.shell
    if shell.admin_tls_certificate is None:
        return None
    endpoint = Endpoint()
    endpoint.section, endpoint.type = "admin", WEBSOCKET  # as a websocket it speaks HTTP
    endpoint.tls_certificate, endpoint.tls_key = shell.admin_tls_certificate, shell.admin_tls_key
    try:
        return tls.server_context(endpoint)
    except tls.TlsError as problem:
        raise CannotServe(str(problem)) from None


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


async def _serve(server: uvicorn.Server, bound: socket.socket, config: Config, log: Log) -> None:
    if isinstance(server, _Child):
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), server.look)
    renewing = asyncio.create_task(renew(server.config.ssl, config, log))
    await server.serve(sockets=[bound])
    renewing.cancel()


async def renew(
    context: ssl.SSLContext | None, config: Config, log: Log, *, look_s: float = CERTIFICATE_S
) -> None:
    """Use a new certificate for new connections, soon after it is in its file; for ever."""
    certificate, key = config.shell.admin_tls_certificate, config.shell.admin_tls_key
    if context is None or certificate is None:
        return
    before = _changed(certificate, key)
    while True:
        await asyncio.sleep(look_s)
        now = _changed(certificate, key)
        if now == before:
            continue
        before = now
        try:
            tls_context(config)
            context.load_cert_chain(certificate, key, password="")
        except (CannotServe, OSError) as problem:
            log.error("admin_certificate", f"{problem}; the one before stays in use")
        else:
            log.info("admin_certificate", "a new certificate is in use")


def _changed(*paths: str | None) -> list[int]:
    """Return when each of the files was changed, ns."""
    try:
        return [os.stat(path).st_mtime_ns for path in paths if path is not None]
    except OSError:
        return []


def build(services: Services) -> Starlette:
    """Return the application: the API, log in and out, health, and the pages."""
    shell = services.config.shell
    host = (shell.admin_listen or "127.0.0.1:0").rpartition(":")[0]
    names = None
    if is_loopback(host.strip("[]")):
        names = {*LOOPBACK_NAMES, host, *names_of(shell.admin_public_urls)}
    signing_in = SigningIn(services, pages.error_page)
    app = Starlette(
        routes=[
            Route("/healthz", _health),
            Mount(BASE, app=Router(services, ENDPOINTS)),
            *signing_in.routes(),
            *pages.ROUTES,
        ],
        middleware=[
            Middleware(Forwarded, trusted=shell.admin_trusted_proxies),
            Middleware(Hygiene, names=names),
            Middleware(Counting, counts=services.counts),
            Middleware(
                Gate,
                services=services,
                error_page=pages.error_page,
                origins=Origins(shell.admin_public_urls),
            ),
        ],
        exception_handlers={
            **dict.fromkeys((*EXPECTED, HTTPException), _error),
            Exception: _internal_error,
        },
        lifespan=_lifespan,
    )
    app.state.services = services
    app.state.signing_in = signing_in
    app.state.desk = pages.Desk(services)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    """Look at the broker's figures, and at what is owed, as long as the application runs."""
    services: Services = app.state.services
    tasks = [
        asyncio.create_task(services.figures.run()),
        asyncio.create_task(app.state.desk.run()),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await app.state.desk.close()
        services.close()


def _error(request: Request, problem: Exception) -> Response:
    """Answer what a page raises, and what is not there."""
    if isinstance(problem, HTTPException):
        headers = dict(problem.headers or {})
        return pages.error_page(
            request, Refused(problem.status_code, problem.detail, headers=headers)
        )
    return pages.error_page(request, refused(problem))


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
    since = services.asking.broker.silent_since
    return JSONResponse({"status": "ok", "broker_answers": answers, "silent_since": since})
