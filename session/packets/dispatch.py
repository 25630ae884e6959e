"""Calls the handler of each packet of an accepted connection.

Errors of the client are raised as `MqttError`; only the engine turns them into a close. PUBLISH and
runs of packets go from the engine directly to their handlers. Read next:
`session.packets.publish`, `session.packets.acknowledge`, `session.packets.subscribe`.
"""

from typing import Final

from mqtt.encoder import PINGRESP_BYTES
from mqtt.errors import ProtocolError
from mqtt.packet_runs import Received
from mqtt.packets import (
    PINGRESP,
    Auth,
    Disconnect,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
    UserProperties,
)
from session.lifetime.authentication import Authentication
from session.lifetime.context import ClientContext
from session.lifetime.disconnect import DisconnectHandler
from session.live.connection import Connection
from session.live.tick import AUTH_WORK
from session.packets.acknowledge import AcknowledgeHandler
from session.packets.publish import PublishHandler
from session.packets.subscribe import SubscribeHandler

USER_SHIFT: Final = 2  # four user properties are a unit of work


class Dispatcher:
    """Passes each packet of an accepted connection to its handler."""

    def __init__(
        self,
        context: ClientContext,
        publishes: PublishHandler,
        acknowledgements: AcknowledgeHandler,
        subscriptions: SubscribeHandler,
        authentication: Authentication,
        disconnects: DisconnectHandler,
    ) -> None:
        self.publishes: Final = publishes
        self.acknowledgements: Final = acknowledgements
        self.subscriptions: Final = subscriptions
        self._tick: Final = context.tick
        self._gate: Final = context.gate
        self._counters: Final = context.counters
        self._authentication: Final = authentication
        self._disconnects: Final = disconnects

    def dispatch(self, connection: Connection, packet: Received) -> bool:
        """Handle a packet; False = call again: a long one is handled in slices."""
        if not self.subscriptions.is_unfinished(connection):
            self._counters.packets_received[packet.kind] += 1
        if isinstance(packet, Publish):
            self.publishes.publish(connection, packet)
        elif isinstance(packet, Puback):
            self._weigh(packet.user_properties)
            self.acknowledgements.puback(connection, packet)
        elif isinstance(packet, Pubrec):
            self._weigh(packet.user_properties)
            self.acknowledgements.pubrec(connection, packet)
        elif isinstance(packet, Pubrel):
            self._weigh(packet.user_properties)
            self.publishes.pubrel(connection, packet)
        elif isinstance(packet, Pubcomp):
            self._weigh(packet.user_properties)
            self.acknowledgements.pubcomp(connection, packet)
        elif isinstance(packet, Pingreq):
            self._ping(connection)
        elif isinstance(packet, Subscribe):
            self._weigh(packet.user_properties)
            return self.subscriptions.subscribe(connection, packet)
        elif isinstance(packet, Unsubscribe):
            self._weigh(packet.user_properties)
            return self.subscriptions.unsubscribe(connection, packet)
        elif isinstance(packet, Disconnect):
            mistake = self._disconnects.disconnect(connection, packet)
            if mistake:
                raise ProtocolError("session expiry interval raised from 0", mistake)
        elif isinstance(packet, Auth):
            self._tick.work += AUTH_WORK
            self._weigh(packet.user_properties)
            self._authentication.receive(connection, packet)
        else:
            raise ProtocolError("second CONNECT")  # [MQTT-3.1.0-2]
        return True

    def _weigh(self, user_properties: UserProperties) -> None:
        """Count the work of decoding the user properties of a packet: up to 1,024."""
        if user_properties:
            self._tick.work += len(user_properties) >> USER_SHIFT

    def _ping(self, connection: Connection) -> None:
        """Answer with PINGRESP; it never waits for a commit [MQTT-3.12.4-1]."""
        self._counters.packets_sent[PINGRESP] += 1
        self._gate.send(connection, PINGRESP_BYTES)
