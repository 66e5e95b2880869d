"""A Confluent-compatible schema registry: its subjects, and the values that were written with its schemas."""
