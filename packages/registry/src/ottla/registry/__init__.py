"""Schemas of records: a client for Confluent-compatible registries, serializers, and a small registry."""

__version__ = "0.1.0"
