"""Neighbours that are alike are gathered, and a run is never more than its packets."""

from hypothesis import given
from hypothesis import strategies as st

from mqtt.decoder import RUN_MAX, Decoder
from mqtt.encoder import encode, puback, pubacks
from mqtt.packet_runs import PubackRun, PublishRun, Received, one_by_one
from mqtt.packets import Packet, Pingreq, Puback, Publish
from tests.mqtt.strategies import packets_from


def decode_runs(packets: list[Packet], version: int = 5) -> list[Received]:
    decoder = Decoder("server", 0, version)
    found = decoder.receive_runs(b"".join(encode(packet, version) for packet in packets))
    assert decoder.error is None
    return found


def test_publishes_of_one_topic_make_a_run_with_payloads_and_ids_in_order() -> None:
    packets: list[Packet] = [Publish("a", b"%d" % n, 1, packet_id=n) for n in (4, 5, 6)]
    (run,) = decode_runs(packets)
    assert isinstance(run, PublishRun)
    assert (run.topic, run.qos, run.payloads) == ("a", 1, [b"4", b"5", b"6"])
    assert (run.packet_ids, run.is_sequential) == ([4, 5, 6], True)


def test_ids_with_a_gap_or_out_of_order_are_not_sequential() -> None:
    for ids in ((1, 3), (2, 1), (1, 3, 2, 4), (5, 5)):
        packets: list[Packet] = [Publish("a", b"", 1, packet_id=n) for n in ids]
        (run,) = decode_runs(packets)
        assert isinstance(run, PublishRun) and not run.is_sequential
        assert run.packet_ids == list(ids)


def test_one_publish_alone_stays_a_packet() -> None:
    for packets in (
        [Publish("a", b"1"), Publish("b", b"2")],
        [Publish("a", b"1"), Publish("a", b"2", 1, packet_id=1)],
        [Publish("a", b"1"), Pingreq(), Publish("a", b"2")],
    ):
        assert decode_runs(list(packets)) == packets


def test_topics_of_more_than_255_bytes_that_differ_at_their_end_make_no_run() -> None:
    """Is the length of a topic read with both of its bytes?"""
    for length in (255, 256, 300, 1000):
        topics = ["t" * (length - 1) + end for end in "ab"]
        apart: list[Packet] = [Publish(topic, b"1", 1, packet_id=7) for topic in topics]
        assert decode_runs(apart) == apart
        (run,) = decode_runs([apart[0], apart[0]])
        assert isinstance(run, PublishRun) and run.topic == topics[0]


def test_whatever_a_publish_has_beside_its_payload_ends_a_run() -> None:
    plain = Publish("a", b"1", 1, packet_id=1)
    for other in (
        Publish("a", b"2", 1, retain=True, packet_id=2),
        Publish("a", b"2", 1, dup=True, packet_id=2),
        Publish("a", b"2", 2, packet_id=2),
        Publish("a", b"2", 1, packet_id=2, properties=b"\x01\x01"),
        Publish("a", b"2", 1, packet_id=2, message_expiry_interval=5),
        Publish("a", b"2", 1, packet_id=2, topic_alias=3),
        Publish("", b"2", 1, packet_id=2, topic_alias=3),
    ):
        assert decode_runs([plain, other]) == [plain, other]
        assert decode_runs([other, plain]) == [other, plain]


def test_properties_of_length_zero_are_none() -> None:
    two: list[Packet] = [Publish("a", b"1"), Publish("a", b"2")]
    for version in (4, 5):
        (run,) = decode_runs(two, version)
        assert isinstance(run, PublishRun) and run.payloads == [b"1", b"2"]


def test_pubacks_make_a_run_unless_they_have_something_to_say() -> None:
    refusal = Puback(3, 0x80)
    first, second, third = decode_runs([Puback(1), Puback(9), refusal, Puback(2)])
    assert isinstance(first, PubackRun) and first.packet_ids == [1, 9]
    assert second == refusal
    assert isinstance(third, PubackRun) and third.packet_ids == [2]


def test_a_fault_in_the_middle_leaves_the_packets_before_it() -> None:
    good = encode(Publish("a", b"1", 1, packet_id=1), 4) * 2
    decoder = Decoder("server", 0, 4)
    (run,) = decoder.receive_runs(good + b"\x32\x05\x00\x01a\x00\x00")
    assert isinstance(run, PublishRun) and len(run.payloads) == 2
    assert decoder.error is not None


@given(st.data(), st.sampled_from((4, 5)))
def test_a_run_is_its_packets(data: st.DataObject, version: int) -> None:
    same = st.builds(
        lambda payload, packet_id: Publish("a", payload, 1, packet_id=packet_id),
        st.binary(max_size=300),
        st.integers(1, 65_535),
    )
    acks = st.builds(Puback, st.integers(1, 65_535))
    packets = data.draw(
        st.lists(st.one_of(same, same, acks, packets_from("client", version)), max_size=30)
    )
    packets = [packet for packet in packets if packet.kind != 1]
    raw = b"".join(encode(packet, version) for packet in packets)
    singly, gathered = Decoder("server", 0, version), Decoder("server", 0, version)
    singly.user_properties_max = gathered.user_properties_max = 1 << 20
    assert one_by_one(gathered.receive_runs(raw)) == singly.receive(raw) == packets


@given(st.lists(st.integers(1, 65_535), min_size=1, max_size=20))
def test_the_acknowledgements_of_a_run_are_those_of_its_packets(ids: list[int]) -> None:
    assert pubacks(ids, False) == b"".join(puback(packet_id) for packet_id in ids)


@given(st.integers(1, 65_535), st.integers(1, 20))
def test_sequential_acknowledgements_are_the_same_bytes(first: int, count: int) -> None:
    ids = list(range(first, min(65_536, first + count)))
    assert pubacks(ids, True) == pubacks(ids, False)


def test_a_run_has_an_end() -> None:
    many: list[Packet] = [Publish("a", b"") for _ in range(3 * RUN_MAX + 1)]
    found = decode_runs(many)
    assert [len(run.payloads) for run in found if isinstance(run, PublishRun)] == [RUN_MAX] * 3
    assert one_by_one(found) == many
    acks: list[Packet] = [Puback(1) for _ in range(RUN_MAX + 1)]
    assert [len(run.packet_ids) for run in decode_runs(acks) if isinstance(run, PubackRun)] == [
        RUN_MAX,
        1,
    ]
