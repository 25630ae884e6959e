"""The endpoints of the API as a table: method, path, role, parameters, what comes back.

The router serves this table, the OpenAPI document is made of it, and the tests walk through it.
Read next: `broker.admin.api.router`, `broker.admin.api.calls`, which has what each does.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeAlias

from broker.admin.access.roles import Role, Who
from broker.admin.services import Services

Method: TypeAlias = Literal["GET", "POST", "DELETE"]
# What a parameter is: text, a topic name or filter, a number, a choice, a flag.
Value: TypeAlias = Any


class Parameter:
    """One parameter of an endpoint, in its path or behind the question mark."""

    __slots__ = ("default", "help", "in_path", "name", "parse", "schema")

    def __init__(
        self,
        name: str,
        parse: Callable[[str], Value],
        schema: dict[str, Any],
        help: str,
        *,
        default: Value = None,
        in_path: bool = False,
    ) -> None:
        """`parse` raises `ValueError` with what was expected."""
        self.name: Final = name
        self.parse: Final = parse
        self.schema: Final = schema
        self.help: Final = help
        self.default: Final = default
        self.in_path: Final = in_path


class Call:
    """One request to an endpoint by somebody who may make it."""

    __slots__ = ("body", "services", "values", "who")

    def __init__(
        self, services: Services, who: Who, values: dict[str, Value], body: Any = None
    ) -> None:
        self.services: Final = services
        self.who: Final = who
        self.values: Final = values  # of the parameters, by name
        self.body: Final = body  # the record of the body, None = there is none


class Endpoint:
    """One method of one path."""

    __slots__ = (
        "body",
        "helps",
        "is_payload",
        "later",
        "media",
        "method",
        "name",
        "parameters",
        "path",
        "result",
        "role",
        "work",
    )  # fmt: skip

    def __init__(
        self,
        method: Method,
        path: str,
        name: str,
        role: Role,
        helps: str,
        work: Callable[[Call], Awaitable[Any]],
        result: Any,
        *parameters: Parameter,
        body: Any = None,
        is_payload: bool = False,
        media: str = "application/json",
        later: Any = None,
    ) -> None:
        self.method: Final = method
        self.path: Final = path  # below /api/v1, parameters in braces, each a whole level
        self.name: Final = name
        self.role: Final = role
        self.helps: Final = helps
        self.work: Final = work
        self.result: Final = result  # the type of the record
        self.parameters: Final = parameters
        self.body: Final = body  # the type of the record in the body, None = none
        self.media: Final = media  # of the answer; a call that has another one returns a response
        self.later: Final = later  # the type of the record with 202, None = there is no such answer
        self.is_payload: Final = is_payload  # it tells what messages say

    @property
    def levels(self) -> list[str]:
        """The path, cut at its slashes."""
        return self.path.strip("/").split("/")
