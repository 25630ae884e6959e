"""What an operator asks of messages: publish one, delete retained ones.

Both are answered when they are durable, and logged with the user who asked. Read next:
`session.errands.publishing`, `session.errands.clearing`, which do it.
"""

import base64
import binascii
import json
from concurrent.futures import Future
from typing import Final

from broker.loop.driver import Driver
from broker.observe.structured_log import Log
from broker.operations.control_socket import BY, Answer, ControlError, Request
from broker.process.desks.engine_work import begin, whole_number
from mqtt import reasons
from mqtt.decoder import USER_PROPERTIES_MAX
from mqtt.encoder import message_properties
from mqtt.errors import MqttError
from mqtt.properties import read_publish
from mqtt.topics import SHARE_PREFIX, filter_problem, topic_problem
from session.engine import Engine
from session.errands.clearing import Clearing
from session.errands.publishing import NO_EXPIRY

PUBLISH: Final = "publish"
DELETE: Final = "retained_delete"
REQUESTS: Final = frozenset({PUBLISH, DELETE})

PAYLOAD_BYTES_MAX: Final = 256 << 10  # its base64 and a topic fit into a line of the socket
EXPIRY_S_MAX: Final = (1 << 32) - 1
SHOWN_MAX: Final = 200  # characters of a topic in the log


class PublishDesk:
    """Answers requests about messages and retained messages."""

    def __init__(self, engine: Engine, driver: Driver, log: Log) -> None:
        self._engine: Final = engine
        self._driver: Final = driver
        self._log: Final = log

    def answer(self, request: Request) -> Answer:
        """Answer a request of `REQUESTS`. Raises `ControlError`, at once or in the future."""
        works = {PUBLISH: self._publish, DELETE: self._delete}
        return begin(self._driver, works[request["do"]], request)

    def _publish(self, request: Request, found: "Future[Request]") -> None:
        topic = request.get("topic", "")
        problem = topic_problem(topic)
        if problem is not None:
            raise ControlError(problem)
        payload = _payload(request)
        qos = whole_number(request, "qos")
        if qos > 2:
            raise ControlError(f"qos = {qos}: expected 0, 1 or 2")
        retain = request.get("retain", "0")
        if retain not in ("0", "1"):
            raise ControlError(f"retain = {retain[:40]!r}: expected 0 or 1")
        published = self._engine.administer(self._driver.now).publish(
            topic,
            payload,
            qos,
            request[BY],
            request.get("reason", ""),
            retain=retain == "1",
            properties=_properties(request),
            expiry_s=_expiry(request),
        )
        if published.reason_code >= reasons.UNSPECIFIED_ERROR:
            raise ControlError(self._refusal(published.reason_code, topic))
        self._log.info(
            "operator_published",
            "an operator publishes a message",
            topic=topic[:SHOWN_MAX],
            bytes=len(payload),
            qos=qos,
            retain=retain == "1",
            by=request[BY],
        )
        answer = {
            "matched": str(published.connected + published.groups + published.filters),
            "connected": str(published.connected),
            "groups": str(published.groups),
            "filters": str(published.filters),
            "stored": str(int(published.stored)),
        }
        self._driver.when_durable(lambda: found.set_result(answer))

    def _refusal(self, reason_code: int, topic: str) -> str:
        """Return one line for an operator whose message was refused."""
        settings, shown = self._engine.settings, repr(topic[:SHOWN_MAX])
        lines = {
            reasons.TOPIC_NAME_INVALID: f"topic {shown}: more than {settings.topic_levels_max} "
            "levels (limits.topic_levels)",
            reasons.NOT_AUTHORIZED: f"topic {shown}: what begins with $ is the broker's own",
            reasons.QOS_NOT_SUPPORTED: f"the highest QoS is {settings.maximum_qos}",
            reasons.RETAIN_NOT_SUPPORTED: "this broker retains no messages",
            reasons.PACKET_TOO_LARGE: "the message is larger than a packet may be, "
            f"{settings.maximum_packet_size} bytes",
            reasons.QUOTA_EXCEEDED: "the broker has no room for it: a limit is reached, or the "
            "disk is nearly full",
        }
        return lines.get(reason_code, f"refused: {reasons.name(reason_code)}")

    def _delete(self, request: Request, found: "Future[Request]") -> None:
        """Delete retained messages in slices; the end is told when it is durable."""
        clearing = self._engine.administer(self._driver.now).clear_retained(
            _cleared(request), request[BY], request.get("reason", "")
        )
        clearing.ended = lambda: self._deleted(clearing, found)
        self._log.info(
            "retained_deleted",
            "an operator deletes retained messages",
            topic_filter=clearing.topic_filter[:SHOWN_MAX],
            by=request[BY],
            reason=request.get("reason", ""),
        )

    def _deleted(self, clearing: Clearing, found: "Future[Request]") -> None:
        if clearing.why:
            found.set_exception(
                ControlError(f"{clearing.deleted} are deleted; then {clearing.why}")
            )
            return
        answer = {"deleted": str(clearing.deleted)}
        self._driver.when_durable(lambda: found.set_result(answer))


def _payload(request: Request) -> bytes:
    """Return the payload of a request. Raises `ControlError`."""
    try:
        payload = base64.b64decode(request.get("payload", ""), validate=True)
    except (binascii.Error, ValueError):
        raise ControlError("payload: expected base64") from None
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise ControlError(
            f"a payload of {len(payload)} bytes: expected at most {PAYLOAD_BYTES_MAX}; larger ones "
            "are for an MQTT client"
        )
    return payload


def _properties(request: Request) -> bytes:
    """Return the properties of a request, raw. Raises `ControlError`."""
    try:
        pairs = json.loads(request.get("properties", "[]"))
    except (ValueError, RecursionError):
        raise ControlError("properties: expected a JSON list of pairs") from None
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(each, str) for each in pair)
        for pair in pairs
    ):
        raise ControlError("properties: expected a JSON list of pairs of text")
    content_type = request.get("content_type") or None
    try:
        raw = message_properties(content_type, tuple((name, value) for name, value in pairs))
        read_publish(raw, USER_PROPERTIES_MAX)
    except (ValueError, MqttError) as problem:
        raise ControlError(str(problem)) from None
    return raw


def _expiry(request: Request) -> int:
    """Return the Message Expiry Interval of a request, seconds. Raises `ControlError`."""
    if not request.get("expiry_s"):
        return NO_EXPIRY
    expiry_s = whole_number(request, "expiry_s")
    if expiry_s > EXPIRY_S_MAX:
        raise ControlError(f"expiry_s = {expiry_s}: expected at most {EXPIRY_S_MAX}")
    return expiry_s


def _cleared(request: Request) -> str:
    """Return the topic or topic filter of a request. Raises `ControlError`."""
    topic, topic_filter = request.get("topic"), request.get("topic_filter")
    if (topic is None) == (topic_filter is None):
        raise ControlError("expected topic or topic_filter, one of them")
    if topic is not None:
        problem = topic_problem(topic)
        text = topic
    else:
        assert topic_filter is not None
        text, problem = topic_filter, filter_problem(topic_filter)
        if problem is None and text.startswith(SHARE_PREFIX):
            problem = f"topic filter {text[:60]!r}: expected one that is not shared"
    if problem is not None:
        raise ControlError(problem)
    return text
