"""How the suite reaches a broker that is running already: TCP, TLS, WebSocket, or both of these.

Checks do not know which: a stream looks like a socket. Must never fall back to another transport
than the one that was asked for.
"""

import contextlib
import dataclasses
import socket
import ssl
from typing import Final

from conformance.connection import Stream, open_tcp
from conformance.websocket import WebSocket

PORTS: Final = {False: 1883, True: 8883}  # by whether there is TLS


class TlsSocket(ssl.SSLSocket):
    """A TLS socket whose one direction can end while the other is still read."""

    def shutdown(self, how: int) -> None:
        """End a direction of the TCP connection; what still arrives is decrypted."""
        socket.socket.shutdown(self, how)


@dataclasses.dataclass(frozen=True)
class Transport:
    """A way to a broker."""

    tls: ssl.SSLContext | None = None
    is_websocket: bool = False

    def open(self, host: str, port: int, patience: float) -> Stream:
        """Return an open stream; raises `OSError`, and `BadFrame` for an upgrade that is none."""
        with contextlib.ExitStack() as unless_opened:
            channel = open_tcp(host, port, patience)
            unless_opened.callback(channel.close)
            if self.tls is not None:
                channel = self.tls.wrap_socket(channel, server_hostname=host)
                unless_opened.callback(channel.close)
            opened: Stream = channel
            if self.is_websocket:
                opened = upgraded = WebSocket.over(channel, host, port)
                if not upgraded.opened:
                    status = upgraded.response.status
                    raise ConnectionError(f"the WebSocket upgrade is answered with status {status}")
            unless_opened.pop_all()
        return opened


TCP: Final = Transport()


def tls_context(ca: str | None, certificate: str | None, key: str | None) -> ssl.SSLContext:
    """Return a context that trusts `ca`, or the system's CAs, and shows a certificate if given.

    Raises `OSError` for a file that cannot be used.
    """
    context = ssl.create_default_context(cafile=ca)
    context.sslsocket_class = TlsSocket
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context
