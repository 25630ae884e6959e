"""The command as a user meets it: one clear line per mistake, and an honest exit status."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker import build
from broker.security import password_file, password_hashes
from broker.version import VERSION
from storage.history import events
from storage.history.packed_rows import history_key
from storage.local.rocks import RocksStore
from storage.tables.tables import HISTORY, seal
from tests.broker.history.test_queries import recorded
from tests.broker.security.stored import MOSQUITTO_7
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient
from tests.storage.history.history_cases import Tick

pytestmark = pytest.mark.full  # starts processes

ROOT = Path(__file__).parents[3]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs `holdfast` with arguments in an empty directory."""

    def run_command(
        *arguments: str, input: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "broker", *arguments],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
            input=input,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run_command


def complaint(result: subprocess.CompletedProcess[str], exit_code: int) -> str:
    """Return the one line a failed command left on stderr."""
    assert result.returncode == exit_code, result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("holdfast: ")
    return line


def test_the_version_is_the_projects(run: Run) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    assert run("--version").stdout == f"holdfast {VERSION}, {build.find()}\n"


def test_importing_the_command_loads_nothing_heavy(run: Run) -> None:
    script = (
        "import sys, broker.cli.main;"
        "heavy = {'asyncio', 'uvloop', 'rocksdict', 'argon2', 'prometheus_client', 'http'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "required"),
        (("sreve",), "invalid choice"),
        (("serve", "--prot", "1"), "unrecognized arguments"),
    ],
)
def test_an_unknown_command_or_flag_exits_2(
    run: Run, arguments: tuple[str, ...], text: str
) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_test_config_says_so_when_all_is_good(run: Run, tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text("[listener]\nport = 0\n")
    result = run("serve", "-c", "good.toml", "--test-config")
    assert (result.returncode, result.stdout, result.stderr) == (0, "configuration is good\n", "")
    assert sorted(os.listdir(tmp_path)) == ["good.toml"]


@pytest.mark.parametrize("extra", [(), ("--test-config",)])
def test_a_bad_configuration_is_one_line_and_exit_2(
    run: Run, tmp_path: Path, extra: tuple[str, ...]
) -> None:
    (tmp_path / "bad.toml").write_text("[session]\nmax_infligt = 5\n")
    line = complaint(run("serve", "-c", "bad.toml", *extra), 2)
    assert "file bad.toml: unknown key 'session.max_infligt'" in line
    assert "did you mean session.max_inflight?" in line


def test_bad_environment_and_flags_are_named(run: Run) -> None:
    line = complaint(run("serve", HOLDFAST__SYS__INTERVALL="5s"), 2)
    assert "did you mean HOLDFAST__SYS__INTERVAL?" in line
    line = complaint(run("serve", "-p", "http"), 2)
    assert "flag --port: listener.port = 'http': expected a whole number, 0 to 65535" in line


def test_test_config_looks_into_the_password_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "users").write_text("nonsense\n")
    line = complaint(run("serve", "--test-config", HOLDFAST__AUTH__PASSWORD_FILE="users"), 2)
    assert "password file users line 1" in line


def test_test_config_looks_into_the_acl_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "acl").write_text("topic read #\nallow all\n")
    line = complaint(run("serve", "--test-config", HOLDFAST__AUTH__ACL_FILE="acl"), 2)
    assert "acl file acl line 2: 'allow': expected" in line
    (tmp_path / "acl").write_text("topic read #\n")
    assert run("serve", "--test-config", HOLDFAST__AUTH__ACL_FILE="acl").returncode == 0


@pytest.mark.parametrize("variable", ["HOLDFAST__AUTH__ACL_FILE", "HOLDFAST__AUTH__PASSWORD_FILE"])
def test_a_broker_does_not_start_on_a_file_it_does_not_understand(
    run: Run, tmp_path: Path, variable: str
) -> None:
    (tmp_path / "file").write_text("nonsense\n")
    line = complaint(run("serve", "-p", "0", **{variable: "file"}), 1)
    assert "file line 1: " in line
    line = complaint(run("serve", "-p", "0", **{variable: "absent"}), 1)
    assert "absent: No such file or directory" in line


def test_config_show_tells_value_and_origin(run: Run) -> None:
    result = run("config", "show", "--data-dir", "here", HOLDFAST__SESSION__MAX_AGE="7d")
    assert result.returncode == 0
    assert re.search(
        r'^max_age = "7d" +# environment HOLDFAST__SESSION__MAX_AGE$', result.stdout, re.M
    )
    assert re.search(r'^data_dir = "here" +# flag --data-dir$', result.stdout, re.M)
    assert re.search(r"^port = 1883 +# default$", result.stdout, re.M)
    tomllib.loads(result.stdout)


def test_config_init_prints_a_configuration_that_passes(run: Run, tmp_path: Path) -> None:
    result = run("config", "init")
    (tmp_path / "holdfast.toml").write_text(result.stdout)
    assert run("serve", "-c", "holdfast.toml", "--test-config").returncode == 0


def test_passwd_creates_changes_and_deletes_users(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert run("passwd", "-c", "users", "anna", input="first\n").returncode == 0
    assert run("passwd", "-b", "users", "ben", "his").returncode == 0
    assert run("passwd", "users", "anna", input="second\n").returncode == 0
    users = password_file.load(str(path))
    assert list(users) == ["anna", "ben"]
    assert password_hashes.verify(users["anna"], b"second")
    assert password_hashes.verify(users["ben"], b"his")
    assert run("passwd", "-D", "users", "anna").returncode == 0
    assert list(password_file.load(str(path))) == ["ben"]


def test_passwd_writes_keys_for_scram_and_leaves_other_lines_alone(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "users"
    path.write_text(f"old:{MOSQUITTO_7}\n")
    assert run("passwd", "--scram", "-b", "users", "anna", "hers").returncode == 0
    assert path.read_text().startswith(f"old:{MOSQUITTO_7}\nanna:SCRAM-SHA-256$")
    users = password_file.load(str(path))
    assert users["anna"].scheme == password_hashes.SCRAM
    assert password_hashes.verify(users["anna"], b"hers")
    assert run("passwd", "--scram", "users", "ben", input="hers\n").returncode == 0
    assert password_file.load(str(path))["ben"].salt != users["anna"].salt
    assert run("passwd", "users", "anna", input="plain\n").returncode == 0
    assert password_file.load(str(path))["anna"].scheme == password_hashes.ARGON2ID


@pytest.mark.parametrize(
    ("arguments", "exit_code", "text"),
    [
        (("absent", "anna"), 1, "password file absent: No such file or directory (-c creates it)"),
        (("-c", "users", "anna"), 1, "exists; -c is for a new one"),
        (("-D", "users", "nobody"), 1, "no user 'nobody' in users"),
        (("users", "anna", "secret"), 2, "needs -b"),
        (("-b", "users", "anna"), 2, "-b needs the password"),
        (("users", "a:b"), 2, "user name 'a:b'"),
        (("-c", "-D", "users", "anna"), 2, "exclude each other"),
        (("users", "anna"), 1, "the password is empty"),
        (("--scram", "-b", "users", "anna", "\u0627a"), 1, "password for SCRAM: right-to-left"),
        (("--scram", "-b", "users", "😀", "x"), 2, "U+1F600 is not in the Unicode 3.2"),
    ],
)
def test_passwd_mistakes_are_one_line_and_change_nothing(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], exit_code: int, text: str
) -> None:
    (tmp_path / "users").write_text("")
    assert text in complaint(run("passwd", *arguments, input="\n"), exit_code)
    assert (tmp_path / "users").read_text() == ""


def test_health_of_a_broker_that_is_not_there_fails_with_its_address(run: Run) -> None:
    line = complaint(run("health", HOLDFAST__METRICS__PORT="1"), 1)
    assert "http://127.0.0.1:1/healthz: " in line
    assert "refused" in line
    assert "expected" not in complaint(run("health", "--url", "nonsense"), 1)


def test_sessions_are_listed_while_the_broker_runs_and_after_it_was_killed(
    run: Run, start: Callable[..., BrokerProcess]
) -> None:
    broker = start()
    client = RawClient(broker.port, "boat")
    client.durable()
    client.subscribe("a/#", "b")
    client.disconnect()
    for _ in range(2):
        listing = run("session", "list", "--data-dir", str(broker.data_dir))
        assert listing.stderr == ""
        assert listing.stdout.splitlines()[1].split()[:2] == ["boat", "offline"]
        page = run("session", "show", "boat", "--data-dir", str(broker.data_dir))
        assert "  a/#  qos=1\n  b  qos=1\n" in page.stdout
        found = run("session", "list", "-o", "json", "--data-dir", str(broker.data_dir))
        assert [session["client_id"] for session in json.loads(found.stdout)] == ["boat"]
        if broker.is_running():
            broker.kill()
    line = complaint(run("session", "show", "nobody", "--data-dir", str(broker.data_dir)), 1)
    assert line == "holdfast: no session 'nobody'"


def test_sessions_of_no_database_are_refused(run: Run) -> None:
    assert "absent: no database in it" in complaint(
        run("session", "list", "--data-dir", "absent"), 1
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("history", "timeline", "\udcff"), "argument CLIENT_ID: '\\udcff': expected UTF-8"),
        (("session", "show", "\udcff"), "argument CLIENT_ID: '\\udcff': expected UTF-8"),
        (("history", "timeline", "--message", f"{1 << 63}"), "the id of a message, below 2 ** 63"),
    ],
)
def test_what_no_client_and_no_message_is_called_is_a_usage_error(
    run: Run, arguments: tuple[str, ...], expected: str
) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert expected in result.stderr.splitlines()[-1]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[Path]:
    """A data directory with a history of a few events, one of a client with an accent."""
    umask = os.umask(0o077)  # as the broker's
    config = recorded(tmp_path)
    tick = Tick()
    tick.record(events.SESSION_EXPIRED, who="mètre\0", words={1: 7})
    store = RocksStore(Path(config.shell.data_dir) / "db")
    store.write([(HISTORY, history_key(1, 8), seal(tick.pack(8)))])
    store.close()
    os.umask(umask)
    yield Path(config.shell.data_dir)


def test_a_terminal_that_knows_no_accents_is_served(run: Run, history: Path) -> None:
    result = run(
        "history", "tail", "-n", "1", "--data-dir", str(history),
        HOLDFAST__HISTORY__NODE="edge", PYTHONIOENCODING="ascii",
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("m\\xe8tre: session expired\n")


@pytest.mark.parametrize(
    ("into", "said"),
    [
        ("> /dev/full", "holdfast: cannot write the output: No space left on device\n"),
        ("| head -c 1 > /dev/null", ""),
        ("| true", ""),
    ],
)
def test_an_output_that_is_not_taken_is_one_line_or_none(
    history: Path, into: str, said: str
) -> None:
    command = f"{sys.executable} -m broker history tail --data-dir '{history}' {into}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOLDFAST__HISTORY__NODE": "edge"}
    result = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=60, env=environment
    )
    assert result.stderr == said


def test_segments_are_verified_with_a_line_for_each_problem(run: Run, history: Path) -> None:
    directory = history / "history"
    (segment,) = directory.rglob("*.parquet")
    arguments = ("history", "verify", "--data-dir", str(history))
    sound = run(*arguments)
    summary = f"{directory}: 1 segments of 1 starts of 1 nodes, 5 events: no problems\n"
    assert (sound.returncode, sound.stdout, sound.stderr) == (0, summary, "")
    whole = bytearray(segment.read_bytes())
    whole[100] ^= 1
    segment.write_bytes(whole)
    assert run(*arguments, "--quick").returncode == 0
    damaged = run("history", "verify", "--history", str(directory))
    assert (damaged.returncode, damaged.stderr) == (2, "")
    problem, last = damaged.stdout.splitlines()
    assert problem.startswith(f"history segment {segment}: ")
    assert last.endswith("5 events: 1 problems")


def test_a_directory_that_is_none_cannot_be_verified(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "missing"):
        line = complaint(run("history", "verify", "--history", name), 1)
        assert line == f"holdfast: {name}: not a directory"


@pytest.mark.parametrize("command", [("history", "export", "--to"), ("db", "checkpoint")])
def test_copies_are_for_the_owner_alone_wherever_they_are(
    run: Run, history: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """May everybody read the messages in a copy that was made in a directory of everybody?"""
    target = tmp_path / "public"
    target.mkdir(mode=0o755)
    result = run(*command, str(target), "--data-dir", str(history), HOLDFAST__HISTORY__NODE="edge")
    assert (result.returncode, result.stderr) == (0, "")
    made = list(target.rglob("*"))
    assert len(made) > 2
    assert [path for path in made if path.stat().st_mode & 0o077] == []
