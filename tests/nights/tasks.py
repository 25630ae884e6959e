"""The situations of a night: each is planted in a broker, asked of a solver, and looked at after.

What a solver says or has done is checked from outside: by what was planted, and by clients of the
broker. Read next: `tests.nights.night`.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Final

from broker.security import password_file, password_hashes
from storage.limits import RESERVE_BYTES
from tests.durability.rawclient import Closed, RawClient
from tests.nights.night import PATIENCE_S, Night, Solver

BANNED: Final = 0x8A
PAYLOAD: Final = Random(1).randbytes(16_000)  # does not compress
FULL_MAX: Final = 20_000  # messages until a disk of 64 MiB is full
KEPT: Final = 3  # messages of a session that is away


class Task:
    """One situation."""

    def __init__(
        self,
        play: Callable[[Night, Solver], None],
        environment: Mapping[str, str] | None = None,
        *,
        prepare: Callable[[Path], Mapping[str, str]] = lambda directory: {},
        needs_disk: bool = False,
    ) -> None:
        """`play` plants it, asks the solver and checks; `prepare` makes files before the start."""
        self.play: Final = play
        self.environment: Final = environment or {}
        self.prepare: Final = prepare
        self.needs_disk: Final = needs_disk  # a small one of its own

    @property
    def name(self) -> str:
        """What the task is called."""
        return self.play.__name__


def who_holds_the_backlog(night: Night, solver: Solver) -> None:
    """Many small messages wait for one, a few large ones for another: who fills the disk?"""
    night.away("many", "small/#")
    night.away("boat-17", "large")
    night.away("idle", "nothing")
    night.publish("small/1", *[b"%d" % number for number in range(50)])
    night.publish("large", *[b"x" * 5000] * 4)
    assert solver.who_is_owed_most() == "boat-17"


def what_waits_for_boat_17(night: Night, solver: Solver) -> None:
    """The captain asks what he will get when he comes back."""
    night.away("boat-17", "fleet/17/#", "fleet/all")
    night.publish("fleet/17/orders", b"set sail")
    night.publish("fleet/18/orders", b"not for boat-17")
    night.publish("fleet/all", b"storm\x00\xff")
    expected = [("fleet/17/orders", b"set sail"), ("fleet/all", b"storm\x00\xff")]
    assert solver.what_waits_for("boat-17") == expected


def is_a_restart_safe(night: Night, solver: Solver) -> None:
    """A new version waits. What would be lost?"""
    clients = [night.connected(f"dashboard-{number}") for number in range(3)]
    durable = RawClient(night.broker.port, "boat-17")
    durable.durable()
    assert solver.what_a_restart_loses() == ([], 3)
    for client in (*clients, durable):
        client.disconnect()


def make_room_on_a_full_disk(night: Night, solver: Solver) -> None:
    """Publishers are refused, because a client that is away fills the disk."""
    night.away("hoarder", "logs/#")
    night.away("boat-17", "orders")
    publisher = night.connected("publisher")
    assert night.is_taken(publisher, "orders", b"set sail")
    taken = 0
    while night.is_taken(publisher, "logs/1", b"%d" % taken + PAYLOAD):
        taken += 1
        assert taken < FULL_MAX, "the disk does not fill"
    solver.make_room()
    until = time.monotonic() + PATIENCE_S
    while not night.is_taken(publisher, "orders", b"come back"):
        assert time.monotonic() < until, "publishers are still refused"
        publisher.ping()
    boat = RawClient(night.broker.port, "boat-17")
    boat.resume()
    assert [message.payload for message in boat.take(2)] == [b"set sail", b"come back"]
    boat.disconnect()
    publisher.disconnect()


def _with_passwords(directory: Path) -> Mapping[str, str]:
    path = directory / "users"
    password_file.save(str(path), {"meter": password_hashes.hasher().hash(b"right")})
    return {"HOLDFAST__AUTH__PASSWORD_FILE": str(path)}


def why_is_a_client_refused(night: Night, solver: Solver) -> None:
    """A meter does not get in since somebody changed something. It tries again all the time."""

    def knock() -> None:
        meter = RawClient(night.broker.port, "meter-9")
        meter.connect(username="meter", password=b"wrong")

    night.again_and_again(knock, 0.2)
    why = solver.why_refused("meter-9")
    assert "password" in why.lower(), why


def who_floods_the_broker(night: Night, solver: Solver) -> None:
    """Somebody publishes far more than all others. He has to be found, and kept away."""
    loud = {"client": night.connected("loud")}

    def shout() -> None:
        try:
            for number in range(20):
                loud["client"].publish("telemetry/loud", b"%d" % number, qos=0)
            loud["client"].ping()
        except Closed:
            loud["client"] = night.connected("loud")

    night.again_and_again(shout, 0.05)
    calm = [night.connected(f"calm-{number}") for number in range(3)]
    for client in calm:
        night.again_and_again(lambda client=client: _say(client), 0.5)
    found = solver.who_floods()
    assert found == "loud"
    solver.keep_away(found)
    newcomer = RawClient(night.broker.port, "loud")
    assert newcomer.connect(reason=BANNED).reason_code == BANNED
    night.connected("calm-4").disconnect()


def _say(client: RawClient) -> None:
    client.publish("telemetry/calm", b"1", qos=0)


def who_will_never_come_back(night: Night, solver: Solver) -> None:
    """A boat was sold. Its session keeps what nobody will fetch, and has to go."""
    night.away("boat-3", "fleet/#")
    night.let_a_second_pass()
    night.away("boat-17", "fleet/#")
    night.away("boat-4", "fleet/#")
    night.publish("fleet/all", b"1", b"2")
    found = solver.who_is_away_longest()
    assert found == "boat-3"
    solver.end_session(found)
    sold = RawClient(night.broker.port, "boat-3")
    assert not sold.durable().session_present
    sold.disconnect()
    kept = RawClient(night.broker.port, "boat-17")
    kept.resume()
    assert len(kept.take(2)) == 2
    kept.disconnect()


def boat_17_says_that_it_lost_messages(night: Night, solver: Solver) -> None:
    """It was away, and some orders never came."""
    night.away("boat-17", "fleet/#")
    night.publish("fleet/17", *[b"%d" % number for number in range(KEPT + 2)])
    why = solver.why_lost("boat-17", "fleet/17")
    assert "2" in why.split() or why.endswith(" 2"), why
    assert "limit" in why or "max_offline_messages" in why, why


DISK: Final = {
    "HOLDFAST__STORAGE__LOW_WATER": f"{RESERVE_BYTES >> 20}MiB",
    "HOLDFAST__STORAGE__BALLAST": "2MiB",
}
TASKS: Final = (
    Task(who_holds_the_backlog),
    Task(what_waits_for_boat_17),
    Task(is_a_restart_safe),
    Task(make_room_on_a_full_disk, DISK, needs_disk=True),
    Task(why_is_a_client_refused, prepare=_with_passwords),
    Task(who_floods_the_broker),
    Task(who_will_never_come_back),
    Task(
        boat_17_says_that_it_lost_messages,
        {"HOLDFAST__SESSION__MAX_OFFLINE_MESSAGES": str(KEPT)},
    ),
)
