"""What a replicated log needs of Apache Kafka: clients, one topic, its reader and its sender."""
