"""The history as the engine knows it: one object, and a part of it for each kind of step.

Handed to the parts of the engine, which tell it what they did where they did it. Decides nothing
and sends nothing: with the history off, nothing else changes. Read next:
`session.history.publish_events`, the steps of a PUBLISH on its way in.
"""

from typing import Final

from session.history.delivery_events import DeliveryEvents
from session.history.outbox import Outbox
from session.history.publish_events import PublishEvents
from session.history.recorder import Recorder
from session.history.session_events import SessionEvents
from session.live.connection import Connection
from session.live.tick import Tick
from session.settings import Settings
from storage.log.message_log import MessageLog


class History:
    """What happens to messages and sessions, recorded with the batch of its tick."""

    def __init__(
        self, tick: Tick, log: MessageLog, settings: Settings, live: dict[str, Connection]
    ) -> None:
        """`live` is the connected sessions by client id, as `Sessions` keeps them."""
        self.recorder: Final = Recorder(settings)
        self.publishes: Final = PublishEvents(self.recorder)
        self.deliveries: Final = DeliveryEvents(self.recorder)
        self.sessions: Final = SessionEvents(self.recorder, tick, log, live)
        self.outbox: Final = Outbox(tick, self.recorder, log, settings)
