"""Errors of records. All are KafkaErrors: a handler answers with their code, and a client raises them."""

from ottla.protocol.errors import CorruptMessage, MessageTooLarge

__all__ = ["CorruptRecords", "DecompressedTooLarge", "UnreadableRecords"]


class CorruptRecords(CorruptMessage):
    """Bytes that violate their format: torn, a wrong checksum, lengths or counts that do not fit."""


class UnreadableRecords(CorruptRecords):
    """A whole batch whose records cannot be read: they were written like that, so a retry gives the same."""


class DecompressedTooLarge(MessageTooLarge):
    """Compressed data that is larger than the caller's limit. Nothing beyond the limit was allocated."""
