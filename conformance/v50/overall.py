"""What holds for a whole connection rather than for one packet type, 5.0."""

from conformance.check import Bench, statement


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
