"""Scenarios that need a failing or slow disk: run in a process of their own, under the shim.

A test calls `run(shim, directory, "name", ...)`; the function of that name then runs in a child
process (LD_PRELOAD works from a process's start only), and what it returns comes back as JSON. Its
asserts fail the test. `faults(...)` inside it switches the rules of tests/durability/iofault.py.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage.errors import Recoverable, StorageError, Unrecoverable
from storage.local.committer import Committer
from storage.local.rocks import RocksStore
from storage.local.watermark import Watermark

ROOT = Path(__file__).parents[2]


def run(shim: Path, directory: Path, scenario: str, *arguments: object) -> Any:
    """Run a scenario in a child process under the shim and return what it returns."""
    environment = os.environ | {
        "LD_PRELOAD": str(shim),
        "HOLDFAST_IOFAULT_CONTROL": str(directory / "rules"),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.storage.scenarios", scenario, str(directory)]
    child = subprocess.run(
        [*command, json.dumps(arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def faults(*rules: str) -> None:
    """Replace the rules of this process; none: every call works."""
    control = os.environ["HOLDFAST_IOFAULT_CONTROL"]
    Path(control + ".new").write_text("\n".join(rules))
    os.replace(control + ".new", control)


class Log:
    """What a committer reported."""

    def __init__(self) -> None:
        self.durable: list[int] = []
        self.failures: list[str] = []
        self.changed = threading.Condition()

    def on_durable(self, serial: int) -> None:
        with self.changed:
            self.durable.append(serial)
            self.changed.notify_all()

    def on_failure(self, error: StorageError) -> None:
        with self.changed:
            self.failures.append(f"{type(error).__name__}: {error}")
            self.changed.notify_all()

    def wait(self, serial: int, timeout: float = 10) -> bool:
        """Wait until `serial` is durable (True) or the committer has failed (False)."""
        with self.changed:
            assert self.changed.wait_for(
                lambda: bool(self.failures) or serial in self.durable, timeout
            )
            return serial in self.durable


def row(number: int) -> list[tuple[str, bytes, bytes | None]]:
    """Return batch `number`: one row in each of two families."""
    key = number.to_bytes(8, "big")
    return [("a", key, b"a%d" % number), ("b", key, b"b%d" % number)]


def held(store: RocksStore) -> int:
    """Return how many batches the store holds; they are whole and without a hole."""
    rows = {name: store.scan(name, b"", count=1_000_000) for name in ("a", "b")}
    count = len(rows["a"])
    assert len(rows["b"]) == count
    for at in range(count):
        assert [("a", *rows["a"][at]), ("b", *rows["b"][at])] == row(at + 1)
    return count


# --- scenarios ---


def failed_sync(directory: Path, rule: str) -> dict[str, Any]:
    """Fail one sync, and let the disk work again at once: nothing may be reported any more."""
    store = RocksStore(directory / "db", families=["a", "b"])
    log = Log()
    committer = Committer(store, log.on_durable, log.on_failure)
    store.write(row(1))
    committer.request(1)
    assert log.wait(1)
    faults(rule)
    store.write(row(2))
    committer.request(2)
    assert not log.wait(2)
    faults()
    refused = 0
    for number in (3, 4):
        try:
            store.write(row(number))
        except Unrecoverable:
            refused += 1
        committer.request(number)
    try:
        store.reopen()
    except Unrecoverable:
        refused += 1
    reads = store.get("a", (1).to_bytes(8, "big")) == b"a1"
    committer.close()
    store.close()
    store = RocksStore(directory / "db")  # what the supervisor's restart does
    after = held(store)
    store.close()
    return {
        "durable": log.durable,
        "failures": log.failures,
        "refused": refused,
        "reads": reads,
        "after_restart": after,
    }


def slow_sync(directory: Path) -> dict[str, Any]:
    """Write and read on this thread for as long as one sync of a second lasts on the other."""
    store = RocksStore(directory / "db", families=["a", "b"])
    log = Log()
    committer = Committer(store, log.on_durable, log.on_failure)
    faults("mode=delay ops=fdatasync,fsync path=.log ms=1000 times=1")
    number = 0
    while not log.durable and not log.failures:
        number += 1
        store.write(row(number))
        committer.request(number)
        assert store.get("a", number.to_bytes(8, "big")) is not None
        store.scan("b", b"", count=5)
    faults()
    assert log.wait(number)
    syncs = committer.syncs
    committer.close()
    store.close()
    return {"written": number, "syncs": syncs, "failures": log.failures}


def close_during_sync(directory: Path) -> dict[str, Any]:
    """Close and reopen while another thread is in flush_wal."""
    store = RocksStore(directory / "db", families=["a", "b"])
    for number, call in enumerate((store.reopen, store.close), 1):
        store.write(row(number))
        faults("mode=delay ops=fdatasync path=.log ms=300 times=1")
        thread = threading.Thread(target=store.sync)
        thread.start()
        time.sleep(0.1)
        call()
        assert not thread.is_alive()
        thread.join()
    store = RocksStore(directory / "db")
    count = held(store)
    store.close()
    return {"held": count}


def sync_counts(directory: Path) -> dict[str, Any]:
    """Count the syncs of the log: none for a write, one for a sync."""
    counts = {}
    store = RocksStore(directory / "db", families=["a", "b"])
    for name, call in {
        "writes": lambda: [store.write(row(number)) for number in range(1, 101)],
        "sync": store.sync,
    }.items():
        # A delay of nothing, at the call after the last: only its being counted matters.
        faults("mode=eio ops=fsync,fdatasync path=.log nth=2")
        try:
            call()
            counts[name] = "fewer than two"
        except StorageError:
            counts[name] = "two or more"
    faults("mode=delay ops=fdatasync path=.log ms=200")
    store.write(row(101))
    began = time.monotonic()
    store.sync()
    counts["sync_took_the_delay"] = str(time.monotonic() - began >= 0.2)
    store.close()
    return counts


def full_log(directory: Path) -> dict[str, Any]:
    """Let appends to the log find no space: refused, reopened, resumed, nothing lost."""
    store = RocksStore(directory / "db", families=["a", "b"])
    log = Log()
    committer = Committer(store, log.on_durable, log.on_failure)
    for number in range(1, 4):
        store.write(row(number))
    faults("mode=enospc ops=write,pwrite,open path=/db/")
    refused = []
    for _ in range(2):
        try:
            store.write(row(4))
        except Recoverable as error:
            refused.append(str(error))
    needs_reopen = store.needs_reopen
    committer.request(3)  # written before the failure: must become durable after the reopening
    time.sleep(0.3)
    durable_meanwhile = list(log.durable)
    try:
        store.reopen()
        still_full = "opened"
    except Recoverable:
        still_full = "refused"
    try:
        store.write(row(4))
    except Recoverable:
        refused.append("while it is closed")
    needs_reopen_still = store.needs_reopen
    faults()
    store.reopen()
    store.write(row(4))
    committer.request(4)
    assert log.wait(4)
    committer.close()
    count = held(store)
    sequence = store.sequence()
    store.close()
    return {
        "refused": refused,
        "needs_reopen": [needs_reopen, needs_reopen_still, store.needs_reopen],
        "durable_meanwhile": durable_meanwhile,
        "still_full": still_full,
        "durable": log.durable,
        "failures": log.failures,
        "held": count,
        "sequence": sequence,
    }


def close_while_full(directory: Path) -> dict[str, Any]:
    """Close the committer while its sync waits for space: it ends, and has reported nothing."""
    store = RocksStore(directory / "db", families=["a", "b"])
    log = Log()
    committer = Committer(store, log.on_durable, log.on_failure)
    store.write(row(1))
    faults("mode=enospc ops=write,pwrite path=/db/")
    for _ in range(2):
        try:
            store.write(row(2))
        except Recoverable:
            pass
    committer.request(1)
    committer.close()
    faults()
    store.close()
    return {"durable": log.durable, "failures": log.failures}


def fail_nth_call(
    directory: Path, mode: str, times: int, first: int, last: int, step: int
) -> dict[str, Any]:
    """Fail the n-th I/O call of a small life of a store, for many n; check what is left."""
    outcomes: dict[str, int] = {}
    for nth in range(first, last, step):
        database = directory / f"db{nth}"
        faults(f"mode={mode} ops=all path=/db{nth}/ nth={nth} times={times}")
        reported, outcome = _life(database)
        faults()
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        store = RocksStore(database, families=["a", "b"])
        count = held(store)
        assert count >= reported, f"call {nth}: {reported} were reported, {count} are there"
        assert store.sequence() >= count
        store.close()
    return outcomes


def _life(database: Path) -> tuple[int, str]:
    """Live until the end or a failure; return the newest serial reported durable, and which."""
    log = Log()
    store = committer = None
    try:
        store = RocksStore(database, families=["a", "b"])
        committer = Committer(store, log.on_durable, log.on_failure)
        for number in range(1, 6):
            store.write(row(number))
            committer.request(number)
            if not log.wait(number):
                return max(log.durable, default=0), "sync failed"
            if number == 2:
                store.create_family("c")
            if number == 3:
                store.flush()
            if number == 4:
                store.drop_family("c")
        return 5, "lived"
    except StorageError as error:
        return max(log.durable, default=0), f"{type(error).__name__}"
    finally:
        if committer is not None:
            before = len(log.failures)
            if isinstance(store, RocksStore) and store.needs_reopen:
                committer.fail(Unrecoverable("no space"))
            committer.close()
            assert len(log.failures) <= before + 1
        if store is not None:
            try:
                store.close()
            except StorageError:
                pass


def failing_watermark(directory: Path) -> dict[str, Any]:
    """Let only the watermark's sync fail: the disk is failing, so the process has to end."""
    store = RocksStore(directory / "db", families=["a", "b"])
    watermark = Watermark(directory / "watermark")
    watermark.begin(store.synced())
    log = Log()
    committer = Committer(
        store,
        log.on_durable,
        log.on_failure,
        watermark=watermark,
        source=store,
    )
    faults("mode=eio ops=fdatasync path=/watermark")
    store.write(row(1))
    committer.request(1)
    assert log.wait(1)
    committer.close()
    watermark.close()
    store.close()
    return {"durable": log.durable, "failures": log.failures}


SCENARIOS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function
    for function in (
        close_during_sync,
        close_while_full,
        fail_nth_call,
        failed_sync,
        failing_watermark,
        full_log,
        slow_sync,
        sync_counts,
    )
}

if __name__ == "__main__":
    name, where, arguments = sys.argv[1:]
    print(json.dumps(SCENARIOS[name](Path(where), *json.loads(arguments))))
