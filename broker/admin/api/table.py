"""The table of all endpoints.

Read next: `broker.admin.api.endpoints`, `broker.admin.api.calls`, `broker.admin.api.changes`.
"""

from typing import Any, Final

from broker.admin import records
from broker.admin.access.roles import Role
from broker.admin.api import calls, changes, grants, values
from broker.admin.api.endpoints import Call, Endpoint
from broker.admin.api.events import MEDIA_TYPE as EVENTS
from broker.admin.api.events import events
from broker.admin.api.openapi import document
from broker.admin.counts import MEDIA_TYPE as METRICS

VIEWER, OPERATOR, ADMIN = Role.VIEWER, Role.OPERATOR, Role.ADMIN
ACCESS_NAME: Final = values.in_path("name", "of a user or a token", values.access_name)
CLIENT_ID: Final = values.in_path("client_id", "client identifier")


async def openapi(call: Call) -> Any:
    """Return the OpenAPI document."""
    return document(ENDPOINTS, BASE)


BASE: Final = "/api/v1"
PAGED: Final = (values.CURSOR, values.LIMITED)
ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        "GET", "/me", "me", VIEWER, "who asks, and what that user may do", calls.me, records.Me
    ),
    Endpoint(
        "POST", "/me/password", "change_password", VIEWER,
        "another password for the user who asks, who has to log in again", grants.change_password,
        records.Granted, body=records.PasswordChange,
    ),
    Endpoint(
        "GET", "/clients", "list_clients", VIEWER, "connected clients by client id", calls.clients,
        records.Page[records.Client], values.MATCH, *PAGED,
    ),
    Endpoint(
        "GET", "/clients/{client_id}", "show_client", VIEWER, "one connected client", calls.client,
        records.ClientDetail, CLIENT_ID,
    ),
    Endpoint(
        "POST", "/clients/{client_id}/kick", "kick_client", OPERATOR,
        "end a client's connection; its session stays, its will is published", changes.kick,
        records.Kicked, CLIENT_ID, values.REASON,
    ),
    Endpoint(
        "GET", "/sessions", "list_sessions", VIEWER, "stored sessions, and what waits for them",
        calls.sessions, records.Page[records.SessionRow], values.SORT, values.MATCH, values.OFFLINE,
        *PAGED, later=records.Sorting,
    ),
    Endpoint(
        "GET", "/sessions/{client_id}", "show_session", VIEWER, "one stored session", calls.session,
        records.Session, CLIENT_ID,
    ),
    Endpoint(
        "DELETE", "/sessions/{client_id}", "delete_session", OPERATOR,
        "end a session, with all that waits for it", changes.delete_session, records.Deleted,
        CLIENT_ID, values.REASON, values.DRY_RUN,
    ),
    Endpoint(
        "GET", "/sessions/{client_id}/queue", "list_queue", VIEWER,
        "what a session is owed, in the order of sending", calls.queue,
        records.Page[records.QueueEntry], CLIENT_ID, values.TOPIC, values.PAYLOADS, *PAGED,
    ),
    Endpoint(
        "POST", "/sessions/{client_id}/purge", "purge_session", OPERATOR,
        "drop what waits for a session, and keep the session", changes.purge, records.Purged,
        CLIENT_ID, values.OLDER, values.TOPIC, values.KICK, values.REASON, values.DRY_RUN,
    ),
    Endpoint(
        "GET", "/groups", "list_groups", VIEWER, "groups of shared subscriptions", calls.groups,
        records.Page[records.Group], *PAGED,
    ),
    Endpoint(
        "GET", "/groups/{share_name}/{topic_filter}", "show_group", VIEWER,
        "one group with its members", calls.group, records.Group,
        values.in_path("share_name", "its name"),
        values.in_path("topic_filter", "its topic filter", values.topic_filter),
    ),
    Endpoint(
        "POST", "/groups/{share_name}/{topic_filter}/purge", "purge_group", OPERATOR,
        "drop what waits for a shared subscription, its members here or away",
        changes.purge_group, records.GroupPurged, values.in_path("share_name", "its name"),
        values.in_path("topic_filter", "its topic filter", values.topic_filter), values.OLDER,
        values.TOPIC, values.REASON, values.DRY_RUN,
    ),
    Endpoint(
        "GET", "/retained", "list_retained", VIEWER, "retained messages, without what they say",
        calls.retained, records.Page[records.Retained], values.MATCH_TOPIC, *PAGED,
    ),
    Endpoint(
        "GET", "/retained/{topic}", "show_retained", VIEWER, "one retained message",
        calls.retained_message, records.RetainedMessage,
        values.in_path("topic", "topic name", values.topic_name), is_payload=True,
    ),
    Endpoint(
        "DELETE", "/retained/{topic}", "delete_retained", OPERATOR, "delete a retained message",
        changes.delete_retained, records.RetainedDeleted,
        values.in_path("topic", "topic name", values.topic_name), values.REASON, values.DRY_RUN,
    ),
    Endpoint(
        "DELETE", "/retained", "delete_all_retained", OPERATOR,
        "delete the retained messages of all topics that match", changes.delete_all_retained,
        records.RetainedDeleted, values.MATCH_TOPIC, values.REASON, values.DRY_RUN,
    ),
    Endpoint(
        "GET", "/topics/{topic}/who", "topic_who", VIEWER, "who gets what is published on a topic",
        calls.topic_who, records.TopicReaders,
        values.in_path("topic", "topic name", values.topic_name),
    ),
    Endpoint(
        "GET", "/storage", "show_storage", VIEWER, "how much the log takes", calls.storage,
        records.Storage,
    ),
    Endpoint(
        "GET", "/storage/pins", "list_pins", VIEWER,
        "who needs which generation of the log, as it was counted last", calls.pins,
        list[records.Generation],
    ),
    Endpoint(
        "GET", "/backlog", "show_backlog", VIEWER, "what is owed in all, as it was counted last",
        calls.backlog, records.Backlog,
    ),
    Endpoint(
        "POST", "/storage/reclaim", "reclaim_storage", OPERATOR,
        "close the open generation: it goes when nobody needs a message of it", changes.reclaim,
        records.Storage,
    ),
    Endpoint(
        "GET", "/restart-check", "restart_check", VIEWER, "what a restart would cost",
        calls.restart_check, records.RestartCheck,
    ),
    Endpoint(
        "GET", "/why/{client_id}", "why", VIEWER, "why a client may miss messages, in sentences",
        calls.why, records.Why, CLIENT_ID, values.TOPIC_NAME, values.SINCE,
    ),
    Endpoint(
        "GET", "/bans", "list_bans", VIEWER, "who is banned, and until when", calls.bans,
        list[records.Ban],
    ),
    Endpoint(
        "POST", "/bans", "ban", OPERATOR,
        "ban a client id, a user or an address for a time", changes.ban, records.Ban,
        body=records.BanWanted,
    ),
    Endpoint(
        "DELETE", "/bans/{kind}/{value}", "unban", OPERATOR, "remove a ban", changes.unban,
        records.Unbanned, values.KIND, values.in_path("value", "who is banned"), values.REASON,
    ),
    Endpoint(
        "POST", "/publish", "publish", OPERATOR,
        "publish a message; the answer comes when it is durable", changes.publish,
        records.Published, body=records.Publication,
    ),
    Endpoint(
        "GET", "/traces", "list_traces", OPERATOR, "the traces that are on", calls.traces,
        list[records.Trace],
    ),
    Endpoint(
        "POST", "/traces", "trace", OPERATOR,
        "have the broker tell what a client, a topic or an address does, for a time",
        changes.trace, records.TraceBegun, body=records.TraceWanted,
    ),
    Endpoint(
        "GET", "/traces/{trace}/lines", "read_trace", OPERATOR,
        "what a trace has told since it was read last; it ends when nobody reads it",
        calls.trace_lines, records.TraceLines, values.TRACE,
    ),
    Endpoint(
        "DELETE", "/traces/{trace}", "end_trace", OPERATOR, "end a trace", changes.end_trace,
        records.TraceBegun, values.TRACE,
    ),
    Endpoint(
        "POST", "/log-level", "set_log_level", ADMIN,
        "have the broker log from a level on, for a time", changes.set_log_level,
        records.LogLevel, body=records.LogLevelWanted,
    ),
    Endpoint(
        "POST", "/configuration/reload", "reload", ADMIN,
        "have the broker read its files again, as SIGHUP does", changes.reload, records.Reloaded,
    ),
    Endpoint(
        "GET", "/events", "watch", VIEWER, "the broker's figures each second, as they come",
        events, None, media=EVENTS,
    ),
    Endpoint(
        "GET", "/log", "list_log", ADMIN, "the admin log, the newest lines first", calls.admin_log,
        records.Page[records.LogLine], *PAGED,
    ),
    Endpoint(
        "GET", "/tokens", "list_tokens", ADMIN, "who has a token", calls.tokens,
        list[records.TokenRow],
    ),
    Endpoint(
        "POST", "/tokens", "add_token", ADMIN, "make a token, which is told this once",
        grants.add_token, records.TokenMade, body=records.TokenWanted,
    ),
    Endpoint(
        "DELETE", "/tokens/{name}", "remove_token", ADMIN, "remove a token, at once",
        grants.remove_token, records.Granted, ACCESS_NAME,
    ),
    Endpoint(
        "GET", "/users", "list_users", ADMIN, "who may log in", calls.users, list[records.UserRow]
    ),
    Endpoint(
        "POST", "/users", "add_user", ADMIN, "add somebody who may log in", grants.add_user,
        records.UserRow, body=records.UserWanted,
    ),
    Endpoint(
        "POST", "/users/{name}", "change_user", ADMIN,
        "give a user another role or password; who it is has to log in again",
        grants.change_user, records.UserRow, ACCESS_NAME, body=records.UserChange,
    ),
    Endpoint(
        "DELETE", "/users/{name}", "remove_user", ADMIN,
        "remove a user, who is logged out; the last one with the role admin stays",
        grants.remove_user, records.Granted, ACCESS_NAME,
    ),
    Endpoint(
        "GET", "/metrics", "metrics", VIEWER, "figures of this process for Prometheus",
        calls.metrics, None, media=METRICS,
    ),
    Endpoint(
        "GET", "/openapi.json", "openapi", VIEWER, "this document", openapi, dict[str, Any]
    ),
)  # fmt: skip
