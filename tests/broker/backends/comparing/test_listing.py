"""Which sinks can be compared, and how names are shown."""

from broker.backends.comparing.listing import TEXT_CHARACTERS_MAX, Comparable, shown
from broker.backends.dynamodb_sink import DynamodbSink
from broker.backends.kafka_sink import KafkaSink
from broker.backends.redis.sink import RedisSink
from broker.backends.webhook_sink import WebhookSink


def test_stores_that_keep_rows_by_their_ids_can_be_compared() -> None:
    for sink, is_comparable in (
        (RedisSink, True),
        (DynamodbSink, True),
        (KafkaSink, False),
        (WebhookSink, False),
    ):
        assert issubclass(sink, Comparable) is is_comparable, sink


def test_a_name_is_shown_shortened() -> None:
    assert shown(b"client", b"a/\xff") == "client a/\\xff"
    assert shown(b"x" * 70_000) == "x" * (TEXT_CHARACTERS_MAX - 3) + "..."
