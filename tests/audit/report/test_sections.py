"""What the sections of the report say about their numbers."""

import pytest

from audit.report import sections
from audit.report.summary import Drop, Minute, Picture
from tests.audit import pictures


def text(picture: Picture) -> str:
    """Return the sections below the invariants."""
    return sections.pictures(picture)


def test_books_that_balance_say_so() -> None:
    assert "Every message that asked for an acknowledgement got one." in text(pictures.busy())
    assert "Each one is accounted for." in text(pictures.busy())


def test_what_is_missing_is_counted() -> None:
    picture = pictures.tiny()
    picture.minutes[0].stages["pub_acked"] = 0
    picture.owed[0].stages["delivered"] = 0
    assert "1 acknowledgement missing" in text(picture)
    assert "1 delivery not accounted for: lost." in text(picture)


def test_too_many_are_not_called_missing() -> None:
    picture = pictures.tiny()
    picture.minutes[0].stages["pub_acked"] = 3
    assert "2 acknowledgements too many" in text(picture)


def test_a_history_without_messages_says_what_it_lacks() -> None:
    picture = pictures.tiny()
    picture.owed = []
    assert "Nothing was owed to a durable session." in text(picture)
    picture.details = ["books"]
    assert "Not recorded: needs a history at level full or sampled." in text(picture)


@pytest.mark.parametrize(
    ("details", "said", "never"),
    [
        (
            ["sessions"],
            "Not recorded: needs a history at level books or above.",
            "Nothing was dropped",
        ),
        (["sessions"], "Not recorded: needs a history at level full or sampled.", "No session had"),
        (["books", "full"], "No session had a backlog, in what was recorded.", "backlog.<"),
        (["sampled:1/8"], "No session had a backlog.", "Not recorded"),
    ],
)
def test_what_was_not_recorded_is_not_said_to_be_nothing(
    details: list[str], said: str, never: str
) -> None:
    picture = pictures.tiny()
    picture.details, picture.minutes, picture.owed, picture.talkers = details, [], [], []
    html = text(picture)
    assert said in html
    assert never not in html


def test_publishing_without_acknowledgements_is_still_drawn() -> None:
    picture = pictures.tiny()
    picture.minutes = [Minute(pictures.BEGIN, {"accepted": 5})]
    assert "No message asked for an acknowledgement." in text(picture)


def test_each_end_of_the_broker_says_what_survived_it() -> None:
    html = sections.lives(pictures.violated())
    assert "3 sessions not as before" in html
    assert html.count("✓ all there") == 2
    assert html.count('<th scope="row"><time') == 4
    assert "not known" in html


def test_an_end_that_no_session_had_to_survive_has_no_tick() -> None:
    picture = pictures.busy()
    for boot in picture.boots:
        boot.sessions_before = boot.sessions_after = 0
    html = sections.lives(picture)
    assert "✓" not in html
    assert html.count("no session to survive it") == 4


def test_the_redelivery_rate_is_told() -> None:
    picture = pictures.tiny()
    assert "Nothing was sent to a session." in text(picture)
    picture.minutes[0].stages |= {"delivered": 200}
    assert "Of 200 deliveries none was sent again." in text(picture)
    picture.minutes[0].stages |= {"redelivered": 3}
    assert "Sent again: 3 deliveries, 1.50% of 200." in text(picture)


def test_no_boot_no_lives() -> None:
    assert sections.lives(pictures.empty()) == ""


def test_bars_are_ordered_and_the_longest_is_whole() -> None:
    picture = pictures.tiny()
    picture.drops = [Drop("too_large", 1), Drop("queue_full", 100)]
    html = text(picture)
    assert html.index("queue full") < html.index("too large")
    assert 'class="dropped" style="width:100.0%"' in html
    assert 'class="dropped" style="width:1.0%"' in html


def test_bars_of_nothing_are_drawn() -> None:
    picture = pictures.tiny()
    picture.drops = [Drop("too_large", 0)]
    assert 'class="dropped" style="width:0.4%"' in text(picture)


def test_quiet_histories_say_that_nothing_happened() -> None:
    html = text(pictures.tiny())
    for sentence in (
        "Nothing out of the ordinary.",
        "The history has no gaps.",
        "Nothing was dropped.",
        "Nothing expired unread.",
        "No session had a backlog.",
        "No retained message was set or cleared.",
    ):
        assert sentence in html


@pytest.mark.parametrize("kind", sorted(sections.KINDS))
def test_every_kind_of_finding_has_a_name(kind: str) -> None:
    picture = pictures.tiny()
    picture.findings = pictures.busy().findings[:1]
    picture.findings[0].kind = kind
    assert sections.KINDS[kind] in text(picture)


def test_gaps_lead_to_what_they_hide() -> None:
    html = text(pictures.violated())
    assert '<a href="#O1">O1</a>, <a href="#R1">R1</a>' in html
    assert "18,223 events not recorded" in html
    assert "still open at the end" in html
