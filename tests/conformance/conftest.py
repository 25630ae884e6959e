"""Fixtures of the suite's own tests: the far end of a connection, and a toy broker."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.adapters.base import Launch, Options, Place
from conformance.failure import NotRun
from tests.conformance.far_end import FarEnd

TOY = Path(__file__).parent / "toy.py"


class ToyAdapter:
    """The adapter of the toy broker, as small as an adapter can be."""

    name: str = "toy"

    def __init__(self, *faults: str) -> None:
        self.faults: tuple[str, ...] = faults
        self.directories: list[Path] = []
        self.options: list[Options] = []

    def describe(self) -> str:
        return "toy 1"

    def prepare(self, place: Place, options: Options) -> Launch:
        if "tls_only" in options or options.get("maximum_qos") == 0:
            raise NotRun("toy cannot be configured for maximum_qos 0")
        self.directories.append(place.directory)
        self.options.append(options)
        command = [sys.executable, "-S", str(TOY), str(place.port), str(place.directory)]
        return Launch(command, {"TOY_FAULTS": " ".join(self.faults)})


@pytest.fixture
def toy() -> type[ToyAdapter]:
    """The adapter of the toy broker, to be made with the faults the broker is to have."""
    return ToyAdapter


@pytest.fixture
def far_end() -> Iterator[Callable[..., FarEnd]]:
    """Makes the other end of a client's connection."""
    made: list[FarEnd] = []

    def make(version: int = 5, *, strict: bool = False, patience: float = 0.05) -> FarEnd:
        made.append(FarEnd(version, strict=strict, patience=patience))
        return made[-1]

    yield make
    for end in made:
        end.close()
