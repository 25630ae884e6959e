"""How checks are declared, and what the bench gives them."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from conformance import check as module
from conformance.adapters.base import Broker, Options
from conformance.check import REGISTRY, Bench, Check, statement
from conformance.failure import Failure, NotRun
from conformance.record import Ledger, Record


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Declarations of these tests go as they came."""
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def nothing(bench: Bench) -> None:
    """[X-99] Nothing is asked for.

    And this is said to whoever reads the code.
    """


def declare(
    function: Callable[[Bench], None] = nothing,
    identifier: str = "X-99",
    *,
    place: str = "conformance.v50.test",
    name: str = "x_99",
    **options: object,
) -> Check:
    function.__module__, function.__name__ = place, name
    statement(identifier, **options)(function)  # type: ignore[arg-type]
    return REGISTRY[5 if "v50" in place else 4, identifier]


def bench(
    check: Check | None = None, start: Callable[[Options], Broker] | None = None, unique: str = "u"
) -> Bench:
    return Bench(
        check or declare(),
        Record(Ledger(), version=5, check="X-99"),
        unique=unique,
        shared=Broker("shared", "127.0.0.1", 1),
        start=start,
        strict=False,
    )


def test_a_declaration_takes_the_version_from_its_folder_and_the_sentence_from_the_docstring() -> (
    None
):
    check = declare(needs=("restart",), alone=True, seconds=3)
    assert (check.version, check.sentence) == (5, "Nothing is asked for.")
    assert (check.needs, check.alone, check.seconds) == ({"restart"}, True, 3)
    assert declare(place="conformance.v311.test").version == 4


def test_a_declaration_that_is_wrong_is_refused() -> None:
    with pytest.raises(ValueError, match="not x_98"):
        declare(identifier="X-98")
    with pytest.raises(ValueError, match="unknown needs"):
        declare(needs=("luck",))
    with pytest.raises(ValueError, match="checks live in"):
        declare(place="conformance.test")
    declare()
    with pytest.raises(ValueError, match=r"declared in .*test and in .*other"):
        declare(place="conformance.v50.other")

    def silent(bench: Bench) -> None:
        """Something."""

    with pytest.raises(ValueError, match="docstring"):
        declare(silent)


def test_names_are_unique_and_fit_everywhere() -> None:
    made = bench(unique="abcd5012")
    assert made.id("a") == "abcd5012a"
    assert made.topic("x/y") == "abcd5012/x/y"
    for name in ("a" * 40, "with-dash", "ü"):
        assert len(made.id(name)) <= 23
        assert made.id(name).isalnum()
        assert made.id(name).isascii()
        assert made.id(name) == made.id(name)
    assert len({made.id(name) for name in ("a-b", "a.b", "ab")}) == 3


def test_without_an_adapter_there_is_no_broker_to_start() -> None:
    made = bench()
    assert not made.has("restart")
    assert made.broker.name == "shared"
    with pytest.raises(NotRun, match="adapter"):
        made.start()
    with pytest.raises(ValueError, match="luck"):
        made.has("luck")


def test_with_an_adapter_needs_mean_a_broker_of_ones_own_when_it_is_asked_for() -> None:
    asked: list[Options] = []

    def start(options: Options) -> Broker:
        asked.append(options)
        return Broker(f"own-{len(asked)}", "127.0.0.1", 1)

    made = bench(declare(needs=("restart",)), start)
    assert asked == []
    assert made.broker.name == "own-1"
    assert made.broker.name == "own-1"
    assert made.start(maximum_qos=1).name == "own-2"
    assert made.broker.name == "own-2"
    assert asked == [{}, {"maximum_qos": 1}]
    assert bench(declare(), start).broker.name == "shared"


def test_a_case_is_named_in_front_of_its_failure() -> None:
    made = bench()
    with pytest.raises(Failure) as caught, made.case("QoS 2"):
        made.fail("no PUBREC", b"\x40\x02\x00\x01", expected="PUBREC")
    assert caught.value.message == "QoS 2: no PUBREC"
    assert caught.value.packet == b"\x40\x02\x00\x01"
    assert caught.value.expected == "PUBREC"
    with made.case("QoS 1"):
        made.note("fine")
    assert made.record.notes == ["fine"]


def test_a_check_that_cannot_be_made_says_why() -> None:
    with pytest.raises(NotRun, match="no wildcards"):
        bench().not_run("no wildcards here")


def test_a_barrier_knows_two_qualities() -> None:
    with pytest.raises(ValueError, match="QoS 2"):
        bench().barrier(None, None, qos=2)  # type: ignore[arg-type]


def test_the_words_of_needs_are_few() -> None:
    assert module.SHAREABLE < module.NEEDS == {"restart", "kill", "configure", "websocket"}


def test_a_broker_that_never_stops_talking_cannot_hold_up_the_end_of_a_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLEANUP_S", 0.05)
    over, heard = threading.Event(), bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            channel, _ = listener.accept()
            with channel, contextlib.suppress(OSError):
                heard.extend(channel.recv(4096))
                while not over.wait(0.01):
                    channel.sendall(b"\xd0\x00")

        talker = threading.Thread(target=talk, daemon=True)
        talker.start()
        target = bench()
        target._shared = Broker("shared", "127.0.0.1", listener.getsockname()[1])
        target.record.retained_topics.add("left")
        closing = threading.Thread(target=target.close, daemon=True)
        closing.start()
        closing.join(5.0)
        was_held_up = closing.is_alive()
        over.set()
        talker.join(5.0)
    assert heard.startswith(b"\x10"), "it has not tried"
    assert not was_held_up
