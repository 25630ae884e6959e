"""Which keys of a new configuration take effect at once."""

from pathlib import Path

import pytest

from broker.configuration.config import Config
from broker.configuration.load import load
from broker.configuration.option_types import Setting
from broker.configuration.options import OPTIONS, Option
from broker.configuration.reload import SHELL_CHANGEABLE, apply
from session.settings import CHANGEABLE, Settings


def config(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "holdfast.toml"
    path.write_text(text)
    return load(str(path), environment={})


def test_the_same_configuration_changes_nothing(tmp_path: Path) -> None:
    text = "[listener.a]\nport = 1\n[limits]\nmax_connections = 5\n"
    changes = apply(config(tmp_path, text), config(tmp_path, text))
    assert (changes.settings, changes.restart) == ([], [])


def test_limits_and_the_log_level_change_at_once(tmp_path: Path) -> None:
    old, new = (
        config(tmp_path, ""),
        config(
            tmp_path,
            "[limits]\nmax_connections = 5\nkeep_alive_max = '10m'\ndrain_timeout = '5s'\n"
            "[log]\nlevel = 'debug'\n[history]\ndetail = 'sampled:1/10'\n",
        ),
    )
    changes = apply(old, new)
    assert changes.restart == []
    assert changes.settings == [
        'limits.keep_alive_max = "10m"',
        "limits.max_connections = 5",
        'limits.drain_timeout = "5s"',
        'log.level = "debug"',
        'history.detail = "sampled:1/10"',
    ]
    assert (old.shell.log_level, old.shell.drain_timeout_ms) == ("debug", 5000)
    assert old.settings.max_connections == 0  # the engine takes it from the new ones
    assert new.settings.max_connections == 5


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[storage]\ndurability = 'os'", 'storage.durability = "os" needs a restart; until then'),
        ("[limits]\nreceive_maximum = 5", "limits.receive_maximum = 5 needs a restart"),
        ("[auth]\nacl_file = '/etc/acl'", 'auth.acl_file = "/etc/acl" needs a restart'),
        ("[auth]\nallow_anonymous = false", "auth.allow_anonymous = false needs a restart"),
        ("[listener]\nport = 1999", "listener.port = 1999 needs a restart; until then 1883 holds"),
        ("[listener.new]\nport = 1999", "[listener.new] is new: it opens at the next start"),
        ("[history]\nhash_key = 'sixteen characters'", "history.hash_key = "),
        ("[history]\ndetail = 'off'", 'history.detail = "off" needs a restart; until then "books"'),
        ("[history]\ndetail = 'sessions'", 'history.detail = "sessions" needs a restart'),
    ],
)
def test_what_needs_a_restart_is_one_line_and_stays_as_it_is(
    tmp_path: Path, text: str, line: str
) -> None:
    old, new = config(tmp_path, ""), config(tmp_path, text)
    changes = apply(old, new)
    assert changes.settings == []
    (found,) = changes.restart
    assert found.startswith(line)
    assert "sixteen" not in found
    (name,) = changes.names
    assert found.startswith(f"{name} ")
    assert new.settings.history_detail == old.settings.history_detail
    assert vars(old.shell) == vars(config(tmp_path, "").shell)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: str(option.name))
def test_no_key_that_changes_is_passed_over_in_silence(option: Option) -> None:
    """It is among those that take effect, or among those that need a restart; never in neither."""
    old, new = Config(), Config()
    owners = {
        "shell": new.shell,
        "settings": new.settings,
        "cluster": new.cluster,
        "listener": new.listeners[0],
    }
    # What holds of this one is settled at the end of loading.
    owner = "settings" if option.name == "auth.allow_anonymous" else option.owner
    before = getattr(owners[owner], option.attribute)
    after = OTHER[option.name] if option.name in OTHER else other(before)
    setattr(owners[owner], option.attribute, after)
    changes = apply(old, new)
    told = [line.partition(" = ")[0] for line in changes.settings] + changes.names
    assert told == [option.name]
    assert len(changes.restart) == len(changes.names)


# Another value than the default, where that has another type or must be one of some words.
OTHER: dict[str, Setting] = {
    "storage.low_water": 1,
    "session.expiry_max": 1,
    "history.detail": "full",
}


def other(value: Setting) -> Setting:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1000
    if isinstance(value, tuple):
        return ("https://other.example",)
    return f"{value}x"


def test_a_listener_that_is_gone_is_named(tmp_path: Path) -> None:
    old = config(tmp_path, "[listener.a]\nport = 1\n")
    assert apply(old, config(tmp_path, "")).restart == [
        "[listener.a] is gone: it closes with the next start"
    ]


SECURE = "[listener.a]\nport = 1\ntls_certificate = 'old'\n"


def test_a_listener_gets_the_paths_of_new_files(tmp_path: Path) -> None:
    old = config(tmp_path, SECURE + "tls_client_ca = 'ca'\n")
    text = SECURE.replace("old", "new") + "tls_key = 'key'\ntls_client_ca = 'other'\n"
    assert apply(old, config(tmp_path, text)).restart == []
    listener = old.listeners[1]
    assert (listener.tls_certificate, listener.tls_key) == ("new", "key")
    assert listener.tls_client_ca == "other"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SECURE, "[listener.a]\nport = 1\n"),
        ("[listener.a]\nport = 1\n", SECURE),
        (SECURE, SECURE + "tls_client_ca = 'ca'\n"),
        (SECURE + "tls_client_ca = 'ca'\n", SECURE),
    ],
)
def test_whether_clients_must_prove_who_they_are_does_not_change_at_once(
    tmp_path: Path, before: str, after: str
) -> None:
    """The keys that would make up for it (passwords, anonymous clients) need a restart, too."""
    old = config(tmp_path, before)
    changes = apply(old, config(tmp_path, after))
    assert len(changes.restart) == 1
    assert vars(old.listeners[1]) == vars(config(tmp_path, before).listeners[1])


def test_every_key_that_changes_at_once_exists() -> None:
    assert set(CHANGEABLE) <= set(vars_of(Settings()))
    assert set(SHELL_CHANGEABLE) <= set(vars(Config().shell))


def vars_of(settings: Settings) -> list[str]:
    return [name for name in dir(settings) if not name.startswith("_")]


CACHE = '[backends.cache]\nservers = "a:1"\n'
RULE = '[[rules]]\non = "x"\nbackend = "cache"\naction = "%s"\n'


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ("", CACHE, "[backends.cache] is new: it is used from the next start on"),
        (CACHE, "", "[backends.cache] is gone: it is forgotten with the next start"),
        (CACHE, CACHE + "database = 2\n", "backends.cache.database = 2 needs a restart; until"),
        (CACHE, CACHE + 'password = "b"', 'backends.cache.password = "(not shown)" needs a'),
        (CACHE + RULE % "a", CACHE + RULE % "b", "[[rules]] need a restart"),
        (CACHE, CACHE + RULE % "b", "[[rules]] need a restart"),
    ],
)
def test_backends_and_rules_need_a_restart(
    tmp_path: Path, before: str, after: str, line: str
) -> None:
    changes = apply(config(tmp_path, before), config(tmp_path, after))
    assert changes.settings == []
    (told,) = changes.restart
    assert told.startswith(line)
    (name,) = changes.names
    assert told.startswith(f"{name} ")
