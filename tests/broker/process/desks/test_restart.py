"""What a broker knows of its own restart."""

import json

from broker.observe.metrics import Status
from broker.process.desks.restart import CHECK, RestartDesk
from tests.broker.inside import InsideBroker, run


def test_a_restart_ends_clean_sessions_and_keeps_the_others() -> None:
    async def play(broker: InsideBroker) -> None:
        status = Status()
        status.phase, status.durability = "ready", "fsync"
        status.backends_down = {"cache": True, "copy": False}
        desk = RestartDesk(broker.engine, broker.driver, status)
        await broker.connect("durable", expiry=60)
        await broker.connect("clean")
        facts = json.loads(desk.answer({"do": CHECK})["facts"])
        assert (facts["connected"], facts["clean_sessions_connected"]) == (2, 1)
        assert facts["sessions_stored"] == 1 and facts["phase"] == "ready"
        assert facts["writes_refused"] == "" and facts["backends_down"] == ["cache"]
        assert not facts["disk_is_low"]

    run(play)
