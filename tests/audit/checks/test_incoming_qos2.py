"""QoS 2 on its way in: what proves that the broker forgot a packet identifier, what does not."""

from audit.checks.incoming_qos2 import accepted_twice
from storage.history.events import RELEASES_RECORDED
from tests.audit.conftest import History, Views
from tests.audit.story import PUBLISHER, Story


class Exchanges:
    """Publishers with one exchange each: an identifier is in use, and another PUBLISH comes."""

    def __init__(self, history: History) -> None:
        self.story = Story(history)

    def begin(self, pid: int, *, conn: int = 1) -> None:
        """Accept a message, and answer it."""
        self.story.publish("a", pub_qos=2, pid=pid, conn=conn, dup=False)

    def release(self, pid: int) -> None:
        """Receive PUBREL."""
        self.story.row("pub_released", PUBLISHER, pid=pid)

    def complete(self, pid: int) -> None:
        """Send PUBCOMP."""
        self.story.row("pub_completed", PUBLISHER, pid=pid)

    def accept(self, pid: int, *, dup: bool, conn: int = 2) -> int:
        """Accept a message under an identifier that may be in use."""
        return self.story.publish("a", pub_qos=2, pid=pid, conn=conn, dup=dup)


def accused(history: History, view: Views) -> set[object]:
    """Return the packet identifiers that the broker forgot, all of them for certain."""
    _, found = accepted_twice(view(history))
    assert found.unknown == 0
    assert len(found.witnesses) == found.violated
    return {witness["pid"] for witness in found.witnesses}


def tell(exchanges: Exchanges, history: History, **columns: object) -> None:
    """Tell exchanges at every step, a crash, and what came after it."""
    for pid in (1, 2, 3, 4, 5, 6):
        exchanges.begin(pid)
    for pid in (3, 4, 5, 6):
        exchanges.release(pid)
    for pid in (5, 6):
        exchanges.complete(pid)
    history.boot(**columns)
    for pid in (1, 3, 5):
        exchanges.accept(pid, dup=True)
    for pid in (2, 4, 6):
        exchanges.accept(pid, dup=False)


def test_only_a_message_sent_again_with_dup_proves_that_a_crash_took_its_identifier(
    history: History, view: Views
) -> None:
    """What was released in the batch that freed it was free, whatever became of its PUBCOMP."""
    tell(Exchanges(history), history)
    assert accused(history, view) == {1}


def test_without_the_rows_of_pubrel_a_crash_proves_nothing(history: History, view: Views) -> None:
    exchanges = Exchanges(history)
    history.rows[0]["reason"] = None
    tell(exchanges, history)
    assert accused(history, view) == set()


def test_without_the_rows_of_pubrel_after_the_crash_it_proves_nothing(
    history: History, view: Views
) -> None:
    tell(Exchanges(history), history, reason=None)
    assert accused(history, view) == set()


def test_while_the_broker_runs_it_treats_every_publish_alike(history: History, view: Views) -> None:
    """With DUP or without, on the same connection or another one, over an orderly restart, too."""
    exchanges = Exchanges(history)
    for pid in (1, 2, 3, 4, 5):
        exchanges.begin(pid)
    exchanges.release(5)
    exchanges.accept(1, dup=True)
    exchanges.accept(2, dup=False)
    exchanges.accept(5, dup=False)
    history.row("shutdown")
    history.boot()
    exchanges.accept(3, dup=True)
    exchanges.accept(4, dup=False)
    assert accused(history, view) == {1, 2, 3, 4}


def test_a_connection_gone_before_its_pubcomp_leaves_no_row_of_an_older_broker(
    history: History, view: Views
) -> None:
    """So a message that claims to be new is no proof there, unless the connection is the same."""
    exchanges = Exchanges(history)
    history.rows[0]["reason"] = None
    for pid in (1, 2, 3):
        exchanges.begin(pid, conn=1)
    exchanges.accept(1, dup=False, conn=2)
    exchanges.accept(2, dup=True, conn=2)
    exchanges.accept(3, dup=False, conn=1)
    assert accused(history, view) == {2, 3}


def test_the_mark_of_a_boot_is_that_of_its_row(history: History, view: Views) -> None:
    history.boot()
    history.row("shutdown")
    history.boot(reason=None)
    assert [boot.has_releases for boot in view(history).boots] == [True, False]
    assert history.rows[0]["reason"] == RELEASES_RECORDED
