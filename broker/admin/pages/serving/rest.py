"""Serves topics, storage, the past and the log-in form.

Read next: `broker.admin.asking`.
"""

import asyncio
import shutil
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from broker.admin.access.roles import Role
from broker.admin.pages import rendering
from broker.admin.pages.serving.pages import Visit, for_role
from broker.admin.pages.views import past as past_view
from broker.admin.pages.views import storage as storage_view
from broker.admin.pages.views import topics as topics_view
from broker.admin.pages.words import amounts
from broker.admin.problems import Refused
from broker.admin.records import Generation, Retained, TopicReaders
from broker.admin.sources import verdicts
from broker.admin.sources.lanes import NotThere
from broker.admin.web.gate import who_of
from broker.admin.web.signing_in import SigningIn, safe_path
from broker.operations.control_socket import ControlError
from mqtt.topics import SHARE_PREFIX, filter_problem, topic_problem
from storage.time import machine_clocks

LIMIT: Final = 50
GROUPS: Final = 25


@for_role(Role.VIEWER)
async def topics(visit: Visit) -> Response:
    """Serve who gets a topic, retained messages, and shared groups."""
    asking, topic, topic_filter = visit.services.asking, visit.asked("topic"), visit.asked("filter")
    cursor, groups_cursor = visit.asked("cursor"), visit.asked("groups")
    what = topic_problem(topic) if topic else None
    readers: TopicReaders | None = None
    if topic and what is None:
        readers = await visit.fresh.get(("topic", topic), lambda: asking.topic(topic))
    wrong = filter_problem(topic_filter) if topic_filter else None
    if topic_filter.startswith(SHARE_PREFIX):
        wrong = f"{topic_filter!r}: expected a filter without $share/NAME/"
    retained = None
    if wrong is None:
        retained = await visit.fresh.get(
            ("retained", topic_filter, cursor),
            lambda: asking.retained(match=topic_filter or None, cursor=cursor or None, limit=LIMIT),
        )
    groups = await visit.fresh.get(
        ("groups", groups_cursor),
        lambda: asking.groups(cursor=groups_cursor or None, limit=GROUPS),
    )
    context = topics_view.context(
        readers,
        retained,
        groups,
        topic=topic,
        topic_problem=what or "",
        topic_filter=topic_filter,
        filter_problem=wrong or "",
        cursor=cursor,
        groups_cursor=groups_cursor,
        may_act=visit.may_act,
    )
    return visit.page("topics", "/topics", **context)


@for_role(Role.VIEWER)
async def retained(visit: Visit) -> Response:
    """Serve one retained message: its payload for those only who may read payloads."""
    topic = visit.asked("topic")
    if not topic or topic_problem(topic) is not None:
        raise Refused(400, "the address names no topic")
    asking = visit.services.asking
    message: Retained
    if visit.who.payloads:
        message = await asking.retained_message(topic)
    else:
        page = await asking.retained(match=topic, limit=1)
        if not page.items:
            raise NotThere(f"no retained message on {topic!r}")
        message = page.items[0]
    return visit.page(
        "retained", "/topics", **topics_view.retained(message, may_delete=visit.may_act)
    )


@for_role(Role.VIEWER)
async def storage(visit: Visit) -> Response:
    """Serve what the disk holds."""
    services = visit.services
    figures = await services.asking.storage()
    try:
        disk = shutil.disk_usage(services.config.shell.data_dir)
        space = (disk.total, disk.free)
    except OSError:
        space = None
    generations: list[Generation] = []
    problem = ""
    try:
        generations = await visit.fresh.get("pins", services.asking.pins) or []
    except ControlError as found:
        problem = str(found)
    context = storage_view.context(
        figures,
        space,
        list(services.figures.kept),
        generations,
        pins_problem=problem,
        may_act=visit.may_act,
    )
    return visit.page("storage", "/storage", **context)


@for_role(Role.VIEWER)
async def past(visit: Visit) -> Response:
    """Serve how the broker began and ended, and what the last audit said."""
    services = visit.services
    found = await visit.fresh.get("past", services.asking.starts)
    verdict = await asyncio.to_thread(verdicts.newest, services.config.shell.data_dir)
    return visit.page("past", "/past", **past_view.context(found, verdict))


async def log_in(request: Request) -> Response:
    """Serve the form."""
    if who_of(request) is not None:
        return RedirectResponse("/", 303, headers=rendering.HEADERS)
    return _form(request, "", "", safe_path(request.query_params.get("next", "")))


def log_in_again(request: Request, problem: Refused, fields: dict[str, str]) -> Response:
    """Return the form once more, with what was wrong; the password is asked for anew."""
    name, wanted = fields.get("name", ""), safe_path(fields.get("next", ""))
    page = _form(request, str(problem), name, wanted, problem.status)
    page.headers.update(problem.headers)
    return page


def _form(request: Request, problem: str, name: str, wanted: str, status: int = 200) -> Response:
    signing_in: SigningIn = request.app.state.signing_in
    cookie, field = signing_in.new_form()
    context = {
        "user": None,
        "csrf": field,
        "here": "/login",
        "notice": "",
        "now": amounts.of_ms(machine_clocks.wall_ms()),
        "problem": problem,
        "name": name,
        "next": wanted,
    }
    page = rendering.page("login", context, status=status)
    signing_in.give(request, page, cookie)
    return page


async def static(request: Request) -> Response:
    """Serve a file that pages ask for."""
    found = rendering.static_file(request.path_params["name"])
    return Response("there is no such file", 404) if found is None else found
