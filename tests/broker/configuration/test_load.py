"""Flags win over environment over file over defaults, and nothing unknown passes."""

from pathlib import Path

import pytest

from broker.configuration.load import FILE_BYTES_MAX, load
from broker.configuration.show import show
from tests.broker.configuration.refused import refused


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
        ("a = " + "[" * 20_000, ["nested too deeply"]),
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
    ("text", "line"),
    [
        ("listener 1883\nallow_anonymous true\n", "listener 1883"),
        ("# as Debian has it\n\npid_file /run/mosquitto.pid\npersistence true", "pid_file /run"),
        ("\tpersistence\ttrue\n", "persistence\\ttrue"),
    ],
)
def test_a_configuration_of_mosquitto_is_called_one(write, text: str, line: str) -> None:  # type: ignore[no-untyped-def]
    complaint = refused(write(text))
    assert f"'{line}" in complaint
    assert "mosquitto's configuration" in complaint
    assert complaint.endswith("docs/mosquitto.md translates it")
    assert "\n" not in complaint


@pytest.mark.parametrize(
    "text", ["[listener]\nport 1884\n", "port = = 1", "listener\t= = 5", "a b"]
)
def test_a_mistake_in_toml_is_not_taken_for_mosquitto(write, text: str) -> None:  # type: ignore[no-untyped-def]
    assert "not valid TOML" in refused(write(text))


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
    large.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    assert "is this the right file?" in refused(str(large))


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
    again = load(write(show(loaded)), environment={})
    assert [vars(one) for one in again.listeners] == [vars(one) for one in loaded.listeners]
