"""The listeners of a process: bound before recovery, opened when it is done, closed at the end.

Binding comes first, so that an address in use, a bad certificate or a bad path is known at once;
clients are served after `start`. A plain listener has `broker.network.polled_acceptor` in front, in
the pure build `broker.network.plain_acceptor`; one with TLS or a PROXY header has
`broker.network.acceptor`. Must decide nothing about MQTT. Read next:
`broker.configuration.listener_options` (what is configured), `broker.loop.client_stream`,
`broker.network.websocket`.
"""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast

from broker.configuration.listener_options import UNIX, WEBSOCKET, Endpoint
from broker.loop.client_stream import ClientStream
from broker.network import certificate_expiry, tls
from broker.network.acceptor import Acceptor
from broker.network.intake import MakeStream
from broker.network.plain_acceptor import PlainAcceptor
from broker.network.polled_acceptor import PolledAcceptor
from broker.observe.structured_log import Log

if TYPE_CHECKING:
    from broker.loop.driver import Driver

# The socket of a unix listener is made under this name first and renamed when it listens: at its
# final path it always has the right permissions and somebody who accepts.
NEW_SUFFIX: Final = ".new"
HANDSHAKE: Final = "handshake"  # label in the metrics of connections that end before MQTT


class Serving(Protocol):
    """What accepts the connections of one socket."""

    def close(self) -> object:
        """Accept no more."""
        ...


class ListenError(Exception):
    """A listener cannot be opened; one line for the operator."""


class Listeners:
    """All listeners of one broker."""

    def __init__(self, endpoints: Sequence[Endpoint], log: Log) -> None:
        self._log: Final = log
        self._listeners: Final = [Listener(endpoint, log) for endpoint in endpoints]

    def bind(self) -> None:
        """Bind every address and read every certificate; raises `ListenError`."""
        for listener in self._listeners:
            listener.bind()

    async def start(self, driver: "Driver") -> None:
        """Serve; raises `ListenError` if an address was taken in the meantime."""
        for listener in self._listeners:
            await listener.start(driver)

    def stop(self) -> None:
        """Accept no more; connections stay. Idempotent."""
        for listener in self._listeners:
            listener.stop()

    def close(self) -> None:
        """Close every socket. Idempotent; works without `start` too."""
        for listener in self._listeners:
            listener.close()

    def reload(self) -> tuple[list[str], list[str]]:
        """Read certificates again; log bad ones and keep those in use.

        Returns the listeners whose certificates were read, and what is wrong with others.
        """
        read, wrong = [], []
        for listener in self._listeners:
            if not listener.endpoint.has_tls:
                continue
            section = listener.endpoint.section
            try:
                listener.reload()
            except tls.TlsError as problem:
                wrong.append(f"{problem}; keeping the certificate in use")
                self._log.error("reload_failed", wrong[-1])
            else:
                read.append(section)
                self._log.info("reload", "certificate read again", listener=section)
        return read, wrong

    def expiries(self) -> dict[str, int]:
        """Return when the certificates in use expire, in seconds since 1970, by listener."""
        return {
            listener.endpoint.name: listener.expires_at
            for listener in self._listeners
            if listener.expires_at is not None
        }

    @property
    def has_certificates(self) -> bool:
        """Whether a reload has anything to read."""
        return any(listener.endpoint.has_tls for listener in self._listeners)

    @property
    def port(self) -> int:
        """The port of the first listener, 0 if it has none."""
        return self._listeners[0].port

    def __str__(self) -> str:
        """Return types and addresses: "tcp 127.0.0.1:1883, websocket+tls 0.0.0.0:8084"."""
        return ", ".join(str(listener) for listener in self._listeners)


class Listener:
    """One listener."""

    def __init__(self, endpoint: Endpoint, log: Log) -> None:
        self.endpoint: Final = endpoint
        self.port: int = 0  # as bound
        # Of the certificate in use, in seconds since 1970; None = there is none, or unknown.
        self.expires_at: int | None = None
        self._log: Final = log
        self._sockets: list[socket.socket] = []
        self._path: UnixPath | None = None
        self._context: ssl.SSLContext | None = None
        self._servers: list[Serving] = []

    def __str__(self) -> str:
        endpoint = self.endpoint
        if endpoint.type == UNIX:
            return f"{endpoint.kind} {endpoint.path}"
        return f"{endpoint.kind} {endpoint.address.rpartition(':')[0]}:{self.port}"

    def bind(self) -> None:
        """Bind the address and read the certificate; raises `ListenError`."""
        endpoint = self.endpoint
        self._context = _prepared(endpoint)
        self._note_expiry()
        if endpoint.type == UNIX:
            assert endpoint.path is not None
            self._path = UnixPath(endpoint.section, endpoint.path, endpoint.mode)
            self._sockets = [self._path.bind()]
        else:
            assert endpoint.port is not None
            self._sockets = bind(endpoint.section, endpoint.host, endpoint.port)
            self.port = self._sockets[0].getsockname()[1]

    async def start(self, driver: "Driver") -> None:
        """Serve; raises `ListenError`."""
        endpoint = self.endpoint
        make_stream = self._stream_maker(driver)
        # So that a listener without clients has metrics.
        driver.connections[endpoint.name] += 0
        driver.engine.counters.add_listener(endpoint.name)
        try:
            for channel in self._sockets:
                channel.listen(endpoint.backlog)
                self._servers.append(self._serve(channel, make_stream, driver))
            if self._path is not None:
                self._path.publish()
        except OSError as problem:  # bound by two at once, and the other one listens
            raise ListenError(
                bind_problem(endpoint.section, endpoint.host, self.port, problem)
            ) from None

    def _serve(self, channel: socket.socket, make_stream: MakeStream, driver: "Driver") -> Serving:
        endpoint = self.endpoint
        remote = endpoint.path or ""  # of a client whose socket has no address
        if endpoint.has_tls or endpoint.proxy_protocol:
            return Acceptor(
                channel,
                make_stream,
                name=remote,
                has_header=endpoint.proxy_protocol,
                context=lambda: self._context,
                identity_kind=endpoint.tls_identity,
                timeout_s=driver.engine.settings.connect_timeout_ms / 1000,
                refused=self._refusal_teller(driver),
            )

        refused = self._refusal_teller(driver)
        if driver.sockets is not None:
            return PolledAcceptor(
                channel, driver.sockets, make_stream, name=remote, refused=refused
            )
        return PlainAcceptor(channel, make_stream, name=remote, refused=refused)

    def _stream_maker(self, driver: "Driver") -> MakeStream:
        name = self.endpoint.name

        def make(remote: str, identity: str | None, waited_ms: int) -> asyncio.Protocol:
            stream = ClientStream(
                driver, name, remote=remote, identity=identity, waited_ms=waited_ms
            )
            return cast(asyncio.Protocol, stream)  # by its methods

        if self.endpoint.type != WEBSOCKET:
            return make
        from broker.network.websocket import (  # the library, only if asked for
            Upgrade,
            WebSocketStream,
        )

        settings = driver.engine.settings
        upgrade = Upgrade(
            self.endpoint.origins,
            connect_size_max=settings.connect_size_max,
            packet_size_max=settings.maximum_packet_size,
            refused=self._refusal_teller(driver),
        )

        def make_websocket(remote: str, identity: str | None, waited_ms: int) -> asyncio.Protocol:
            inner = ClientStream(
                driver, name, remote=remote, identity=identity, waited_ms=waited_ms
            )
            return WebSocketStream(inner, upgrade)

        return make_websocket

    def _refusal_teller(self, driver: "Driver") -> Callable[[str, str], None]:
        counters, name = driver.engine.counters, self.endpoint.name

        def refused(remote: str, why: str) -> None:
            counters.refuse(name, HANDSHAKE)
            self._log.info("connection_refused", why, listener=name, remote=remote)

        return refused

    def reload(self) -> None:
        """Read the certificate again, for connections from now on; raises `TlsError`."""
        self._context = tls.server_context(self.endpoint)
        self._note_expiry()

    def _note_expiry(self) -> None:
        """Note until when the certificate is good that was just loaded."""
        path = self.endpoint.tls_certificate
        self.expires_at = None if path is None else certificate_expiry.read(path)

    def stop(self) -> None:
        """Accept no more. Idempotent."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()

    def close(self) -> None:
        """Close the sockets. Idempotent."""
        sockets, self._sockets = self._sockets, []
        for channel in sockets:
            channel.close()
        if self._path is not None:
            self._path.remove()


class UnixPath:
    """The file of a unix listener's socket."""

    def __init__(self, section: str, path: str, mode: int) -> None:
        self._name: Final = f"{section}.path = {path!r}"
        self._path: Final = path
        self._new: Final = path + NEW_SUFFIX
        self._mode: Final = mode
        self._identity: tuple[int, int] | None = None  # of our socket: device and inode

    def check(self) -> None:
        """Raise `ListenError` if the path cannot be used, or a live process listens there."""
        folder = os.path.dirname(self._path) or "."
        if not os.path.isdir(folder):
            raise ListenError(f"{self._name}: no directory {folder!r}")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ListenError(f"{self._name}: no permission to write to directory {folder!r}")
        if not os.path.lexists(self._path):
            return
        if not stat.S_ISSOCK(os.lstat(self._path).st_mode):
            raise ListenError(f"{self._name}: exists and is not a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            found = probe.connect_ex(self._path)
        if found not in (errno.ECONNREFUSED, errno.ENOENT):  # what a dead process leaves behind
            raise ListenError(f"{self._name}: in use by another process")

    def bind(self) -> socket.socket:
        """Return a bound socket under a temporary name; raises `ListenError`."""
        self.check()
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._new)
            channel.bind(self._new)
            os.chmod(self._new, self._mode)
            self._identity = _identity(self._new)
        except OSError as problem:
            channel.close()
            raise ListenError(f"{self._name}: {problem.strerror}") from None
        return channel

    def publish(self) -> None:
        """Rename the listening socket to its final path; raises `ListenError`."""
        self.check()
        try:
            if _identity(self._new) != self._identity:
                raise ListenError(f"{self._name}: another process wants it too")
            os.rename(self._new, self._path)
        except OSError as problem:
            raise ListenError(f"{self._name}: {problem.strerror}") from None

    def remove(self) -> None:
        """Remove what is ours. Idempotent."""
        for path in (self._new, self._path):
            with contextlib.suppress(OSError):
                if self._identity is not None and _identity(path) == self._identity:
                    os.unlink(path)


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def check(endpoints: Sequence[Endpoint], *, is_running: bool) -> None:
    """Check what can be checked without serving; raises `ListenError`.

    `is_running` says that this broker runs already: its addresses are then in use by itself.
    """
    for endpoint in endpoints:
        _prepared(endpoint)
        if is_running:
            continue
        if endpoint.type == UNIX:
            assert endpoint.path is not None
            UnixPath(endpoint.section, endpoint.path, endpoint.mode).check()
        else:
            assert endpoint.port is not None
            for channel in bind(endpoint.section, endpoint.host, endpoint.port):
                channel.close()


def _prepared(endpoint: Endpoint) -> ssl.SSLContext | None:
    """Return the context of an endpoint with TLS; raises `ListenError` for what it lacks."""
    if endpoint.type == WEBSOCKET:
        try:
            import broker.network.websocket  # noqa: F401
        except ImportError as problem:
            raise ListenError(
                f"{endpoint.section}.type = 'websocket': a package is missing: {problem}"
            ) from None
    if not endpoint.has_tls:
        return None
    try:
        return tls.server_context(endpoint)
    except tls.TlsError as problem:
        raise ListenError(str(problem)) from None


def bind(section: str, host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to every address of `host`; raises `ListenError`.

    Bound, not listening: clients are refused until recovery is done. Port 0 is one free port,
    the same one for every address.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "not a host name"
        raise ListenError(f"{section}.host = {host!r}: {reason}") from None
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    for family, kind, protocol, _, address in found:
        try:
            channel = socket.socket(family, kind, protocol)
        except OSError as problem:
            failure = problem  # a name may have an IPv6 address on a machine without IPv6
            continue
        try:
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and len(found) > 1:
                channel.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            channel.bind((address[0], port, *address[2:]))
        except OSError as problem:
            channel.close()
            failure = problem
            if problem.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                break
            continue
        sockets.append(channel)
        port = channel.getsockname()[1]
    if not sockets or (failure is not None and failure.errno in (errno.EADDRINUSE, errno.EACCES)):
        for channel in sockets:
            channel.close()
        assert failure is not None
        raise ListenError(bind_problem(section, host, port, failure)) from None
    return sockets


def bind_problem(section: str, host: str, port: int, problem: OSError) -> str:
    """Return one line about an address that could not be bound."""
    if problem.errno == errno.EADDRINUSE:
        return f"{section}: port {port} on {host} is in use by another process"
    if problem.errno == errno.EACCES:
        return f"{section}: no permission to listen on port {port} of {host}"
    return f"{section}: cannot listen on {host} port {port}: {problem.strerror or problem}"
