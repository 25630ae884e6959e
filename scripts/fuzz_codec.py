#!/usr/bin/env python3
"""Fuzz the codec: no input may raise, packets must round trip, splitting must not matter.

    scripts/fuzz_codec.py --seconds 60         coverage-guided with atheris, if it is installed
    scripts/fuzz_codec.py --inputs 1000000     the mutational loop: seeded, no dependency
    scripts/fuzz_codec.py --input 0a1b2c...    one input again, as a failure prints it

Every input must pass `check`. The first byte of an input chooses role, version and packet limit,
the second how the rest is split. The tests run the loop, too, with 40,000 inputs in the quick tier
and 1,000,000 in the slow one: tests/mqtt/test_fuzz_codec.py.
"""

import argparse
import importlib.util
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mqtt.decoder import Decoder  # noqa: E402  # the checkout, not an installed copy
from mqtt.encoder import encode  # noqa: E402
from mqtt.errors import (  # noqa: E402
    MalformedPacket,
    MqttError,
    ProtocolError,
    UnsupportedProtocolVersion,
)
from mqtt.packet_runs import one_by_one  # noqa: E402
from mqtt.packets import Connack, Connect, Packet, Puback, Publish  # noqa: E402

# (role of the decoder, version), chosen by the first byte of an input modulo their number ...
STATES = (
    ("server", 0),
    ("server", 4),
    ("server", 5),
    ("client", 4),
    ("client", 5),
    ("server", 3),
    ("client", 3),
)
# ... and packet limits, chosen by the quotient of that division.
PACKET_SIZES_MAX = (100_000, 100_000, 40, 0)
FAULTS = (MalformedPacket, ProtocolError, UnsupportedProtocolVersion)
INPUT_SIZE_MAX = 4096
EVERY_CUT_SIZE_MAX = 80  # bytes of the longest input that is split at every place
EVERY_CUT_SHARE = 25  # one of so many short inputs is split so
CONNECT_V3 = bytes.fromhex("100f00064d51497364700302003c000163")
PUBLISH_V3 = bytes.fromhex("300400017478")

Outcome = tuple[list[Packet], tuple[type[MqttError], int, str] | None, int, int]


class CodecFault(AssertionError):
    """The codec broke one of its promises."""


def check(data: bytes) -> int:
    """Check the codec with one input; return the number of packets in it.

    Checks: no exception except the stored `MqttError`, a malformed packet or protocol error; any
    splitting gives the same packets, the same fault and the same kept bytes; nothing is decoded
    after a fault; each packet can be encoded and decodes to itself, so whatever was accepted is
    legal to send.
    """
    if len(data) < 2:
        return 0
    state = data[0]
    piece_size = data[1] % 17 + 1
    stream = data[2:]
    whole = _decode(state, [stream])
    if _decode(state, _pieces(stream, piece_size)) != whole:
        raise CodecFault(f"pieces of {piece_size} bytes differ from one piece")
    packets, _, version, _ = whole
    for packet in packets:
        _check_round_trip(packet, state % len(STATES), version)
    return len(packets)


def check_every_cut(data: bytes) -> None:
    """Split a short input in two at every place, into single bytes, and after its CONNECT."""
    state, stream = data[0], data[2:]
    whole = _decode(state, [stream])
    for place in range(1, len(stream)):
        if _decode(state, [stream[:place], stream[place:]]) != whole:
            raise CodecFault(f"two pieces, cut behind {place} bytes, differ from one piece")
    if _decode(state, _pieces(stream, 1)) != whole:
        raise CodecFault("single bytes differ from one piece")
    if _decode(state, [stream], held=True) != whole:
        raise CodecFault("a decoder that waits behind CONNECT differs")
    if _decode(state, [stream], gathers=True) != whole:
        raise CodecFault("a decoder that gathers runs differs")
    if _decode(state, _pieces(stream, 7), held=True, gathers=True) != whole:
        raise CodecFault("a decoder that gathers runs from pieces differs")


def _pieces(stream: bytes, size: int) -> list[bytes]:
    return [stream[position : position + size] for position in range(0, len(stream), size)]


def _decode(
    state: int, pieces: list[bytes], *, held: bool = False, gathers: bool = False
) -> Outcome:
    role, version = STATES[state % len(STATES)]
    limit = PACKET_SIZES_MAX[state // len(STATES) % len(PACKET_SIZES_MAX)]
    decoder = Decoder(
        "server" if role == "server" else "client", limit, version, holds_after_connect=held
    )
    found: list[Packet] = []
    for piece in pieces:
        found += one_by_one(decoder.receive_runs(piece)) if gathers else decoder.receive(piece)
    if held:
        found += one_by_one(decoder.go_on_runs()) if gathers else decoder.go_on()
    error = decoder.error
    if error is None:
        return found, None, decoder.version, decoder.pending_size
    if type(error) not in FAULTS:
        raise CodecFault(f"{error!r} is no fault of a peer")
    if decoder.receive(b"\xc0\x00") or decoder.error is not error:
        raise CodecFault("packets after a fault")
    return found, (type(error), error.reason_code, str(error)), decoder.version, 0


def _check_round_trip(packet: Packet, state: int, version: int) -> None:
    role = STATES[state][0]
    if isinstance(packet, Connect):
        version, behind = packet.protocol_version, 0
    else:
        behind = version
    raw = encode(packet, version)
    decoder = Decoder("server" if role == "server" else "client", 0, behind)
    again = decoder.receive(raw)
    if decoder.error is not None or again != [packet]:
        raise CodecFault(f"{packet!r} became {again!r}, {decoder.error!r}")
    if encode(again[0], version) != raw:
        raise CodecFault(f"{packet!r} has two encodings")
    if isinstance(packet, Connack) and version == 4 and packet.reason_code > 5:
        raise CodecFault(f"{packet!r} has a reserved return code")


def seeds() -> list[bytes]:
    """Return legal inputs: the golden packets of the tests, alone and as connections."""
    samples = _load_samples()
    result: list[bytes] = [bytes((0, 5)) + CONNECT_V3 + PUBLISH_V3]
    result.append(bytes((STATES.index(("client", 3)), 2)) + PUBLISH_V3)
    for sample in samples.GOLDEN + samples.LONG_FORMS:
        role = "client" if sample.sender == "server" else "server"
        state = STATES.index((role, sample.version))
        if isinstance(sample.packet, Connect):
            state = 0
        result.append(bytes((state, 0)) + sample.data)
    for version in (4, 5):
        result.append(bytes((STATES.index(("server", version)), 2)) + _alike(version))
    for sender, version, data, _ in samples.streams():
        state = 0 if sender == "client" else STATES.index(("client", version))
        result.append(bytes((state, 3)) + data)
    return result


def _alike(version: int) -> bytes:
    """Return inputs with runs of similar packets, some with gaps."""
    packets: list[Packet] = [Publish("a", bytes(n % 3), n & 1, packet_id=n & 1) for n in range(3)]
    packets += [Publish("a/b", b"12", 1, packet_id=n) for n in (7, 8, 9, 1)]
    packets += [Publish("a/b", b"1" * n, 0) for n in (1, 2, 2, 130, 130, 200)]
    packets += [Puback(n) for n in (1, 2, 9, 65_535)]
    return b"".join(encode(packet, version) for packet in packets)


def _load_samples() -> ModuleType:
    """Import the golden table by path, because some installed packages also have a `tests`."""
    path = ROOT / "tests" / "mqtt" / "samples.py"
    spec = importlib.util.spec_from_file_location("codec_samples", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


INTERESTING = (0x00, 0x01, 0x02, 0x03, 0x7F, 0x80, 0x81, 0xFF, 0x26, 0x0B, 0x23, 0x2B, 0xC0, 0xED)


def generate(random_source: random.Random, corpus: list[bytes]) -> bytes:
    """Make a new input: usually a damaged one, sometimes a cut, spliced or random one."""
    kind = random_source.randrange(20)
    if kind == 0:
        return random_source.randbytes(random_source.randrange(2, 80))
    data = random_source.choice(corpus)
    if kind == 1:
        return data[: random_source.randrange(2, len(data) + 1)]
    if kind == 2:  # the beginning of one and the end of another
        other = random_source.choice(corpus)
        place = random_source.randrange(2, len(data) + 1)
        return data[:place] + other[random_source.randrange(2, len(other) + 1) :]
    if kind == 3:  # any two joined, in any state
        head = random_source.randbytes(2)
        return head + data[2:] + random_source.choice(corpus)[2:]
    return mutate(random_source, corpus)


def mutate(random_source: random.Random, corpus: list[bytes]) -> bytes:
    """Make a new input from the corpus by one to six small changes."""
    data = bytearray(random_source.choice(corpus))
    for _ in range(random_source.choice((1, 1, 1, 2, 3, 6))):
        place = random_source.randrange(len(data) + 1)
        kind = random_source.randrange(9)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << random_source.randrange(8)
        elif kind == 1 and place < len(data):
            data[place] = random_source.choice(INTERESTING)
        elif kind == 2 and place < len(data):
            data[place] = (data[place] + random_source.choice((-1, 1))) & 255
        elif kind == 3:
            data.insert(place, random_source.choice(INTERESTING))
        elif kind == 4:
            del data[place : place + random_source.randrange(1, 5)]
        elif kind == 5:
            data[place:place] = data[place : place + random_source.randrange(1, 30)]
        elif kind == 6:
            other = random_source.choice(corpus)
            start = random_source.randrange(len(other))
            data[place:place] = other[start : start + random_source.randrange(1, 30)]
        elif kind == 7:
            data[place:] = random_source.choice(corpus)[2:]
        else:
            _repair_lengths(data)
    return bytes(data[:INPUT_SIZE_MAX])


def _repair_lengths(data: bytearray) -> None:
    """Correct the remaining length, so that damage inside the packet is reached."""
    if 5 <= len(data) <= 130:
        data[3] = len(data) - 4


def run_loop(seed: int, inputs: int, seconds: float | None = None) -> tuple[int, int]:
    """Check `inputs` mutated inputs, or as many as fit into `seconds`; return (inputs, packets)."""
    random_source = random.Random(seed)
    corpus = seeds()
    packets = 0
    for data in corpus:
        packets += _checked(data)
    done = 0
    started = time.monotonic()
    while seconds is not None or done < inputs:
        if seconds is not None and done % 256 == 0 and time.monotonic() - started >= seconds:
            break
        data = generate(random_source, corpus)
        packets += _checked(data)
        if done % EVERY_CUT_SHARE == 0 and 2 < len(data) <= EVERY_CUT_SIZE_MAX:
            _checked(data, every_cut=True)
        done += 1
    return done, packets


def _checked(data: bytes, *, every_cut: bool = False) -> int:
    try:
        if every_cut:
            check_every_cut(data)
        return check(data)
    except Exception as error:  # any exception at all is the finding
        raise CodecFault(f"scripts/fuzz_codec.py --input {data.hex()}") from error


def run_atheris(seconds: int) -> None:
    """Fuzz with atheris, guided by coverage. Does not return: libFuzzer ends the process."""
    import tempfile

    import atheris  # type: ignore[import-untyped,unused-ignore]  # it has no stubs

    # The codec is already imported, so instrument it function by function.
    for name in ("wire", "properties", "body_decoder", "decoder", "encoder"):
        _instrument(atheris, sys.modules[f"mqtt.{name}"])
    with tempfile.TemporaryDirectory(prefix="fuzz-codec-") as directory:
        for number, seed in enumerate(seeds()):
            (Path(directory) / f"{number:03}").write_bytes(seed)
        options = [f"-max_total_time={seconds}", f"-max_len={INPUT_SIZE_MAX}"]
        options.append(f"-artifact_prefix={directory}/")  # the traceback has the input already
        atheris.Setup([sys.argv[0], directory, *options, "-print_final_stats=1"], _checked)
        atheris.Fuzz()


def _instrument(atheris: ModuleType, module: ModuleType) -> None:
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, type):
            for name, member in list(vars(value).items()):
                if callable(member) and hasattr(member, "__code__"):
                    setattr(value, name, atheris.instrument_func(member))
        elif hasattr(value, "__code__"):
            atheris.instrument_func(value)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command with `words`, or those of the process; return 0 if no check failed."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, help="fuzz this long")
    parser.add_argument("--inputs", type=int, default=100_000, help="inputs of the mutational loop")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutational loop")
    parser.add_argument("--input", help="check this one input, in hex")
    parser.add_argument("--loop", action="store_true", help="the loop, even if there is atheris")
    arguments = parser.parse_args(words)
    if arguments.input is not None:
        data = bytes.fromhex(arguments.input)
        packets = check(data)
        check_every_cut(data)
        print(f"fine, {packets} packets")
        return 0
    if arguments.seconds is not None and not arguments.loop:
        if importlib.util.find_spec("atheris") is not None:
            run_atheris(arguments.seconds)
            return 0
        print("atheris is not installed (pip install atheris): mutational loop instead")
    done, packets = run_loop(arguments.seed, arguments.inputs, arguments.seconds)
    print(f"{done} inputs, {packets} packets, no fault")
    return 0


if __name__ == "__main__":
    sys.exit(main())
