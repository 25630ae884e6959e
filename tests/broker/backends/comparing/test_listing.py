"""Which sinks can be compared, and how names are shown."""

from broker.backends.cassandra_sink import CassandraSink
from broker.backends.comparing.listing import SHAPES, TEXT_CHARACTERS_MAX, Comparable, shown
from broker.backends.dynamodb_sink import DynamodbSink
from broker.backends.kafka_sink import KafkaSink
from broker.backends.redis.sink import RedisSink
from broker.backends.webhook_sink import WebhookSink
from broker.configuration import backend_options


def test_stores_that_keep_rows_by_their_ids_can_be_compared() -> None:
    sinks = {
        backend_options.REDIS: RedisSink,
        backend_options.DYNAMODB: DynamodbSink,
        backend_options.CASSANDRA: CassandraSink,
        backend_options.KAFKA: KafkaSink,
        backend_options.WEBHOOK: WebhookSink,
    }
    assert set(sinks) == set(backend_options.TYPES)
    for type, sink in sinks.items():
        assert issubclass(sink, Comparable) is (type in SHAPES), type
    assert len(SHAPES) == 3


def test_a_name_is_shown_shortened() -> None:
    assert shown(b"client", b"a/\xff") == "client a/\\xff"
    assert shown(b"x" * 70_000) == "x" * (TEXT_CHARACTERS_MAX - 3) + "..."
