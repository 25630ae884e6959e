"""What an operator reads of a node, and whom it hands over to."""

import asyncio
import json

import pytest

from broker.cli.administration import cluster_nodes
from broker.cluster import describing
from broker.operations.control_socket import ControlError
from storage.tables.tables import FILTERS, encode_filter
from storage.time import machine_clocks
from tests.broker.cluster.town import NAMES, Town


def test_a_leader_says_how_far_each_member_is(town: Town) -> None:
    async def run() -> None:
        name = await town.elect()
        other = next(each for each in NAMES if each != name)
        status = describing.status(town.members[name])
        assert (status["role"], status["leader"], status["node"]) == ("leader", name, name)
        assert int(status["epoch"]) >= 1
        assert int(status["read"]) >= int(status["applied"]) >= 1
        (member,) = json.loads(status["members"])
        assert member["node"] == other and member["heard"]
        assert member["address"] == f"{other}:1883"

    asyncio.run(run())


def test_what_a_node_says_can_be_printed(town: Town) -> None:
    """Both sides of the control socket: the command reads what a node really says."""

    async def run() -> None:
        name = await town.elect()
        other = next(each for each in NAMES if each != name)
        status = describing.status(town.members[name])
        (line,) = (each for each in cluster_nodes.lines(status) if each.startswith("member"))
        (member,) = json.loads(status["members"])
        assert line.startswith(f"member   {other}  read {member['read']} (")
        assert line.endswith(f"on disk to {member['durable']}, {other}:1883")

    asyncio.run(run())


def test_a_node_that_loads_filters_says_how_many_it_has(town: Town) -> None:
    async def run() -> None:
        store = town.stores["ann"]
        store.write([(FILTERS, name, encode_filter(1, 1)) for name in (b"a", b"b", b"c")])
        town.start("ann")
        member = town.members["ann"]
        member.preparation.step(2)
        status = describing.status(member)
        assert status["loaded"] == "2"
        (line,) = (each for each in cluster_nodes.lines(status) if "filters" in each)
        assert line == "         loading the filters of sessions, 2 so far"
        while member.preparation.step(2):
            pass
        status = describing.status(member)
        assert status["loaded"] == ""
        assert not [each for each in cluster_nodes.lines(status) if "filters" in each]

    asyncio.run(run())


def test_a_member_that_was_never_heard_is_told(town: Town) -> None:
    async def run() -> None:
        town.start("ann")
        (member,) = json.loads(describing.status(town.members["ann"])["members"])
        assert member["node"] == "bob" and not member["heard"]

    asyncio.run(run())


def test_whom_a_leader_hands_over_to(town: Town) -> None:
    async def run() -> None:
        name = await town.elect()
        leader = town.members[name]
        other = next(each for each in NAMES if each != name)
        assert describing.successor(leader, {"node": other}) == other
        for node, why in ((name, "leads already"), ("eve", "no member 'eve'"), ("", "no member")):
            with pytest.raises(ControlError, match=why):
                describing.successor(leader, {"node": node})
        with pytest.raises(ControlError, match=f"does not lead; {name} does"):
            describing.successor(town.members[other], {"node": name})

    asyncio.run(run())


def test_where_nobody_leads_nobody_is_named() -> None:
    assert "ann does: ask there" in describing.elsewhere("ann")
    assert "nor does another one: see `holdfast cluster status`" in describing.elsewhere("")


def test_a_node_that_is_gone_is_not_handed_over_to(town: Town) -> None:
    async def run() -> None:
        name = await town.elect()
        leader = town.members[name]
        other = next(each for each in NAMES if each != name)
        assert describing.successor(leader, {"node": other}) == other
        town.line(other).is_cut = True
        heard = leader.replica.members.heard[other]
        leader._words[other] = heard, machine_clocks.boottime_ms() - 11_500
        leader.detach()
        with pytest.raises(ControlError, match=f"{other} was last heard 11 s ago: is it running"):
            describing.successor(leader, {"node": other})

    asyncio.run(run())


def test_without_its_log_a_leader_hands_over_to_nobody(town: Town) -> None:
    """It could commit nothing: it would send its clients away, and end when the time is over."""

    async def run() -> None:
        name = await town.elect()
        leader = town.members[name]
        other = next(each for each in NAMES if each != name)
        leader.unheard = "for 7 s: no answer"
        with pytest.raises(ControlError, match="the log is not heard for 7 s: no answer: nothing"):
            describing.successor(leader, {"node": other})
        leader.unheard = ""
        leader.replica.is_stalled = True
        with pytest.raises(ControlError, match="the log is not heard for some seconds: nothing"):
            describing.successor(leader, {"node": other})

    asyncio.run(run())


def test_a_leader_that_resigns_is_followed_at_once_by_whom_it_names(town: Town) -> None:
    async def run() -> None:
        name = await town.elect()
        other = next(each for each in NAMES if each != name)
        loop = asyncio.get_running_loop()
        began = loop.time()
        town.members[name].resign(other)
        second, told = await town.led.get()
        assert second == other and loop.time() - began < 20
        assert told.silent_ms < town.takeover_ms

    asyncio.run(run())
