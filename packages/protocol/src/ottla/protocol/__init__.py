"""Kafka's wire protocol, record formats and storage layouts, without any IO."""

__all__: list[str] = []
