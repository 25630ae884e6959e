"""Which server of a cluster gets a command, and what is said of one that none can get?"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from broker.backends.redis.routing import Misrouted, Router
from tests.broker.backends.redis_cluster import ClusterServers
from tests.broker.backends.redis_server import PROGRAMS, needs_redis, redis

pytestmark = [pytest.mark.full, needs_redis]  # starts processes


@pytest.fixture(scope="module", params=PROGRAMS)
def router(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Router]:
    """A router of a running cluster."""
    running = ClusterServers(tmp_path_factory.mktemp("cluster"), request.param)
    try:
        with contextlib.closing(running.start().client()) as client:
            yield Router(client)
    finally:
        running.kill()


@pytest.mark.parametrize(
    ("command", "key"),
    [
        ("SET a 1", "a"),
        ("set a 1", "a"),
        ("DEL {a}1 {a}2", "a"),
        ("MSET {a}1 x {a}2 y", "a"),
        ("XADD a * b c", "a"),
        ("XGROUP CREATE a g $", "a"),
        ("ZUNIONSTORE {a}1 2 {a}2 {a}3", "a"),
        ("BITOP NOT {a}1 {a}2", "a"),
    ],
)
def test_a_command_goes_where_its_keys_are(router: Router, command: str, key: str) -> None:
    assert router.slot_of(command.encode().split()) == router.slot(key.encode())


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("DEL a b", "CROSSSLOT"),
        ("RENAME a b", "CROSSSLOT"),
        ("NOSUCH a", "NOSUCH command doesn't exist"),
    ],
)
def test_a_command_that_no_server_can_carry_out_is_told(
    router: Router, command: str, why: str
) -> None:
    with pytest.raises(Misrouted, match=why):
        router.slot_of(command.encode().split())


@pytest.mark.parametrize("command", ["PING", "TIME", "PUBLISH a b"])
def test_a_command_without_a_key_goes_anywhere(router: Router, command: str) -> None:
    words = command.encode().split()
    (answer,) = router.run([(router.slot_of(words), words)])
    assert not isinstance(answer, Exception)


def test_answers_are_in_the_order_of_commands(router: Router) -> None:
    keys = [b"k%d" % number for number in range(300)]
    commands: list[tuple[int, Any]] = [(router.slot(key), (b"SET", key, key)) for key in keys]
    router.run(commands)
    assert router.run([(router.slot(key), (b"GET", key)) for key in keys]) == keys
    assert len({router.master_of(router.slot(key)) for key in keys}) == len(router.masters()) == 3


def test_an_error_of_a_command_is_its_answer(router: Router) -> None:
    slot = router.slot(b"list")
    commands = [(b"RPUSH", b"list", b"x"), (b"GET", b"list"), (b"LLEN", b"list")]
    _, refused, length = router.run([(slot, command) for command in commands])
    assert isinstance(refused, redis.exceptions.ResponseError) and length == 1
