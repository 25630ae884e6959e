"""What a check is, and the `Bench` that it is given.

    @statement("MQTT-3.1.2-24", needs=(), alone=False)
    def mqtt_3_1_2_24(bench: Bench) -> None:
        \"\"\"[MQTT-3.1.2-24] Silence beyond 1.5 times the keep alive ends the connection.\"\"\"

A check returns (passed), raises `Failure` (through `bench.fail` or any `expect` of a client) or
`NotRun` (`bench.not_run`). Any other exception is a bug of the suite and is reported as an error.
The protocol version is that of the module's folder. Read next: `conformance.client`.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn, TypeAlias

from conformance import wire
from conformance.adapters.base import Broker, Option, Options
from conformance.client import Client
from conformance.connection import MARKER, Stream
from conformance.failure import Failure, NotRun, Violation
from conformance.packets import Packet
from conformance.record import Record
from conformance.wire import Will

NEEDS: Final = frozenset({"restart", "kill", "configure", "websocket"})
# Checks that only need these may share a broker if their options are equal.
SHAREABLE: Final = frozenset({"configure", "websocket"})
PATIENCE_S: Final = 4.0  # for what must arrive; only a failing check waits that long
CLEANUP_S: Final = 1.0  # for removing what a check has left behind
SETTLE_S: Final = 0.25  # for what must not arrive, where no barrier is possible
CLIENT_ID_BYTES_MAX: Final = 23  # the longest that every broker must accept

Run: TypeAlias = Callable[["Bench"], None]


@dataclasses.dataclass(frozen=True)
class Check:
    """One check as it was declared."""

    statement: str
    version: int
    name: str
    module: str
    run: Run
    needs: frozenset[str]
    alone: bool
    strict_only: bool
    seconds: float
    wants: frozenset[str]

    @property
    def sentence(self) -> str:
        """The requirement in one sentence: the first paragraph of the docstring."""
        text = (self.run.__doc__ or "").split("\n\n")[0]
        return re.sub(r"\s+", " ", re.sub(r"^\s*\[[^\]]*\]\s*", "", text)).strip()

    @property
    def key(self) -> tuple[int, str]:
        """Version and statement: unique."""
        return self.version, self.statement


REGISTRY: Final[dict[tuple[int, str], Check]] = {}


def statement(
    identifier: str,
    *,
    needs: tuple[str, ...] = (),
    wants: tuple[str, ...] = (),
    alone: bool = False,
    strict_only: bool = False,
    seconds: float = 0.0,
) -> Callable[[Run], Run]:
    """Declare a check: see the docstring of this module.

    `needs`: what the adapter must support (words of `NEEDS`); against a bare address the check is
    not run. `wants`: the same, but against a bare address the check still runs and asks `bench.has`
    which parts to leave out. `alone`: no other check may use the broker at the same time.
    `strict_only`: only run in the strict profile. `seconds`: the approximate duration; long checks
    start first.
    """
    unknown = {*needs, *wants} - NEEDS
    if unknown:
        raise ValueError(f"{identifier}: unknown needs {sorted(unknown)}")

    def declare(run: Run) -> Run:
        version = _version_of(run.__module__)
        wanted = identifier.lower().replace("-", "_").replace(".", "_")
        if run.__name__ != wanted:
            raise ValueError(f"{identifier}: the function is called {run.__name__}, not {wanted}")
        if not (run.__doc__ or "").startswith(f"[{identifier}] "):
            raise ValueError(f"{identifier}: the docstring does not begin with [{identifier}]")
        check = Check(
            identifier,
            version,
            run.__name__,
            run.__module__,
            run,
            frozenset(needs),
            alone,
            strict_only,
            seconds,
            frozenset(wants),
        )
        other = REGISTRY.get(check.key)
        if other is not None and other.module != check.module:
            raise ValueError(f"{identifier}: declared in {other.module} and in {check.module}")
        REGISTRY[check.key] = check
        return run

    return declare


def _version_of(module: str) -> int:
    parts = module.split(".")
    for folder, version in (("v311", 4), ("v50", 5)):
        if folder in parts:
            return version
    raise ValueError(f"{module}: checks live in conformance/v311 and conformance/v50")


class Bench:
    """What a check works with: a broker, clients, and unique names."""

    def __init__(
        self,
        check: Check,
        record: Record,
        *,
        unique: str,
        shared: Broker | None,
        start: Callable[[Options], Broker] | None,
        strict: bool,
        patience: float = PATIENCE_S,
    ) -> None:
        """Keep the arguments; `unique` prefixes client ids and topics, `start` starts a broker."""
        self.check: Check = check
        self.version: int = check.version
        self.strict: bool = strict
        self.patience: float = patience
        self.unique: str = unique
        self.record: Record = record
        self._shared = shared
        self._start = start
        self._clients: list[Client] = []
        self._own: Broker | None = None
        self._markers = itertools.count()

    # Names.

    def id(self, name: str) -> str:
        """Return a client id of this check for `name`: 1 to 23 characters of 0-9, a-z, A-Z."""
        plain = re.sub(r"[^0-9a-zA-Z]", "", name)
        if plain != name or len(self.unique) + len(name) > CLIENT_ID_BYTES_MAX:
            plain = hashlib.sha256(name.encode()).hexdigest()[:10]
        return self.unique + plain

    def topic(self, path: str) -> str:
        """Return a topic (or filter) below the prefix of this check."""
        return f"{self.unique}/{path}"

    # Brokers and clients.

    @property
    def broker(self) -> Broker:
        """The shared broker, or with `needs` one of this check's own with default options."""
        if self._own is not None:
            return self._own
        if self.check.needs:
            return self.start()
        assert self._shared is not None
        return self._shared

    def has(self, word: str) -> bool:
        """Return whether there is an adapter, for checks that need one for a part only.

        `word` is one of `NEEDS`. If the adapter lacks an option, `start` raises `NotRun`.
        """
        if word not in NEEDS:
            raise ValueError(f"{self.check.statement}: has({word!r}) is not one of {NEEDS}")
        return self._start is not None

    def start(self, **options: Option) -> Broker:
        """Start a broker with these options, make it the bench's broker, and return it.

        Other checks with the same options may share it, unless `needs` says that this check stops
        or kills it. Raises `NotRun` without an adapter, or if the adapter cannot set an option.
        """
        if self._start is None:
            raise NotRun("needs a broker adapter")
        self._own = self._start(options)
        return self._own

    def client(
        self,
        name: str = "a",
        *,
        connect: bool = True,
        version: int | None = None,
        broker: Broker | None = None,
        client_id: str | None = None,
        stream: Callable[[], Stream] | Stream | None = None,
        **options: Any,
    ) -> Client:
        """Return a client with an open connection; send CONNECT with `options` unless told not to.

        Equal names give equal client ids. `stream` replaces the transport of the broker: an open
        one, or a function that opens one.
        """
        target = broker or self.broker

        def open_stream() -> Stream:
            if stream is None:
                return target.open(self.patience)
            return stream() if callable(stream) else stream

        client = Client(
            open_stream,
            name=name,
            client_id=self.id(name) if client_id is None else client_id,
            version=version or self.version,
            patience=self.patience,
            strict=self.strict,
            record=self.record,
        )
        self._clients.append(client)
        if connect:
            client.connect(**options)
        return client

    def open(self, name: str = "a", *, broker: Broker | None = None) -> Client:
        """Return a client with an open connection that has sent nothing."""
        return self.client(name, connect=False, broker=broker)

    # Waiting.

    def barrier(self, publisher: Client, subscriber: Client, *, qos: int = 1) -> None:
        """Return when `subscriber` has received everything `publisher` has published so far.

        It sends a marker message; what arrives before it is kept for the next `expect`. Use `qos=0`
        if the subscriber's Receive Maximum is used up.
        """
        if qos not in (0, 1):
            raise ValueError(f"a barrier at QoS {qos}: take 0 or 1")
        topic = f"{MARKER}{self.unique}{next(self._markers)}"
        subscriber.subscribe_marker(topic, qos)
        publisher.publish_marker(topic, qos)
        subscriber.await_marker()

    def settle(self, seconds: float = SETTLE_S) -> None:
        """Wait for an effect that must not happen, where no barrier is possible."""
        time.sleep(seconds)

    # Results.

    def fail(
        self, message: str, packet: Packet | bytes | None = None, *, expected: str = ""
    ) -> NoReturn:
        """Raise `Failure`: the broker is wrong; `packet` shows it."""
        raw = packet if packet is None or isinstance(packet, bytes) else packet.raw
        raise Failure(message, packet=raw, expected=expected)

    def not_run(self, why: str) -> NoReturn:
        """Raise `NotRun`: this check cannot be made with this broker."""
        raise NotRun(why)

    @contextlib.contextmanager
    def case(self, what: str) -> Iterator[None]:
        """Prefix failures with the variant that is tried."""
        try:
            yield
        except Failure as failure:
            failure.message = f"{what}: {failure.message}"
            raise

    def note(self, text: str) -> None:
        """Add a remark to the result, such as a choice the broker has made."""
        self.record.notes.append(text)

    def close(self) -> None:
        """End every connection of the check and remove the retained messages it left."""
        for client in self._clients:
            _end(client)
        broker = self._own or self._shared
        if self.record.retained_topics and broker is not None and broker.is_running:
            self._remove_retained(broker)

    def _remove_retained(self, broker: Broker) -> None:
        """Try to remove them; errors are ignored, as the check is over."""
        try:
            channel = broker.open(CLEANUP_S)
        except (OSError, Failure):
            return
        # Without a deadline, a broker that keeps sending would keep this loop running.
        deadline = time.monotonic() + CLEANUP_S
        with contextlib.closing(channel):
            try:
                channel.sendall(wire.connect(self.id("cleaner"), version=4))
                channel.recv(4)
                for topic in sorted(self.record.retained_topics):
                    channel.sendall(wire.publish(topic, b"", version=4, retain=True))
                channel.sendall(wire.pingreq() + wire.disconnect())
                while channel.recv(4096) and time.monotonic() < deadline:
                    pass
            except OSError:
                return


def _end(client: Client) -> None:
    """Send DISCONNECT, so that no will is published after the check, then close."""
    if client.is_open:
        if client.connack is not None and client.connack.code == 0 and not client.eof:
            try:
                client.send(wire.disconnect())
            except Failure:
                pass
            client.close()
        client.drop()


__all__ = [
    "REGISTRY",
    "Bench",
    "Check",
    "Client",
    "Failure",
    "NotRun",
    "Violation",
    "Will",
    "statement",
]
