"""Serves the page of one client, the list of those who are connected, and what the past tells.

Read next: `broker.admin.pages.views.session`, `broker.admin.pages.serving.actions`.
"""

from typing import Final

from starlette.responses import Response

from broker.admin.access.roles import Role
from broker.admin.asking import cursor_of
from broker.admin.pages.serving.pages import Visit, for_role
from broker.admin.pages.views import connections as connections_view
from broker.admin.pages.views import session as view
from broker.admin.pages.words import globs, links
from broker.admin.problems import Refused
from broker.admin.records import Client, ClientDetail, Page, QueueEntry, Session
from broker.admin.services import demand_payloads
from broker.admin.sources.lanes import NotThere
from broker.operations.control_socket import ControlError
from mqtt.topics import SHARE_PREFIX, filter_problem

LIMIT: Final = 50
QUEUE: Final = 25  # messages of a queue on a page
LONG_PAGES_MAX: Final = 20  # of names with the same beginning that are looked through


@for_role(Role.VIEWER)
async def connections(visit: Visit) -> Response:
    """Serve the list of those who are connected."""
    match, cursor = visit.asked("match"), visit.asked("cursor")

    async def listing() -> Page[Client]:
        return await visit.services.asking.clients(
            match=globs.wanted(match), cursor=cursor or None, limit=LIMIT
        )

    page = await visit.fresh.get(("clients", match, cursor), listing)
    context = connections_view.context(page, match=match, cursor=cursor, may_act=visit.may_act)
    return visit.page("connections", "/connections", **context)


@for_role(Role.VIEWER)
async def session(visit: Visit) -> Response:
    """Serve the page of one client, whether it is connected or has a stored session, or both."""
    client_id = await named(visit)
    with_payload = visit.asked("payloads") == "1"
    if with_payload:
        demand_payloads(visit.who)
    stored, connection = await known(visit, client_id)
    if stored is None and connection is None:
        raise NotThere(f"no client {client_id!r} is connected or has a stored session")
    topic, cursor = visit.asked("topic"), visit.asked("cursor")
    problem = wrong_filter(topic)
    queue: Page[QueueEntry] | None = None
    if stored is not None and not problem:
        queue = await visit.services.asking.queue(
            client_id,
            topic_filter=topic or None,
            payloads=with_payload,
            cursor=cursor or None,
            limit=QUEUE,
        )
    context = view.context(
        client_id,
        stored,
        connection,
        queue,
        queue_problem=problem,
        topic=topic,
        cursor=cursor,
        with_payload=with_payload,
        may_act=visit.may_act,
        may_see_payloads=visit.who.payloads,
    )
    return visit.page("session", "/", **context)


@for_role(Role.VIEWER)
async def past(visit: Visit) -> Response:
    """Serve what the history tells of a client: why it misses messages, and its timeline."""
    client_id = await named(visit)
    asking = visit.services.asking
    why = await visit.fresh.get(("why", client_id), lambda: asking.why(client_id))
    events = await visit.fresh.get(("timeline", client_id), lambda: asking.timeline(client_id))
    context = view.past(client_id, why, events)
    return visit.page("client_past", "/", **context)


async def known(visit: Visit, client_id: str) -> tuple[Session | None, ClientDetail | None]:
    """Return the stored session of a client and its connection, None for what it does not have.

    While the broker is silent nothing is known of the connection.
    """
    asking = visit.services.asking
    stored: Session | None = None
    connection: ClientDetail | None = None
    try:
        stored = await asking.session(client_id)
    except NotThere:
        pass  # it may be a clean one
    try:
        connection = await asking.client(client_id)
    except NotThere:
        pass  # it is away
    except ControlError:
        if stored is None:
            raise
    return stored, connection


async def named(visit: Visit) -> str:
    """Return the client id that the address names. Raises `Refused`, `NotThere`."""
    client_id = visit.asked("id")
    if client_id:
        return client_id
    start, digest = visit.asked("start"), visit.asked("digest")
    if not start or not digest:
        raise Refused(400, "the address names no client")
    asking = visit.services.asking
    # The list is in the order of names, so those with the beginning come first behind it.
    place = cursor_of(start)
    for ask in (asking.sessions, asking.clients):
        cursor: str | None = place
        for _ in range(LONG_PAGES_MAX):
            page = await ask(match=globs.beginning(start), cursor=cursor, limit=LIMIT)
            for each in page.items:
                if links.digest(each.client_id) == digest:
                    return each.client_id
            cursor = page.next
            if cursor is None:
                break
    raise NotThere("the client that the address names is not there any more")


def wrong_filter(topic_filter: str) -> str:
    """Return what is wrong with a topic filter that was typed, empty if nothing is."""
    if not topic_filter:
        return ""
    if topic_filter.startswith(SHARE_PREFIX):
        return f"{topic_filter!r}: expected a filter without $share/NAME/"
    return filter_problem(topic_filter) or ""
