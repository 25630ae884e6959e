"""Rules that the text of 3.1.1 gives without a number: what a server should do, and policies."""

from collections.abc import Callable
from typing import Final

from conformance import wire
from conformance.check import Bench, Client, Will, statement
from conformance.packets import (
    Connack,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Suback,
    Unsuback,
)
from conformance.rules import matches
from conformance.scenes import answer_or_end
from conformance.v311 import scenes

CONNECT_TIMEOUT_S: Final = 2
USERS: Final = {"anna": "secret of anna"}
PINGS: Final = 200


@statement("X-01", needs=("configure",))
def x_01(bench: Bench) -> None:
    """[X-01] A connection on which no CONNECT comes in reasonable time is closed."""
    bench.start(connect_timeout=CONNECT_TIMEOUT_S)
    connected = bench.client("connected", keep_alive=0)
    connect = wire.connect(bench.id("slow"), version=4)
    begun = {
        "nothing at all": b"",
        "one byte": connect[:1],
        "all of CONNECT but its last byte": connect[:-1],
    }
    clients = {}
    for number, (what, data) in enumerate(begun.items()):
        clients[what] = bench.client(f"slow{number}", connect=False)
        if data:
            clients[what].send(data)
    for what, client in clients.items():
        with bench.case(f"{what} is sent"):
            client.expect_refused(timeout=CONNECT_TIMEOUT_S + bench.patience)
    with bench.case("a client that is connected"):
        connected.ping()


@statement("X-02", wants=("configure",))
def x_02(bench: Bench) -> None:
    """[X-02] The bits 7 to 1 of the acknowledge flags in CONNACK are 0."""
    checked = scenes.configured(bench, "a wrong password", users=USERS)
    name, password = next(iter(USERS.items()))
    if not checked:
        name, password = "", ""

    def connect(client_id: str, clean: bool) -> bytes:
        if not checked:
            return wire.connect(client_id, version=4, clean=clean)
        return wire.connect(client_id, version=4, clean=clean, username=name, password=password)

    own = bench.id("a")
    attempts = [
        ("a new session", connect(own, False), 0),
        ("a session that is resumed", connect(own, False), 1),
        ("CleanSession 1", connect(own, True), 0),
        ("an unknown level", wire.connect(own, version=4, level=0), 0),
        ("an empty client id", connect("", False), 0),
    ]
    if checked:
        wrong = wire.connect(own, version=4, username=name, password="wrong")
        attempts.append(("a wrong password", wrong, 0))
    for what, data, flags in attempts:
        with bench.case(what):
            client = bench.client("a", connect=False)
            client.send(data)
            connack = client.expect(Connack)
            if connack.raw[2] != flags:
                bench.fail(
                    f"acknowledge flags {connack.raw[2]:#04x}", connack, expected=f"{flags:#04x}"
                )
            client.connack = connack
            client.drop()


@statement("X-03", needs=("configure",))
def x_03(bench: Bench) -> None:
    """[X-03] A CONNECT that fails authentication is not served: CONNACK 4 or 5 should come, and
    the connection ends.
    """
    bench.start(users=USERS)
    (name, password), own = next(iter(USERS.items())), bench.id("a")
    good = bench.client("good", username=name, password=password)
    scenes.subscribe(bench, good, (bench.topic("#"), 1))
    late = wire.publish(bench.topic("t"), b"no", version=4) + wire.pingreq()
    will = Will(bench.topic("will"), b"no")
    for what, data in (
        ("a wrong password", wire.connect(own, version=4, username=name, password="wrong")),
        ("an empty password", wire.connect(own, version=4, username=name, password="")),
        ("no password", wire.connect(own, version=4, username=name)),
        ("an unknown name", wire.connect(own, version=4, username="eve", password=password)),
        ("an empty name", wire.connect(own, version=4, username="", password=password)),
        ("neither", wire.connect(own, version=4)),
        (
            "a wrong password and a will",
            wire.connect(own, version=4, username=name, password="wrong", will=will),
        ),
    ):
        for rest in (b"", late):
            with bench.case(what + " and more packets" * bool(rest)):
                client = bench.client("a", connect=False)
                client.send(data + rest)
                client.expect_refused(4, 5, silent=not bench.strict)
                client.drop()
    scenes.nothing_comes(bench, good, good)
    good.ping()


@statement("X-04")
def x_04(bench: Bench) -> None:
    """[X-04] After DISCONNECT the server closes the connection if the client does not."""
    for what, data in (
        ("DISCONNECT", wire.disconnect()),
        ("PINGREQ and DISCONNECT in one write", wire.pingreq() + wire.disconnect()),
    ):
        with bench.case(what):
            client = bench.client("a", keep_alive=0)
            client.send(data)
            closed = client.wait_for_end(bench.patience)
            answers = [packet for packet in client.inbox if not isinstance(packet, Pingresp)]
            if answers:
                bench.fail("a packet after DISCONNECT", answers[0], expected="nothing")
            if not closed and bench.strict:
                bench.fail("the connection stays open", client.last, expected="a close")
            if not closed:
                bench.note("the broker leaves it to the client to close after DISCONNECT")
            client.drop()


@statement("X-05")
def x_05(bench: Bench) -> None:
    """[X-05] Clients are kept from exchanging messages over topics that begin with $; elsewhere in
    a topic $ is a character like any other.
    """
    topic = f"$foo/{bench.unique}"
    subscriber = bench.client("subscriber")
    subscriber.subscribe([(topic, 1), (f"{topic}/#", 1)])
    scenes.subscribe(bench, subscriber, (bench.topic("$x/#"), 1))
    publisher = bench.client("publisher")
    publisher.publish(topic, b"dollar", qos=1, wait=False)
    refused = answer_or_end(publisher) is None
    publisher = bench.client("publisher")
    publisher.publish(bench.topic("$x/$y"), b"inside", qos=1)
    publisher.publish(bench.topic("$x"), b"inside", qos=1)
    found = scenes.deliveries(bench, subscriber, publisher)
    inside = [packet.topic for packet in found if packet.topic != topic]
    if inside != [bench.topic("$x/$y"), bench.topic("$x")]:
        bench.fail(f"of topics with $ inside these come: {inside}", expected="both")
    if len(inside) == len(found):
        bench.note(f"a PUBLISH to $foo is {'refused' if refused else 'not delivered'}")
    elif bench.strict:
        bench.fail("a client's message on a $ topic is delivered", found[0], expected="nothing")
    else:
        bench.note("clients can exchange messages over topics that begin with $")


@statement("X-06")
def x_06(bench: Bench) -> None:
    """[X-06] QoS 0 messages are either kept for absent clients or not, the same for all, and take
    nothing from those of QoS 1 and 2.
    """
    topic = bench.topic("t")
    absent = bench.client("absent", clean=False)
    scenes.subscribe(bench, absent, (topic, 2))
    absent.disconnect()
    publisher = bench.client("publisher")
    for number in range(5):
        for qos in (0, 1, 2):
            publisher.publish(topic, f"{number}", qos=qos)
    scenes.resume(bench, absent)
    found: list[Publish] = []
    while sum(packet.qos > 0 for packet in found) < 10:
        found.append(absent.expect_publish(topic, dup=False))
    found += scenes.deliveries(bench, absent, publisher)
    numbers = {qos: [int(p.payload) for p in found if p.qos == qos] for qos in (0, 1, 2)}
    if numbers[1] != [*range(5)] or numbers[2] != [*range(5)]:
        bench.fail(f"these come at QoS 1 and 2: {numbers[1]}, {numbers[2]}", expected="0 to 4")
    if numbers[0] not in ([], [*range(5)]):
        bench.fail(f"these come at QoS 0: {numbers[0]}", expected="all five or none")
    bench.note(f"QoS 0 messages are {'kept' if numbers[0] else 'not kept'} for absent clients")


@statement("X-07")
def x_07(bench: Bench) -> None:
    """[X-07] Filters with wildcards are supported."""
    publisher = bench.client("publisher")
    for path in ("a/+", "a/#", "+/b", "#", "+/+/c"):
        with bench.case(f"filter {path!r}"):
            client = bench.client("a")
            suback = client.subscribe(bench.topic(path), 1)
            if suback.codes == (0x80,):
                if bench.strict:
                    bench.fail("refused", suback, expected="a grant")
                bench.note(f"the filter {path!r} is refused")
                continue
            sent = [bench.topic(topic) for topic in ("a/b", "a", "x/y/c", "x")]
            for topic in sent:
                publisher.publish(topic, b"x", qos=1)
            wanted = [topic for topic in sent if matches(bench.topic(path), topic)]
            found = [packet.topic for packet in client.expect_publishes(len(wanted))]
            if found != wanted:
                bench.fail(f"these come: {found}", client.last, expected=f"{wanted}")
            scenes.nothing_comes(bench, client, publisher)


@statement("X-08")
def x_08(bench: Bench) -> None:
    """[X-08] A first matching PUBLISH may come before or after SUBACK, but both come."""
    topic = bench.topic("t")
    publisher = bench.client("publisher")
    publisher.publish(topic, b"retained", qos=1, retain=True)
    orders = set()
    for number in range(5):
        client = bench.client(f"a{number}")
        client.send(wire.subscribe(7, [(topic, 1)], version=4))
        publisher.publish(topic, f"{number}", qos=1)
        before = 0
        while not isinstance(packet := client.receive(), Suback):
            client.inbox.append(packet)
            before += 1
            if before > 2:
                bench.fail("more comes than was published, and no SUBACK", packet)
        orders.add(bool(before))
        if packet.packet_id != 7 or packet.codes not in ((0,), (1,)):
            bench.fail("not the SUBACK of this request", packet, expected="id 7, QoS 1")
        publisher.publish(topic, b"last", qos=1)
        while client.expect_publish(topic).payload != b"last":
            pass
        scenes.nothing_comes(bench, client, publisher)
        client.disconnect()
    if True in orders:
        bench.note("a PUBLISH may come before its SUBACK")


@statement("X-41", needs=("kill",), seconds=4)
def x_41(bench: Bench) -> None:
    """[X-41] Wills of clients that are connected when the server ends are published, perhaps only
    after it was started again, but once.
    """
    subscriber = bench.client("subscriber", clean=False)
    scenes.subscribe(bench, subscriber, (bench.topic("will/#"), 2))
    subscriber.disconnect()
    for crash in (True, False):
        with bench.case("killed" if crash else "stopped"):
            expected = []
            for number, clean in enumerate((True, False, True)):
                name = f"m{int(crash)}{number}"
                topic = bench.topic(f"will/{name}")
                bench.client(name, clean=clean, will=Will(topic, name, qos=1 + number % 2))
                expected.append((topic, name.encode()))
            gone = bench.client("gone", will=Will(bench.topic("will/gone"), b"no", qos=1))
            gone.disconnect()
            scenes.restart(bench, crash=crash)
            scenes.resume(bench, subscriber)
            found = sorted((p.topic, p.payload) for p in subscriber.expect_publishes(3))
            if found != expected:
                bench.fail(f"these wills come: {found}", subscriber.last, expected=f"{expected}")
            scenes.nothing_comes(bench, subscriber)
            subscriber.disconnect()
    scenes.restart(bench, crash=True)
    scenes.resume(bench, subscriber)
    bench.settle()
    scenes.nothing_comes(bench, subscriber)


@statement("X-42")
def x_42(bench: Bench) -> None:
    """[X-42] Packets a client sends before it has received CONNACK are processed once the
    connection is accepted.
    """
    topic = bench.topic("t")
    watcher = scenes.watch(bench)
    for clean in (True, False):
        with bench.case(f"CleanSession {int(clean)}"):
            client = bench.client("a", connect=False)
            client.send(
                wire.connect(client.client_id, version=4, clean=clean)
                + wire.subscribe(1, [(topic, 2)], version=4)
                + wire.publish(topic, b"0", version=4)
                + wire.publish(topic, b"1", version=4, qos=1, packet_id=2)
                + wire.publish(topic, b"2", version=4, qos=2, packet_id=3)
                + wire.pubrel(3)
                + wire.unsubscribe(4, [bench.topic("u")], version=4)
                + wire.pingreq()
            )
            first = client.receive()
            if not isinstance(first, Connack) or first.code:
                bench.fail("the first packet is no CONNACK", first, expected="CONNACK, code 0")
            client.connack = first
            client.expect(Suback, packet_id=1)
            client.expect(Puback, packet_id=2)
            client.expect(Pubrec, packet_id=3)
            client.expect(Pubcomp, packet_id=3)
            client.expect(Unsuback, packet_id=4)
            client.expect(Pingresp)
            for subscriber in (client, watcher):
                for qos in (0, 1, 2):
                    subscriber.expect_publish(topic, f"{qos}", qos=qos)
            client.disconnect()
    with bench.case("DISCONNECT in the same write"):
        client = bench.client("b", connect=False, client_id=bench.id("b"))
        client.send(
            wire.connect(client.client_id, version=4, will=Will(bench.topic("will")))
            + wire.publish(topic, b"short", version=4, qos=1, packet_id=2)
            + wire.disconnect()
        )
        client.expect_connack()
        watcher.expect_publish(topic, b"short")
    scenes.nothing_comes(bench, watcher)


@statement("X-43")
def x_43(bench: Bench) -> None:
    """[X-43] PINGREQ may come at any time and at any rate, and each is answered."""
    client = bench.client("a", keep_alive=60)

    def pinged(what: str, data: bytes, wanted: int) -> None:
        with bench.case(what):
            client.send(data)
            for _ in range(wanted):
                client.expect(Pingresp)
            client.expect_nothing(Pingresp)

    pinged(f"{PINGS} in one write", wire.pingreq() * PINGS, PINGS)
    topic = bench.topic("t")
    between: list[Callable[[int], bytes]] = [
        lambda n: wire.subscribe(n, [(topic, 1)], version=4),
        lambda n: wire.publish(topic, b"x", version=4, qos=1, packet_id=n),
        lambda n: wire.publish(topic, b"x", version=4, qos=2, packet_id=n),
        lambda n: wire.unsubscribe(n, [topic], version=4),
    ]
    mixed = b"".join(build(n) + wire.pingreq() for n, build in enumerate(between, 1))
    pinged("between other packets", mixed, len(between))
    for kind in (Suback, Puback, Pubrec, Unsuback):
        client.expect(kind)
    with bench.case("in the middle of a QoS 2 flow"):
        client.ping()
        _finish(client)


def _finish(client: Client) -> None:
    client.pubrel(3)
    client.expect(Pubcomp, packet_id=3)
    client.ping()
