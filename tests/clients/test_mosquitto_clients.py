"""mosquitto_pub and mosquitto_sub keep a session over kill -9 of the broker."""

import shutil
import subprocess

import pytest

from tests.clients.conversation import PATIENCE_SECONDS
from tests.durability.process import BrokerProcess

pytestmark = pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None, reason="Debian's mosquitto-clients is not installed"
)


def _arguments(program: str, broker: BrokerProcess, version: int, *rest: str) -> list[str]:
    protocol = "mqttv5" if version == 5 else "mqttv311"
    return [program, "-h", "127.0.0.1", "-p", str(broker.port), "-V", protocol, *rest]


def _subscribe(broker: BrokerProcess, name: str, version: int, *rest: str) -> list[str]:
    expiry = ["-x", "3600"] if version == 5 else []
    common = ["-c", "-i", name, "-q", "2", "-t", f"{name}/in", *expiry]
    return _arguments("mosquitto_sub", broker, version, *common, *rest)


def _roomy(version: int) -> list[str]:
    """Return a Receive Maximum above the -C count, which mosquitto_sub 2.0.11 would take for it.

    It counts a message that comes again after a reconnect twice, and gives up at its own limit.
    """
    return ["-D", "CONNECT", "receive-maximum", "20"] if version == 5 else []


def _publish(broker: BrokerProcess, name: str, version: int, payload: str) -> None:
    subprocess.run(
        _arguments("mosquitto_pub", broker, version, "-q", "2", "-t", f"{name}/in", "-m", payload),
        check=True,
        timeout=PATIENCE_SECONDS,
    )


@pytest.mark.parametrize("version", [4, 5])
def test_mosquitto_sub_gets_what_it_missed(broker: BrokerProcess, name: str, version: int) -> None:
    subprocess.run(_subscribe(broker, name, version, "-E"), check=True, timeout=PATIENCE_SECONDS)
    for number in range(5):
        _publish(broker, name, version, f"missed {number}")
    broker.crash()
    result = subprocess.run(
        _subscribe(broker, name, version, "-C", "5"),
        check=True,
        timeout=PATIENCE_SECONDS,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert result.stdout.splitlines() == [f"missed {number}" for number in range(5)]


@pytest.mark.parametrize("version", [4, 5])
def test_mosquitto_sub_reconnects_to_its_session(
    broker: BrokerProcess, name: str, version: int
) -> None:
    """Each message is printed before the next crash: then its PUBREC is durable.

    mosquitto_sub 2.0.11 keeps a second copy of a QoS 2 message whose PUBLISH comes again, and
    prints that one later in place of another with the same packet id.
    """
    subprocess.run(_subscribe(broker, name, version, "-E"), check=True, timeout=PATIENCE_SECONDS)
    wanted, printed = [], []
    with subprocess.Popen(
        _subscribe(broker, name, version, "-C", "6", *_roomy(version)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as subscriber:
        assert subscriber.stdout is not None
        try:
            for turn in range(3):
                for when in ("before", "after"):
                    wanted.append(f"{turn} {when}")
                    _publish(broker, name, version, wanted[-1])
                    printed.append(subscriber.stdout.readline().rstrip("\n"))
                    if when == "before":
                        broker.crash()
            assert subscriber.wait(PATIENCE_SECONDS) == 0
        finally:
            subscriber.kill()
    assert printed == wanted
