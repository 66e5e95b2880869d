"""Clusters of Kafka Connect: connectors and their tasks, and changes of them."""
