"""What an operator sees of a node and its cluster, as texts for the control socket.

Read next: `broker.cluster.member`.
"""

import json
from typing import Final

from broker.cluster.member import Member
from broker.operations.control_socket import ControlError, Request
from storage.replicated.roles.terms import LEADS

STATUS: Final = "cluster_status"
PROMOTE: Final = "cluster_promote"
SILENT_MS_MAX: Final = 10_000  # of who is to lead; it says every second how far it is
REQUESTS: Final = frozenset({STATUS, PROMOTE})


def status(member: Member) -> Request:
    """Return where a node is: its role, who leads, how far log, database and members are."""
    replica = member.replica
    reached = member.store.position()
    preparation = member.preparation
    is_prepared = preparation.is_over or replica.role == LEADS
    members = [
        {
            "node": name,
            "address": each.address,
            "read": each.reached[1],
            "durable": each.durable,
            "heard": True,
            "silent_ms": member.silent_ms(name),
        }
        for name, each in replica.members
    ]
    heard = {each["node"] for each in members}
    members += [
        {"node": name, "address": "", "read": 0, "durable": 0, "heard": False, "silent_ms": 0}
        for name in replica.members.names
        if name not in heard and name != member.settings.node
    ]
    return {
        "node": member.settings.node,
        "role": replica.role,
        "leader": replica.leader,
        "epoch": str(replica.end.epoch),
        "read": str(replica.end.index),
        "written": str(max(replica.written, replica.end.index)),
        "applied": str(reached.position.index),
        "place": str(replica.place),
        "pending": str(member.store.pending),
        "ready": "yes" if replica.is_warm or replica.role == LEADS else "",
        "loaded": "" if is_prepared else str(len(preparation.filters.index)),
        "trouble": member.trouble,
        "unheard": member.unheard,
        "members": json.dumps(members),
    }


def elsewhere(leader: str) -> str:
    """Return what a node says that does not lead; `leader` "" = nobody does."""
    if leader:
        return f"this node does not lead; {leader} does: ask there"
    return "this node does not lead, nor does another one: see `holdfast cluster status`"


def successor(member: Member, request: Request) -> str:
    """Return whom a request names to lead from now on. Raises `ControlError`."""
    node = request.get("node", "")
    replica = member.replica
    if replica.role != LEADS:
        raise ControlError(elsewhere(replica.leader))
    if node == member.settings.node:
        raise ControlError(f"{node} leads already")
    if node not in replica.members.names:
        names = ", ".join(replica.members.names)
        raise ControlError(f"no member {node!r}; the members are {names}")
    if replica.is_stalled or member.unheard:
        why = member.unheard or "for some seconds"
        raise ControlError(
            f"the log is not heard {why}: nothing can be committed, so nobody can take over; "
            "clients stay here until it is heard"
        )
    found = dict(replica.members).get(node)
    if found is None:
        raise ControlError(f"{node} was not heard since this node began: it could not take over")
    silent_ms = member.silent_ms(node)
    if silent_ms > SILENT_MS_MAX:
        raise ControlError(f"{node} was last heard {silent_ms // 1000} s ago: is it running?")
    return node
