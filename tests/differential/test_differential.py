"""Does Holdfast do what mosquitto does, but for what is explained, with the same raw packets?"""

import collections
import csv
import re
from pathlib import Path

import pytest

from conformance import statements
from tests.differential import oddities
from tests.differential.command import SEQUENCES, run
from tests.differential.compare import (
    Difference,
    Explanation,
    compare,
    load_explanations,
)
from tests.differential.replies import Stream
from tests.differential.sequences import Sequence, Step, sequence
from tests.durability.process import have_mosquitto

QUICK = 150
STATEMENTS = Path(statements.__file__ or "").parent / "mqtt50.tsv"

needs_mosquitto = pytest.mark.skipif(not have_mosquitto(), reason="mosquitto is not installed")


@needs_mosquitto
def test_a_sample_of_sequences_has_no_difference_that_is_not_explained() -> None:
    comparison = run(0, QUICK)
    assert not comparison.unexplained, "\n".join(map(str, comparison.unexplained))
    assert len(comparison.explained) > QUICK // 4, "brokers so much the same: was anything sent?"


@needs_mosquitto
@pytest.mark.slow
def test_two_thousand_sequences_have_none_and_need_every_explanation() -> None:
    comparison = run(0, SEQUENCES)
    assert not comparison.unexplained, "\n".join(map(str, comparison.unexplained[:20]))
    assert comparison.unused() == [], "differences.toml explains what there is not"


@needs_mosquitto
def test_without_its_explanation_a_difference_is_reported(tmp_path: Path) -> None:
    """Would a new difference be noticed, and an explanation of nothing?"""
    nothing = tmp_path / "differences.toml"
    nothing.write_text(
        '[[difference]]\nname = "none"\nsteps = ["LUNCH"]\nholdfast = ["closed"]\nright = "both"\n'
        'statement = "MQTT-1.5.4-1"\nwhy = "there is no such packet"\n'
    )
    comparison = run(4, 1, nothing)  # a reserved flag of CONNECT: who says why it is refused?
    assert [(each.holdfast, each.other) for each in comparison.unexplained] == [
        (("A: CONNACK sp=0 81",), ())
    ]
    assert comparison.unused() == ["none"]


# The sequences


def test_every_oddity_comes_in_every_version() -> None:
    names = collections.Counter(
        (step.name.partition(" {")[0], step.version)
        for number in range(SEQUENCES)
        for step in sequence(number).steps
        if step.is_odd
    )
    for oddity in oddities.FIRST + oddities.LATER:
        for version in oddity.versions:
            assert names[oddity.name, version] >= 2, (oddity.name, version)


def test_a_sequence_is_the_same_twice_but_for_its_names() -> None:
    for number in range(0, 200, 7):
        one, again, other = sequence(number), sequence(number), sequence(number, 1)
        assert one == again
        assert [step.name for step in one.steps] == [step.name for step in other.steps]
        assert one.prefix != other.prefix
        assert all(
            step.data == twin.data.replace(other.prefix.encode(), one.prefix.encode())
            for step, twin in zip(one.steps, other.steps, strict=True)
        )


# The explanations


def test_every_explanation_says_who_is_right_by_what_and_why() -> None:
    with open(STATEMENTS, encoding="utf-8") as file:
        known = {row[0] for row in csv.reader(file, delimiter="\t") if row}
    explanations = load_explanations()
    assert len({each.name for each in explanations}) == len(explanations)
    for each in explanations:
        assert each.right in ("holdfast", "mosquitto", "both"), each.name
        assert each.statement in known, each.name
        assert len(each.why) > 20, each.name
        assert each.holdfast or each.other, each.name


def _explanation(**fields: object) -> Explanation:
    def patterns(key: str) -> tuple[re.Pattern[str], ...]:
        texts = fields.get(key, ())
        assert isinstance(texts, tuple)
        return tuple(re.compile(text) for text in texts)

    return Explanation(
        "one",
        patterns("steps"),
        str(fields.get("after", "")),
        (5,),
        patterns("holdfast"),
        patterns("other"),
        patterns("both"),
        patterns("perhaps"),
        "both",
        "",
        "",
    )


DIFFERENCE = Difference(
    1,
    5,
    "PUBLISH {again, will taken over}",
    ("A: closed", "B: PUBLISH w"),
    ("A: PUBACK 1 00",),
    ("C: PUBLISH w",),
)


def test_an_explanation_takes_what_it_is_about() -> None:
    fields = {"holdfast": ("closed",), "both": ("PUBLISH w",), "perhaps": ("PUBACK .*",)}
    for more in ({}, {"steps": ("SUBSCRIBE", "PUB.*")}, {"after": "will taken over"}):
        rest = _explanation(**fields, **more).explain(DIFFERENCE)
        assert (rest.holdfast, rest.other) == (("B: PUBLISH w",), ())


@pytest.mark.parametrize(
    "fields",
    [
        {"holdfast": ("closed",), "other": ("PUBREC .*",)},
        {"holdfast": ("close",)},
        {"other": ("closed",)},
        {"steps": ("SUBSCRIBE", "PUB"), "holdfast": ("closed",)},
        {"after": "will", "holdfast": ("closed",)},
        {"holdfast": ("closed",), "both": ("closed",)},
    ],
)
def test_an_explanation_of_something_else_takes_nothing(fields: dict[str, object]) -> None:
    assert _explanation(**fields).explain(DIFFERENCE) == DIFFERENCE


def test_an_explanation_is_for_its_versions() -> None:
    other = DIFFERENCE._replace(version=4)
    assert _explanation(holdfast=("closed",)).explain(other) == other


# Comparing


STEPS = Sequence(7, "d7a", [Step("one", "send", "A", 5), Step("two", "send", "A", 5)])


def test_what_only_one_did_is_the_difference() -> None:
    found = compare(
        STEPS,
        [["A: PUBACK 1 10"], ["A: closed", "A: PUBLISH d7a/x"]],
        [["A: PUBACK 1 00"], ["A: PUBLISH d7a/x", "A: PUBLISH d7a/x"]],
    )
    assert found == [
        Difference(7, 5, "one", ("A: PUBACK 1 10",), ("A: PUBACK 1 00",)),
        Difference(7, 5, "two", ("A: closed",), ("A: PUBLISH x",), ("A: PUBLISH x",)),
    ]


def test_nothing_is_compared_behind_a_difference_that_lasts() -> None:
    assert len(compare(STEPS, [["A: closed"], ["A: x"]], [[], []])) == 1


# Reading replies


@pytest.mark.parametrize(
    ("version", "data", "text"),
    [
        (4, "20020100", "CONNACK sp=1 00"),
        (5, "2003008700", "CONNACK sp=0 87"),
        (4, "40020007", "PUBACK 7 00"),
        (5, "4003000710", "PUBACK 7 10"),
        (5, "62020007", "PUBREL 00"),
        (4, "9004000700 80", "SUBACK 7 00 80"),
        (5, "9005000700 028f", "SUBACK 7 02 8f"),
        (5, "b004000700 11", "UNSUBACK 7 11"),
        (4, "b0020007", "UNSUBACK 7"),
        (5, "e0018e", "DISCONNECT 8e"),
        (4, "3b0700017400057878", "PUBLISH t 'xx' qos=1 retain dup"),
        (5, "300a 000174 05 0200000078 78", "PUBLISH t 'x' qos=0"),
    ],
)
def test_a_reply_is_put_in_words(version: int, data: str, text: str) -> None:
    stream = Stream()
    stream.version = version
    raw = bytes.fromhex(data)
    found = [reply.text for at in range(len(raw)) for reply in stream.feed(raw[at : at + 1])]
    assert found == [text]


def test_a_topic_alias_stands_for_its_topic() -> None:
    stream = Stream()
    stream.version = 5
    first = bytes.fromhex("3012 000174 0d 2600016b000176 0b8001 230003 78")
    again = bytes.fromhex("3007 0000 03 230003 79")
    assert [reply.text for reply in stream.feed(first + again)] == [
        "PUBLISH t 'x' qos=0",
        "PUBLISH t 'y' qos=0",
    ]
