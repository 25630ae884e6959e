"""Runs of small suites against a toy broker: what comes out, and that nothing is left behind."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from conformance.adapters.base import AdapterError, Broker, Launch, Options, Place
from conformance.check import REGISTRY, Bench, Check
from conformance.failure import Failure
from conformance.results import Result
from conformance.runner import Plan, run
from conformance.selection import compile_expression
from tests.conformance.conftest import TOY, ToyAdapter

PASSING, OTHER, THIRD = "MQTT-3.12.4-1", "MQTT-2.1.3-1", "X-43"
PATIENCE_S = 1.0


class Silent:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.total = 0
        self.results: list[Result] = []
        self.said: list[str] = []

    def begin(self, total: int) -> None:
        self.total = total

    def done(self, result: Result) -> None:
        self.results.append(result)

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """These runs know only the checks of their test."""
    before = dict(REGISTRY)
    REGISTRY.clear()
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def declare(
    identifier: str,
    function: Callable[[Bench], None],
    *,
    needs: tuple[str, ...] = (),
    wants: tuple[str, ...] = (),
    alone: bool = False,
    strict_only: bool = False,
) -> None:
    check = Check(
        identifier, 5, identifier, "conformance.v50.test", function, frozenset(needs), alone,
        strict_only, 0.0, frozenset(wants),
    )  # fmt: skip
    REGISTRY[check.key] = check


def results(
    adapter: ToyAdapter | None, *, selection: str = "", strict: bool = False, port: int = 0
) -> dict[str, Result]:
    plan = Plan(
        versions=(5,),
        select=compile_expression(selection),
        strict=strict,
        adapter=adapter,
        host="127.0.0.1",
        port=port,
        patience=PATIENCE_S,
    )
    return {result.statement.id: result for result in run(plan, Silent())}


@pytest.fixture
def address(tmp_path: object) -> Iterator[int]:
    """The port of a toy broker that nobody has an adapter for."""
    from conformance.adapters.base import Ports

    ports = Ports()
    port = ports.take()
    process = subprocess.Popen(
        [sys.executable, "-S", str(TOY), str(port), str(tmp_path)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()  # "listening"
    yield port
    process.kill()
    process.wait()
    process.stdout.close()
    ports.close()


def ping(bench: Bench) -> None:
    bench.client().ping()


def test_every_outcome_is_told_apart(toy: type[ToyAdapter]) -> None:
    def fails(bench: Bench) -> None:
        bench.fail("this is wrong", b"\x40\x02\x00\x01", expected="something else")

    def breaks(bench: Bench) -> None:
        raise KeyError("a mistake of ours")

    def cannot(bench: Bench) -> None:
        bench.not_run("no luck today")

    declare(PASSING, ping)
    declare(OTHER, fails)
    declare(THIRD, breaks)
    declare("X-42", cannot)
    found = results(toy())
    assert found[PASSING].outcome == "pass"
    assert found[OTHER].outcome == "fail"
    assert found[OTHER].packet == b"\x40\x02\x00\x01"
    assert found[OTHER].decoded == "PUBACK id 1, 0x00 Success"
    assert found[OTHER].expected == "something else"
    assert found[THIRD].outcome == "error"
    assert "KeyError: 'a mistake of ours'" in found[THIRD].reason
    assert (found["X-42"].outcome, found["X-42"].reason) == ("not run", "no luck today")
    assert found["X-41"].outcome == "not run"  # there is no check for it here
    assert found["MQTT-4.5.0-2"].outcome == "not testable"


def test_what_needs_an_adapter_is_not_run_without_one_and_never_passed(address: int) -> None:
    declare(PASSING, ping, needs=("restart",))
    declare(OTHER, ping, needs=("configure", "kill"))
    declare(THIRD, lambda bench: bench.note(f"restart: {bench.has('restart')}"), wants=("restart",))
    found = results(None, port=address)
    assert found[PASSING].outcome == "not run"
    assert found[PASSING].reason == "needs a broker adapter (restart)"
    assert found[OTHER].reason == "needs a broker adapter (configure, kill)"
    assert found[THIRD].outcome == "pass"
    assert found[THIRD].notes == ("restart: False",)


def test_what_only_the_strict_profile_asks_is_left_out_of_the_other(
    toy: type[ToyAdapter],
) -> None:
    declare(PASSING, ping, strict_only=True)
    assert results(toy())[PASSING].outcome == "not run"
    assert results(toy(), strict=True)[PASSING].outcome == "pass"


def test_a_selection_takes_what_it_names_and_nothing_else(toy: type[ToyAdapter]) -> None:
    declare(PASSING, ping)
    declare(OTHER, ping)
    assert list(results(toy(), selection="3.12 and not x")) == [PASSING]


def test_a_fault_that_any_check_sees_fails_the_statement_it_breaks(
    toy: type[ToyAdapter],
) -> None:
    def subscribe(bench: Bench) -> None:
        try:
            bench.client().subscribe("t")
        except Failure:
            pass  # even if the check does not care

    declare(PASSING, subscribe)
    declare(OTHER, ping)
    found = results(toy("suback_flags"))
    assert found[PASSING].outcome == "pass"
    assert found[OTHER].outcome == "fail"
    assert f"seen while {PASSING} was checked" in found[OTHER].reason
    assert found[OTHER].packet == bytes.fromhex("93 04 00 01 00 00")
    also = results(toy("suback_flags"), selection="3.12")
    assert also[OTHER].outcome == "fail"  # though it was not selected


def test_a_check_may_stop_kill_and_start_its_own_broker(toy: type[ToyAdapter]) -> None:
    def restarts(bench: Bench) -> None:
        bench.broker.stop()
        bench.broker.start()
        ping(bench)
        bench.broker.kill()
        bench.broker.start()
        ping(bench)

    declare(PASSING, restarts, needs=("restart", "kill"))
    adapter = toy()
    assert results(adapter)[PASSING].outcome == "pass"


def test_equal_options_share_a_broker_only_among_those_who_do_not_restart(
    toy: type[ToyAdapter],
) -> None:
    ports: dict[str, int] = {}

    def configured(bench: Bench) -> None:
        ports[bench.check.statement] = bench.start(maximum_qos=1).port

    declare(PASSING, configured, needs=("configure",))
    declare(OTHER, configured, wants=("configure",))
    declare(THIRD, configured, needs=("configure", "restart"))
    declare("X-42", configured)
    found = results(toy(), selection="3.12 or 2.1.3 or x")
    assert all(found[name].outcome == "pass" for name in ports)
    assert ports[PASSING] == ports[OTHER]
    assert len(set(ports.values())) == 3


def test_an_option_the_adapter_does_not_have_is_not_run(toy: type[ToyAdapter]) -> None:
    declare(PASSING, lambda bench: bench.start(maximum_qos=0) and None, needs=("configure",))
    found = results(toy())[PASSING]
    assert found.outcome == "not run"
    assert "cannot be configured for maximum_qos" in found.reason


class Crowd:
    """Counts who is there at the same time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.present = 0
        self.most = 0
        self.everybody = threading.Barrier(2)

    def alone(self, bench: Bench) -> None:
        with self.lock:
            self.present += 1
            self.most = max(self.most, self.present)
        ping(bench)
        with self.lock:
            self.present -= 1

    def together(self, bench: Bench) -> None:
        self.everybody.wait(10.0)


def test_checks_that_want_to_be_alone_are(toy: type[ToyAdapter], address: int) -> None:
    for adapter in (toy(), None):
        crowd = Crowd()
        for name in (PASSING, OTHER, THIRD):
            declare(name, crowd.alone, alone=True)
        found = results(adapter, port=address)
        assert [found[name].outcome for name in (PASSING, OTHER, THIRD)] == ["pass"] * 3
        assert crowd.most == 1


def test_ordinary_checks_run_at_the_same_time(toy: type[ToyAdapter]) -> None:
    crowd = Crowd()
    declare(PASSING, crowd.together)
    declare(OTHER, crowd.together)
    found = results(toy())
    assert found[PASSING].outcome == found[OTHER].outcome == "pass"


def test_a_check_that_ends_the_broker_fails_and_the_innocent_do_not(
    toy: type[ToyAdapter],
) -> None:
    started = threading.Event()

    def kills(bench: Bench) -> None:
        started.wait(5.0)
        client = bench.client()
        client.publish(bench.topic("die"))
        client.ping()

    def patient(bench: Bench) -> None:
        client = bench.client()
        started.set()
        if client.wait_for_end(0.5):
            bench.fail("the broker is gone")

    declare(PASSING, kills)
    declare(OTHER, patient)
    found = results(toy())
    assert found[PASSING].outcome == "fail"
    assert found[PASSING].reason.startswith("the broker ended during this check (exit code 3)")
    assert found[OTHER].outcome == "pass"


def test_a_broker_that_refuses_everybody_fails_each_statement_with_one_reason(
    toy: type[ToyAdapter],
) -> None:
    declare(PASSING, ping)
    declare(OTHER, ping)
    found = results(toy("refuse"))
    for name in (PASSING, OTHER):
        assert found[name].outcome == "fail"
        assert "a plain CONNECT gets no CONNACK with code 0" in found[name].reason


def test_a_broker_that_hangs_is_found_out_at_once(toy: type[ToyAdapter]) -> None:
    declare(PASSING, ping)
    found = results(toy("hang"))
    assert found[PASSING].outcome == "fail"
    assert "no CONNACK in time" in found[PASSING].reason


def test_a_broker_that_is_not_there_is_one_clear_error(toy: type[ToyAdapter]) -> None:
    declare(PASSING, ping)
    with pytest.raises(AdapterError, match=r"127\.0\.0\.1:1: no connection: Connection refused"):
        results(None, port=1)
    with pytest.raises(AdapterError, match="the disk is on fire"):
        results(toy("late"))


def test_progress_hears_of_every_check(toy: type[ToyAdapter]) -> None:
    declare(PASSING, ping)
    declare(OTHER, ping, alone=True)
    declare(THIRD, ping, needs=("configure",))
    progress = Silent()
    plan = Plan((5,), compile_expression(""), adapter=toy(), patience=PATIENCE_S)
    run(plan, progress)
    assert progress.total == 3
    assert {result.statement.id for result in progress.results} == {PASSING, OTHER, THIRD}


class Watched:
    """An adapter that remembers the processes of its brokers, by the pids they write."""

    name: str = "watched"

    def __init__(self) -> None:
        self.places: list[Place] = []

    def describe(self) -> str:
        return "watched 1"

    def prepare(self, place: Place, options: Options) -> Launch:
        self.places.append(place)
        return Launch([sys.executable, "-S", str(TOY), str(place.port), str(place.directory)])


def listening(places: list[Place]) -> list[int]:
    from conformance.adapters.base import _listens

    return [place.port for place in places if _listens(place.host, place.port)]


def test_no_process_and_no_thread_is_left_whatever_happens() -> None:
    threads = threading.active_count()

    def restarts(bench: Bench) -> None:
        bench.start(maximum_qos=1)
        raise RuntimeError

    declare(PASSING, ping)
    declare(OTHER, restarts, needs=("restart",))
    declare(THIRD, ping, alone=True)
    adapter = Watched()
    plan = Plan((5,), compile_expression(""), adapter=adapter, patience=PATIENCE_S)
    run(plan, Silent())
    assert len(adapter.places) == 3
    assert listening(adapter.places) == []
    assert threading.active_count() == threads

    class Interrupted(Silent):
        def done(self, result: Result) -> None:
            raise KeyboardInterrupt

    adapter.places.clear()
    with pytest.raises(KeyboardInterrupt):
        run(plan, Interrupted())
    assert listening(adapter.places) == []


def test_retained_messages_are_cleaned_up_after_a_check(address: int) -> None:
    topics = []

    def leaves(bench: Bench) -> None:
        topics.append(bench.topic("t"))
        bench.client().publish(topics[0], b"here", retain=True, qos=1)

    def looks(bench: Bench) -> None:
        client = bench.client()
        client.subscribe(topics[0])
        client.expect_nothing()

    declare(PASSING, leaves)
    results(None, port=address)
    REGISTRY.clear()
    declare(PASSING, looks)
    assert results(None, port=address)[PASSING].outcome == "pass"


def test_names_differ_between_checks_and_between_runs(toy: type[ToyAdapter]) -> None:
    seen: list[str] = []
    declare(PASSING, lambda bench: seen.append(bench.unique))
    declare(OTHER, lambda bench: seen.append(bench.unique))
    for _ in range(2):
        results(toy())
    assert len(set(seen)) == 4
    assert all(len(name) == 8 and name.isalnum() for name in seen)


def test_a_broker_object_of_an_address_cannot_be_stopped(address: int) -> None:
    def stops(bench: Bench) -> None:
        assert isinstance(bench.broker, Broker)
        bench.broker.stop()

    declare(PASSING, stops)
    assert results(None, port=address)[PASSING].outcome == "not run"
