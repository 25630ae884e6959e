"""Do the parts of an in-flight entry fit into one int without touching each other?"""

from itertools import combinations

from session.state import in_flight

PARTS = {
    "qos": in_flight.QOS_MASK,
    "released": in_flight.RELEASED,
    "source": in_flight.SOURCE_MASK,
    "quota": in_flight.TOOK_QUOTA,
    "perhaps": in_flight.PERHAPS_SENT,
    "unstored": in_flight.UNSTORED_REFERENCE,
}


def test_no_part_overlaps_another() -> None:
    for (_, one), (_, other) in combinations(PARTS.items(), 2):
        assert one & other == 0
    assert all(part < 1 << in_flight.REFERENCE_SHIFT for part in PARTS.values())


def test_the_sources_differ_and_lie_within_their_mask() -> None:
    sources = {in_flight.FROM_LOG, in_flight.FROM_MAILBOX, in_flight.FROM_GROUP}
    assert len(sources) == 3
    assert all(source & ~in_flight.SOURCE_MASK == 0 for source in sources)


def test_what_belongs_to_a_connection_is_not_stored() -> None:
    assert in_flight.STORED_MASK & in_flight.TOOK_QUOTA == 0
    assert in_flight.STORED_MASK == PARTS["qos"] | PARTS["released"] | PARTS["source"]


def test_every_phase_has_bits_of_its_own() -> None:
    phases = {
        in_flight.FREE,
        in_flight.AWAITING_PUBACK,
        in_flight.AWAITING_PUBREC,
        in_flight.AWAITING_PUBCOMP,
    }
    assert len(phases) == 4
    assert all(phase & ~in_flight.PHASE_MASK == 0 for phase in phases)
