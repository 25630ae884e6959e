"""What each endpoint changes: all of it through `Services.change`, so with its lines in the log.

What would only be tried (`dry_run`) changes nothing and is in no log. Must never log a payload or a
secret. Read next: `broker.admin.asking`, `broker.admin.acting`, `broker.admin.api.table`.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from broker.admin.access.roles import Role
from broker.admin.acting import payload_of, publish_details
from broker.admin.api.endpoints import Call
from broker.admin.api.values import duration_s
from broker.admin.problems import Refused
from broker.admin.services import demand_payloads

OPERATOR: Final = Role.OPERATOR
ADMIN: Final = Role.ADMIN


async def _change(
    call: Call,
    what: str,
    details: dict[str, Any],
    work: Callable[[], Awaitable[Any]],
    role: Role = OPERATOR,
) -> Any:
    """Change something, or only try to."""
    if call.values.get("dry_run"):
        return await work()
    return await call.services.change(call.who, role, what, details, work)


def _details(call: Call, *names: str) -> dict[str, Any]:
    """Return these parameters, those that are given."""
    return {name: call.values[name] for name in names if call.values[name] is not None}


# Sessions and clients


async def purge(call: Call) -> Any:
    """Drop what waits for a session."""
    given = call.values
    return await _change(
        call,
        "purge session",
        _details(call, "client_id", "older", "topic", "kick", "reason"),
        lambda: call.services.asking.purge(
            given["client_id"],
            call.who.name,
            older_ms=1000 * (given["older"] or 0),
            topic=given["topic"],
            kick=given["kick"],
            reason=given["reason"],
            dry_run=given["dry_run"],
        ),
    )


async def delete_session(call: Call) -> Any:
    """End a session."""
    given = call.values
    return await _change(
        call,
        "delete session",
        _details(call, "client_id", "reason"),
        lambda: call.services.asking.delete(
            given["client_id"], call.who.name, reason=given["reason"], dry_run=given["dry_run"]
        ),
    )


async def kick(call: Call) -> Any:
    """End a connection."""
    client_id, reason = call.values["client_id"], call.values["reason"]
    return await _change(
        call,
        "kick client",
        _details(call, "client_id", "reason"),
        lambda: call.services.asking.kick(client_id, call.who.name, reason=reason),
    )


async def ban(call: Call) -> Any:
    """Ban a client id, a user or an address."""
    wanted = call.body
    return await _change(
        call,
        "ban",
        {
            "kind": wanted.kind,
            "value": wanted.value,
            "for": wanted.for_,
            "reason": wanted.reason,
        },
        lambda: call.services.acting.ban(
            wanted.kind,
            wanted.value,
            call.who.name,
            for_s=duration_s(wanted.for_),
            reason=wanted.reason,
        ),
    )


async def unban(call: Call) -> Any:
    """Remove a ban."""
    given = call.values
    return await _change(
        call,
        "remove ban",
        _details(call, "kind", "value", "reason"),
        lambda: call.services.acting.unban(
            given["kind"], given["value"], call.who.name, reason=given["reason"]
        ),
    )


# Groups and messages


async def purge_group(call: Call) -> Any:
    """Drop what waits for a shared subscription."""
    given = call.values
    return await _change(
        call,
        "purge group",
        _details(call, "share_name", "topic_filter", "older", "topic", "reason"),
        lambda: call.services.acting.purge_group(
            given["share_name"],
            given["topic_filter"],
            call.who.name,
            older_ms=1000 * (given["older"] or 0),
            topic=given["topic"],
            reason=given["reason"],
            dry_run=given["dry_run"],
        ),
    )


async def delete_retained(call: Call) -> Any:
    """Delete a retained message."""
    given = call.values
    return await _change(
        call,
        "delete retained",
        _details(call, "topic", "reason"),
        lambda: call.services.acting.delete_retained(
            call.who.name, topic=given["topic"], reason=given["reason"], dry_run=given["dry_run"]
        ),
    )


async def delete_all_retained(call: Call) -> Any:
    """Delete the retained messages of topics that match."""
    given = call.values
    if given["match"] is None:
        raise Refused(400, "match: expected a topic filter; '#' is all of them")
    return await _change(
        call,
        "delete retained",
        _details(call, "match", "reason"),
        lambda: call.services.acting.delete_retained(
            call.who.name, match=given["match"], reason=given["reason"], dry_run=given["dry_run"]
        ),
    )


async def publish(call: Call) -> Any:
    """Publish a message."""
    wanted = call.body
    try:
        payload = payload_of(wanted)
    except ValueError as problem:
        raise Refused(400, str(problem)) from None
    return await _change(
        call,
        "publish",
        publish_details(wanted, payload),
        lambda: call.services.acting.publish(wanted, call.who.name, payload),
    )


# The whole


async def reclaim(call: Call) -> Any:
    """Give back what nobody needs."""
    return await _change(
        call, "reclaim storage", {}, lambda: call.services.asking.reclaim(call.who.name)
    )


async def trace(call: Call) -> Any:
    """Begin a trace."""
    wanted = call.body
    if wanted.payload_bytes:
        demand_payloads(call.who)
    return await _change(
        call,
        "begin trace",
        {
            "kind": wanted.kind,
            "value": wanted.value,
            "for": wanted.for_,
            "payload_bytes": wanted.payload_bytes,
        },
        lambda: call.services.acting.trace(
            wanted.kind,
            wanted.value,
            call.who.name,
            for_s=duration_s(wanted.for_),
            payload_bytes=wanted.payload_bytes,
        ),
    )


async def end_trace(call: Call) -> Any:
    """End a trace."""
    return await _change(
        call,
        "end trace",
        _details(call, "trace"),
        lambda: call.services.acting.end_trace(call.values["trace"], call.who.name),
    )


async def set_log_level(call: Call) -> Any:
    """Have the broker log from a level on."""
    wanted = call.body
    for_s = 0 if wanted.for_ is None else duration_s(wanted.for_)
    return await _change(
        call,
        "set log level",
        {"level": wanted.level, "for": wanted.for_},
        lambda: call.services.acting.set_log_level(wanted.level, call.who.name, for_s=for_s),
        ADMIN,
    )


async def reload(call: Call) -> Any:
    """Have the broker read its files again."""
    return await _change(
        call,
        "reload configuration",
        {},
        lambda: call.services.acting.reload(call.who.name),
        ADMIN,
    )
