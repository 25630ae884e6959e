"""Serves who may do what: users, tokens, the admin log, and one's own password.

Must never put a password into a page, and a token only into the answer that made it. Read next:
`broker.admin.granting`, `broker.admin.pages.views.access`.
"""

import asyncio
from itertools import islice
from typing import Any, Final

import msgspec
from starlette.responses import Response

from broker.admin.access.private_file import AccessFileError, EntryRefused, NoEntry
from broker.admin.access.roles import Role
from broker.admin.access.users import User
from broker.admin.api.values import duration_s
from broker.admin.pages.serving.pages import Visit, for_role
from broker.admin.pages.views import access as view
from broker.admin.pages.words import links
from broker.admin.problems import Refused
from broker.admin.records import Granted, TokenMade, UserRow
from broker.admin.services import change_of_user, token_details, user_details
from broker.admin.web.gate import form_of
from broker.admin.web.signing_in import SigningIn
from storage.time import machine_clocks

LIMIT: Final = 50
HERE: Final = "/access"


@for_role(Role.ADMIN)
async def access(visit: Visit) -> Response:
    """Serve who may do what, and who did it."""
    return await _page(visit, {})


async def _page(
    visit: Visit, fields: dict[str, str], *, user_problem: str = "", token_problem: str = ""
) -> Response:
    services, cursor = visit.services, visit.asked("cursor")
    if cursor and view.PLACE.fullmatch(cursor) is None:
        raise Refused(400, f"cursor = {cursor[:40]!r}: expected that of another page")
    before = view.place(cursor)
    log = await asyncio.to_thread(lambda: list(islice(services.log.newest(before), LIMIT + 1)))
    context = view.context(
        services.users.all(),
        services.tokens.all(),
        log,
        cursor=cursor,
        limit=LIMIT,
        now_ms=machine_clocks.wall_ms(),
    )
    return visit.page(
        "access",
        HERE,
        status=400 if user_problem or token_problem else 200,
        user_problem=user_problem,
        token_problem=token_problem,
        user_fields=view.fields(fields if user_problem else {}),
        token_fields=view.fields(fields if token_problem else {}),
        roles=view.ROLES,
        **context,
    )


@for_role(Role.ADMIN)
async def add_user(visit: Visit) -> Response:
    """Add a user."""
    fields = form_of(visit.request.scope)
    try:
        wanted = view.user_wanted(fields)
        services = visit.services

        async def work() -> UserRow:
            return await services.granting.add_user(wanted)

        details = user_details(wanted)
        await services.change(visit.who, Role.ADMIN, "add user", details, work)
    except (ValueError, EntryRefused) as problem:
        return await _page(visit, fields, user_problem=str(problem))
    return visit.go(HERE, f"{wanted.name} may log in, as {wanted.role}.")


@for_role(Role.ADMIN)
async def change_user(visit: Visit) -> Response:
    """Give a user another role or password; a GET shows the form."""
    user = _user(visit)
    problem = ""
    if visit.request.method == "POST":
        try:
            wanted = view.user_change(form_of(visit.request.scope))
            services = visit.services

            async def work() -> UserRow:
                return await services.granting.change_user(user.name, wanted)

            details = change_of_user(user.name, wanted)
            await services.change(visit.who, Role.ADMIN, "change user", details, work)
            return visit.go(HERE, f"{user.name} is changed, and has to log in again.")
        except (ValueError, EntryRefused) as wrong:
            problem = str(wrong)
    return visit.page(
        "user",
        HERE,
        status=400 if problem else 200,
        name=user.name,
        role_now=user.role.word,
        payloads=user.payloads,
        roles=view.ROLES,
        problem=problem,
        address=links.url("/access/user", name=user.name),
    )


@for_role(Role.ADMIN)
async def remove_user(visit: Visit) -> Response:
    """Remove a user, after a page that says what that does."""
    user = _user(visit)
    if visit.request.method == "POST":

        async def work() -> Granted:
            return await visit.services.granting.remove_user(user.name)

        details = {"user": user.name}
        await visit.services.change(visit.who, Role.ADMIN, "remove user", details, work)
        return visit.go(HERE, f"The user {user.name} is removed.")
    would = ["The name cannot log in any more, and is logged out everywhere at once."]
    return _ask(visit, "/access/user/remove", "Remove the user", user.name, would)


@for_role(Role.ADMIN)
async def add_token(visit: Visit) -> Response:
    """Make a token, and show it this once: nothing keeps it."""
    fields = form_of(visit.request.scope)
    try:
        wanted = view.token_wanted(fields)
        services = visit.services

        async def work() -> TokenMade:
            return await services.granting.add_token(wanted, duration_s(wanted.expires))

        details = token_details(wanted)
        made = await services.change(visit.who, Role.ADMIN, "add token", details, work)
    except (ValueError, EntryRefused) as problem:
        return await _page(visit, fields, token_problem=str(problem))
    return visit.page("token", HERE, made=made)


@for_role(Role.ADMIN)
async def remove_token(visit: Visit) -> Response:
    """Remove a token, after a page that says what that does."""
    name = visit.asked("name")
    if visit.services.tokens.named(name) is None:
        raise NoEntry(f"no token {name!r}")
    if visit.request.method == "POST":

        async def work() -> Granted:
            return await visit.services.granting.remove_token(name)

        await visit.services.change(visit.who, Role.ADMIN, "remove token", {"token": name}, work)
        return visit.go(HERE, f"The token {name} is removed.")
    would = ["Whoever uses it is refused from the next request on. It does not come back."]
    return _ask(visit, "/access/token/remove", "Remove the token", name, would)


def _ask(visit: Visit, path: str, heading: str, name: str, would: list[str]) -> Response:
    """Return the page that asks before something is removed."""
    context: dict[str, Any] = {
        "heading": heading,
        "subject": name,
        "problem": "",
        "options": [],
        "kept": {},
        "path": path,
        "would": would,
        "may_go": True,
        "asks_reason": False,
        "reason_is_told": False,
        "go_word": "Remove it",
        "address": links.url(path, name=name),
        "back": HERE,
        "back_word": "Access",
    }
    return visit.page("confirm", HERE, **context)


def _user(visit: Visit) -> User:
    """Return the user that the address names. Raises `NoEntry`."""
    name = visit.asked("name")
    user = visit.services.users.find(name)
    if user is None:
        raise NoEntry(f"no user {name[:80]!r}")
    return user


@for_role(Role.VIEWER)
async def password(visit: Visit) -> Response:
    """Give who asks another password; this browser stays logged in, all others do not."""
    problem = ""
    status = 200
    if visit.request.method == "POST":
        try:
            return await _set_password(visit, form_of(visit.request.scope))
        except (ValueError, AccessFileError) as wrong:
            problem, status = str(wrong), 400
        except Refused as wrong:
            problem, status = str(wrong), wrong.status
    return visit.page("password", "/password", status=status, problem=problem)


async def _set_password(visit: Visit, fields: dict[str, str]) -> Response:
    new = fields.get("new", "")
    if new != fields.get("again", ""):
        raise ValueError("the new passwords differ; nothing was changed")
    try:
        msgspec.convert({"password": new}, view.NewPassword)
    except msgspec.ValidationError:
        raise ValueError(view.PASSWORD_EXPECTED) from None
    user = await visit.services.change_password(visit.who, fields.get("old", ""), new)
    answer = visit.go("/", "Your password is changed. All other browsers are logged out.")
    signing_in: SigningIn = visit.request.app.state.signing_in
    signing_in.let_in(visit.request, answer, user)
    return answer
