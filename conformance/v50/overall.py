"""What holds for a whole connection rather than for one packet type, 5.0."""

from conformance import wire
from conformance.check import Bench, statement
from conformance.packets import Pingresp


@statement("X-00")
def x_00(bench: Bench) -> None:
    """[X-00] Whatever the broker sends can be parsed without exception."""
    client = bench.client("a")
    client.subscribe([(bench.topic("x"), 2)])
    for qos in (0, 1, 2):
        client.publish(bench.topic("x"), b"hello", qos)
        client.expect_publish(bench.topic("x"), b"hello", qos)
    client.unsubscribe(bench.topic("x"))
    client.ping()
    client.disconnect()


@statement("X-04")
def x_04(bench: Bench) -> None:
    """[X-04] After DISCONNECT the broker closes the connection if the client does not.

    The text says SHOULD: only the strict profile wants it. Nothing may be answered in either.
    """
    for what, data in (
        ("DISCONNECT in its short form", wire.disconnect()),
        ("DISCONNECT with will", wire.disconnect(0x04)),
        ("DISCONNECT with a property", wire.disconnect(0, [(0x11, 0)])),
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
