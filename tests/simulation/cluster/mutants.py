"""Planted bugs between a broker and the log of its cluster: what a takeover must not do.

Read next: `storage.replicated.replica`, `broker.cluster.committing`.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from broker.cluster.committing import ReplicatedCommitter
from broker.cluster.preparing import Preparation
from session.engine import Engine
from storage.api import Change
from storage.replicated import batch_codec
from storage.replicated import replica as real
from storage.replicated.overlay import ReplicatedStore
from storage.replicated.replica import Replica
from storage.replicated.roles.acknowledgements import Acknowledgements
from storage.replicated.roles.terms import LEADS, Committed, Leads
from storage.tables.tables import CONNECTIONS, INCOMING, SESSIONS, SUBSCRIPTIONS
from tests.replication.mutants import EpochNotLookedAt
from tests.simulation.cluster.machines import Machines
from tests.simulation.cluster.node import BrokerDisk
from tests.simulation.planting import Patcher, mutant


def _unjudged(patcher: Patcher) -> None:
    """Leave it to the clients to notice: whoever sees into the log looks away."""
    patcher.set(Machines, "_judge_commit", lambda *_: None)


def _followers_without(patcher: Patcher, passes: Callable[[ReplicatedStore, Change], bool]) -> None:
    """Let followers apply only the changes of rows that pass."""

    def around(original: Any, self: Any, operations: Any, *where: Any) -> None:
        original(
            self, [each for each in operations if len(each) == 2 or passes(self, each)], *where
        )

    patcher.wrap(ReplicatedStore, "apply", around)


# What is released too early


@mutant("cluster")
def replies_do_not_wait_for_the_log(patcher: Patcher) -> None:
    """A client is answered when the batch is on its way to the log."""

    def around(original: Any, self: Any, serial: int) -> None:
        original(self, serial)
        self._on_durable(serial)

    patcher.wrap(ReplicatedCommitter, "request", around)


@mutant("cluster", start=20)
def a_deposed_leader_releases_what_it_has(patcher: Patcher) -> None:
    """A leader that reads the claim of another one releases all first, though it is not there."""
    _unjudged(patcher)
    late: dict[Any, Callable[[], None]] = {}  # it is deposed a moment later

    def begin(original: Any, self: Any, record: Any, now: int) -> None:
        if self.role != LEADS:
            original(self, record, now)
            return
        for sent in self._writing.pending:
            if sent.ends_batch:
                self.told.append(Committed(sent.position, max(sent.place, 0)))
        self._writing.pending.clear()
        late[self] = lambda: late.update({self: lambda: original(self, record, now)})

    def timeout(original: Any, self: Any, now: int) -> None:
        late.pop(self, lambda: None)()
        original(self, now)

    patcher.wrap(Replica, "_begin_epoch", begin)
    patcher.wrap(Replica, "timeout", timeout)


@mutant("cluster")
def the_own_tail_is_enough(patcher: Patcher) -> None:
    """A batch counts as committed once it is in the leader's own tail."""
    _unjudged(patcher)

    def commit(self: Any) -> None:
        while (
            self._writing.pending
            and self._writing.pending[0].position.index <= self._follower.tail_synced
        ):
            sent = self._writing.pending.popleft()
            if sent.ends_batch:
                self.told.append(Committed(sent.position, max(sent.place, 0)))

    patcher.set(Replica, "_commit", commit)


@mutant("cluster", start=27)
def the_answer_of_the_log_is_enough(patcher: Patcher) -> None:
    """A batch counts as committed once it is acknowledged, whoever has claimed before it there."""
    _unjudged(patcher)
    acked: dict[Any, int] = {}

    def acknowledged(original: Any, self: Any, token: int, place: int) -> None:
        acked[self] = max(acked.get(self, 0), self.index_of(token))
        original(self, token, place)

    def commit(self: Any) -> None:
        upto = min(self._follower.tail_synced, acked.get(self._acks, 0))
        while self._writing.pending and self._writing.pending[0].position.index <= upto:
            sent = self._writing.pending.popleft()
            if sent.ends_batch:
                self.told.append(Committed(sent.position, max(sent.place, 0)))

    patcher.wrap(Acknowledgements, "acknowledged", acknowledged)
    patcher.set(Replica, "_commit", commit)


@mutant("cluster", start=27)
def rows_reach_the_database_before_the_log(patcher: Patcher) -> None:
    """The database of a leader has a batch at once: it keeps it when the log does not."""

    def around(original: Any, self: Any, batch: Any) -> None:
        original(self, batch)
        self._base.write([each for each in batch if each[0] in self._families])

    patcher.wrap(ReplicatedStore, "write", around)


# What a new leader lacks


@mutant("cluster", start=14)
def a_node_leads_before_its_database_has_all(patcher: Patcher) -> None:
    """What was read from the log and not applied yet is forgotten at a takeover."""

    def around(original: Any, self: Any, now: int) -> None:
        follower = self._follower
        unapplied, follower.unapplied = follower.unapplied, deque()
        original(self, now)
        if not any(isinstance(each, Leads) for each in self.told):
            follower.unapplied = unapplied

    patcher.wrap(Replica, "_lead_if_clear", around)


@mutant("cluster")
def followers_forget_received_packet_ids(patcher: Patcher) -> None:
    """Packet ids of received QoS 2 messages are not applied: they are accepted twice."""
    _followers_without(patcher, lambda _, change: change[0] != INCOMING)


@mutant("cluster", start=1)
def followers_forget_wills(patcher: Patcher) -> None:
    """Who is connected, and with which will, is not applied."""
    _followers_without(patcher, lambda _, change: change[0] != CONNECTIONS)


@mutant("cluster")
def followers_forget_subscriptions(patcher: Patcher) -> None:
    """Subscriptions are not applied: whoever comes back gets nothing more."""
    _followers_without(patcher, lambda _, change: change[0] != SUBSCRIPTIONS)


@mutant("cluster")
def followers_keep_the_first_record_of_a_session(patcher: Patcher) -> None:
    """Packet ids in flight are those of long ago after a takeover."""

    def passes(store: ReplicatedStore, change: Change) -> bool:
        family, key, value = change
        return family != SESSIONS or value is None or store.get(SESSIONS, key) is None

    _followers_without(patcher, passes)


@mutant("cluster", start=5)
def families_are_dropped_by_the_leader_alone(patcher: Patcher) -> None:
    """A generation is created and dropped on the leader's disk, and not in the log."""

    def around(original: Any, self: Any, what: int, family: str) -> None:
        if what == batch_codec.DROP and family in self._families:
            self._base.drop_family(family)
            self._families.remove(family)
            self._layers.pop(family, None)
        else:
            original(self, what, family)

    patcher.wrap(ReplicatedStore, "_change", around)


# What does not count


@mutant("cluster", start=26)
def batches_of_a_deposed_leader_count(patcher: Patcher) -> None:
    """What an old leader appends late is applied: nobody looks at epochs."""
    patcher.set(real, "counts", EpochNotLookedAt.counts)


# Time


def _leads_with(patcher: Patcher, change: Callable[[Any, Leads, int], Leads]) -> None:
    """Change what a node is told when it leads."""

    def around(original: Any, self: Any, now: int) -> None:
        original(self, now)
        self.told[:] = [
            change(self, each, now) if isinstance(each, Leads) and each.alive_ms else each
            for each in self.told
        ]

    patcher.wrap(Replica, "_lead_if_clear", around)


@mutant("cluster")
def time_stands_still_while_nobody_leads(patcher: Patcher) -> None:
    """Broker time goes on from the last word of the old leader: sessions live too long."""
    _leads_with(patcher, lambda _, leads, now: Leads(leads.epoch, leads.alive_ms, 0))


@mutant("cluster")
def silence_counts_from_the_start_of_the_follower(patcher: Patcher) -> None:
    """Broker time is ahead by as long as the new leader has followed."""
    _leads_with(
        patcher, lambda self, leads, now: Leads(leads.epoch, leads.alive_ms, now - self._began)
    )


def every_other_leader_is_not_heard(patcher: Patcher) -> None:
    """The log keeps all that such a leader writes and none of its signs of life: no bug, but rare.

    `tests.simulation.cluster.test_worlds` has worlds of this without a bug.
    """

    def beat(original: Any, self: Any, broker_ms: int, now: int) -> None:
        if self.end.epoch % 2:
            original(self, broker_ms, now)

    patcher.wrap(Replica, "beat", beat)


@mutant("cluster")
def time_goes_on_from_an_earlier_leader(patcher: Patcher) -> None:
    """The clock of a leader that wrote and was never heard does not count: it may be behind."""
    every_other_leader_is_not_heard(patcher)

    def around(original: Any, self: Any, now: int) -> Leads:
        self._batch_epoch = 0
        leads: Leads = original(self, now)
        return leads

    patcher.wrap(Replica, "_leads", around)


@mutant("cluster", start=8)
def connections_end_when_another_node_leads(patcher: Patcher) -> None:
    """Whoever was connected counts as disconnected at the takeover, and not since the silence."""

    def around(original: Any, self: Any, now: int, **named: Any) -> Any:
        return original(self, now, **(named | {"alive_ms": now}))

    patcher.wrap(Engine, "start", around)


@mutant("cluster")
def filters_that_change_while_a_node_follows_are_missed(patcher: Patcher) -> None:
    """A new leader has the filters as they were when it began to follow."""
    patcher.set(Preparation, "applied", lambda *_: None)
    patcher.set(BrokerDisk, "judge_prepared", lambda *_: None)  # leave it to the clients to notice
