"""What an operator has the running broker do, beyond kicks, purges and ends of sessions.

Every change is durable on return, but for traces and the log's level, which are in memory. Knows no
HTTP, and must never decide who may ask. Read next: `broker.admin.asking`,
`broker.process.desks`.
"""

import base64
import binascii
import json
from typing import Any, Final

import msgspec

from broker.admin import records
from broker.admin.asking import Asking
from broker.admin.sources.lanes import NotThere

BANS_MAX: Final = 100_000  # in one list


class Acting:
    """Acts on one running broker. Raises `ControlError`, `Busy`; `NotThere` where it is said."""

    def __init__(self, asking: Asking) -> None:
        self._asking: Final = asking

    # Bans

    async def bans(self) -> list[records.Ban]:
        """Return all bans."""
        rows: list[records.Ban] = []
        after = ""
        while len(rows) < BANS_MAX:
            answer = await self._asking.ask({"do": "ban_list", "after": after})
            rows += msgspec.json.decode(answer["bans"], type=list[records.Ban])
            after = answer["after"]
            if not after:
                break
        return rows

    async def ban(
        self, kind: str, value: str, name: str, *, for_s: int, reason: str = ""
    ) -> records.Ban:
        """Ban a client id, a user or an address for a time; who is connected is sent away."""
        request = {"do": "ban_add", "kind": kind, "value": value, "for_ms": str(1000 * for_s)}
        answer = await self._asking.ask({**request, "reason": reason}, name)
        return msgspec.json.decode(answer["ban"], type=records.Ban)

    async def unban(
        self, kind: str, value: str, name: str, *, reason: str = ""
    ) -> records.Unbanned:
        """Remove a ban. Raises `NotThere`."""
        request = {"do": "ban_remove", "kind": kind, "value": value, "reason": reason}
        answer = await self._asking.ask(request, name)
        return records.Unbanned(kind, answer["value"])

    # Messages

    async def publish(
        self, wanted: records.Publication, name: str, payload: bytes
    ) -> records.Published:
        """Publish a message; it is durable where it has to be."""
        request = {
            "do": "publish",
            "topic": wanted.topic,
            "payload": base64.b64encode(payload).decode(),
            "qos": str(wanted.qos),
            "retain": str(int(wanted.retain)),
            "content_type": wanted.content_type or "",
            "properties": json.dumps(wanted.user_properties),
            "reason": wanted.reason,
        }
        if wanted.expiry_seconds is not None:
            request["expiry_s"] = str(wanted.expiry_seconds)
        answer = await self._asking.ask(request, name)
        return records.Published(
            topic=wanted.topic,
            matched=int(answer["matched"]),
            connected=int(answer["connected"]),
            groups=int(answer["groups"]),
            filters=int(answer["filters"]),
            stored=answer["stored"] == "1",
        )

    async def delete_retained(
        self,
        name: str,
        *,
        topic: str | None = None,
        match: str | None = None,
        reason: str = "",
        dry_run: bool,
    ) -> records.RetainedDeleted:
        """Delete the retained message of a topic, or all of topics that a filter matches.

        Raises `NotThere` if a topic has none.
        """
        if dry_run:
            found = await self._asking.count_retained(topic or match or "")
            return records.RetainedDeleted(True, found)
        what = {"topic": topic} if topic is not None else {"topic_filter": match or ""}
        answer = await self._asking.ask({"do": "retained_delete", "reason": reason, **what}, name)
        deleted = int(answer["deleted"])
        if topic is not None and not deleted:
            raise NotThere(f"no retained message on {topic!r}")
        return records.RetainedDeleted(False, deleted)

    async def purge_group(
        self,
        share_name: str,
        topic_filter: str,
        name: str,
        *,
        older_ms: int = 0,
        topic: str | None = None,
        reason: str = "",
        dry_run: bool,
    ) -> records.GroupPurged:
        """Drop what waits for a shared subscription. Raises `NotThere`."""
        found = await self._asking.group(share_name, topic_filter)
        if dry_run:
            return records.GroupPurged(share_name, topic_filter, True, found.waiting)
        request = {
            "do": "group_purge",
            "group": share_name,
            "topic_filter": topic_filter,
            "older_ms": str(older_ms),
            "topic": topic or "",
            "reason": reason,
        }
        number = (await self._asking.ask(request, name))["purge"]
        dropped = await self._asking.purged(number)
        return records.GroupPurged(share_name, topic_filter, False, dropped)

    # Traces

    async def traces(self) -> list[records.Trace]:
        """Return the traces that are on."""
        answer = await self._asking.ask({"do": "trace_list"})
        return msgspec.json.decode(answer["traces"], type=list[records.Trace])

    async def trace(
        self, kind: str, value: str, name: str, *, for_s: int, payload_bytes: int
    ) -> records.TraceBegun:
        """Begin a trace; it ends with its time, or when nobody reads it."""
        request = {"do": "trace_add", "kind": kind, "value": value, "for_ms": str(1000 * for_s)}
        answer = await self._asking.ask({**request, "payload_bytes": str(payload_bytes)}, name)
        return records.TraceBegun(int(answer["trace"]))

    async def trace_lines(self, number: int, *, payloads: bool) -> records.TraceLines:
        """Return what a trace has told since it was read last, and forget it there."""
        answer = await self._asking.ask({"do": "trace_read", "trace": str(number)})
        lines: list[dict[str, Any]] = json.loads(answer["lines"])
        if not payloads:
            for line in lines:
                line.pop("payload", None)
        return records.TraceLines(lines, int(answer["left_out"]), answer["over"])

    async def end_trace(self, number: int, name: str) -> records.TraceBegun:
        """End a trace."""
        answer = await self._asking.ask({"do": "trace_remove", "trace": str(number)}, name)
        return records.TraceBegun(int(answer["trace"]))

    # The process

    async def set_log_level(self, level: str, name: str, *, for_s: int = 0) -> records.LogLevel:
        """Have the broker log from a level on, for a time or until it reads its configuration."""
        request = {"do": "log_level", "level": level, "for_ms": str(1000 * for_s)}
        answer = await self._asking.ask(request, name)
        return records.LogLevel(answer["level"], answer["configured"])

    async def reload(self, name: str) -> records.Reloaded:
        """Have the broker read its files again, as SIGHUP does."""
        answer = await self._asking.ask({"do": "config_reload"}, name)
        return records.Reloaded(**{key: json.loads(value) for key, value in answer.items()})


def payload_of(wanted: records.Publication) -> bytes:
    """Return what a message is to say. Raises `ValueError`."""
    if wanted.text is not None and wanted.payload is None:
        return wanted.text.encode()
    if wanted.text is not None or wanted.payload is None:
        raise ValueError("expected text or payload, one of them")
    try:
        return base64.b64decode(wanted.payload, validate=True)
    except (ValueError, binascii.Error):
        raise ValueError("payload: expected Base64") from None


def publish_details(wanted: records.Publication, payload: bytes) -> dict[str, Any]:
    """Return what the admin log says of a message: never what is in it."""
    details = {"topic": wanted.topic, "qos": wanted.qos, "retain": wanted.retain}
    return {**details, "bytes": len(payload), "reason": wanted.reason}
