"""The ways in which a message reaches its readers, for the parts that need all of them.

Must never grow behaviour. Read next: `session.publish.accept`, which uses them in turn.
"""

from typing import Final

from session.delivery.delivery import Delivery
from session.delivery.shared import Groups
from session.routing.retained import Retained
from session.routing.router import Routes


class Distribution:
    """Who wants a topic, and the three ways to them: retained, live or later, and in a group."""

    __slots__ = ("delivery", "groups", "retained", "routes")

    def __init__(
        self, routes: Routes, retained: Retained, delivery: Delivery, groups: Groups
    ) -> None:
        self.routes: Final = routes
        self.retained: Final = retained
        self.delivery: Final = delivery
        self.groups: Final = groups
