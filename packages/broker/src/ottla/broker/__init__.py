"""A Kafka-compatible broker in Python."""
