"""What is shown can be loaded again, and hides what is secret."""

from broker.configuration.load import load
from broker.configuration.options import OPTIONS
from broker.configuration.show import show, template
from session.settings import Settings
from tests.broker.configuration.refused import refused


def test_what_show_prints_loads_back_to_the_same_configuration(write) -> None:  # type: ignore[no-untyped-def]
    environment = {
        "HOLDFAST__SESSION__EXPIRY_MAX": "30d",
        "HOLDFAST__LIMITS__USER_PROPERTIES": 'site=a "quoted" one',
        "HOLDFAST__STORAGE__DATA_DIR": "some where\\else",
    }
    first = load(environment=environment)
    text = show(first)
    assert "# environment HOLDFAST__SESSION__EXPIRY_MAX" in text
    second = load(write(text), environment={})
    for option in OPTIONS:
        assert first.value(option) == second.value(option), option.name


def test_the_key_of_hashed_names_is_asked_for_and_never_shown(write) -> None:  # type: ignore[no-untyped-def]
    assert "history.hash_key" in refused(HOLDFAST__HISTORY__HASH_NAMES="true")
    text = refused(write("[history]\nhash_key = 12345678"))
    assert "history.hash_key = ..." in text and "12345678" not in text
    environment = {
        "HOLDFAST__HISTORY__HASH_NAMES": "true",
        "HOLDFAST__HISTORY__HASH_KEY": "a key of many letters",
    }
    loaded = load(environment=environment)
    assert loaded.settings.history_hash_key == "a key of many letters"
    shown = show(loaded)
    assert "many letters" not in shown
    assert "not what is shown" in refused(write(shown))


def test_the_template_loads_as_the_defaults_even_with_every_line_uncommented(write) -> None:  # type: ignore[no-untyped-def]
    text = template()
    assert vars(load(write(text), environment={}).settings) == vars(Settings())
    uncommented = "\n".join(
        line[1:] if line.startswith("#") and not line.startswith("# ") else line
        for line in text.splitlines()
    )
    loaded = load(write(uncommented), environment={})
    assert vars(loaded.settings) == vars(Settings())
    assert all(origin.startswith("file ") for origin in loaded.origins.values())
