"""Brokers of a test's own, as processes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.durability.process import holdfast
from tests.durability.scene import Scene


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    """Start brokers: `start_broker(HOLDFAST__LIMITS__CONNECT_TIMEOUT="1s")`."""
    scenes: list[Scene] = []

    def start(**env: str) -> Scene:
        scenes.append(Scene(holdfast(tmp_path / f"broker-{len(scenes)}", env=env), "x"))
        scenes[-1].broker.start()
        return scenes[-1]

    yield start
    for scene in scenes:
        scene.close()
    for scene in scenes:
        scene.broker.close()
