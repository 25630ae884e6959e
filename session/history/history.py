"""The history as the engine uses it: one object with a part for each kind of event.

The parts of the engine report to it what they do. It decides and sends nothing: the engine behaves
the same with the history off. Read next: `session.history.publish_events`, the events of an
incoming PUBLISH.
"""

from typing import Final

from session.feed.recorder import FeedRecorder
from session.history.backend_events import BackendEvents
from session.history.delivery_events import DeliveryEvents
from session.history.outbox import Outbox
from session.history.publish_events import PublishEvents
from session.history.recorder import Recorder
from session.history.session_events import SessionEvents
from session.history.trace_events import TraceEvents
from session.live.connection import Connection
from session.live.tick import Tick
from session.settings import Settings
from storage.log.message_log import MessageLog


class History:
    """Records what happens to messages and sessions, in the batch of the same tick."""

    def __init__(
        self,
        tick: Tick,
        log: MessageLog,
        settings: Settings,
        live: dict[str, Connection],
        feed: FeedRecorder,
    ) -> None:
        """Make all parts; `live` has the connections by client id, as `Sessions` keeps them."""
        self.recorder: Final = Recorder(settings)
        self.feed: Final = feed
        self.publishes: Final = PublishEvents(self.recorder)
        self.deliveries: Final = DeliveryEvents(self.recorder, feed)
        self.sessions: Final = SessionEvents(self.recorder, tick, log, live, feed)
        self.backends: Final = BackendEvents(tick, self.recorder)
        self.traces: Final = TraceEvents(tick, self.recorder)
        self.outbox: Final = Outbox(tick, self.recorder, log, settings)
