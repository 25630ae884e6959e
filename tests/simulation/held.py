"""What a session may hold of one topic filter, as far as that can be known from outside.

Nobody, the client itself or the store has begun a subscription. What the store does is known when
the broker hears of it; when the broker reads what a client sends is not, so until SUBACK or
UNSUBACK both are possible. What is not durable may be taken back by a crash. Decides nothing. Read
next: `tests.simulation.proxied`.
"""

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from tests.simulation.view import Option

# Who has begun a subscription, and its QoS.
State: TypeAlias = tuple[str, int]
NONE: Final[State] = ("nobody", 0)
CLIENT: Final = "client"
STORE: Final = "store"


class Event:
    """Something that the store says of a filter."""

    def __init__(self, qos: int | None, *, is_list: bool = False) -> None:
        self.qos: Final = qos  # None: it is not to be subscribed
        # A list that was asked for before: what the client has unsubscribed since is newer.
        self.is_list: Final = is_list

    def after(self, state: State) -> State:
        """Return what becomes of a state."""
        if state[0] == CLIENT:
            return state
        if self.qos is None:
            return NONE
        return STORE, self.qos


class Operation:
    """A SUBSCRIBE or UNSUBSCRIBE that is not acknowledged."""

    def __init__(self, result: State, sent: int) -> None:
        self.result: Final = result
        self.sent: Final = sent  # how many entries of the past there had been
        self.events: Final[list[Event]] = []  # since then

    def outcomes(self) -> set[State]:
        """Return what may be held if the broker has read it, before or after these events."""
        states = {self.result}
        for event in self.events:
            if not (event.is_list and self.result == NONE):
                states |= {event.after(state) for state in states}
        return states


class Held:
    """What one session may hold of one filter."""

    def __init__(self) -> None:
        self.possible: set[State] = {NONE}  # if nothing pending was read
        self.pending: list[Operation] = []
        # What was possible before each change: with the batch that this was in.
        self.past: list[tuple[int, int, frozenset[State]]] = []
        self.changes = 0
        self.may_begin = 0  # how often a subscription may have begun, or another QoS
        self.left = False  # has the client unsubscribed on this connection?
        self.told = False  # has the store told of a change on this connection?
        self.unseen: set[int] = set()  # QoS that the client's view has not seen
        self.asked_step = 0  # since when retained messages are owed; 0 = they are not
        self.since_step = 0
        # What the client's view knows of subscriptions that the store has begun, by their QoS.
        self.shown: dict[int, Option] = {}

    def now(self) -> set[State]:
        """Return what may be held in memory."""
        found = set(self.possible)
        for operation in self.pending:
            found |= operation.outcomes()
        return found

    def all(self, durable: int) -> set[State]:
        """Return what may be held, also after a crash that keeps what is durable."""
        self.past = [each for each in self.past if each[0] > durable]
        found = self.now()
        for _, _, states in self.past:
            found |= states
        return found

    def remember(self, serial: int) -> None:
        """Something is to change with a batch."""
        self.changes += 1
        self.past.append((serial, self.changes, frozenset(self.now())))

    def happens(self, event: Event, serial: int, *, is_certain: bool = True) -> None:
        """The broker does what the store says, or if that is not certain, perhaps."""
        self.remember(serial)
        if not (event.is_list and (self.left or self.told)):
            after = {event.after(state) for state in self.possible}
            self.possible = after if is_certain else after | self.possible
        for operation in self.pending:
            operation.events.append(event)

    def asks(self, result: State) -> None:
        """The client sends SUBSCRIBE or UNSUBSCRIBE."""
        self.pending.append(Operation(result, self.changes))

    def answered(self, *, is_done: bool) -> None:
        """SUBACK or UNSUBACK came: what it answers is durable."""
        operation = self.pending.pop(0)
        if is_done:
            self.possible = operation.outcomes()
            self.left |= operation.result == NONE
            self.past = [each for each in self.past if each[1] > operation.sent]

    def connected(self) -> None:
        """There is a new connection: nothing of the one before is read any more."""
        self.possible = self.now()
        self.pending.clear()
        self.left = self.told = False

    def observed(self, state: State) -> None:
        """This is what is held, and durable."""
        self.possible = {state}
        self.pending.clear()
        self.past.clear()
