"""Which streams a message has to be in: L3 over histories told by hand, through Spark."""

from audit.checks import publish_checks
from tests.audit.conftest import History, Views
from tests.audit.story import Story


def test_no_local_excuses_the_publisher_itself_and_nobody_else(
    history: History, view: Views
) -> None:
    """A stream may lack a message only if every holder published it with No Local set."""
    story = Story(history)
    for session, no_local in ((1, True), (2, False), (3, True), (4, True)):
        story.connect(session)
        story.subscribe(session, f"s{session}/#", no_local=no_local)
    story.connect(5)
    story.subscribe(5, "s4/#")
    story.publish("s1/x", pub=1)  # its own, with No Local
    echo = story.publish("s2/x", pub=2)  # its own, but it wants to hear itself
    foreign = story.publish("s3/x", pub=1)  # No Local is about its own messages
    shared = story.publish("s4/x", pub=4)  # session 5 holds that stream, too
    own_will = story.publish("s1/x", pub=1)  # accepted in its name: the row names no session
    heard = story.publish("s2/x", pub=2)
    for session, msg in ((1, own_will), (2, heard)):
        story.say_it_was_the_will_of(session, msg)
    after = story.publish("s2/y", "s2/#", pub=2)
    story.exchange(2, after)
    found = {outcome.invariant: outcome for outcome in publish_checks.check(view(history))}["L3"]
    missing = {int(str(witness["msg"])) for witness in found.witnesses}
    assert missing == {echo, foreign, shared, heard}
    assert (found.violated, found.unknown) == (4, 0)
