"""What can be wrong with records. All are KafkaErrors, so a handler answers with their code and a client
raises them.
"""

from ottla.protocol.errors import CorruptMessage, MessageTooLarge

__all__ = ["CorruptRecords", "DecompressedTooLarge"]


class CorruptRecords(CorruptMessage):
    """Bytes that are not what their format promises: torn, a wrong checksum, lengths or counts that do not
    fit.
    """


class DecompressedTooLarge(MessageTooLarge):
    """Compressed data that would unfold to more than the caller's limit. Nothing beyond the limit was
    allocated.
    """
