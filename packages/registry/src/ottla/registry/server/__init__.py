"""A schema registry with Confluent's interface; its state is a compacted topic, which several may share."""
