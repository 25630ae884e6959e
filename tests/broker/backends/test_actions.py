"""Do hooks and actions fit together?"""

from broker.backends.actions import (
    ACTIONS,
    CLIENT_CONNECTED,
    HOOKS,
    MESSAGE_PUBLISH,
    NOT_YET,
    SESSION_CREATED,
    SESSION_SUBSCRIBED,
)
from broker.configuration import backend_options
from storage.tables.feed_rows import GAP, KINDS
from storage.tables.fetch_rows import SUBSCRIPTIONS


def test_every_action_is_for_a_hook_and_needs_something() -> None:
    for actions in ACTIONS.values():
        for name, action in actions.items():
            assert action.name == name
            assert set(action.hooks) <= set(HOOKS)
            assert action.help
            assert action.messages or action.kinds or action.fetch
            is_list = action.fetch == SUBSCRIPTIONS
            expected = {CLIENT_CONNECTED, SESSION_CREATED} if is_list else {SESSION_SUBSCRIBED}
            assert not action.fetch or set(action.hooks) == expected
            assert set(action.kinds) <= set(KINDS) - {GAP}


def test_a_hook_is_of_messages_or_of_events() -> None:
    for hook in HOOKS.values():
        if hook.name == SESSION_CREATED:  # a store is asked then, and told of nothing
            assert not (hook.messages or hook.kinds or hook.parameters)
            continue
        assert hook.messages is (hook.name == MESSAGE_PUBLISH)
        assert bool(hook.kinds) is not hook.messages
        assert "clientid" in hook.parameters


def test_what_is_not_offered_is_no_hook() -> None:
    assert not NOT_YET.keys() & HOOKS.keys()
    assert tuple(ACTIONS) == backend_options.TYPES


def test_a_type_has_actions_or_gets_rows_as_they_are() -> None:
    assert {type for type, actions in ACTIONS.items() if not actions} == {"kafka", "webhook"}
    assert "on_acked_delete" in ACTIONS["dynamodb"] and "on_message_acked" in ACTIONS["cassandra"]
    assert "on_message_acked" not in ACTIONS["redis"]
