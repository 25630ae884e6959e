"""What a running broker tells of itself to who looks at it live."""

import json

from broker.observe.metrics import Status
from broker.process.desks.figures import FIGURES, FiguresDesk
from mqtt.packets import Puback, Suback
from storage.local.disk_space import Measured
from tests.broker.inside import InsideBroker, publish, run, subscribe


def test_figures_are_counters_gauges_and_the_disk() -> None:
    async def play(broker: InsideBroker) -> None:
        status = Status()
        status.phase = "ready"
        desk = FiguresDesk(broker.counters, broker.driver, status)
        peer = await broker.connect("c", expiry=60)
        peer.send(subscribe("t", 1))
        await peer.receive(Suback)
        first = json.loads(desk.answer({"do": FIGURES})["figures"])
        assert (first["sessions_online"], first["sessions_stored_online"]) == (1, 1)
        assert first["disk"] is None and first["phase"] == "ready"
        other = await broker.connect("p")
        other.send(publish("t"))
        await other.receive(Puback)
        status.disk = Measured(5, 9, 1)
        second = json.loads(desk.answer({"do": FIGURES})["figures"])
        assert second["messages_in"] - first["messages_in"] == 1
        assert second["commits"] > first["commits"] and second["at_s"] > first["at_s"]
        assert second["commit_buckets"][-1][1] <= second["commits"]
        assert second["disk"] == {"free_bytes": 5, "total_bytes": 9, "low_water_bytes": 1}

    run(play)


def test_gauges_that_take_long_are_not_taken_each_time() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = FiguresDesk(broker.counters, broker.driver, Status())
        desk.answer({"do": FIGURES})
        desk._again_s += 1000.0  # as if they had taken 20 s
        await broker.connect("late")
        assert json.loads(desk.answer({"do": FIGURES})["figures"])["sessions_online"] == 0
        desk._again_s = 0.0
        assert json.loads(desk.answer({"do": FIGURES})["figures"])["sessions_online"] == 1

    run(play)
