"""The adapter: Holdfast as the suite knows it, behind a man in the middle that spoils it."""

import dataclasses
import sys
from pathlib import Path
from typing import Final

from conformance.adapters.base import Launch, Options, Place
from conformance.adapters.holdfast import Holdfast
from tests.conformance.wrong.mutant import TOYS
from tests.conformance.wrong.proxy import INNER

ROOT: Final = Path(__file__).resolve().parents[3]


class Wrong:
    """An adapter per wrong broker."""

    def __init__(self, mutant: str) -> None:
        self.name: str = mutant
        self._holdfast = Holdfast()

    def describe(self) -> str:
        """Return the name of the mutant."""
        return self.name

    def prepare(self, place: Place, options: Options) -> Launch:
        """Start the real broker on the same ports of another address, and the wrapper here."""
        launch = self._holdfast.prepare(dataclasses.replace(place, host=INNER), options)
        websocket_port = place.websocket_port if options.get("websocket") else 0
        command = [sys.executable, "-m", "tests.conformance.wrong", self.name]
        command += [str(place.port), str(websocket_port)]
        if self.name not in TOYS:
            command += launch.command
        return Launch(command, launch.environment)
