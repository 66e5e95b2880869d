"""Errors of records. All are KafkaErrors: a handler answers with their code, and a client raises them."""

from ottla.protocol.errors import CorruptMessage, MessageTooLarge

__all__ = ["CorruptRecords", "DecompressedTooLarge"]


class CorruptRecords(CorruptMessage):
    """Bytes that violate their format: torn, a wrong checksum, lengths or counts that do not fit."""


class DecompressedTooLarge(MessageTooLarge):
    """Compressed data that is larger than the caller's limit. Nothing beyond the limit was allocated."""
