"""The crash matrix: what a broker still has after it was killed or stopped, a scenario per row.

Every scenario runs against any broker that `process` can start and returns a short verdict; if the
broker fails, that is a verdict too, not an exception. On a replicated store the machine can be gone
for good, and a start is a takeover (`tests.takeover.pair`). Run as a module it prints the table
(`scripts/crash-matrix`). Read next: `test_crash_matrix`, which requires Holdfast to pass every row.
"""

import argparse
import concurrent.futures
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from mqtt.packets import Puback, Publish, Pubrec, Pubrel, Will
from tests.durability.process import (
    READY_SECONDS,
    have_mosquitto,
    holdfast,
    mosquitto,
)
from tests.durability.rawclient import Closed, RawClient, Silence

IDLE_SECONDS: Final = 1.5  # silence after which a broker is taken to be done


class Pace(NamedTuple):
    """The waiting times of the scenarios in seconds."""

    settle: float  # between the last acknowledgement and a late kill
    will_delay: int
    session_expiry: int
    downtime: float  # must be longer than session_expiry


QUICK: Final = Pace(settle=0.5, will_delay=2, session_expiry=1, downtime=2.6)
AS_MEASURED: Final = Pace(settle=8.0, will_delay=4, session_expiry=2, downtime=4.0)


class Verdict(NamedTuple):
    """The result of a scenario."""

    passed: bool
    text: str


class Tried(Protocol):
    """A broker, of one process or of several: what `process.BrokerProcess` can."""

    @property
    def port(self) -> int: ...

    def start(self) -> Any: ...

    def kill(self) -> None: ...

    def signal(self, number: int) -> None: ...

    def wait_exit(self, timeout: float) -> int: ...

    def tail(self) -> str: ...

    def close(self) -> None: ...


Scenario = Callable[[Tried, Pace], Verdict]
# Ends the process while clients are connected; they are closed on return.
End = Callable[..., None]


def _kill(broker: Tried, *clients: RawClient) -> None:
    broker.kill()
    for client in clients:
        client.drop()


def _stop(broker: Tried, *clients: RawClient) -> None:
    """Send SIGTERM; the clients close when the broker closes, as real clients do."""
    broker.signal(signal.SIGTERM)
    for client in clients:
        client.expect_closed()
        client.drop()
    broker.wait_exit(READY_SECONDS)


# Messages of an offline session


def qos1_kill_at_last_puback(broker: Tried, pace: Pace) -> Verdict:
    """Publish 2000 at QoS 1 to an offline session and kill -9 at the last PUBACK."""
    messages = _publish_to_offline(broker, 2000, qos=1, window=100, then=_kill)
    return _books(broker, messages, qos=1)


def qos1_kill_later(broker: Tried, pace: Pace) -> Verdict:
    """The same, killed some time after the last PUBACK."""
    messages = _publish_to_offline(broker, 2000, qos=1, window=100, then=_kill, after=pace.settle)
    return _books(broker, messages, qos=1)


def qos1_sigterm(broker: Tried, pace: Pace) -> Verdict:
    """The same, with an orderly stop at the last PUBACK."""
    messages = _publish_to_offline(broker, 2000, qos=1, window=100, then=_stop)
    return _books(broker, messages, qos=1)


def qos2_kill_at_last_pubcomp(broker: Tried, pace: Pace) -> Verdict:
    """Publish 500 at QoS 2 to an offline session and kill -9 at the last PUBCOMP."""
    messages = _publish_to_offline(broker, 500, qos=2, window=10, then=_kill)
    return _books(broker, messages, qos=2)


def qos2_inbound_half_open(broker: Tried, pace: Pace) -> Verdict:
    """Kill -9 between PUBREC and PUBREL; the publisher re-sends its PUBLISH with DUP."""
    _subscribe_offline(broker, qos=2)
    publisher = RawClient(broker.port, "publisher", version=4)
    publisher.durable()
    publisher.publish_begin("crash/once", b"only once", qos=2, packet_id=7)
    publisher.expect(Pubrec)
    broker.kill()
    publisher.drop()
    broker.start()
    notes = []
    if not publisher.durable().session_present:
        notes.append("publisher SP=0")
    publisher.publish_begin("crash/once", b"only once", qos=2, packet_id=7, dup=True)
    publisher.expect(Pubrec)
    publisher.release(7)
    # The id is free again: the next PUBLISH with it is a new message.
    publisher.publish_begin("crash/once", b"the next", qos=2, packet_id=7)
    publisher.expect(Pubrec)
    publisher.release(7)
    publisher.drop()
    present, received = _resume(broker, 2)
    if not present:
        return Verdict(False, "session gone")
    payloads = [publish.payload for publish in received]
    times = payloads.count(b"only once")
    notes.append(f"{times}x")
    if payloads.count(b"the next") != 1:
        notes.append(f"next message {payloads.count(b'the next')}x")
    passed = not notes[:-1] and times == 1
    return Verdict(passed, ", ".join(notes) + (" ok" if passed else ""))


# In flight


def unacknowledged_kill(broker: Tried, pace: Pace) -> Verdict:
    """Kill -9 with QoS 1 and 2 sent and not acknowledged, and with PUBREL sent."""
    return _unacknowledged(broker, _kill)


def unacknowledged_sigterm(broker: Tried, pace: Pace) -> Verdict:
    """The same with an orderly stop."""
    return _unacknowledged(broker, _stop)


def _unacknowledged(broker: Tried, end: End) -> Verdict:
    subscriber = RawClient(broker.port, "subscriber", version=4)
    subscriber.durable()
    subscriber.subscribe("crash/#", qos=2)
    publisher = RawClient(broker.port, "publisher", version=4)
    publisher.connect()
    publisher.publish_all([("crash/a", b"one %d" % n) for n in range(5)], qos=1)
    publisher.publish_all([("crash/b", b"two %d" % n) for n in range(5)], qos=2)
    sent = [subscriber.expect(Publish) for _ in range(10)]
    released = [publish for publish in sent if publish.qos == 2][:2]
    for publish in released:
        subscriber.send(Pubrec(publish.packet_id))
        subscriber.expect(Pubrel)
    end(broker, subscriber, publisher)
    broker.start()
    if not subscriber.durable().session_present:
        subscriber.drop()
        return Verdict(False, "no")
    publishes: list[Publish] = []
    releases: list[int] = []
    while True:
        try:
            packet = subscriber.receive(
                IDLE_SECONDS if len(publishes) + len(releases) < 10 else 0.2
            )
        except (Silence, Closed):
            break
        if isinstance(packet, Publish):
            publishes.append(packet)
        elif isinstance(packet, Pubrel):
            releases.append(packet.packet_id)
    subscriber.drop()
    owed = [publish for publish in sent if publish not in released]
    faults = []
    if [p.payload for p in publishes] != [p.payload for p in owed]:
        faults.append("order or number wrong" if publishes else "no PUBLISH")
    elif [p.packet_id for p in publishes] != [p.packet_id for p in owed]:
        faults.append("other pids")
    if not all(publish.dup for publish in publishes):
        faults.append("DUP=0")
    if releases != [publish.packet_id for publish in released]:
        faults.append("PUBREL not resent")
    if faults:
        return Verdict(False, ("yes, " if publishes else "no, ") + ", ".join(faults))
    return Verdict(True, "yes, pids kept, DUP=1, PUBREL resent")


# Wills


def will_of_a_connected_client(broker: Tried, pace: Pace) -> Verdict:
    """Kill -9 with two connected clients that have wills, which are due after the restart."""
    _subscribe_offline(broker, qos=1)
    clean = RawClient(broker.port, "clean", version=4)
    clean.connect(will=Will("crash/will/clean", b"gone", 1, False))
    durable = RawClient(broker.port, "durable")
    durable.durable(will=Will("crash/will/durable", b"gone", 1, False))
    broker.kill()
    clean.drop()
    durable.drop()
    broker.start()
    present, received = _resume(broker, 2, idle=3.0)
    if not present:
        return Verdict(False, "never, session gone")
    topics = sorted(publish.topic for publish in received)
    if topics == ["crash/will/clean", "crash/will/durable"]:
        return Verdict(True, "published at restart, once")
    return Verdict(False, f"{len(topics)} of 2" if topics else "never")


def delayed_will(broker: Tried, pace: Pace) -> Verdict:
    """Kill -9 while a will waits for its delay; it comes once, when it is due."""
    _subscribe_offline(broker, qos=1)
    client = RawClient(broker.port, "mortal")
    will = Will("crash/will", b"gone", 1, False, delay_interval=pace.will_delay)
    client.durable(expiry=600, will=will)
    # The delay runs from the close; take the time before, as the broker cannot see it earlier.
    closed = time.monotonic()
    client.drop()
    time.sleep(0.5)
    broker.kill()
    broker.start()
    subscriber = RawClient(broker.port, "subscriber")
    if not subscriber.durable().session_present:
        subscriber.drop()
        return Verdict(False, "never, session gone")
    arrivals: list[float] = []
    end = max(closed + pace.will_delay, time.monotonic()) + 4.0  # a takeover takes a while
    while (left := end - time.monotonic()) > 0:
        try:
            packet = subscriber.receive(left if not arrivals else 1.0)
        except (Silence, Closed):
            break
        if isinstance(packet, Publish):
            arrivals.append(time.monotonic() - closed)
            subscriber.send(Puback(packet.packet_id))
    subscriber.drop()
    if not arrivals:
        return Verdict(False, "never")
    if len(arrivals) > 1:
        return Verdict(False, f"{len(arrivals)}x")
    # Half a second early is allowed: the interval is in whole seconds.
    if arrivals[0] < pace.will_delay - 0.5:
        return Verdict(False, f"early, after {arrivals[0]:.1f} s")
    return Verdict(True, f"after {arrivals[0]:.1f} s, once")


# Lifetimes


def clean_start_with_expiry_sigterm(broker: Tried, pace: Pace) -> Verdict:
    """A session started with Clean Start 1 and an expiry above 0 survives an orderly stop."""
    return _clean_start_with_expiry(broker, _stop)


def clean_start_with_expiry_kill(broker: Tried, pace: Pace) -> Verdict:
    """The same across kill -9."""
    return _clean_start_with_expiry(broker, _kill)


def _clean_start_with_expiry(broker: Tried, end: End) -> Verdict:
    subscriber = RawClient(broker.port, "subscriber")
    subscriber.connect(clean_start=True, expiry=3600)
    subscriber.subscribe("crash/#", qos=1)
    subscriber.drop()
    messages = _messages(10)
    _publish(broker, messages, qos=1)
    end(broker)
    verdict = _books(broker, messages, qos=1)
    return Verdict(verdict.passed, "ok" if verdict.passed else verdict.text)


def session_expiry_over_downtime_sigterm(broker: Tried, pace: Pace) -> Verdict:
    """A session that expires while the broker is down is gone; one with time left is not."""
    return _session_expiry(broker, pace, _stop)


def session_expiry_over_downtime_kill(broker: Tried, pace: Pace) -> Verdict:
    """The same across kill -9."""
    return _session_expiry(broker, pace, _kill)


def _session_expiry(broker: Tried, pace: Pace, end: End) -> Verdict:
    clients = {}
    for name, expiry in (("short", pace.session_expiry), ("long", 600)):
        clients[name] = RawClient(broker.port, name)
        clients[name].durable(expiry=expiry)
        clients[name].subscribe("crash/#")
        clients[name].drop()
    end(broker)
    time.sleep(pace.downtime)
    broker.start()
    present = {}
    for name, client in clients.items():
        present[name] = client.durable().session_present
        client.drop()
    if present["short"]:
        return Verdict(False, "SP=1 (wrong)")
    if not present["long"]:
        return Verdict(False, "SP=0, and the long one is gone too")
    return Verdict(True, "ok")


def message_expiry_over_downtime_sigterm(broker: Tried, pace: Pace) -> Verdict:
    """Message expiry counts downtime: an expired message is dropped, another has less time left."""
    return _message_expiry(broker, pace, _stop)


def message_expiry_over_downtime_kill(broker: Tried, pace: Pace) -> Verdict:
    """The same across kill -9."""
    return _message_expiry(broker, pace, _kill)


def _message_expiry(broker: Tried, pace: Pace, end: End) -> Verdict:
    _subscribe_offline(broker, qos=1)
    publisher = RawClient(broker.port, "publisher")
    publisher.connect()
    publisher.publish("crash/a", b"short", message_expiry_interval=pace.session_expiry)
    publisher.publish("crash/a", b"long", message_expiry_interval=100)
    publisher.publish("crash/a", b"for ever")
    published = time.monotonic()
    end(broker, publisher)
    time.sleep(pace.downtime)
    broker.start()
    present, received = _resume(broker, 2)
    if not present:
        return Verdict(False, "session gone")
    waited = time.monotonic() - published
    payloads = [publish.payload for publish in received]
    if payloads != [b"long", b"for ever"]:
        return Verdict(False, f"got {b', '.join(payloads).decode()}")
    left = received[0].message_expiry_interval
    if not 100 - waited - 1 <= left <= 100 - int(pace.downtime):
        return Verdict(False, f"{left} s left of 100 after {waited:.1f} s")
    if received[1].message_expiry_interval != -1:
        return Verdict(False, "an expiry out of nowhere")
    return Verdict(True, "ok")


def retained_kill(broker: Tried, pace: Pace) -> Verdict:
    """Kill -9 at the PUBACK of the last of 200 retained messages."""
    publisher = RawClient(broker.port, "publisher")
    publisher.connect()
    messages = [(f"crash/r/{number}", b"%d" % number) for number in range(200)]
    publisher.publish_all(messages, qos=1, window=200, retain=True)
    broker.kill()
    publisher.drop()
    broker.start()
    reader = RawClient(broker.port, "reader")
    reader.connect()
    reader.subscribe("crash/r/#", qos=1)
    received = reader.take_all(idle=0.7)
    reader.drop()
    kept = {p.topic for p in received if p.retain and p.topic.endswith(f"/{p.payload.decode()}")}
    return Verdict(len(kept) == 200 and len(received) == 200, f"{len(kept)} kept")


# Parts of the scenarios


def _messages(count: int) -> list[tuple[str, bytes]]:
    return [(f"crash/t{number % 7}", b"%06d" % number) for number in range(count)]


def _subscribe_offline(broker: Tried, *, qos: int) -> None:
    subscriber = RawClient(broker.port, "subscriber")
    subscriber.durable()
    subscriber.subscribe("crash/#", qos=qos)
    subscriber.disconnect()


def _publish(broker: Tried, messages: Sequence[tuple[str, bytes]], *, qos: int) -> None:
    publisher = RawClient(broker.port, "publisher", version=4)
    publisher.connect()
    publisher.publish_all(messages, qos=qos)
    publisher.drop()


def _publish_to_offline(
    broker: Tried, count: int, *, qos: int, window: int, then: End, after: float = 0.0
) -> list[tuple[str, bytes]]:
    _subscribe_offline(broker, qos=qos)
    publisher = RawClient(broker.port, "publisher", version=4)
    publisher.connect()
    messages = _messages(count)
    publisher.publish_all(messages, qos=qos, window=window)
    time.sleep(after)
    then(broker, publisher)
    return messages


def _resume(broker: Tried, count: int, *, idle: float = IDLE_SECONDS) -> tuple[bool, list[Publish]]:
    """Return (session present, messages received); waits longer until `count` have come."""
    subscriber = RawClient(broker.port, "subscriber")
    present = bool(subscriber.durable().session_present)
    received: list[Publish] = []
    if present:
        received = subscriber.take_all(idle=idle, enough=count, idle_then=0.2)
    subscriber.drop()
    return present, received


def _books(broker: Tried, messages: Sequence[tuple[str, bytes]], *, qos: int) -> Verdict:
    """Start the broker, let the subscriber resume, and compare what it gets with `messages`."""
    broker.start()
    present, received = _resume(broker, len(messages))
    if not present:
        return Verdict(False, "SP=0, all lost")
    got = [(publish.topic, publish.payload) for publish in received]
    faults = []
    if lost := len(messages) - len(set(got)):
        faults.append(f"{lost}/{len(messages)} lost")
    if twice := len(got) - len(set(got)):
        faults.append(f"{twice} twice")
    if got != sorted(got, key=lambda message: message[1]):
        faults.append("out of order")
    if any(publish.qos != qos for publish in received):
        faults.append("QoS changed")
    if any(publish.dup for publish in received):
        faults.append("DUP=1 on first delivery")
    return Verdict(not faults, ", ".join(faults) if faults else "0 lost")


ROWS: Final[dict[str, Scenario]] = {
    "kill -9 at last PUBACK, 2000 QoS 1": qos1_kill_at_last_puback,
    "kill -9 later, 2000 QoS 1": qos1_kill_later,
    "SIGTERM at last PUBACK, 2000 QoS 1": qos1_sigterm,
    "kill -9 at last PUBCOMP, 500 QoS 2": qos2_kill_at_last_pubcomp,
    "QoS 2 inbound half-open, kill -9, DUP resend": qos2_inbound_half_open,
    "unacked in flight, kill -9 -> redelivered?": unacknowledged_kill,
    "unacked in flight, SIGTERM -> redelivered?": unacknowledged_sigterm,
    "will of a client connected at kill -9": will_of_a_connected_client,
    "delayed will, kill -9 (v5)": delayed_will,
    "v5 Clean Start=1 + SEI>0, SIGTERM": clean_start_with_expiry_sigterm,
    "v5 Clean Start=1 + SEI>0, kill -9": clean_start_with_expiry_kill,
    "SEI over downtime, SIGTERM": session_expiry_over_downtime_sigterm,
    "SEI over downtime, kill -9": session_expiry_over_downtime_kill,
    "message expiry over downtime, SIGTERM": message_expiry_over_downtime_sigterm,
    "message expiry over downtime, kill -9": message_expiry_over_downtime_kill,
    "retained (200), kill -9 at ack": retained_kill,
}

SERVERS: Final = "HOLDFAST__STORAGE__KAFKA__SERVERS"
ON_KAFKA: Final = "holdfast on kafka"
GONE: Final = "on kafka, the machine is gone"


def _servers() -> list[str]:
    return [each for each in os.environ.get(SERVERS, "").split(",") if each]


def _on_kafka(directory: Path) -> Tried:
    from tests.takeover.pair import one_node  # its library, only if asked for

    return one_node(directory, _servers())


def _gone(directory: Path) -> Tried:
    from tests.takeover.pair import Pair

    return Pair(directory, _servers())


BROKERS: Final[dict[str, Callable[[Path], Tried]]] = {
    "holdfast": lambda directory: holdfast(directory),
    "mosquitto": lambda directory: mosquitto(directory),
    "mosquitto autosave": lambda directory: mosquitto(
        directory, config="autosave_on_changes true\nautosave_interval 1"
    ),
    ON_KAFKA: _on_kafka,
    GONE: _gone,
}


def run(row: str, name: str, directory: Path, pace: Pace) -> Verdict:
    """Run one row against a new broker of this name; the broker is gone on return."""
    broker = BROKERS[name](directory)
    try:
        broker.start()
        return ROWS[row](broker, pace)
    except AssertionError as error:
        print(broker.tail())
        return Verdict(False, f"error: {str(error).splitlines()[0]}")
    finally:
        broker.close()


def table(results: dict[tuple[str, str], Verdict], names: Sequence[str]) -> str:
    """Return the results as a Markdown table, failures in bold."""
    lines = ["| Scenario | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for row in ROWS:
        cells = []
        for name in names:
            verdict = results.get((row, name))
            text = "-" if verdict is None else verdict.text
            cells.append(text if verdict is None or verdict.passed else f"**{text}**")
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _can_be_had(name: str) -> bool:
    if name in (ON_KAFKA, GONE):
        return bool(_servers())
    return name == "holdfast" or have_mosquitto()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table for the brokers named; the exit code is 1 if a Holdfast failed a row."""
    parser = argparse.ArgumentParser(prog="scripts/crash-matrix", description=__doc__)
    parser.add_argument("brokers", nargs="*", help=f"any of: {', '.join(BROKERS)}")
    parser.add_argument("--quick", action="store_true", help="shorter waits, as in the tests")
    parser.add_argument("--jobs", type=int, default=4, help="scenarios at the same time")
    options = parser.parse_args(arguments)
    names = options.brokers or [name for name in BROKERS if _can_be_had(name)]
    for name in names:
        if name not in BROKERS:
            parser.error(f"broker {name!r}: expected one of {', '.join(BROKERS)}")
    pace = QUICK if options.quick else AS_MEASURED
    results: dict[tuple[str, str], Verdict] = {}
    with (
        # The process that writes the history may outlive a broker that was killed by one file.
        tempfile.TemporaryDirectory(
            prefix="crash-matrix-", ignore_cleanup_errors=True
        ) as directory,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
    ):
        futures = {
            (row, name): pool.submit(run, row, name, Path(directory, f"{number}-{place}"), pace)
            for number, row in enumerate(ROWS)
            for place, name in enumerate(names)
        }
        for key, future in futures.items():
            results[key] = future.result()
            print(f"{key[1]}: {key[0]}: {results[key].text}", file=sys.stderr)
    print(table(results, names))
    ours = ("holdfast", ON_KAFKA, GONE)
    failed = [key for key, verdict in results.items() if key[1] in ours and not verdict.passed]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
