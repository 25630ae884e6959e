"""What each endpoint does, and the table of all of them.

Each asks `broker.admin.asking` for a record; a change goes through `Services.change`. Read next:
`broker.admin.api.endpoints`.
"""

from typing import Any, Final

from starlette.responses import Response

from broker.admin import records
from broker.admin.access.roles import Role
from broker.admin.api import values
from broker.admin.api.endpoints import Call, Endpoint
from broker.admin.api.events import MEDIA_TYPE as EVENTS
from broker.admin.api.events import events
from broker.admin.api.openapi import document
from broker.admin.counts import MEDIA_TYPE as METRICS
from broker.admin.services import demand_payloads

VIEWER, OPERATOR, ADMIN = Role.VIEWER, Role.OPERATOR, Role.ADMIN
CLIENT_ID: Final = values.in_path("client_id", "client identifier")


async def me(call: Call) -> Any:
    """Tell who asks."""
    who = call.who
    return records.Me(who.name, who.role.word, who.payloads, who.how)  # type: ignore[arg-type]


# Sessions


async def sessions(call: Call) -> Any:
    """List sessions."""
    return await call.services.asking.sessions(**call.values)


async def session(call: Call) -> Any:
    """Show a session."""
    return await call.services.asking.session(call.values["client_id"])


async def queue(call: Call) -> Any:
    """List what a session is owed."""
    given = dict(call.values)
    if given["payloads"]:
        demand_payloads(call.who)
    return await call.services.asking.queue(
        given.pop("client_id"), topic_filter=given.pop("topic"), **given
    )


async def purge(call: Call) -> Any:
    """Drop what waits for a session."""
    given = call.values
    client_id, is_dry, reason = given["client_id"], given["dry_run"], given["reason"]
    older_ms = 1000 * (given["older"] or 0)

    async def work() -> records.Purged:
        return await call.services.asking.purge(
            client_id, call.who.name, older_ms=older_ms, reason=reason, dry_run=is_dry
        )

    if is_dry:
        return await work()
    details = {"client_id": client_id, "older_ms": older_ms, "reason": reason}
    return await call.services.change(call.who, OPERATOR, "purge session", details, work)


async def delete_session(call: Call) -> Any:
    """End a session."""
    given = call.values
    client_id, is_dry, reason = given["client_id"], given["dry_run"], given["reason"]

    async def work() -> records.Deleted:
        return await call.services.asking.delete(
            client_id, call.who.name, reason=reason, dry_run=is_dry
        )

    if is_dry:
        return await work()
    details = {"client_id": client_id, "reason": reason}
    return await call.services.change(call.who, OPERATOR, "delete session", details, work)


# Clients


async def clients(call: Call) -> Any:
    """List connected clients."""
    return await call.services.asking.clients(**call.values)


async def client(call: Call) -> Any:
    """Show a connected client."""
    return await call.services.asking.client(call.values["client_id"])


async def kick(call: Call) -> Any:
    """End a connection."""
    client_id, reason = call.values["client_id"], call.values["reason"]

    async def work() -> records.Kicked:
        return await call.services.asking.kick(client_id, call.who.name, reason=reason)

    details = {"client_id": client_id, "reason": reason}
    return await call.services.change(call.who, OPERATOR, "kick client", details, work)


# Groups, topics, retained messages


async def groups(call: Call) -> Any:
    """List shared groups."""
    return await call.services.asking.groups(**call.values)


async def group(call: Call) -> Any:
    """Show a shared group."""
    return await call.services.asking.group(call.values["share_name"], call.values["topic_filter"])


async def topic_who(call: Call) -> Any:
    """Tell who gets what is published on a topic."""
    return await call.services.asking.topic(call.values["topic"])


async def retained(call: Call) -> Any:
    """List retained messages."""
    return await call.services.asking.retained(**call.values)


async def retained_message(call: Call) -> Any:
    """Show a retained message."""
    demand_payloads(call.who)
    return await call.services.asking.retained_message(call.values["topic"])


# The whole


async def storage(call: Call) -> Any:
    """Tell how much the log takes."""
    return await call.services.asking.storage()


async def reclaim(call: Call) -> Any:
    """Give back what nobody needs."""

    async def work() -> records.Storage:
        return await call.services.asking.reclaim(call.who.name)

    return await call.services.change(call.who, OPERATOR, "reclaim storage", {}, work)


async def restart_check(call: Call) -> Any:
    """Tell what a restart would cost."""
    return await call.services.asking.restart_check()


async def why(call: Call) -> Any:
    """Tell why a client may miss messages."""
    given = call.values
    return await call.services.asking.why(
        given["client_id"], topic=given["topic"], since_s=given["since"]
    )


# Who may do what, and who did it


async def admin_log(call: Call) -> Any:
    """List the admin log, the newest lines first."""
    return await call.services.admin_log(call.values["cursor"], call.values["limit"])


async def tokens(call: Call) -> Any:
    """List the tokens."""
    return call.services.token_rows()


async def users(call: Call) -> Any:
    """List the users."""
    return call.services.user_rows()


async def metrics(call: Call) -> Any:
    """Return the figures of this process as Prometheus reads them."""
    return Response(call.services.counts.text(), media_type=METRICS)


async def openapi(call: Call) -> Any:
    """Return the OpenAPI document."""
    return document(ENDPOINTS, BASE)


BASE: Final = "/api/v1"
PAGED: Final = (values.CURSOR, values.LIMITED)
ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint("GET", "/me", "me", VIEWER, "who asks, and what that user may do", me, records.Me),
    Endpoint(
        "GET", "/clients", "list_clients", VIEWER, "connected clients by client id", clients,
        records.Page[records.Client], values.MATCH, *PAGED,
    ),
    Endpoint(
        "GET", "/clients/{client_id}", "show_client", VIEWER, "one connected client", client,
        records.ClientDetail, CLIENT_ID,
    ),
    Endpoint(
        "POST", "/clients/{client_id}/kick", "kick_client", OPERATOR,
        "end a client's connection; its session stays, its will is published", kick,
        records.Kicked, CLIENT_ID, values.REASON,
    ),
    Endpoint(
        "GET", "/sessions", "list_sessions", VIEWER, "stored sessions, and what waits for them",
        sessions, records.Page[records.SessionRow], values.SORT, values.MATCH, values.OFFLINE,
        *PAGED,
    ),
    Endpoint(
        "GET", "/sessions/{client_id}", "show_session", VIEWER, "one stored session", session,
        records.Session, CLIENT_ID,
    ),
    Endpoint(
        "DELETE", "/sessions/{client_id}", "delete_session", OPERATOR,
        "end a session, with all that waits for it", delete_session, records.Deleted, CLIENT_ID,
        values.REASON, values.DRY_RUN,
    ),
    Endpoint(
        "GET", "/sessions/{client_id}/queue", "list_queue", VIEWER,
        "what a session is owed, in the order of sending", queue,
        records.Page[records.QueueEntry], CLIENT_ID, values.TOPIC, values.PAYLOADS, *PAGED,
    ),
    Endpoint(
        "POST", "/sessions/{client_id}/purge", "purge_session", OPERATOR,
        "drop what waits for a session whose client is away, and keep the session", purge,
        records.Purged, CLIENT_ID, values.OLDER, values.REASON, values.DRY_RUN,
    ),
    Endpoint(
        "GET", "/groups", "list_groups", VIEWER, "groups of shared subscriptions", groups,
        records.Page[records.Group], *PAGED,
    ),
    Endpoint(
        "GET", "/groups/{share_name}/{topic_filter}", "show_group", VIEWER,
        "one group with its members", group, records.Group,
        values.in_path("share_name", "its name"),
        values.in_path("topic_filter", "its topic filter", values.topic_filter),
    ),
    Endpoint(
        "GET", "/retained", "list_retained", VIEWER, "retained messages, without what they say",
        retained, records.Page[records.Retained], values.MATCH_TOPIC, *PAGED,
    ),
    Endpoint(
        "GET", "/retained/{topic}", "show_retained", VIEWER, "one retained message",
        retained_message, records.RetainedMessage,
        values.in_path("topic", "topic name", values.topic_name), is_payload=True,
    ),
    Endpoint(
        "GET", "/topics/{topic}/who", "topic_who", VIEWER, "who gets what is published on a topic",
        topic_who, records.TopicReaders,
        values.in_path("topic", "topic name", values.topic_name),
    ),
    Endpoint(
        "GET", "/storage", "show_storage", VIEWER, "how much the log takes", storage,
        records.Storage,
    ),
    Endpoint(
        "POST", "/storage/reclaim", "reclaim_storage", OPERATOR,
        "close the open generation: it goes when nobody needs a message of it", reclaim,
        records.Storage,
    ),
    Endpoint(
        "GET", "/restart-check", "restart_check", VIEWER, "what a restart would cost",
        restart_check, records.RestartCheck,
    ),
    Endpoint(
        "GET", "/why/{client_id}", "why", VIEWER, "why a client may miss messages, in sentences",
        why, records.Why, CLIENT_ID, values.TOPIC_NAME, values.SINCE,
    ),
    Endpoint(
        "GET", "/events", "watch", VIEWER, "the broker's figures each second, as they come",
        events, None, media=EVENTS,
    ),
    Endpoint(
        "GET", "/log", "list_log", ADMIN, "the admin log, the newest lines first", admin_log,
        records.Page[records.LogLine], *PAGED,
    ),
    Endpoint(
        "GET", "/tokens", "list_tokens", ADMIN, "who has a token", tokens, list[records.TokenRow]
    ),
    Endpoint(
        "GET", "/users", "list_users", ADMIN, "who may log in", users, list[records.UserRow]
    ),
    Endpoint(
        "GET", "/metrics", "metrics", VIEWER, "figures of this process for Prometheus", metrics,
        None, media=METRICS,
    ),
    Endpoint(
        "GET", "/openapi.json", "openapi", VIEWER, "this document", openapi, dict[str, Any]
    ),
)  # fmt: skip
