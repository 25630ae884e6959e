"""The pages of the dashboard: Starlette routes that the application has at `/`.

A page finds what it needs at `request.app.state`: `services` and `signing_in`. Read next:
`broker.admin.services`.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from broker.admin import problems
from broker.admin.problems import Refused

ROUTES: Final[list[BaseRoute]] = []


def error_page(request: Request, problem: Refused) -> Response:
    """Return what somebody gets who asked for a page, or sent a form, in vain."""
    return problems.answer(problem)
