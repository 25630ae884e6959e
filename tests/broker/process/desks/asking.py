"""An operator before a desk of a broker, for the tests of all desks that answer later."""

from concurrent.futures import Future
from typing import Protocol

from broker.operations.control_socket import BY, Answer, Request
from tests.broker.inside import InsideBroker


class Answers(Protocol):
    """A desk."""

    def answer(self, request: Request) -> Answer:
        """Answer a request."""
        ...


class Operator:
    """An operator called olga, and the desk that she asks."""

    def __init__(self, broker: InsideBroker, desk: Answers) -> None:
        self.broker = broker
        self.desk = desk

    def begin(self, do: str, **words: str) -> "Future[Request]":
        """Ask; the answer comes later."""
        answer = self.desk.answer({"do": do, BY: "olga", **words})
        assert isinstance(answer, Future)
        return answer

    async def ask(self, do: str, **words: str) -> Request:
        """Ask and wait for the answer."""
        answer = self.begin(do, **words)
        await self.broker.until(answer.done)
        return answer.result()
