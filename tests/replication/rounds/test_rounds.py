"""A real cluster, each machine in a network namespace: killed, stopped, cut off, without power.

The command `python -m tests.replication.rounds` plays any number of rounds; here it plays a few.
`HOLDFAST_ROUNDS` is how many (5 here, 200 before a release), `HOLDFAST_KILL_SEED` sets which.
"""

import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from typing import Final

import pytest

from tests.durability.process import ROOT, let_run_for
from tests.replication.kafka_cluster import needs_kafka
from tests.replication.rounds import __main__ as command
from tests.replication.rounds.misfortunes import ALONE, POWER, rounds
from tests.replication.rounds.play import BACK_S, Outcome
from tests.replication.rounds.town import why_not

ROUNDS: Final = int(os.environ.get("HOLDFAST_ROUNDS", "5"))
SEED: Final = int(os.environ.get("HOLDFAST_KILL_SEED", "1"))


def test_everything_happens_alone_before_anything_happens_again() -> None:
    dealt = itertools.islice(rounds(random.Random(SEED)), 400)
    alone = [each[0] for each in dealt if len(each) == 1]
    assert set(alone[: len(ALONE)]) == set(ALONE)
    assert set(alone[len(ALONE) : 2 * len(ALONE)]) == set(ALONE)


def test_a_pair_is_of_two_machines_of_which_one_keeps_its_power() -> None:
    dealt = itertools.islice(rounds(random.Random(SEED)), 400)
    pairs = [each for each in dealt if len(each) == 2]
    assert len(pairs) > 100
    assert all(one.who != two.who for one, two in pairs)
    assert not any(one.what == two.what == POWER for one, two in pairs)


def test_the_summary_tells_every_kind_and_every_fault() -> None:
    outcome = Outcome(
        rounds=Counter({"leader killed": 2, "pairs": 1}),
        takeovers_s=[4.0, 5.0],
        pauses_s={"leader killed": [4.5, 5.5], "pairs": [9.0]},
        acknowledged=70,
        faults=["s1: 1 acknowledged and lost"],
    )
    lines = command.summary(outcome)
    assert lines[0] == "2 x leader killed: longest pause median 5.0 s, at most 5.5 s"
    assert "3 rounds; takeover median 4.5 s, at most 5.0 s" in lines
    assert lines[-2:] == ["1 faults", "fault: s1: 1 acknowledged and lost"]


def test_without_namespaces_the_command_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "why_not", lambda: "Operation not permitted")
    assert command.main([]) == command.UNABLE
    assert capsys.readouterr().err == "no network namespaces here: Operation not permitted\n"


@pytest.mark.ci
@needs_kafka
def test_nothing_acknowledged_is_lost_whatever_happens_to_the_machines() -> None:
    reason = why_not()
    if reason:
        pytest.skip(f"no network namespaces, so no machine can be cut off: {reason}")
    let_run_for((ROUNDS + 3) * BACK_S)
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.replication.rounds",
            "--rounds", str(ROUNDS), "--seed", str(SEED), "--nodes", "2",
        ],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == command.OK, f"{done.stdout[-20_000:]}\n{done.stderr[-20_000:]}"
    assert f"{ROUNDS} rounds; " in done.stdout
