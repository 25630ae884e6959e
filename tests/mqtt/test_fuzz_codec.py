"""The codec under damaged input: the seeded loop, longer in the slow tier, and atheris there."""

import importlib.util
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from mqtt.decoder import Decoder
from mqtt.packets import Packet
from scripts import fuzz_codec
from scripts.fuzz_codec import (
    CodecFault,
    check,
    check_every_cut,
    generate,
    main,
    run_loop,
    seeds,
)
from tests.stand_in import StandIn, replace_in

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fuzz_codec.py"


def test_forty_thousand_damaged_inputs_keep_the_promises() -> None:
    done, packets = run_loop(seed=20_000, inputs=40_000)
    assert done == 40_000
    assert packets > 20_000  # the damage is small enough to get past the fixed header


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_million_damaged_inputs_keep_the_promises(part: int) -> None:
    done, packets = run_loop(seed=1_000_000 + part, inputs=250_000)
    assert done == 250_000
    assert packets > 125_000


def test_random_bytes_keep_the_promises() -> None:
    random_source = random.Random(1)
    for _ in range(3000):
        check(random_source.randbytes(random_source.randrange(2, 80)))


def test_the_loop_is_reproducible() -> None:
    corpus = seeds()
    one = [generate(random.Random(number), corpus) for number in range(200)]
    assert one == [generate(random.Random(number), corpus) for number in range(200)]


def test_a_connection_may_be_cut_anywhere() -> None:
    """Every golden packet, and every golden connection, in two pieces and in single bytes."""
    for seed in seeds():
        check_every_cut(seed)


def test_every_seed_is_legal() -> None:
    for seed in seeds():
        assert check(seed) >= 1


def test_a_broken_promise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would the loop notice a codec that does not round trip?"""
    import scripts.fuzz_codec as fuzz

    monkeypatch.setattr(fuzz, "encode", lambda packet, version: b"\xc0\x00")
    with pytest.raises(CodecFault, match="--input"):
        run_loop(seed=0, inputs=10)


@pytest.mark.parametrize("check_one", [check, check_every_cut])
def test_a_decoder_that_depends_on_the_cutting_is_found(
    monkeypatch: pytest.MonkeyPatch, check_one: Callable[[bytes], object]
) -> None:
    class Forgetful:
        def __init__(
            self,
            role: Literal["server", "client"],
            limit: int,
            version: int = 0,
            *,
            holds_after_connect: bool = False,
        ) -> None:
            self.decoder = Decoder(role, limit, version, holds_after_connect=holds_after_connect)

        def receive(self, data: bytes) -> list[Packet]:
            return self.decoder.receive(data) if len(data) > 1 else []

        def __getattr__(self, name: str) -> object:
            return getattr(self.decoder, name)

    monkeypatch.setattr("scripts.fuzz_codec.Decoder", Forgetful)
    with pytest.raises(CodecFault, match="one piece"):
        check_one(bytes((1, 0)) + bytes.fromhex("c000"))


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris is not installed (extra `fuzz`)"
)
def test_a_minute_of_coverage_guided_fuzzing_finds_nothing() -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--seconds", "60"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]


def test_without_atheris_the_script_says_so_and_runs_the_loop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    util = StandIn(importlib.util, {"find_spec": lambda name: None})
    replace_in(monkeypatch, fuzz_codec, "importlib", util=util)
    assert main(["--seconds", "0"]) == 0
    assert "atheris is not installed" in capsys.readouterr().out


def test_the_script_runs_outside_pytest() -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--loop", "--inputs", "200"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "200 inputs" in run.stdout
