"""What each endpoint tells: a record, which `broker.admin.asking` or `Services` has.

Must never change anything. Read next: `broker.admin.api.changes`, `broker.admin.api.table`.
"""

from typing import Any

import msgspec
from starlette.responses import Response

from broker.admin import records
from broker.admin.api.endpoints import Call
from broker.admin.counts import MEDIA_TYPE as METRICS
from broker.admin.problems import AGAIN_S
from broker.admin.services import demand_payloads
from broker.admin.sources.orders import BeingSorted


async def me(call: Call) -> Any:
    """Tell who asks."""
    who = call.who
    return records.Me(who.name, who.role.word, who.payloads, who.how)  # type: ignore[arg-type]


# Sessions


async def sessions(call: Call) -> Any:
    """List sessions; answer 202 while an order of them is being worked out."""
    try:
        return await call.services.asking.sessions(**call.values)
    except BeingSorted as problem:
        told = records.Sorting(str(problem), int(problem.for_s))
        return Response(
            msgspec.json.encode(told),
            202,
            headers={"Retry-After": str(AGAIN_S)},
            media_type="application/json",
        )


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


# Clients


async def clients(call: Call) -> Any:
    """List connected clients."""
    return await call.services.asking.clients(**call.values)


async def client(call: Call) -> Any:
    """Show a connected client."""
    return await call.services.asking.client(call.values["client_id"])


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


async def backlog(call: Call) -> Any:
    """Tell what is owed in all."""
    return await call.services.asking.backlog()


async def pins(call: Call) -> Any:
    """Tell who needs which generation."""
    return await call.services.asking.pins()


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


async def bans(call: Call) -> Any:
    """List the bans."""
    return await call.services.acting.bans()


async def traces(call: Call) -> Any:
    """List the traces that are on."""
    return await call.services.acting.traces()


async def trace_lines(call: Call) -> Any:
    """Tell what a trace has told since it was read last."""
    return await call.services.acting.trace_lines(call.values["trace"], payloads=call.who.payloads)
