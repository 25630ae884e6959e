"""Choose at random what a simulated client does and what its network does to it.

It only chooses and starts actions; the client, its sender and its link carry them out. Read next:
`tests.simulation.client`.
"""

from itertools import accumulate
from typing import TYPE_CHECKING

from mqtt.packets import Disconnect
from tests.simulation.rare import sometimes

if TYPE_CHECKING:
    from tests.simulation.client import Client


class Behaviour:
    """The programs around one client and the network under it."""

    def __init__(self, client: "Client") -> None:
        self.client = client
        profile, plan = client.world.profile, client.plan
        often = 0.3 if plan.shared else 1.0
        actions = [
            (self._cut, profile.cut),
            (self._abandon, profile.abandon),
            (self._disconnect, profile.disconnect),
            (self._stall, profile.stall),
            (self._take_over, profile.abandon),
        ]
        if plan.topics:
            actions.append((client.sender.publish_some, profile.publish))
        if plan.filters:
            actions.append((self._resubscribe, profile.resubscribe * often))
            actions.append((self._unsubscribe, profile.unsubscribe * often))
        self._actions = [action for action, _ in actions]
        self._weights = list(accumulate(weight for _, weight in actions))

    def act(self) -> None:
        """Do one thing, and come back later; until the faults are over."""
        client = self.client
        world = client.world
        if not world.faults:
            return
        low, high = world.profile.step_ms
        world.after(low + int(world.random.random() * (high - low)), self.act)
        if client.is_online() and world.witness_ready:
            world.random.choices(self._actions, cum_weights=self._weights)[0]()

    def _resubscribe(self) -> None:
        client = self.client
        if not client.requests:
            client.subscribe([client.world.random.choice(client.plan.filters)])

    def _unsubscribe(self) -> None:
        client = self.client
        if not client.requests:
            client.unsubscribe(client.world.random.choice(client.plan.filters))

    def _cut(self) -> None:
        assert self.client.link is not None
        self.client.link.leave(self.client.world.notice())

    def _abandon(self) -> None:
        """The client's network is gone for good: the broker sees a half-open connection."""
        client = self.client
        assert client.link is not None
        sometimes("half_open_resume")
        client.link.leave(2_000 + int(client.world.random.random() * 12_000))

    def _take_over(self) -> None:
        """A second connection of the same client, while the first one is fine."""
        client = self.client
        if client.world.up() is None or client.expiry_ms == 0 or client.old_link is not None:
            return
        sometimes("takeover")
        if client.held:
            sometimes("takeover_with_held_acks")
        client.connect_again()

    def _stall(self) -> None:
        """The client does not read for a while."""
        client = self.client
        assert client.link is not None
        world = client.world
        client.link.stalled_until = world.now + 200 + int(world.random.random() * 1_500)

    def _disconnect(self) -> None:
        client = self.client
        world = client.world
        assert client.attempt is not None
        packet = Disconnect()
        if client.version == 5:
            if client.attempt.will is not None and world.chance(0.3):
                packet.reason_code = 4
                client.attempt.disconnect_keeps_will = True
            if client.expiry_ms and not client.plan.shared and world.chance(0.2):
                self._change_expiry(packet)
        client.disconnect(packet)

    def _change_expiry(self, packet: Disconnect) -> None:
        client = self.client
        expiry = client.world.random.choice((0, 1, 3, 7200))
        packet.session_expiry_interval = expiry
        assert client.attempt is not None
        client.attempt.disconnect_expiry_ms = expiry * 1000
        sometimes("disconnect_changed_expiry")
        if expiry == 0:
            client.oracle.weaken_view(client.name)
