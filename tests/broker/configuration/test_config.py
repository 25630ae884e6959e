"""Flags win over environment over file over defaults, and nothing unknown passes."""

import tomllib
from pathlib import Path

import pytest

from broker.configuration import config
from broker.configuration.config import ConfigError, load
from session.settings import Settings


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Return a function that writes a configuration file and returns its path."""

    def write_text(text: str) -> str:
        path = tmp_path / "holdfast.toml"
        path.write_text(text)
        return str(path)

    return write_text


def refused(path: str | None = None, **environment: str) -> str:
    """Return the one-line complaint about a configuration."""
    with pytest.raises(ConfigError) as caught:
        load(path, environment=environment)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_without_anything_the_defaults_hold() -> None:
    loaded = load(environment={})
    assert vars(loaded.settings) == vars(Settings())
    (listener,) = loaded.listeners
    assert (listener.name, listener.address, listener.kind) == ("tcp", "127.0.0.1:1883", "tcp")
    assert loaded.shell.metrics_port == 18083
    assert loaded.shell.durability == "fsync"


def test_flags_win_over_environment_over_file_over_defaults(write) -> None:  # type: ignore[no-untyped-def]
    path = write('[listener]\nport = 1\n[session]\nmax_inflight = 1\nmax_age = "1d"\n')
    environment = {"HOLDFAST__LISTENER__PORT": "2", "HOLDFAST__SESSION__MAX_INFLIGHT": "2"}
    flags = {"listener.port": "3", "storage.data_dir": None}
    loaded = load(path, environment=environment, flags=flags)
    assert loaded.listeners[0].port == 3
    assert loaded.settings.max_inflight == 2
    assert loaded.settings.max_age_s == 86_400
    assert loaded.origins["listener.port"] == "flag --port"
    assert loaded.origins["session.max_inflight"] == "environment HOLDFAST__SESSION__MAX_INFLIGHT"
    assert loaded.origins["session.max_age"] == f"file {path}"
    assert loaded.origins["storage.data_dir"] == "default"


@pytest.mark.parametrize("option", config.OPTIONS, ids=lambda option: str(option.name))
def test_every_option_fills_an_existing_attribute_and_is_settable_from_the_environment(
    option: config.Option,
) -> None:
    defaults = config.Config()
    owners = {
        "settings": defaults.settings,
        "shell": defaults.shell,
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
    settable = {option.attribute for option in config.OPTIONS}
    assert set(vars(Settings())) <= settable


def test_no_two_options_fill_the_same_attribute() -> None:
    attributes = [(option.owner, option.attribute) for option in config.OPTIONS]
    assert len(attributes) == len(set(attributes))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sesion]\nmax_age = 0", ["unknown section 'sesion'", "did you mean [session]"]),
        ("[session]\nmax_infligt = 5", ["'session.max_infligt'", "did you mean session.max_infl"]),
        ("[session]\nport = 5", ["'session.port'", "did you mean listener.port"]),
        ("[listener]\nqqqq = 5", ["'listener.qqqq'", "did you mean listener."]),
        ("port = 5", ["unknown section 'port'", "did you mean ["]),
        ("listener = 5", ["listener = 5", "expected a table [listener]"]),
        ("[session]\nmax_age = 7", ["session.max_age = 7", "expected a duration"]),
        ('[storage]\ndurability = "maybe"', ["storage.durability = 'maybe'", "'fsync', 'os'"]),
        ("[listener]\nport = 99999", ["listener.port = 99999", "0 to 65535"]),
        ("[listener\n", ["not valid TOML", "line 1"]),
        ('[listener.web]\ntype = "tpc"', ["listener.web.type = 'tpc'", "tcp, websocket, unix"]),
        ("[listener.web]\nprot = 1", ["'listener.web.prot'", "did you mean listener.web.port?"]),
        ("[listener.web]\npassword_file = 1", ["did you mean auth.password_file?"]),
        ("[listener.web]\nport = -1", ["listener.web.port = -1", "0 to 65535"]),
        ("[listener.web.more]\nport = 1", ["'listener.web.more'", "did you mean listener.web."]),
        ("[listener.Web]\nport = 1", ["listener name 'Web'", "lower-case letters"]),
        ("[listener.a__b]\nport = 1", ["listener name 'a__b'", "single underscores"]),
        ("[listener.port]\nport = 1", ["listener.port = {", "a whole number"]),
        ("[listener]\nweb = 1", ["unknown key 'listener.web'", "did you mean listener."]),
        ("[[listener.web]]\nport = 1", ["unknown key 'listener.web'"]),
    ],
)
def test_a_mistake_in_the_file_names_file_key_and_remedy(  # type: ignore[no-untyped-def]
    write, text: str, words: list[str]
) -> None:
    path = write(text)
    complaint = refused(path)
    assert complaint.startswith(f"file {path}: ")
    for word in words:
        assert word in complaint


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("HOLDFAST__SESION__MAX_AGE", "0", ["unknown section 'sesion'", "[session]"]),
        ("HOLDFAST__SESSION__MAX_INFLIGT", "5", ["HOLDFAST__SESSION__MAX_INFLIGHT?"]),
        ("HOLDFAST__SESSION", "5", ["unknown key 'session.'"]),
        ("HOLDFAST__session__max_age", "1d", ["did you mean HOLDFAST__SESSION__MAX_AGE?"]),
        ("holdfast__session__max_age", "1d", ["did you mean HOLDFAST__SESSION__MAX_AGE?"]),
        ("HOLDFAST__LISTENER__WEB__PROT", "1", ["mean HOLDFAST__LISTENER__WEB__PORT?"]),
        ("HOLDFAST__LISTENER__WEB", "1", ["unknown key 'listener.web'"]),
        ("HOLDFAST__LISTENER__Web__PORT", "1", ["mean HOLDFAST__LISTENER__WEB__PORT?"]),
        ("HOLDFAST__LISTENER__A__B__PORT", "1", ["listener name 'a__b'"]),
        ("HOLDFAST__LISTENER____PORT", "1", ["unknown key 'listener.port'"]),
        ("HOLDFAST__LISTENER__WEB__PORT", "no", ["listener.web.port = 'no'", "a whole number"]),
        ("HOLDFAST__SESSION__MAX_AGE", "soon", ["session.max_age = 'soon'", "expected a duration"]),
    ],
)
def test_a_mistake_in_the_environment_names_variable_and_remedy(
    variable: str, value: str, words: list[str]
) -> None:
    complaint = refused(None, **{variable: value})
    assert complaint.startswith(f"environment {variable}: ")
    for word in words:
        assert word in complaint


def test_other_variables_are_none_of_our_business() -> None:
    load(environment={"HOLDFAST_FAILPOINT": "before_write", "PATH": "/bin", "HOLDFAST": "x"})


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    assert "No such file" in refused(str(tmp_path / "absent.toml"))
    assert str(tmp_path) in refused(str(tmp_path))
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in refused(str(binary))
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (config.FILE_BYTES_MAX + 1))
    assert "is this the right file?" in refused(str(large))


def test_an_open_broker_on_a_network_must_be_asked_for_in_so_many_words() -> None:
    complaint = refused(None, HOLDFAST__LISTENER__HOST="0.0.0.0")
    assert "auth.allow_anonymous = true" in complaint
    opened = load(
        environment={
            "HOLDFAST__LISTENER__HOST": "0.0.0.0",
            "HOLDFAST__AUTH__ALLOW_ANONYMOUS": "true",
        }
    )
    assert opened.settings.allow_anonymous is True


def test_named_listeners_come_from_the_file_and_from_the_environment(write) -> None:  # type: ignore[no-untyped-def]
    path = write(
        "[listener]\nport = 1\n"
        '[listener.web]\ntype = "websocket"\nport = 2\norigins = ["https://a.example"]\n'
        '[listener.local]\ntype = "unix"\npath = "/run/holdfast.sock"\nmode = "0600"\n'
    )
    environment = {
        "HOLDFAST__LISTENER__WEB__PORT": "3",
        "HOLDFAST__LISTENER__TLS_PORT__PORT": "4",
        "HOLDFAST__LISTENER__TLS_PORT__TLS_CERTIFICATE": "c.pem",
        "HOLDFAST__LISTENER__HOST": "::1",
    }
    loaded = load(path, environment=environment)
    assert [(one.name, one.kind, one.address) for one in loaded.listeners] == [
        ("tcp", "tcp", "[::1]:1"),
        ("web", "websocket", "127.0.0.1:3"),
        ("local", "unix", "/run/holdfast.sock"),
        ("tls_port", "tcp+tls", "127.0.0.1:4"),
    ]
    assert loaded.listeners[1].origins == ("https://a.example",)
    assert loaded.listeners[2].mode == 0o600
    assert loaded.origins["listener.web.port"] == "environment HOLDFAST__LISTENER__WEB__PORT"
    assert loaded.origins["listener.web.type"] == f"file {path}"
    again = load(write(config.show(loaded)), environment={})
    assert [vars(one) for one in again.listeners] == [vars(one) for one in loaded.listeners]


def test_the_first_listener_may_be_a_unix_socket() -> None:
    environment = {"HOLDFAST__LISTENER__TYPE": "unix", "HOLDFAST__LISTENER__PATH": "/run/h.sock"}
    (listener,) = load(environment=environment).listeners
    assert (listener.name, listener.address) == ("unix", "/run/h.sock")
    complaint = refused(None, **environment, HOLDFAST__LISTENER__PORT="1")
    assert complaint == "listener.port has no meaning for a listener of type unix"


def test_a_redirection_to_nowhere_is_named_with_its_keys() -> None:
    complaint = refused(None, HOLDFAST__REDIRECT__WHEN="always")
    assert complaint == "redirect.when = 'always': expected redirect.server_reference as well"


def test_a_server_reference_that_fits_no_packet_is_refused() -> None:
    complaint = refused(None, HOLDFAST__REDIRECT__SERVER_REFERENCE="x" * 65_536)
    assert "redirect.server_reference = " in complaint
    assert "at most 65535 bytes" in complaint


def test_settings_of_a_listener_that_contradict_each_other_are_one_line() -> None:
    complaint = refused(None, HOLDFAST__LISTENER__WEB__TYPE="websocket")
    assert complaint == "listener.web.port is missing"
    complaint = refused(None, HOLDFAST__LISTENER__TCP__PORT="1")
    assert "choose another name" in complaint


@pytest.mark.parametrize("name", ["", "WEB__"])
def test_every_listener_on_a_network_must_be_asked_for_or_see_certificates(name: str) -> None:
    prefix = f"HOLDFAST__LISTENER__{name}"
    network = {f"{prefix}HOST": "0.0.0.0", f"{prefix}PORT": "2"}
    section = "listener.web" if name else "listener"
    assert refused(None, **network).startswith(f"{section}.host = '0.0.0.0' can be reached")
    encrypted = {**network, f"{prefix}TLS_CERTIFICATE": "c.pem"}
    assert "can be reached" in refused(None, **encrypted)
    load(environment={**encrypted, f"{prefix}TLS_CLIENT_CA": "ca.pem"})
    load(environment={**network, "HOLDFAST__AUTH__PASSWORD_FILE": "users"})
    load(environment={**network, "HOLDFAST__AUTH__ALLOW_ANONYMOUS": "true"})


def test_a_password_file_shuts_out_anonymous_clients_unless_told_otherwise() -> None:
    closed = load(environment={"HOLDFAST__AUTH__PASSWORD_FILE": "users"})
    assert closed.settings.allow_anonymous is False
    mixed = load(
        environment={
            "HOLDFAST__AUTH__PASSWORD_FILE": "users",
            "HOLDFAST__AUTH__ALLOW_ANONYMOUS": "true",
        }
    )
    assert mixed.settings.allow_anonymous is True


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.8.7", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("127.evil.example", False),
    ],
)
def test_loopback_is_told_from_the_network(host: str, expected: bool) -> None:
    assert config.is_loopback(host) is expected


def test_what_show_prints_loads_back_to_the_same_configuration(write) -> None:  # type: ignore[no-untyped-def]
    environment = {
        "HOLDFAST__SESSION__EXPIRY_MAX": "30d",
        "HOLDFAST__LIMITS__USER_PROPERTIES": 'site=a "quoted" one',
        "HOLDFAST__STORAGE__DATA_DIR": "some where\\else",
    }
    first = load(environment=environment)
    text = config.show(first)
    assert "# environment HOLDFAST__SESSION__EXPIRY_MAX" in text
    second = load(write(text), environment={})
    for option in config.OPTIONS:
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
    shown = config.show(loaded)
    assert "many letters" not in shown
    assert "not what is shown" in refused(write(shown))


def test_the_template_loads_as_the_defaults_even_with_every_line_uncommented(write) -> None:  # type: ignore[no-untyped-def]
    text = config.template()
    assert vars(load(write(text), environment={}).settings) == vars(Settings())
    uncommented = "\n".join(
        line[1:] if line.startswith("#") and not line.startswith("# ") else line
        for line in text.splitlines()
    )
    loaded = load(write(uncommented), environment={})
    assert vars(loaded.settings) == vars(Settings())
    assert all(origin.startswith("file ") for origin in loaded.origins.values())
