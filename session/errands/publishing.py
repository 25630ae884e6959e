"""Publishes a message for an operator, on the way that messages of clients take.

Limits, quotas and the disk may refuse it, as a client's; the policy is not asked. Must never be
asked for a topic that is not valid. Read next: `session.publish.accept`.
"""

from typing import Final

from mqtt import reasons
from mqtt.message import NEVER, Message
from session.assembly import Assembly

NO_EXPIRY: Final = -1


class Published:
    """What became of a message."""

    __slots__ = ("connected", "filters", "groups", "reason_code", "stored")

    def __init__(
        self, reason_code: int, *, connected: int, groups: int, filters: int, stored: bool
    ) -> None:
        self.reason_code: Final = reason_code  # as in PUBACK; 0x80 and above: it was refused
        self.connected: Final = connected  # clients that have a matching subscription now
        self.groups: Final = groups  # shared subscriptions that match
        self.filters: Final = filters  # topic filters of sessions, groups and stores it is kept for
        self.stored: Final = stored  # in the log, or as a retained message


class OperatorPublishing:
    """Publishes for an operator."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly: Final = assembly

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        *,
        retain: bool,
        properties: bytes,
        expiry_s: int,
        asker: str,
    ) -> Published:
        """Accept a message on a valid topic, or refuse it without changing anything.

        `properties` are raw, to be passed on; `expiry_s` is its Message Expiry Interval, or
        `NO_EXPIRY`. What it changes is durable with this tick's batch.
        """
        assembly = self._assembly
        now = assembly.core.tick.now
        refusal = self._refusal(topic, len(payload) + len(properties), qos, retain=retain)
        if refusal:
            return _refused(refusal)
        message = Message(
            topic,
            payload,
            qos,
            retain,
            properties,
            "",
            now,
            NEVER if expiry_s == NO_EXPIRY else now + expiry_s * 1000,
        )
        publishes = assembly.history.publishes
        publication = publishes.will("", "") if publishes.is_on else None  # nobody waits for PUBACK
        route = assembly.publishing.route(topic)
        connected, groups = len(route.targets), len(route.groups)
        filters = len(route.filter_ids)
        accepted = assembly.publishing.accept(message, route, publication)
        if accepted.reason_code >= 0x80:
            return _refused(accepted.reason_code)
        assembly.history.sessions.acted("publish to", topic, 1, asker)
        return Published(
            accepted.reason_code,
            connected=connected,
            groups=groups,
            filters=filters,
            stored=accepted.is_changed,
        )

    def _refusal(self, topic: str, size: int, qos: int, *, retain: bool) -> int:
        """Return the reason why a client could not publish this, or 0."""
        settings = self._assembly.core.settings
        if topic.count("/") >= settings.topic_levels_max:
            return reasons.TOPIC_NAME_INVALID
        if topic.startswith("$"):
            return reasons.NOT_AUTHORIZED  # the server's [MQTT-4.7.2-1]
        if qos > settings.maximum_qos:
            return reasons.QOS_NOT_SUPPORTED
        if retain and not settings.retain_available:
            return reasons.RETAIN_NOT_SUPPORTED
        if size + len(topic.encode()) > settings.maximum_packet_size:
            return reasons.PACKET_TOO_LARGE
        return 0


def _refused(reason_code: int) -> Published:
    return Published(reason_code, connected=0, groups=0, filters=0, stored=False)
