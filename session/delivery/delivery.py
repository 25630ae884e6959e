"""The parts that send messages to sessions, created and connected.

An accepted message goes through them in this order: `session.delivery.live` (sessions that keep
up), `session.delivery.window` (sessions whose window is full), `session.delivery.backlog` (sessions
that lag), `session.delivery.redelivery` (what was in flight when a connection ended).
`session.delivery.sender` sends one message, `session.delivery.publish_bytes` encodes it.
"""

from typing import Final

from session.delivery.backlog import Backlog
from session.delivery.context import DeliveryContext
from session.delivery.fetching.inbox import Inbox
from session.delivery.fetching.proxies import Proxies
from session.delivery.fetching.requests import Requests
from session.delivery.fetching.retain_lookup import RetainLookup
from session.delivery.live import LiveDelivery
from session.delivery.mailbox import Mailbox
from session.delivery.outgoing import Outgoing
from session.delivery.redelivery import Redelivery
from session.delivery.retained_replay import RetainedReplay
from session.delivery.sender import Sender
from session.delivery.shared.distribution import Distribution
from session.delivery.shared.groups import Groups
from session.delivery.window.ahead import AheadBinder
from session.delivery.window.send_window import SendWindow
from session.live.connection import Connection
from session.routing.retained import Retained


class Delivery:
    """Creates one of each part; others use the part they need."""

    def __init__(self, context: DeliveryContext, retained: Retained) -> None:
        outgoing = Outgoing(context)
        self.outgoing: Final = outgoing
        self.sender: Final = Sender(context, outgoing)
        self.mailbox: Final = Mailbox(context)
        self.retained_replay: Final = RetainedReplay(context, retained, self.sender, self.mailbox)
        self.lookup: Final = RetainLookup(context, retained, self.retained_replay)
        feeds = context.settings.feeds
        self.requests: Final = Requests(context, [feed.name for feed in feeds if feed.is_asked])
        self.inbox: Final = Inbox(
            context, outgoing, self.sender, self.mailbox, self.lookup, self.requests
        )
        self.proxies: Final = Proxies(context, self.requests)
        if self.inbox.is_on:
            self.retained_replay.sent = self.inbox.retained_sent
        self.redelivery: Final = Redelivery(context, outgoing, self.mailbox, self.inbox)
        ahead = AheadBinder(context, outgoing, self.sender, self.inbox)
        self.window: Final = SendWindow(context, outgoing, self.sender, self.redelivery, ahead)
        self.live: Final = LiveDelivery(context, outgoing, self.sender, self.window)
        self.backlog: Final = Backlog(
            context, outgoing, self.sender, self.redelivery, self.retained_replay, ahead
        )

        self.groups: Final = Groups(context)
        self.shared: Final = Distribution(context, self.groups, outgoing, self.live, self.sender)

    def resume(self, connection: Connection) -> None:
        """Send what a resumed session has waiting. The caller has written the batch."""
        self.redelivery.resend_all(connection)
        self.backlog.begin(connection)
        self.window.send_waiting(connection)
