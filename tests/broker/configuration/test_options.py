"""Every key of the table fills one attribute, and everything configurable has its key."""

import tomllib

import pytest

from broker.configuration.config import Config
from broker.configuration.load import load
from broker.configuration.options import OPTIONS, Option
from session.settings import Settings


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: str(option.name))
def test_every_option_fills_an_existing_attribute_and_is_settable_from_the_environment(
    option: Option,
) -> None:
    defaults = Config()
    owners = {
        "settings": defaults.settings,
        "shell": defaults.shell,
        "cluster": defaults.cluster,
        "listener": defaults.listeners[0],
    }
    assert hasattr(owners[option.owner], option.attribute)
    rendered = option.kind.render(defaults.value(option))
    raw = tomllib.loads(f"key = {rendered}")["key"]
    text = "true" if raw is True else "false" if raw is False else str(raw or "")
    if raw == 0 and raw is not False:
        text = "0"
    if isinstance(raw, list):
        text = ",".join(raw)
    loaded = load(environment={option.variable: text})
    assert loaded.value(option) == defaults.value(option)
    assert loaded.origins[option.name] == f"environment {option.variable}"


def test_every_engine_setting_can_be_configured() -> None:
    settable = {option.attribute for option in OPTIONS}
    of_rules = {"feeds"}  # from `[[rules]]`, by broker.backends.rules
    of_a_cluster = {"member"}  # `storage.kafka.node`, by `Config.finish`
    # How a session with many filters catches up, and when packet ids are bound ahead: small only in
    # tests, so that they reach it.
    of_tests = {"followed_streams", "arrivals_max", "ahead_after"}
    assert set(vars(Settings())) <= settable | of_rules | of_a_cluster | of_tests


def test_no_two_options_fill_the_same_attribute() -> None:
    attributes = [(option.owner, option.attribute) for option in OPTIONS]
    assert len(attributes) == len(set(attributes))
