"""paho-mqtt 2 keeps its session over a cut connection and a kill -9 of the broker."""

import paho.mqtt.client as paho
import pytest

from tests.clients.conversation import paho_resumes
from tests.durability.foreign import durable_client
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient


# paho leaves the sockets it wakes itself with open when its loop is started again.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("protocol", [paho.MQTTv311, paho.MQTTv5], ids=["v4", "v5"])
def test_paho_resumes(broker: BrokerProcess, other: RawClient, name: str, protocol: int) -> None:
    client = durable_client(name, protocol)
    paho_resumes(client, broker, other, name, "live", port=broker.port)
