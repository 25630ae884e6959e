"""The pages of traces: those that are on, and what one tells.

Pure. Read next: `broker.admin.records`, `broker.operations.tracing.traces`.
"""

from collections.abc import Iterable
from typing import Any, Final

from broker.admin.pages.words import amounts, links
from broker.admin.records import Trace

KINDS: Final = (("client", "a client"), ("topic", "a topic filter"), ("address", "an address"))
DIRECTIONS: Final = {"in": "from it", "out": "to it"}


def traces(found: Iterable[Trace], ours: Iterable[int]) -> list[dict[str, Any]]:
    """Return a line for each trace that is on; those that were begun here can be watched."""
    mine = frozenset(ours)
    return [
        {
            "kind": each.kind,
            "value": each.value,
            "href": links.url("/trace/lines", trace=each.trace) if each.trace in mine else "",
            "left": amounts.span(each.seconds_left),
            "by": each.by,
            "stop": links.url("/trace/stop", trace=each.trace),
        }
        for each in found
    ]


def line(told: dict[str, Any]) -> dict[str, Any]:
    """Return what a line of a trace shows."""
    words = []
    if "packet_id" in told:
        words.append(f"packet id {told['packet_id']}")
    if "qos" in told:
        words.append(f"QoS {told['qos']}")
    if "reason_code" in told:
        words.append(f"reason {told['reason_code']:#04x}")
    if "size" in told:
        words.append(amounts.size(told["size"]))
    if "after_ms" in told:
        words.append(f"after {told['after_ms']} ms")
    return {
        "at": f"{amounts.of_ms(told['at_ms']):%H:%M:%S.%f}"[:-3],
        "client_id": told["client_id"],
        "direction": DIRECTIONS.get(told["direction"], ""),
        "packet": told.get("packet", ""),
        "topic": told.get("topic"),
        "details": ", ".join(words),
        "text": told.get("text", ""),
        "payload": bytes.fromhex(told.get("payload") or ""),
    }
