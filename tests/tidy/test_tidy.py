"""House rules a linter cannot hold: sizes, banned names, purity, mirrors, documents.

Every rule is a table here and every exception to it is a line with its reason. Reads the files git
knows about (or would add), so a checkout full of scratch files stays tidy. Must never import the
code it judges.
"""

import ast
import functools
import re
import subprocess
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("mqtt", "session", "storage", "broker")
# The conformance suite, the Spark jobs and the launcher act all over, so purity is not asked of
# them; everything else is.
SUITE: Final = "conformance"
LAUNCHER: Final = "holdfast_mqtt"
ACTING: Final = (SUITE, "audit", LAUNCHER)
# Checks are found by importing these folders, and tried by tests/conformance/wrong.
CHECKS: Final = ("conformance.v311.", "conformance.v50.")

LINE_MAX: Final = 100
FILE_LINES_MAX: Final = 900
FUNCTION_LINES_MAX: Final = 70

# Functions that may be longer, and why. A hot loop that calls a helper per packet pays for it.
LONG_FUNCTIONS: Final[dict[str, str]] = {
    "session/assembly.py::__init__": "hands each part what it needs, a line per argument",
    "session/settings.py::__init__": "a table: one line and its reason per setting",
    "mqtt/decoder.py::_decode": "hot path: packets are decoded inline",
}

# Files that may be longer, and why.
LONG_FILES: Final[dict[str, str]] = {}

# Files whose lines may be longer, and why.
LONG_LINES: Final = {
    "LICENSE": "as published",
    "deploy/holdfast.toml": "generated: a comment is one line per key",
}

# Code that may not be written, and what to write instead.
BANNED: Final = {
    "time.time": "take `now` as an argument; shells use broker_clock or time.monotonic",
    "time.time_ns": "take `now` as an argument; shells use broker_clock or time.monotonic",
    "datetime.now": "take `now` as an argument; only shells know wall time",
    "datetime.utcnow": "take `now` as an argument; only shells know wall time",
    "print": "log it (broker.observe.structured_log), or hand it to broker.cli.command",
    "except Exception": "name the errors; only the two shell boundaries catch everything",
    "except BaseException": "name the errors",
    "bare except": "name the errors",
    "WriteOptions": "only storage.local.rocks may choose how RocksDB writes",
    "pickle": "records are versioned and checksummed: storage.tables.message_record",
}

# Where a banned name is allowed, and why. `file` or `file::name of the function`.
ALLOWED: Final[dict[str, dict[str, str]]] = {
    "print": {
        "audit/command.py": "a command answers on stdout",
        "broker/cli/command.py": "a command answers on stdout",
        "broker/cli/main.py": "a failure is a line on stderr",
        "broker/cli/demo.py": "a show",
        "conformance/command.py": "a command answers on stdout",
    },
    "datetime.now": {
        "audit/command.py": "a report has a date",
        "conformance/command.py": "a report has a date",
    },
    "time.time": {
        "broker/observe/structured_log.py": "a log line carries wall time",
        "broker/backends/webhook_sink.py": "a signature carries wall time",
    },
    "time.time_ns": {
        "storage/time/machine_clocks.py": "the one place that reads wall time for the broker",
        "holdfast_mqtt/client_log.py": "the clock of a user's client",
        "broker/backends/cassandra_sink.py": "orders writes of its cursor after those of others",
    },
    "WriteOptions": {"storage/local/rocks.py": "the adapter"},
    "except Exception": {
        "broker/cluster/member.py::Member._fail_stop": "shell boundary: a node of a cluster",
        "broker/cluster/member.py::Member._sync_base": "shell boundary: a thread of it",
        "broker/loop/driver.py": "shell boundary: the event loop",
        "broker/backends/json_rows.py::JsonRows.of": "boundary: a row becomes a dead letter",
        "broker/backends/redis/actions.py::RedisActions.fill": "boundary: as in json_rows",
        "broker/backends/dynamodb_sink.py::DynamodbSink.apply": "boundary: as in redis",
        "broker/backends/cassandra_sink.py::CassandraSink.apply": "boundary: as in redis",
        "broker/history/export_thread.py::ExportThread._serve": "boundary: the exporter's thread",
        "broker/loop/client_stream.py": "shell boundary: connection callbacks",
        "broker/security/authenticators.py::PasswordFile._check": "boundary: a hashing thread",
        "storage/local/committer.py::Committer._run": "shell boundary: the committer's thread",
        "storage/replicated/tail_syncer.py::TailSyncer._run": "shell boundary: the tail's thread",
        "storage/local/rocks.py": "rocksdict raises bare exceptions; the adapter tells them apart",
        "conformance/runner.py::_Session._attempt": "whatever a check raises is its result",
    },
    "except BaseException": {
        "conformance/adapters/base.py::launch": "no process is left, even on Ctrl-C",
        "conformance/brokers.py::Brokers.shared": "no broker stays counted as used",
        "conformance/runner.py": "threads hand everything to the one that waits for them",
    },
    "dead": {
        "audit.registry": "docs/audit.md is made from it: tests.audit.registry_tables",
        "storage.local.memory": "the disk of the simulation and of tests",
        "storage.history.replay": "the simulation judges with it, and whoever reads a history",
    },
}

# rocksdict calls that end silently at damage or dangle (see storage/local/rocks.py).
ROCKSDICT_BANNED: Final = {
    "items": "use the adapter's own iterator: RdictIter with status()",
    "keys": "use the adapter's own iterator: RdictIter with status()",
    "values": "use the adapter's own iterator: RdictIter with status()",
    "snapshot": "its iterators outlive it and dangle",
    "set_iterate_upper_bound": "broken in this version: compare keys instead",
    "set_iterate_lower_bound": "broken in this version: compare keys instead",
}

# Pure modules decide; shells act. Pure modules import none of these, and import no shell either.
FORBIDDEN_IN_PURE: Final = frozenset(
    {
        "asyncio",
        "concurrent",
        "datetime",
        "fcntl",
        "http",
        "logging",
        "multiprocessing",
        "os",
        "queue",
        "random",
        "rocksdict",
        "secrets",
        "select",
        "selectors",
        "signal",
        "socket",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "uuid",
        "uvloop",
    }
)

# Where shells live, and what they touch. Whatever lies there and is not in the contract of the pure
# modules is a shell; whatever lies elsewhere must be pure.
SHELLS: Final[dict[str, str]] = {
    "broker": "sockets, files, threads, clocks, the operator",
    "storage.history.segment_names": "lists directories",
    "storage.history.segments": "writes and reads files",
    "storage.history.witness": "writes and reads a file",
    "storage.local": "the disk of this machine",
    "storage.replicated.kafka": "the servers of Kafka",
    "storage.replicated.kafka_log": "the threads that talk to them",
    "storage.replicated.tail": "writes and reads files",
    "storage.replicated.tail_syncer": "a thread",
    "storage.time.machine_clocks": "reads clocks",
}

MODULES_IN_FOLDER_MAX: Final = 12

# Folders that may hold more modules, and why.
LARGE_FOLDERS: Final[dict[str, str]] = {
    "broker/backends": "two modules for each kind of store, beside what feeds them all",
    "storage/local": "a module for each file of a data directory, and the store that uses them",
    "audit/checks": "checks share passes over the history: a module is a pass, or what judges it",
    "audit/generate": "one generator of histories: nothing else imports its modules",
    "conformance": "the harness of the suite lies beside its entrance",
    "conformance/v311": "one module a section of the standard",
    "conformance/v50": "one module a section of the standard",
}

# Modules without a test file of their own, and where their behaviour is tested instead.
NO_MIRROR: Final[dict[str, str]] = {
    "storage.replicated.log_port": "a protocol; tests/replication and test_kafka_log.py run both",
    "audit.__main__": "three lines; tests/audit/test_command.py runs what they call",
    "audit.clients.part": "a part for audit.run; tests/audit/test_real_clients.py runs it",
    "audit.clients.will_copies": "needs Spark; test_reconcile.py runs it",
    "audit.checks.session_judgement": "needs Spark; test_delivery_checks.py runs it",
    "audit.checks.open_rows": "needs Spark; test_delivery_checks.py runs it",
    "audit.checks.expiry_check": "needs Spark; test_delivery_checks.py runs it",
    "audit.checks.stream_holders": "needs Spark; test_delivery_checks.py runs it",
    "audit.checks.incoming_qos2": "needs Spark; test_delivery_checks.py runs it",
    "audit.checks.publish_checks": "needs Spark; test_delivery_checks.py runs it",
    "audit.checks.order_check": "needs Spark; test_delivery_checks.py runs it",
    "audit.checks.packed_rows": "what a judgement begins with; test_judge_session.py tries it",
    "audit.checks.session_rowset": "needs Spark; test_delivery_checks.py runs it",
    "audit.checks.gap_filter": "needs Spark; test_delivery_checks.py runs it",
    "audit.checks.sending_checks": "half of a judgement; test_judge_session.py tries it",
    "broker.backends.webhook_http": "one connection; test_webhook_sink.py tries it",
    "broker.__main__": "three lines; tests/broker/cli/test_main.py runs them",
    "session.assembly": "wiring; every test of the engine runs it",
    "session.live.core": "two groups of parts; every test of the engine uses them",
    "broker.backends.pump.port": "a protocol",
    "session.ports": "protocols",
    "broker.observe.backend_figures": "a value; tests/broker/backends/pump fills it",
    "broker.process.disk_watch": "tests/durability/test_failing_disk.py fills its disk",
    "broker.version": "a constant; tests/broker/cli/test_main.py prints it",
    "conformance.__main__": "three lines; tests/conformance/test_command.py runs what they call",
    "conformance.failure": "names",
    "conformance.over_websocket": "checks of both versions; tests/conformance/wrong tries them",
    "conformance.scenes": "parts of checks; tests/conformance/wrong tries them with these",
    "conformance.stages": "parts of checks; tests/conformance/wrong tries them with these",
    "holdfast_mqtt.__main__": "three lines; tests/packaging/test_installed.py runs them",
    "conformance.tables": "tables; tests/conformance/test_packets.py reads packets by them",
    "audit.input.session_columns": "a tuple of columns; test_session_lifetimes.py feeds them",
    "storage.replicated.kafka_log": "wiring; tests/replication/test_kafka_log.py runs it",
    "storage.api": "protocols",
    "storage.errors": "names",
    "storage.log.layouts.api": "protocols",
    "storage.limits": "constants",
}


def _tracked() -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    names = sorted({name for name in listing.decode().split("\0") if name})
    return [ROOT / name for name in names if (ROOT / name).is_file()]


FILES: Final = _tracked()
PYTHON: Final = [path for path in FILES if path.suffix == ".py"]
MODULES: Final = [path for path in PYTHON if path.relative_to(ROOT).parts[0] in PACKAGES]
ALL_MODULES: Final = [
    *MODULES,
    *(path for path in PYTHON if path.relative_to(ROOT).parts[0] in ACTING),
]
DOCUMENTS: Final = [path for path in FILES if path.suffix == ".md"]


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _module(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, imported module) of every import; those for type checkers count as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def _dotted(node: ast.AST) -> str:
    """Return `a.b.c` of a name or attribute, "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}".lstrip(".")
    return ""


def _banned(node: ast.AST) -> str | None:
    """Return the entry of BANNED that this one node is, if any."""
    if isinstance(node, ast.ExceptHandler):
        if node.type is None:
            return "bare except"
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        return next(
            (f"except {_dotted(n)}" for n in caught if f"except {_dotted(n)}" in BANNED), None
        )
    if isinstance(node, ast.Call):
        called = _dotted(node.func)
        return next((n for n in ("print", "WriteOptions") if called.split(".")[-1] == n), None)
    if isinstance(node, ast.Attribute):
        dotted = _dotted(node)
        return next((n for n in BANNED if "." in n and ("." + dotted).endswith("." + n)), None)
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = {name for _, name in _imports(node)}
        return next((n for n in BANNED if n in names), None)
    return None


@functools.cache
def _uses(path: Path) -> list[tuple[str, int, str]]:
    """Return (place, line, banned name) of each banned thing in the file."""

    def walk(node: ast.AST, place: str) -> Iterator[tuple[str, int, str]]:
        for child in ast.iter_child_nodes(node):
            inner = place
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{place}.{child.name}" if place else child.name
            found = _banned(child)
            if found:
                yield inner, getattr(child, "lineno", 0), found
            yield from walk(child, inner)

    return list(walk(_tree(path), ""))


def _allowed(path: Path, place: str, found: str) -> bool:
    places = ALLOWED.get(found, {})
    return _name(path) in places or f"{_name(path)}::{place}" in places


def test_lines_fit_the_page() -> None:
    suffixes = {".toml", ".yml", ".yaml", ".service", ""}  # ruff looks after Python
    long = [
        f"{_name(path)}:{number}: {len(line)} characters"
        for path in FILES
        if path.suffix in suffixes and _name(path) not in LONG_LINES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > LINE_MAX
    ]
    assert not long, f"lines longer than {LINE_MAX}:\n" + "\n".join(long)


def test_files_hold_one_idea() -> None:
    long = [
        f"{_name(path)}: {count} lines"
        for path in PYTHON
        if (count := len(path.read_text().splitlines())) > FILE_LINES_MAX
        and _name(path) not in LONG_FILES
    ]
    assert not long, f"files longer than {FILE_LINES_MAX} lines: split them\n" + "\n".join(long)


def test_functions_fit_on_a_screen() -> None:
    long = []
    for path in PYTHON:
        for function in _functions(_tree(path)):
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if (
                lines > FUNCTION_LINES_MAX
                and f"{_name(path)}::{function.name}" not in LONG_FUNCTIONS
            ):
                long.append(f"{_name(path)}:{function.lineno}: {function.name} has {lines} lines")
    assert not long, f"functions longer than {FUNCTION_LINES_MAX} lines\n" + "\n".join(long)


@pytest.mark.parametrize("name", sorted(BANNED))
def test_banned_names_stay_out(name: str) -> None:
    found = [
        f"{_name(path)}:{line}: in {place or 'the module'}"
        for path in ALL_MODULES
        for place, line, banned in _uses(path)
        if banned == name and not _allowed(path, place, banned)
    ]
    assert not found, f"{name} is banned: {BANNED[name]}\n" + "\n".join(found)


def test_the_adapter_uses_no_rocksdict_call_that_hides_damage() -> None:
    path = ROOT / "storage" / "local" / "rocks.py"
    found = [
        f"{_name(path)}:{node.lineno}: .{node.func.attr}(): {ROCKSDICT_BANNED[node.func.attr]}"
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ROCKSDICT_BANNED
        and not _allowed(path, "", f".{node.func.attr}")
    ]
    assert not found, "\n".join(found)


@functools.cache
def _pure_contract() -> dict[str, list[str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = [c for c in settings["contracts"] if c["name"].startswith("pure modules")]
    return contract  # type: ignore[no-any-return]


def _lies_in(module: str, rooms: Iterable[str]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def _is_pure(module: str) -> bool:
    return _lies_in(module, _pure_contract()["source_modules"])


def test_every_module_is_pure_or_lies_where_shells_live() -> None:
    lost = [
        _name(path)
        for path in MODULES
        if path.name != "__init__.py"
        and not _is_pure(_module(path))
        and not _lies_in(_module(path), SHELLS)
    ]
    assert not lost, "neither pure (pyproject.toml) nor among the shells: " + ", ".join(lost)


def test_pure_modules_import_nothing_that_acts() -> None:
    shells = {_module(path) for path in MODULES if path.name != "__init__.py"}
    shells = {module for module in shells if not _is_pure(module)}
    found = []
    for path in MODULES:
        if not _is_pure(_module(path)):
            continue
        for line, imported in _imports(_tree(path)):
            if imported.split(".")[0] in FORBIDDEN_IN_PURE:
                found.append(f"{_name(path)}:{line}: pure, but imports {imported}")
            elif imported in shells:
                found.append(f"{_name(path)}:{line}: pure, but imports the shell {imported}")
    assert not found, "\n".join(found)


def test_import_linter_forbids_pure_modules_the_same() -> None:
    contract = _pure_contract()
    modules = {_module(path) for path in MODULES}
    assert set(contract["source_modules"]) <= modules, "the contract names what does not exist"
    assert set(contract["forbidden_modules"]) == FORBIDDEN_IN_PURE


def test_a_folder_holds_few_modules() -> None:
    folders: dict[str, int] = {}
    for path in ALL_MODULES:
        if path.name != "__init__.py":
            folder = _name(path.parent)
            folders[folder] = folders.get(folder, 0) + 1
    large = {name for name, count in folders.items() if count > MODULES_IN_FOLDER_MAX}
    assert large == set(LARGE_FOLDERS), (
        f"more than {MODULES_IN_FOLDER_MAX} modules: {sorted(large - set(LARGE_FOLDERS))}, "
        f"no more so: {sorted(set(LARGE_FOLDERS) - large)}"
    )


def test_compiled_functions_name_each_kind_of_error_differently() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["holdfast"]
    paths = [path for pattern in settings["compiled"] for path in sorted(ROOT.glob(pattern))]
    assert paths
    found = []
    for path in paths:
        for function in _functions(_tree(path)):
            kinds: dict[str, set[str]] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.name and node.type:
                    kinds.setdefault(node.name, set()).add(ast.unparse(node.type))
            found += [
                f"{_name(path)}: {function.name}: {name} is {', '.join(sorted(types))}"
                for name, types in kinds.items()
                if len(types) > 1
            ]
    assert not found, "mypyc gives a variable the type of its first use\n" + "\n".join(found)


def test_every_module_has_a_test_of_its_own() -> None:
    missing = []
    for path in ALL_MODULES:
        if path.name == "__init__.py" or _module(path) in NO_MIRROR:
            continue
        if _module(path).startswith(CHECKS):
            continue
        folder = ROOT / "tests" / path.relative_to(ROOT).parent
        mirrors = [*folder.glob(f"test_{path.stem}.py"), *folder.glob(f"test_{path.stem}_*.py")]
        if not mirrors:
            missing.append(f"{_name(path)}: no {_name(folder)}/test_{path.stem}.py")
    assert not missing, "\n".join(missing)


def test_every_module_is_imported_by_another_one() -> None:
    imported = {name for path in ALL_MODULES for _, name in _imports(_tree(path))}
    commands = {
        "broker.cli.main",
        "broker.__main__",
        "conformance.__main__",
        "audit.generate.__main__",
        "broker.backends.process",
        "broker.operations.owing.count_process",
    }
    commands |= {"audit.__main__", "audit.submit", f"{LAUNCHER}.__main__"}
    commands.add(f"{LAUNCHER}.paho_log")  # programs of users import it
    # Imported by the process of a store, by name.
    process = (ROOT / "broker" / "backends" / "process.py").read_text()
    commands |= set(re.findall(r'"(broker\.backends\.[\w.]+sink)"', process))
    entrances = {*commands, *PACKAGES, *ACTING}
    dead = [
        _name(path)
        for path in ALL_MODULES
        if _module(path) not in imported | entrances
        and not _module(path).startswith(CHECKS)
        and path.name != "__init__.py"
        and _module(path) not in ALLOWED.get("dead", {})
    ]
    assert not dead, "nothing imports these modules: " + ", ".join(dead)


def test_every_module_says_what_it_is() -> None:
    silent = [
        _name(path)
        for path in ALL_MODULES
        if path.read_text().strip() and not ast.get_docstring(_tree(path))
    ]
    assert not silent, "no docstring: " + ", ".join(silent)


def test_packages_of_tests_do_not_shadow_ours() -> None:
    shadows = [_name(path) for path in FILES if _name(path).startswith("tests/")]
    shadows = [name for name in shadows if name.endswith("__init__.py")]
    assert not shadows, f"tests are no packages, or tests/session hides session: {shadows}"


def test_a_document_has_one_title_and_it_comes_first() -> None:
    wrong = []
    for path in DOCUMENTS:
        text = re.sub(r"^(```|~~~).*?^\1", "", path.read_text(), flags=re.M | re.S)
        titles = re.findall(r"^# .+$", text, flags=re.M)
        if len(titles) != 1 or not text.lstrip().startswith("# "):
            wrong.append(f"{_name(path)}: {len(titles)} titles")
    assert not wrong, "a document starts with its one `# ` title: " + ", ".join(wrong)


@functools.cache
def _anchors(document: Path) -> set[str]:
    """Return what a link may name behind `#`: the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), flags=re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path in DOCUMENTS:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", path.read_text()):
            if "://" in target:
                continue
            place = path.parent / target if target else path
            if not place.exists() or (anchor and anchor not in _anchors(place)):
                broken.append(f"{_name(path)}: {target}#{anchor}")
    assert not broken, "broken links:\n" + "\n".join(broken)


def test_the_map_of_contributing_names_what_exists() -> None:
    _, _, text = (ROOT / "CONTRIBUTING.md").read_text().partition("## I want to change ...\n")
    rows = [line.split(" | ") for line in text.partition("\n## ")[0].splitlines()[3:] if line]
    assert len(rows) > 20
    lost = []
    for what, *places, _ in rows:
        for place in places:
            paths = re.findall(r"`([^`]+)`", place)
            assert paths, f"{what}: nothing to open in {place!r}"
            lost += [path for path in paths if not (ROOT / path).exists()]
    assert not lost, "the map in CONTRIBUTING.md leads nowhere: " + ", ".join(lost)


def test_the_table_of_packages_in_the_design_names_every_room() -> None:
    _, _, text = (ROOT / "docs" / "design.md").read_text().partition("## Packages\n")
    listed = re.findall(r"^\| `([\w.]+)` \|", text.partition("\n\n`broker` imports")[0], flags=re.M)
    rooms = {_module(path.parent) for path in MODULES}
    rooms = {room for room in rooms if room.count(".") < 2}
    assert sorted(listed) == sorted(rooms | set(ACTING))


def test_nothing_names_the_machine_it_was_written_on() -> None:
    places = re.compile(r"(?<![\w.])/(?:root|work|home/\w+|Users/\w+|tmp/hf)/[\w.]")
    found = []
    for path in FILES:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # golden files
        for number, line in enumerate(text.splitlines(), 1):
            if places.search(line):
                found.append(f"{_name(path)}:{number}: {line.strip()[:LINE_MAX]}")
    assert not found, "paths of one machine:\n" + "\n".join(found)


# A dotted name of ours, as documents, docstrings and comments write it.
NAMED: Final = re.compile(
    r"(?<![\w./$-])((?:" + "|".join((*PACKAGES, *ACTING)) + r")(?:\.\w+)+)(?![\w*/-])"
)
# What looks like one and is something else.
NO_NAMES: Final = re.compile(r"\.(?:py|md|toml|html|css|js|json|txt|log|conf|service|sock)$")

# Hooks of rules (broker/backends/actions.py) look like one, too.
HOOKS: Final = frozenset({"session.subscribed", "session.unsubscribed", "session.created"})


def _options() -> set[str]:
    """Return the keys of the configuration, `section.key`, and the sections within others."""
    section, found = "", set()
    for line in (ROOT / "deploy" / "holdfast.toml").read_text().splitlines():
        if heading := re.match(r"#?\[+([\w.]+)\]+", line):
            section = heading[1]
            found |= {section} if "." in section else set()
        elif key := re.match(r"#(\w+) = ", line):
            found.add(f"{section}.{key[1]}")
    return found


@functools.cache
def _members(path: Path) -> dict[str, set[str]]:
    """Return the names a module defines at its top, and under each class the names of its body."""
    found: dict[str, set[str]] = {}
    for node in _tree(path).body:
        if isinstance(node, ast.ClassDef):
            inside = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
            inside |= {n.name for n in node.body if hasattr(n, "name")}
            inside |= {n.target.id for n in node.body if isinstance(n, ast.AnnAssign)}  # type: ignore[union-attr]
            found[node.name] = inside
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = set()
        else:
            for target in ast.walk(node):
                if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
                    found[target.id] = set()
    return found


def _exists(name: str) -> bool:
    """Is it a package, a module, a member of one, or a member of a class of one?"""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        place, rest = ROOT.joinpath(*parts[:count]), parts[count:]
        if place.is_dir() and not rest:
            return True
        module = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if module.is_file():
            members = _members(module)
            if not rest:
                return True
            return rest[0] in members and (len(rest) == 1 or rest[1] in members[rest[0]])
    return False


def _prose(path: Path) -> str:
    """Return what a file says to its readers: a document whole, of code strings and comments."""
    if path.suffix != ".py":
        return path.read_text()
    with path.open("rb") as source:
        tokens = [
            token.string
            for token in tokenize.tokenize(source.readline)
            if token.type == tokenize.COMMENT
            or (token.type == tokenize.STRING and ("`" in token.string or '"""' in token.string))
        ]
    return "\n".join(tokens)


def test_dotted_names_in_docstrings_and_documents_lead_somewhere() -> None:
    options = _options()
    assert "storage.data_dir" in options
    lost = [
        f"{_name(path)}: {name}"
        for path in (*PYTHON, *DOCUMENTS)
        if path.name != "CHANGELOG.md"  # tells what was
        for name in sorted(set(NAMED.findall(_prose(path))))
        if name not in options | HOOKS and not NO_NAMES.search(name) and not _exists(name)
    ]
    assert not lost, "these names lead nowhere:\n" + "\n".join(lost)


@pytest.mark.parametrize(
    ("table", "entries"),
    [
        ("LONG_FUNCTIONS", LONG_FUNCTIONS),
        ("LONG_FILES", LONG_FILES),
        ("LONG_LINES", LONG_LINES),
        ("SHELLS", SHELLS),
        ("NO_MIRROR", NO_MIRROR),
        *((f"ALLOWED[{name!r}]", places) for name, places in ALLOWED.items()),
    ],
)
def test_exceptions_name_what_exists(table: str, entries: dict[str, str]) -> None:
    modules = {_module(path) for path in ALL_MODULES}
    stale = []
    for entry, reason in entries.items():
        assert reason, f"{table}: {entry} needs a reason"
        file, _, place = entry.partition("::")
        if file in modules:
            continue
        if not (ROOT / file).is_file():
            stale.append(entry)
        elif place:
            text = (ROOT / file).read_text()
            if not re.search(rf"(def|class) {re.escape(place.split('.')[-1])}\b", text):
                stale.append(entry)
    assert not stale, f"{table} excepts what is not there: {stale}"
