"""What many checks of MQTT 3.1.1 do: offend and be cut off, see that nothing came, come back.

A protocol violation in 3.1.1 has one answer, the end of the connection: `is_cut_off` and
`is_refused_silently` take no packet for it. Checks of statements that only ask for the end of the
connection use `is_turned_away`, which lets a CONNACK with an error code come first.
"""

from collections.abc import Iterable
from typing import Final

from conformance import wire
from conformance.adapters.base import Option
from conformance.check import Bench, Client, NotRun, Will
from conformance.client import Silence
from conformance.packets import Packet, Publish
from conformance.wire import Text

VERSION: Final = 4
RETURN_CODES: Final = (1, 2, 3, 4, 5)
# Beyond one and a half times the keep alive: brokers look at their clocks every few seconds.
KEEP_ALIVE_LATENESS_S: Final = 6.0
QUIET_S: Final = 1.0  # a broker that sends nothing for so long waits for an acknowledgement
# Strings no receiver may take: cut short, surrogates, overlong forms, above U+10FFFF, no UTF-8.
NOT_UTF8: Final = (
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xc0\x80",
    b"\xe0\x80\xaf",
    b"\xf4\x90\x80\x80",
    b"\xff\xfe",
    b"\xe2\x82",
)


def connect(
    client_id: Text,
    *,
    flags: int | None = None,
    fields: Iterable[Text] = (),
    will: Will | None = None,
    name: Text = "MQTT",
    level: int = VERSION,
) -> bytes:
    """Return CONNECT with these flags and, after the client id, these fields in the payload."""
    payload = None
    if flags is not None:
        payload = wire.string(client_id) + b"".join(wire.string(field) for field in fields)
    return wire.connect(
        client_id,
        version=VERSION,
        flags=flags,
        payload=payload,
        will=will,
        name=name,
        level=level,
    )


def is_refused_silently(bench: Bench, what: str, data: bytes) -> None:
    """On a connection of its own, send a CONNECT: closed without a byte of answer."""
    with bench.case(what):
        client = bench.client("offender", connect=False)
        client.send(data)
        client.expect_refused()
        client.drop()


def is_turned_away(bench: Bench, what: str, data: bytes) -> None:
    """On a connection of its own, send a CONNECT: closed, an error code may come first."""
    with bench.case(what):
        client = bench.client("offender", connect=False)
        client.send(data)
        client.expect_refused(*RETURN_CODES, silent=True)
        client.drop()


def is_cut_off(bench: Bench, what: str, data: bytes, *, will: Will | None = None) -> None:
    """As a connected client of its own, send bytes: closed without a packet."""
    with bench.case(what):
        client = bench.client("offender", will=will)
        client.send(data)
        client.expect_close()
        client.drop()


def watch(bench: Bench, path: str = "#", *, qos: int = 2, name: str = "watcher") -> Client:
    """Return a client that subscribes to a filter below the prefix of this check."""
    client = bench.client(name)
    subscribe(bench, client, (bench.topic(path), qos))
    return client


def subscribe(bench: Bench, client: Client, *filters: tuple[Text, int]) -> None:
    """Subscribe; every filter has to be granted at the QoS asked for.

    A server may grant less: then what the check is about cannot be seen here.
    """
    suback = client.subscribe(list(filters))
    for (topic_filter, qos), code in zip(filters, suback.codes, strict=True):
        if code == 0x80:
            bench.fail(f"the filter {topic_filter!r} is refused", suback, expected=f"code {qos}")
        if code > qos:
            bench.fail(f"granted QoS {code}, asked for {qos}", suback, expected=f"code {qos}")
        if code < qos:
            bench.not_run(f"the broker grants QoS {code} where QoS {qos} is asked for")


def collect(client: Client, most: int) -> list[Publish]:
    """Return up to `most` deliveries, nothing acknowledged: how many a broker keeps open is its
    own choice, so it is done when it has been quiet for a while.
    """
    found: list[Publish] = []
    others: list[Packet] = []
    while len(found) < most:
        try:
            packet = client.receive(QUIET_S if found else None)
        except Silence:
            break
        if isinstance(packet, Publish):
            found.append(packet)
        else:
            others.append(packet)
    client.inbox.extend(others)
    return found


def deliveries(bench: Bench, client: Client, publisher: Client | None = None) -> list[Publish]:
    """Return what has come for `client`, nothing of it acknowledged, when the broker is done.

    Done: a message that `publisher` (or a client of our own) sends after the rest has come too.
    """
    bench.barrier(publisher or bench.client("witness"), client, qos=0)
    arrived = client.drain()
    found = [packet for packet in arrived if isinstance(packet, Publish)]
    client.inbox.extend(packet for packet in arrived if not isinstance(packet, Publish))
    return found


def nothing_comes(bench: Bench, client: Client, publisher: Client | None = None) -> None:
    """Fail if anything has come for `client`, or comes of what the broker has taken so far."""
    for packet in deliveries(bench, client, publisher):
        bench.fail(
            f"client {client.name}: received a message on {packet.topic!r}",
            packet,
            expected="no PUBLISH",
        )


def only(
    bench: Bench, client: Client, topic: str, payload: bytes, publisher: Client | None = None
) -> Publish:
    """Return the one delivery that has come; it has to be this one, and exactly once."""
    got = client.expect_publish(topic, payload)
    nothing_comes(bench, client, publisher)
    return got


def retained(bench: Bench, topic_filter: Text, *, name: str = "newcomer") -> list[Publish]:
    """Return the retained messages a new subscription at QoS 2 brings, acknowledged."""
    client = bench.client(name)
    subscribe(bench, client, (topic_filter, 2))
    found = deliveries(bench, client)
    for packet in found:
        client.acknowledge(packet)
    client.disconnect()
    return found


def nothing_is_retained(bench: Bench, topic_filter: Text, *, name: str = "newcomer") -> None:
    """Fail if a new subscription brings a retained message."""
    for packet in retained(bench, topic_filter, name=name):
        bench.fail(
            f"a new subscription brings a message on {packet.topic!r}",
            packet,
            expected="no retained message",
        )


def resume(bench: Bench, client: Client) -> None:
    """Come back with CleanSession 0; the broker has to know the session."""
    connack = client.connect(clean=False)
    if not connack.session_present:
        bench.fail("the session is lost", connack, expected="session present 1")


def acknowledge_all(client: Client, deliveries: Iterable[Publish]) -> None:
    """Complete the flow of each delivery."""
    for packet in deliveries:
        client.acknowledge(packet)


def configured(bench: Bench, what: str, **options: Option) -> bool:
    """Start a broker with these options for the rest of the check, which is `what`.

    False where that cannot be done: then only the part that needs no options is checked.
    """
    if not bench.has("configure"):
        bench.note(f"not tried: {what}, which needs an adapter")
        return False
    try:
        bench.start(**options)
    except NotRun as why:
        bench.note(f"not tried: {what}: {why}")
        return False
    return True


def restartable(bench: Bench) -> bool:
    """Start a broker of this check's own that can be ended and started again, if that is possible;
    to be called before the first client.
    """
    if not bench.has("restart"):
        bench.note("not tried: a restart of the broker, which needs an adapter")
        return False
    bench.start()
    return True


def restart(bench: Bench, *, crash: bool = False) -> None:
    """End the broker of this check, by SIGTERM or SIGKILL, and start it on the same data."""
    broker = bench.broker
    if crash:
        broker.kill()
    else:
        broker.stop()
    broker.start()
