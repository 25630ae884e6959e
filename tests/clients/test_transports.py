"""Foreign clients over WebSocket, TLS and Unix sockets: their sessions hold there as well."""

import queue
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from mqtt import reasons
from tests.broker.network.certificates import Authority
from tests.clients.conversation import MISSED, PATIENCE_SECONDS, paho_resumes, publish_missed
from tests.clients.node import Node, installed_modules
from tests.durability.foreign import RECONNECT_SECONDS, connect
from tests.durability.process import BrokerProcess, free_port, holdfast
from tests.durability.rawclient import RawClient


class Place:
    """A broker with a listener of each kind, and what its clients need to know."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "tls")
        self.anna = self.authority.issue("anna")
        self.socket = directory / "mqtt.sock"
        self.ports = {name: free_port() for name in ("web", "secure", "web_secure")}
        certificate, key = map(str, self.authority.server())
        secured = {"TLS_CERTIFICATE": certificate, "TLS_KEY": key}
        mutual = {"TLS_CLIENT_CA": str(self.authority.file), "TLS_IDENTITY": "cn"}
        tables = {
            "web": {"TYPE": "websocket"},
            "secure": {**secured, **mutual},
            "web_secure": {"TYPE": "websocket", **secured},
        }
        env = {
            f"HOLDFAST__LISTENER__{name.upper()}__{key}": value
            for name, table in tables.items()
            for key, value in {"PORT": str(self.ports[name]), **table}.items()
        }
        env["HOLDFAST__LISTENER__LOCAL__TYPE"] = "unix"
        env["HOLDFAST__LISTENER__LOCAL__PATH"] = str(self.socket)
        self.broker = holdfast(directory / "broker", env=env)

    def paho(self, kind: str, client_id: str, protocol: int) -> tuple[paho.Client, int]:
        """Return a durable client for one kind of listener, and the port to connect to."""
        fields: dict[str, Any] = {} if protocol == paho.MQTTv5 else {"clean_session": False}
        transports = {"web": "websockets", "web_secure": "websockets", "local": "unix"}
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=protocol,  # type: ignore[arg-type]
            transport=transports.get(kind, "tcp"),  # type: ignore[arg-type]
            **fields,
        )
        client.reconnect_delay_set(RECONNECT_SECONDS, RECONNECT_SECONDS)  # type: ignore[arg-type]
        if kind in ("secure", "web_secure"):
            shown = self.anna if kind == "secure" else None
            client.tls_set_context(self.authority.client_context(shown))
        return client, self.ports.get(kind, 1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("t"))
    made.broker.start()
    yield made
    made.broker.close()


@pytest.fixture
def broker(place: Place) -> BrokerProcess:
    """In place of the broker of the other modules."""
    if not place.broker.is_running():
        place.broker.start()
    return place.broker


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # paho's, as in test_paho
@pytest.mark.parametrize("protocol", [paho.MQTTv311, paho.MQTTv5], ids=["v4", "v5"])
@pytest.mark.parametrize("kind", ["web", "web_secure", "secure", "local"])
def test_paho_resumes_over_every_transport(
    place: Place, broker: BrokerProcess, other: RawClient, name: str, kind: str, protocol: int
) -> None:
    client, port = place.paho(kind, name, protocol)
    host = str(place.socket) if kind == "local" else "127.0.0.1"
    paho_resumes(client, broker, other, name, "x" * 300_000, port=port, host=host)


def test_a_session_belongs_to_the_name_in_the_certificate(
    place: Place, broker: BrokerProcess, name: str
) -> None:
    """The TCP listener knows no names; whoever comes from there is not anna."""
    connected: queue.Queue[bool] = queue.Queue()
    client, port = place.paho("secure", name, paho.MQTTv5)
    client.on_connect = lambda c, u, flags, reason, p: connected.put(reason == 0)
    connect(client, port)
    assert connected.get(timeout=PATIENCE_SECONDS)
    client.disconnect()
    client.loop_stop()
    thief = RawClient(broker.port, name)
    thief.durable(reason=reasons.NOT_AUTHORIZED)


def test_a_certificate_that_the_broker_does_not_know_is_refused(
    place: Place, broker: BrokerProcess, name: str, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger").issue("anna")
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name)
    client.tls_set_context(place.authority.client_context(stranger))
    accepted: list[Any] = []
    client.on_connect = lambda c, u, flags, reason, p: accepted.append(reason)
    try:
        client.connect("127.0.0.1", place.ports["secure"])
        for _ in range(100):
            if client.loop(timeout=0.1) != paho.MQTT_ERR_SUCCESS:
                break
        else:
            pytest.fail("still connected")
    except (ssl.SSLError, ConnectionError) as refusal:
        assert refusal.args
    assert not accepted


@pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None, reason="Debian's mosquitto-clients is not installed"
)
@pytest.mark.parametrize("kind", ["secure", "local"])
def test_mosquitto_clients_speak_tls_and_unix_sockets(
    place: Place, broker: BrokerProcess, name: str, kind: str
) -> None:
    if kind == "local":
        where = ["--unix", str(place.socket)]
    else:
        where = ["-h", "127.0.0.1", "-p", str(place.ports["secure"])]
        where += ["--cafile", str(place.authority.file)]
        where += ["--cert", str(place.anna[0]), "--key", str(place.anna[1])]
    waits = ["mosquitto_sub", *where, "-c", "-i", name, "-q", "2", "-t", f"{name}/in"]
    sends = ["mosquitto_pub", *where, "-q", "2", "-t", f"{name}/in", "-m", "hello"]
    subprocess.run([*waits, "-E"], check=True, timeout=PATIENCE_SECONDS)
    subprocess.run(sends, check=True, timeout=PATIENCE_SECONDS)
    broker.crash()
    result = subprocess.run(
        [*waits, "-C", "1"], check=True, timeout=PATIENCE_SECONDS, capture_output=True, text=True
    )
    assert result.stdout == "hello\n"


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_mqttjs_resumes_over_websocket(
    place: Place, broker: BrokerProcess, other: RawClient, name: str, scheme: str, version: int
) -> None:
    modules = installed_modules()
    port = place.ports["web" if scheme == "ws" else "web_secure"]
    url = f"{scheme}://127.0.0.1:{port}/mqtt"
    env = {"NODE_EXTRA_CA_CERTS": str(place.authority.file)}
    node = Node(modules, url, name, version, **env)
    try:
        node.expect("connect", sessionPresent=False)
        node.expect("subscribed", error=None)
        other.resume()
        other.publish(f"{name}/in", "echo 1", qos=2)
        node.expect("message", payload="echo 1")
        node.expect("published")
        other.take(1)
        other.disconnect()
        broker.crash()
        node.expect("connect", sessionPresent=True)
        node.kill()
        publish_missed(broker, other, name)
        node = Node(modules, url, name, version, **env)
        node.expect_resumed(MISSED)
    finally:
        node.kill()
