"""Flags win over environment over file over defaults, and nothing unknown passes."""

import tomllib
from pathlib import Path

import pytest

from broker import config
from broker.config import ConfigError, load
from broker.settings import Settings


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
    assert loaded.shell.host == "127.0.0.1"
    assert loaded.shell.port == 1883
    assert loaded.shell.metrics_port == 18083
    assert loaded.shell.durability == "fsync"


def test_flags_win_over_environment_over_file_over_defaults(write) -> None:  # type: ignore[no-untyped-def]
    path = write('[listener]\nport = 1\n[session]\nmax_inflight = 1\nmax_age = "1d"\n')
    environment = {"HOLDFAST__LISTENER__PORT": "2", "HOLDFAST__SESSION__MAX_INFLIGHT": "2"}
    flags = {"listener.port": "3", "storage.data_dir": None}
    loaded = load(path, environment=environment, flags=flags)
    assert loaded.shell.port == 3
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
    owner = defaults.settings if option.owner == "settings" else defaults.shell
    assert hasattr(owner, option.attribute)
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


def test_check_files_complains_about_what_the_configuration_points_at(tmp_path: Path) -> None:
    loaded = load(environment={"HOLDFAST__AUTH__PASSWORD_FILE": str(tmp_path / "absent")})
    with pytest.raises(ConfigError, match="No such file"):
        config.check_files(loaded)
    file = tmp_path / "file"
    file.write_text("")
    loaded = load(environment={"HOLDFAST__STORAGE__DATA_DIR": str(file)})
    with pytest.raises(ConfigError, match="not a directory"):
        config.check_files(loaded)
