"""MQTT 3.1.1, section 6: WebSocket as the transport. See `conformance.over_websocket`."""

from conformance import over_websocket
from conformance.check import Bench, statement


@statement("MQTT-6.0.0-1", needs=("websocket",))
def mqtt_6_0_0_1(bench: Bench) -> None:
    """[MQTT-6.0.0-1] MQTT travels in binary frames; any other data frame ends the connection."""
    over_websocket.binary_frames_only(bench)


@statement("MQTT-6.0.0-2", needs=("websocket",))
def mqtt_6_0_0_2(bench: Bench) -> None:
    """[MQTT-6.0.0-2] A frame may hold several packets or parts of them: borders mean nothing."""
    over_websocket.borders_mean_nothing(bench)


@statement("MQTT-6.0.0-3", needs=("websocket",))
def mqtt_6_0_0_3(bench: Bench) -> None:
    """[MQTT-6.0.0-3] A client that does not offer the subprotocol mqtt is not answered with it."""
    over_websocket.subprotocol_only_if_offered(bench)


@statement("MQTT-6.0.0-4", needs=("websocket",))
def mqtt_6_0_0_4(bench: Bench) -> None:
    """[MQTT-6.0.0-4] A client that offers the subprotocol mqtt is answered with exactly that."""
    over_websocket.subprotocol_is_mqtt(bench)
