"""The hooks, and what can be done on them: one table for the configuration and for every store.

The same hook has the same parameters in every store. Pure. Read next: `broker.backends.templates`
(own commands), `broker.backends.redis.actions` (what the actions do in Redis).
"""

from typing import Final

from broker.configuration import backend_options
from storage.tables.feed_rows import (
    ACKED,
    CONNECTED,
    DELIVERED,
    DISCONNECTED,
    RETAIN_DELETED,
    RETAINED,
    RETURNED,
    SENT,
    SESSION_ENDED,
    SUBSCRIBED,
    UNSUBSCRIBED,
)
from storage.tables.fetch_rows import PUBSUB, QUEUE, RETAIN, SUBSCRIPTIONS

CLIENT_CONNECTED: Final = "client.connected"
CLIENT_DISCONNECTED: Final = "client.disconnected"
SESSION_CREATED: Final = "session.created"
SESSION_SUBSCRIBED: Final = "session.subscribed"
SESSION_UNSUBSCRIBED: Final = "session.unsubscribed"
MESSAGE_PUBLISH: Final = "message.publish"
MESSAGE_DELIVERED: Final = "message.delivered"
MESSAGE_ACKED: Final = "message.acked"

# Hooks that other brokers have, and why we do not.
NOT_YET: Final = {
    "message.deliver": "message.delivered",
}


class Hook:
    """Something that happens, on which rules may act."""

    __slots__ = ("has_topic", "kinds", "messages", "name", "parameters")

    def __init__(
        self,
        name: str,
        parameters: tuple[str, ...],
        *,
        kinds: tuple[int, ...] = (),
        messages: bool = False,
        has_topic: bool = True,
    ) -> None:
        self.name: Final = name
        self.parameters: Final = parameters  # of own commands, as ${name}
        self.kinds: Final = kinds  # of events that are this
        self.messages: Final = messages  # are messages this?
        self.has_topic: Final = has_topic  # does a rule have a topic filter?


_MESSAGE: Final = (
    "clientid",
    "username",
    "topic",
    "qos",
    "payload",
    "msgid",
    "message",
    "retain",
    "dup",
    "timestamp",
    "node",
    "expiry",
    "content_type",
    "response_topic",
    "correlation_data",
)
_ACK: Final = ("clientid", "username", "topic", "msgid", "qos", "timestamp", "node")
_SUBSCRIPTION: Final = ("clientid", "username", "topic", "qos", "timestamp", "node")
HOOKS: Final[dict[str, Hook]] = {
    hook.name: hook
    for hook in (
        Hook(
            CLIENT_CONNECTED,
            ("clientid", "username", "timestamp", "node"),
            kinds=(CONNECTED,),
            has_topic=False,
        ),
        Hook(
            CLIENT_DISCONNECTED,
            ("clientid", "username", "timestamp", "node"),
            kinds=(DISCONNECTED,),
            has_topic=False,
        ),
        Hook(SESSION_CREATED, (), has_topic=False),  # only to look something up
        Hook(SESSION_SUBSCRIBED, _SUBSCRIPTION, kinds=(SUBSCRIBED,)),
        Hook(SESSION_UNSUBSCRIBED, _SUBSCRIPTION, kinds=(UNSUBSCRIBED,)),
        Hook(MESSAGE_PUBLISH, _MESSAGE, messages=True),
        Hook(MESSAGE_DELIVERED, _ACK, kinds=(SENT,)),
        Hook(MESSAGE_ACKED, _ACK, kinds=(ACKED,)),
    )
}
# Parameters of message.publish with a part of their own behind the dot.
DOTTED: Final = ("payload", "user_properties")


class Action:
    """Something built in that a rule may do."""

    __slots__ = ("fetch", "help", "hooks", "kinds", "messages", "name", "qos0")

    def __init__(
        self,
        name: str,
        hook: str,
        help: str,
        *,
        kinds: tuple[int, ...] = (),
        messages: bool = False,
        qos0: bool = False,
        fetch: int = 0,
        also: tuple[str, ...] = (),
    ) -> None:
        self.name: Final = name
        self.hooks: Final = (hook, *also)  # on which it may be done
        self.help: Final = help
        self.kinds: Final = kinds  # of the events that it needs
        self.messages: Final = messages  # does it need messages?
        self.qos0: Final = qos0  # also those with QoS 0?
        self.fetch: Final = fetch  # what is looked up in the store, 0 = nothing


_ALL: Final = (
    Action(
        "on_client_connected",
        CLIENT_CONNECTED,
        "who is online, since when, on which node",
        kinds=(CONNECTED,),
    ),
    Action(
        "on_client_disconnected",
        CLIENT_DISCONNECTED,
        "who is offline, since when",
        kinds=(DISCONNECTED,),
    ),
    Action(
        "on_subscribe_lookup",
        CLIENT_CONNECTED,
        "subscribes the client to what the store lists for it",
        fetch=SUBSCRIPTIONS,
        also=(SESSION_CREATED,),
    ),
    Action(
        "on_subscribed",
        SESSION_SUBSCRIBED,
        "the subscriptions of each client",
        kinds=(SUBSCRIBED,),
    ),
    Action(
        "on_message_fetch_for_queue",
        SESSION_SUBSCRIBED,
        "messages of a queue from the store, each for one subscriber",
        kinds=(DELIVERED, RETURNED),
        fetch=QUEUE,
    ),
    Action(
        "on_message_fetch_for_pubsub",
        SESSION_SUBSCRIBED,
        "messages from the store that are newer than the subscriber's position",
        fetch=PUBSUB,
    ),
    Action(
        "on_message_fetch",
        SESSION_SUBSCRIBED,
        "messages from the store that are newer than the subscriber's position",
        fetch=PUBSUB,
    ),
    Action(
        "on_message_fetch_for_keep_latest",
        SESSION_SUBSCRIBED,
        "the newest message of a topic from the store, if the subscriber does not have it",
        fetch=PUBSUB,
    ),
    Action(
        "on_retain_lookup",
        SESSION_SUBSCRIBED,
        "the retained message of a topic from the store, if it is newer than the broker's own",
        fetch=RETAIN,
    ),
    Action(
        "on_unsubscribed",
        SESSION_UNSUBSCRIBED,
        "removes them, one by one or with their session",
        kinds=(UNSUBSCRIBED, SESSION_ENDED),
    ),
    Action(
        "on_message_publish",
        MESSAGE_PUBLISH,
        "messages with QoS 1 and 2, and a list of them by topic",
        messages=True,
    ),
    Action(
        "on_message_store_keep_latest",
        MESSAGE_PUBLISH,
        "of the messages of a topic with QoS 1 and 2 the newest",
        messages=True,
    ),
    Action(
        "on_message_store",
        MESSAGE_PUBLISH,
        "messages with QoS 0, 1 and 2, and a list of them by topic",
        messages=True,
        qos0=True,
    ),
    Action(
        "on_message_retain",
        MESSAGE_PUBLISH,
        "the retained message of each topic",
        kinds=(RETAINED,),
    ),
    Action(
        "on_retain_delete",
        MESSAGE_PUBLISH,
        "removes it when it is cleared or expires",
        kinds=(RETAIN_DELETED,),
    ),
    Action(
        "on_acked_delete",
        SESSION_UNSUBSCRIBED,
        "removes what on_message_acked has written for the client and the topic",
        kinds=(UNSUBSCRIBED,),
    ),
    Action(
        "on_message_acked_for_queue",
        MESSAGE_ACKED,
        "removes a message once a subscriber has it",
        kinds=(ACKED,),
    ),
    Action(
        "on_message_acked_for_pubsub",
        MESSAGE_ACKED,
        "the newest message that each subscriber has",
        kinds=(ACKED,),
    ),
    Action(
        "on_message_acked_for_keep_latest",
        MESSAGE_ACKED,
        "the newest message that each subscriber has",
        kinds=(ACKED,),
    ),
    Action(
        "on_message_acked",
        MESSAGE_ACKED,
        "the newest message that each subscriber has",
        kinds=(ACKED,),
    ),
)
_COMMON: Final = (
    "on_client_connected",
    "on_client_disconnected",
    "on_subscribed",
    "on_unsubscribed",
    "on_message_publish",
    "on_message_store",
    "on_message_retain",
    "on_retain_delete",
)
_NAMES: Final = {
    backend_options.REDIS: (
        "on_message_acked_for_queue",
        "on_message_acked_for_pubsub",
        "on_message_fetch_for_queue",
        "on_message_fetch_for_pubsub",
        "on_message_store_keep_latest",
        "on_message_fetch_for_keep_latest",
        "on_message_acked_for_keep_latest",
        "on_retain_lookup",
        "on_subscribe_lookup",
    ),
    backend_options.CASSANDRA: (
        "on_message_acked",
        "on_acked_delete",
        "on_message_fetch",
        "on_retain_lookup",
        "on_subscribe_lookup",
    ),
    backend_options.DYNAMODB: (
        "on_message_acked_for_queue",
        "on_message_acked",
        "on_acked_delete",
        "on_message_fetch",
        "on_message_fetch_for_queue",
        "on_retain_lookup",
        "on_subscribe_lookup",
    ),
}
# Built-in actions by the type of the backend; the others send rows as they are.
ACTIONS: Final[dict[str, dict[str, Action]]] = {
    type: {
        each.name: each
        for each in _ALL
        if type in _NAMES and each.name in (*_COMMON, *_NAMES[type])
    }
    for type in backend_options.TYPES
}
