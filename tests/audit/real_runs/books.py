"""What the clients of one run have seen: the books that an audit is compared with.

Every message has a topic of its own, so that clients and history, which holds no payload, can be
compared message by message.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field


@dataclass
class Books:
    """The records of all clients of a run, by topic."""

    promised: set[str] = field(default_factory=set)  # acknowledged to their publishers
    # Published without a promise: at QoS 0, by a broker in a client's name, or cut off.
    perhaps: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    got: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    # What a client has to have got at the end, and what no durable session gets any more.
    owed: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    expired: int = 0
    too_large: int = 0
    lost: set[str] = field(default_factory=set)  # taken away on purpose: planted

    def missing(self) -> dict[str, set[str]]:
        """Return what each client is still owed."""
        left = {name: topics - set(self.got[name]) for name, topics in self.owed.items()}
        return {name: topics for name, topics in left.items() if topics}
